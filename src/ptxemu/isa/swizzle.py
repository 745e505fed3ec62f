"""The shared-memory swizzles: XORs on absolute shared-memory byte addresses.

Source: PTX ISA, "Swizzling Modes" (5.5.7) for the bulk tensor copies and "Canonical Layouts" (9.7.16.3.3) for the
tensor core's operands. Both name the same function, written Swizzle<B, M, S>: the B address bits that start at bit
M + S are XORed onto the B bits that start at bit M. The bits are those of the *absolute* shared-memory address: a tile
that starts off the repeating pattern's boundary is swizzled as if the pattern had started at that boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Swizzle<bits, base, shift> on byte addresses.

    name: how the PTX ISA calls the mode.
    span: bytes of one row of the pattern (a box's inner dimension may be no longer): 32, 64, 128, or 0 for none.
    """

    name: str
    bits: int
    base: int
    shift: int
    span: int

    @property
    def mask(self) -> int:
        """The address bits that change."""
        return ((1 << self.bits) - 1) << self.base

    @property
    def atom(self) -> int:
        """Bytes that stay together (16, 32 or 64)."""
        return 1 << self.base

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats: the boundary on which it starts (PTX ISA 5.5.7)."""
        return 1 << (self.base + self.shift + self.bits) if self.bits else 16

    @overload
    def __call__(self, address: int) -> int: ...
    @overload
    def __call__(self, address: NDArray) -> NDArray: ...
    def __call__(self, address):
        """The address at which the byte that was meant for `address` lies. Its own inverse."""
        if not self.bits:
            return address
        return address ^ ((address >> self.shift) & self.mask)


NONE = Swizzle("none", 0, 4, 3, 0)
SWIZZLE_32B = Swizzle("32B", 1, 4, 3, 32)
SWIZZLE_64B = Swizzle("64B", 2, 4, 3, 64)
SWIZZLE_128B = Swizzle("128B", 3, 4, 3, 128)
SWIZZLE_128B_ATOM_32B = Swizzle("128B, 32B atom", 2, 5, 2, 128)
SWIZZLE_128B_ATOM_64B = Swizzle("128B, 64B atom", 1, 6, 1, 128)

ALL = (NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B, SWIZZLE_128B_ATOM_32B, SWIZZLE_128B_ATOM_64B)


def pattern(swizzle: Swizzle, rows: int = 8) -> NDArray[np.int64]:
    """The table of PTX ISA 5.5.7: entry (row, chunk) is the 16-byte chunk that lies there. Shape (rows, 8)."""
    address = np.arange(rows * 8, dtype=np.int64).reshape(rows, 8) * 16
    return (swizzle(address) // 16) % 8
