"""The memories: global (the host process's own), shared (one array for all resident CTAs), local, and the generic
        windows onto them.

PTX ISA "State Spaces", "Generic Addressing". Global addresses are host addresses: nothing is copied, but only
registered allocations may be
touched. A shared-space address is `(rank of the CTA in its cluster << 24) | offset`, so that the shared::cta window
lies within the
shared::cluster window; the first 1024 bytes of each CTA are the system's, as on the hardware.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import MemoryFault

SHARED_RESERVED = 1024
SHARED_RANK_SHIFT = 24
SHARED_WINDOW = 1 << 56  # generic address of shared-space address 0; no host address comes near
LOCAL_WINDOW = 2 << 56
WINDOW_BITS = 0xFF << 56


@dataclass(slots=True, eq=False)
class Allocation:
    """A stretch of global memory that the kernel may touch: `name` for messages, host `address`, `nbytes`."""

    name: str
    address: int
    nbytes: int
    writable: bool = True
    _rows: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def end(self) -> int:
        return self.address + self.nbytes

    @property
    def bytes(self) -> np.ndarray:
        """All of it as uint8."""
        return self.rows(1).reshape(-1)

    def rows(self, nbytes: int) -> np.ndarray:
        """uint8 rows of `nbytes` (a power of two), starting at the address rounded down to a multiple of it.

        The first and last row may reach past the allocation; callers check bounds before they touch them.
        """
        found = self._rows.get(nbytes)
        if found is None:
            start = self.address & -nbytes
            count = -(-(self.end - start) // nbytes)
            buffer = memoryview((ctypes.c_uint8 * (count * nbytes)).from_address(start))
            found = self._rows[nbytes] = np.frombuffer(buffer, np.uint8).reshape(count, nbytes)
        return found

    def elements(self, itemsize: int, count: int) -> tuple[np.ndarray, int]:
        """Rows of `count` unsigned integers of `itemsize` bytes, and the address of row 0."""
        row = itemsize * count
        key = row | itemsize << 16
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self.rows(row).view(f"u{itemsize}")
        return found, self.address & -row


class GlobalMemory:
    """The registered allocations, searched by address."""

    def __init__(self, allocations: list[Allocation]) -> None:
        self.allocations = sorted((a for a in allocations if a.nbytes > 0), key=lambda a: a.address)
        self.starts = [a.address for a in self.allocations]

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        """The allocation that holds all of [address, address + nbytes); MemoryFault outside of every allocation."""
        i = bisect_right(self.starts, address)
        # Allocations may overlap (two tensors over one buffer): look back at earlier starts, nearest first.
        for j in range(i - 1, -1, -1):
            if address + nbytes <= self.allocations[j].end:
                return self.allocations[j]
        raise MemoryFault(
            f"global address {address:#x} ({nbytes} bytes) lies in no buffer of this launch; {self.nearest(address)}"
        )

    def nearest(self, address: int) -> str:
        """Words about the allocation nearest to an address."""
        if not self.allocations:
            return "the launch has no buffers"

        def distance(a: Allocation) -> int:
            return a.address - address if address < a.address else max(0, address - a.end + 1)

        a = min(self.allocations, key=distance)
        if address < a.address:
            place = f"{a.address - address} bytes before"
        elif address >= a.end:
            place = f"{address - a.end} bytes past the end of"
        else:
            place = f"{address - a.address} bytes into"
        return f"it is {place} {a.name} ({a.address:#x}, {a.nbytes} bytes)"

    def view(
        self, address: int, nbytes: int, dtype: Any = np.uint8, write: bool = False, what: str = "access"
    ) -> np.ndarray:
        """A 1-D view of global memory. MemoryFault outside of every allocation, in a read-only one (write), or
        misaligned for dtype.
        """
        a = self.find(address, nbytes)
        if write and not a.writable:
            raise MemoryFault(f"{what}: write to {a.name}, which is read-only")
        size = np.dtype(dtype).itemsize
        if address % size:
            raise MemoryFault(f"{what}: address {address:#x} is not a multiple of {size}")
        return a.bytes[address - a.address : address - a.address + nbytes].view(dtype)


class SharedMemory:
    """Shared memory of all resident CTAs: `bytes` is uint8 [CTA, offset], offsets from 0 (the first 1024 are the
    system's).
    """

    def __init__(self, ctas: int, size: int, cluster_size: int) -> None:
        self.size = SHARED_RESERVED + -(-size // 16) * 16
        self.bytes = np.zeros((ctas, -(-self.size // 128) * 128), np.uint8)
        self.cluster_size = cluster_size
        self._rows: dict[tuple[int, int], np.ndarray] = {}

    def reset(self, fill: int) -> None:
        self.bytes.fill(fill)

    def elements(self, itemsize: int, count: int) -> np.ndarray:
        """The whole of it as rows of `count` unsigned integers of `itemsize` bytes."""
        found = self._rows.get((itemsize, count))
        if found is None:
            found = self._rows[itemsize, count] = self.bytes.reshape(-1, itemsize * count).view(f"u{itemsize}")
        return found

    def locate(self, cta: int, address: int) -> tuple[int, int]:
        """A shared-space address as resident CTA `cta` sees it -> (owning resident CTA, byte offset). MemoryFault if
        it is nobody's.
        """
        rank, offset = address >> SHARED_RANK_SHIFT, address & (1 << SHARED_RANK_SHIFT) - 1
        if rank >= self.cluster_size or not SHARED_RESERVED <= offset < self.size:
            raise MemoryFault(self.outside(address))
        return cta - cta % self.cluster_size + rank, offset

    def outside(self, address: int) -> str:
        """Words about a shared-space address that is not a CTA's own memory."""
        offset = address & (1 << SHARED_RANK_SHIFT) - 1
        kind = "the system's first 1024 bytes" if offset < SHARED_RESERVED else f"past the end, {self.size:#x}"
        if address >> SHARED_RANK_SHIFT >= self.cluster_size:
            kind = f"CTA rank {address >> SHARED_RANK_SHIFT} of a cluster of {self.cluster_size}"
        return f"shared address {address:#x} is outside of shared memory ({kind})"

    def view(self, cta: int, offset: int, nbytes: int, dtype: Any = np.uint8) -> np.ndarray:
        """A 1-D view of a CTA's shared memory at a byte offset (as `locate` gives it)."""
        if offset < SHARED_RESERVED or offset + nbytes > self.size:
            raise MemoryFault(
                f"shared bytes [{offset:#x}, {offset + nbytes:#x}) reach outside of a CTA's shared memory, which "
                f"ends at {self.size:#x}"
            )
        return self.bytes[cta, offset : offset + nbytes].view(dtype)
