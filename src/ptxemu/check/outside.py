"""Global memory: shadows of the buffers that a kernel writes, and synchronisation beyond a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.tmabox import in_bounds
from ..memory import Allocation
from .shadow import Shadow

if TYPE_CHECKING:
    from ..isa.tensormap import TensorMap
    from ..machine import Warps

EARLY = 20_000  # reads of a buffer that are kept for the case that somebody writes to it later


class GlobalShadow:
    """One shadow for each buffer, made when it is first written; earlier reads are kept aside."""

    def __init__(self, check: Any) -> None:
        self.check = check
        self.granule = check.granule
        self.shadows: dict[int, tuple[Allocation, Shadow]] = {}  # by id of the shadow
        self.of: dict[int, Shadow] = {}  # by address of the allocation
        self.early: dict[int, list[tuple[Any, ...]]] = {}

    def find(self, a: Allocation, write: bool) -> Shadow | None:
        """The shadow of a buffer. None for one that nobody writes."""
        found = self.of.get(a.address)
        if found is None and write:
            cells = -(-(a.end - (a.address & -16)) // self.granule)
            found = self.of[a.address] = Shadow((cells,), self.check.records)
            self.shadows[id(found)] = a, found
            for cells_read, record in self.early.pop(a.address, ()):
                if isinstance(record, int):
                    found.read(cells_read, record)
                else:
                    found.read_each(cells_read, record)
        return found

    def base(self, a: Allocation) -> int:
        """Address of the first cell."""
        return a.address & -16

    def buffer(self, shadow: Shadow) -> Allocation:
        """The buffer of a shadow."""
        return self.shadows[id(shadow)][0]

    def ordered(self, shadow: Shadow, old: int, new: int) -> bool:
        """Whether synchronisation between clusters orders two accesses of different ones."""
        r = self.check.records
        one, two = int(r.cluster[old]), int(r.cluster[new])
        if shadow is self.check.shared or one == two or r.clock[old] != r.at[old]:
            return False
        return bool(self.check.strong.ordered(one, int(r.stamp[old]), two))

    def tensor(self, tensor: TensorMap, coords: list[int], write: bool) -> None:
        """The part of a tensor copy's box that lies in global memory."""
        m, g = self.check.machine, self.granule
        a = m.memory.find(tensor.address)
        shadow = self.find(a, write)
        if shadow is None and len(self.early.setdefault(a.address, [])) >= EARLY:
            return
        inside, first = in_bounds(tensor, coords)
        if any(s.stop <= s.start for s in inside):
            return
        item = tensor.itemsize
        where = np.zeros(1, np.int64) + tensor.address + first[0] * item
        for i in range(1, tensor.rank):
            n = inside[i].stop - inside[i].start
            step = tensor.strides[i] * tensor.element_strides[i]
            where = (where[:, None] + (first[i] * tensor.strides[i] + np.arange(n) * step)).reshape(-1)
        length = (inside[0].stop - inside[0].start) * item
        cells = ((where - self.base(a))[:, None] // g + np.arange(-(-length // g))).reshape(-1)
        number, known = self.check.record(write)
        if shadow is None:
            self.early[a.address].append((cells, number))
        else:
            self.check.access(shadow, cells, number, known, write)

    def run_of_bytes(self, address: int, nbytes: int, write: bool) -> None:
        """A run of bytes that an operation reads or writes."""
        a = self.check.machine.memory.find(address, nbytes)
        shadow = self.find(a, write)
        if shadow is None and len(self.early.setdefault(a.address, [])) >= EARLY:
            return
        first = (address - self.base(a)) // self.granule
        cells = np.arange(first, first + -(-nbytes // self.granule))
        number, known = self.check.record(write)
        if shadow is None:
            self.early[a.address].append((cells, number))
        else:
            self.check.access(shadow, cells, number, known, write)

    def generic(
        self,
        w: Warps,
        address: np.ndarray,
        size: int,
        ins: Any,
        what: str,
        write: bool,
        strong: bool,
        later: tuple[np.ndarray, np.ndarray, str] | None = None,
    ) -> None:
        """An access of a bundle. address: uint64, (warps, CTAs, 32)."""
        m = self.check.machine
        some = address if w.mask is None else address[w.mask]
        if not some.size:
            return
        low, high = int(some.min()), int(some.max())
        try:
            a = m.memory.find(low, high - low + size)
        except Exception:  # several buffers in one access: rare, and the instruction itself has been checked
            return
        if not a.writable:
            return
        shadow = self.find(a, write)
        if shadow is None and len(self.early.setdefault(a.address, [])) >= EARLY:
            return
        g = self.granule
        first = (address.astype(np.int64) - self.base(a)) // g
        cells = first[..., None] + np.arange(-(-size // g))
        self.check.generic(w, shadow, cells, ins, what, write, strong, self.early.get(a.address), later)
