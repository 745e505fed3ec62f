"""Shadow memory: for every cell the latest write and the reads since.

A cell is a few bytes of shared or global memory, or 16 lanes of one column of tensor memory. `last[cell]` is the number
of the record that wrote it (0: nobody), `reads` are a few arrays of the records that have read it since, one for each
reader that another does not stand for. FastTrack (Flanagan and Freund, PLDI 2009) keeps epochs in their place; numbers
of records lead to the epochs and to the report.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import Records

SLOTS = 8  # arrays of readers; a few cells with more readers keep the others in a dict
FEW = 64

Cells = NDArray[np.int32]


class Rows:
    """Cells by rows of `per`, which NumPy moves faster than single ones: row numbers `index`."""

    __slots__ = ("index", "per")

    def __init__(self, index: NDArray[np.intp], per: int) -> None:
        self.index, self.per = index, per


def get(cells: NDArray[Any], key: Any) -> NDArray[Any]:
    """The cells at a key: an index, or Rows."""
    return cells.reshape(-1, key.per)[key.index] if type(key) is Rows else cells[key]


def put(cells: NDArray[Any], key: Any, value: Any) -> None:
    """Write to the cells at a key."""
    if type(key) is Rows:
        cells.reshape(-1, key.per)[key.index] = value
    else:
        cells[key] = value


class Shadow:
    """The shadow of one memory. shape: of its cells; every index that NumPy understands is a set of cells, and Rows."""

    def __init__(self, shape: tuple[int, ...], records: Records) -> None:
        self.records = records
        self.last: Cells = np.zeros(shape, np.int32)
        self.reads: list[Cells] = []
        self.more: dict[int, list[int]] = {}  # flat cell -> further readers
        self.crowded: NDArray[np.bool_] | None = None

    def readers(self, key: Any) -> list[Cells]:
        """The reads since the last write of these cells: arrays of records, each the shape of the cells."""
        found = [get(reads, key) for reads in self.reads]
        found = [r for r in found if r.any()]
        if self.crowded is not None and get(self.crowded, key).any():
            flat = self.flat(key)
            lists = [self.more.get(int(c), []) for c in flat.ravel()]
            for i in range(max(map(len, lists), default=0)):
                found.append(np.array([x[i] if i < len(x) else 0 for x in lists], np.int32).reshape(np.shape(flat)))
        return found

    def wrote(self, key: Any, record: Any) -> None:
        """These cells have a new last write, and no reads since."""
        put(self.last, key, record)
        for reads in self.reads:
            put(reads, key, 0)
        if self.crowded is not None and get(self.crowded, key).any():
            flat = self.flat(key)
            for c in flat.ravel().tolist():
                self.more.pop(c, None)
            put(self.crowded, key, False)

    def read(self, key: Any, record: Any) -> None:
        """One operation has read these cells; or several, a record for each cell."""
        component = self.records.component
        mine = component[record]
        left: Any = None
        slot = -1
        while True:
            slot += 1
            if slot >= max(SLOTS, len(self.reads)) and int(left.sum()) <= FEW:
                break
            if slot == len(self.reads):
                self.reads.append(np.zeros_like(self.last))
            reads = self.reads[slot]
            old = get(reads, key)
            # A later operation of the same component stands for the earlier ones.
            free = (old == 0) | (component[old] == mine)
            if left is not None:
                free &= left
            if left is None and free.all():
                put(reads, key, record)
                return
            put(reads, key, np.where(free, record, old))
            left = ~free if left is None else left & ~free
            if not left.any():
                return
        flat = self.flat(key)
        self._crowd(flat[left], np.broadcast_to(record, flat.shape)[left])

    def read_each(self, cells: NDArray[np.intp], records: NDArray[np.int32]) -> None:
        """Many records at once, each its own cells (1-D, the same cell may come several times)."""
        component = self.records.component
        slot = -1
        while True:
            slot += 1
            if slot >= max(SLOTS, len(self.reads)) and cells.size <= FEW:
                break
            if slot == len(self.reads):
                self.reads.append(np.zeros_like(self.last))
            reads = self.reads[slot].reshape(-1)
            old = reads[cells]
            free = (old == 0) | (component[old] == component[records])
            if free.all():
                reads[cells] = records
            else:
                reads[cells[free]] = records[free]
            now = reads[cells]
            lost = now != records
            if lost.any():  # somebody else of the same call, or an earlier reader, has the place
                lost &= component[now] != component[records]
            if not lost.any():
                return
            cells, records = cells[lost], records[lost]
        self._crowd(cells, records)

    def _crowd(self, cells: Any, records: Any) -> None:
        if self.crowded is None:
            self.crowded = np.zeros(self.last.shape, np.bool_)
        component = self.records.component
        for c, r in zip(cells.tolist(), records.tolist(), strict=True):
            readers = self.more.setdefault(c, [])
            for i, other in enumerate(readers):
                if component[other] == component[r]:
                    readers[i] = r
                    break
            else:
                readers.append(r)
        self.crowded.reshape(-1)[cells] = True

    def clear(self, key: Any) -> None:
        """Forget these cells."""
        self.wrote(key, 0)

    def flat(self, key: Any) -> NDArray[np.intp]:
        """The cells at `key` as flat numbers, in the same shape."""
        return get(np.arange(self.last.size).reshape(self.last.shape), key)
