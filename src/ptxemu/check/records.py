"""The accesses that have been made: a number for each, with its epochs and what a report needs.

Two epochs: `component`/`clock` is what one has to know of for the access to be over; `by`/`at` is when it was issued.
They differ for asynchronous operations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ptx

GENERIC, BULK, TENSOR, TMEM, WGMMA = range(5)  # how an access is made
PROXY = {GENERIC: "generic", BULK: "async", TENSOR: "tcgen05", TMEM: "tcgen05", WGMMA: "async"}


@dataclass(slots=True, eq=False)
class Maker:
    """Who made some accesses, record numbers `first` on. warps: (CTA, warp, lane or None) of each record.

    what: words.  cells, lanes: of a generic access, each element's cell and lane (flat, in the order of `record`).
    """

    first: int
    ins: ptx.Instr
    what: str
    warps: list[tuple[int, int, int | None]]
    write: bool
    cells: Any = None
    lanes: Any = None
    records: Any = None
    barrier: tuple[int, int, int] | None = None  # of a bulk load: (CTA, offset, phase) of what it reports to
    ends: str = ""  # what has to be waited for, in words
    op: Any = None  # the asynchronous operation


class Records:
    """Numbers 1, 2, ... (0: nobody)."""

    def __init__(self) -> None:
        self.count = 1
        self.makers: list[Maker | None] = [None]
        self.component, self.clock, self.by, self.at = (np.zeros(4096, np.int32) for _ in range(4))
        self.kind = np.zeros(4096, np.int8)
        self.strong = np.zeros(4096, np.bool_)
        self.cluster = np.zeros(4096, np.int32)
        self.stamp = np.zeros(4096, np.int32)  # releases of the cluster by then, for other clusters

    def add(self, maker: Maker, n: int, kind: int, cluster: Any, strong: bool = False, stamp: Any = 0) -> int:
        """n new records; the first number. Their epochs are the caller's to fill in."""
        first, self.count = self.count, self.count + n
        if self.count > len(self.kind):
            size = 2 * self.count
            for name in ("component", "clock", "by", "at", "kind", "strong", "cluster", "stamp"):
                old = getattr(self, name)
                wide = np.zeros(size, old.dtype)
                wide[: len(old)] = old
                setattr(self, name, wide)
        maker.first = first
        self.makers.extend([maker] * n)
        self.kind[first : self.count] = kind
        self.strong[first : self.count] = strong
        self.cluster[first : self.count] = cluster
        self.stamp[first : self.count] = stamp
        return first

    def epochs(self, record: int, component: int, clock: int, by: int, at: int) -> None:
        """When one record is over, and when it was issued."""
        self.component[record], self.clock[record] = component, clock
        self.by[record], self.at[record] = by, at

    def maker(self, record: int) -> Maker:
        found = self.makers[record]
        assert found is not None
        return found
