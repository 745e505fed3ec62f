"""Tensor memory: who has allocated which columns, which cells have been written, and how a warp's registers map onto
cells.

PTX ISA 9.7.16.1 "Tensor Memory" (128 lanes x 512 columns of 32 bits per CTA), 9.7.16.7 allocation, 9.7.16.2.3 "Data
Movement Shape".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import IllegalInstruction
from .descriptors import TMEM_COLUMNS, TMEM_LANES

UNIT = 32
UNITS = TMEM_COLUMNS // UNIT


@dataclass(slots=True)
class TmemState:
    """One CTA's tensor memory: allocations, the right to allocate, and which cells hold something.

    allocations: first column -> columns.  permit: may still allocate.  largest: columns of the latest allocation.
    written: bool (128, 512), cells that were written since their columns were allocated.  whole: places known to be
    written from end to end, so that nobody looks at every cell again.
    """

    allocations: dict[int, int] = field(default_factory=dict)
    permit: bool = True
    latest: int | None = None
    written: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((TMEM_LANES, TMEM_COLUMNS), np.bool_))
    whole: set[tuple[int, int, int, int]] = field(default_factory=set)

    def allocate(self, columns: int) -> int | None:
        """First column of a fresh allocation, or None when there is no room now (the instruction then waits).

        IllegalInstruction: columns is no power of two in 32..512, grows from one allocation to the next, or the right
        to allocate was given up.
        """
        if columns < UNIT or columns > TMEM_COLUMNS or columns & (columns - 1):
            raise IllegalInstruction(f"tcgen05.alloc of {columns} columns: must be a power of two in 32..512")
        if not self.permit:
            raise IllegalInstruction("tcgen05.alloc after tcgen05.relinquish_alloc_permit in this CTA")
        if self.latest is not None and columns > self.latest:
            raise IllegalInstruction(
                f"tcgen05.alloc of {columns} columns after one of {self.latest}: allocations of a CTA must not grow"
            )
        # Aligned to their own size, lowest first: what was allocated stays in one piece.
        for first in range(0, TMEM_COLUMNS, columns):
            if all(first + columns <= a or a + n <= first for a, n in self.allocations.items()):
                self.allocations[first] = columns
                self.latest = columns
                self.written[:, first : first + columns] = False
                self.whole.clear()
                return first
        return None

    def free(self, column: int, columns: int) -> None:
        """Give an allocation back. IllegalInstruction unless it is exactly one that was made."""
        if self.allocations.get(column) != columns:
            raise IllegalInstruction(
                f"tcgen05.dealloc of {columns} columns at column {column}: allocated are {self.describe() or 'none'}"
            )
        del self.allocations[column]

    def is_written(self, lanes: slice | NDArray[np.intp], column: int, columns: int) -> bool:
        """Whether all of these cells hold something."""
        if not isinstance(lanes, slice):
            return bool(self.written[lanes, column : column + columns].all())
        place = (lanes.start, lanes.stop, column, columns)
        if place in self.whole:
            return True
        if not self.written[lanes, column : column + columns].all():
            return False
        self.whole.add(place)
        return True

    def write(self, lanes: slice | NDArray[np.intp], column: int, columns: int) -> None:
        """Note these cells as written."""
        if not isinstance(lanes, slice):
            self.written[lanes, column : column + columns] = True
            return
        place = (lanes.start, lanes.stop, column, columns)
        if place not in self.whole:
            self.written[lanes, column : column + columns] = True
            self.whole.add(place)

    def describe(self) -> str:
        """The allocations in words."""
        return ", ".join(f"columns {a}-{a + n - 1}" for a, n in sorted(self.allocations.items()))

    def allocated(self, column: int, columns: int) -> bool:
        """Whether one allocation holds all of [column, column + columns)."""
        return any(first <= column and column + columns <= first + n for first, n in self.allocations.items())

    def require(self, column: int, columns: int, what: str) -> None:
        """IllegalInstruction unless [column, column + columns) is allocated."""
        if self.allocated(column, columns):
            return
        end = column
        while end < column + columns and any(a <= end < a + n for a, n in self.allocations.items()):
            end += 1
        if end < column + columns:
            raise IllegalInstruction(
                f"{what}: TMEM columns {column}-{column + columns - 1} are not all allocated (column {end} is not);"
                f" allocated are {self.describe() or 'none'}"
            )


# Shape -> (registers of .x1, columns of .x1, lanes), and the lane and column of each register of a thread.
SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
MAX_REGISTERS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Where the registers of a warp's tcgen05.ld or .st lie, relative to the instruction's address.

    lane, column: int arrays (registers, 32): the cell of register r of thread t. packed: two 16-bit halves of a
    register lie in the low halves of `column` and `column + 1`.  lanes, columns: extent that is touched.
    """

    lane: NDArray[np.intp]
    column: NDArray[np.intp]
    packed: bool
    lanes: int
    columns: int

    @property
    def registers(self) -> int:
        return len(self.lane)


@lru_cache(maxsize=512)
def fragment(shape: str, repeat: int, packed: bool = False, split: int = 0) -> Fragment:
    """The fragment of a shape with .x{repeat} (PTX ISA 9.7.16.2.3.1; checked against cute's copy atoms).

    With t the thread, in units of one repetition:
        32x32b    register j: lane t, column j
        16x64b    register j: lane t/4 + 8 (t%2), column 2 j + (t/2)%2
        16x128b   register 2j+h: lane t/4 + 8 h, column 4 j + t%4
        16x256b   register 4j+2h+e: lane t/4 + 8 h, column 8 j + 2 (t%4) + e
        16x32bx2  register j: lane t%16, column j, the upper half of the threads `split` columns further on
    packed: every column index counts 16-bit elements, two to a register. IllegalInstruction for a size that does not
    exist.
    """
    count = SHAPES[shape] * repeat
    if count > MAX_REGISTERS:
        raise IllegalInstruction(
            f"the shape .{shape} with .x{repeat} needs {count} registers, the most is {MAX_REGISTERS}"
        )
    t = np.arange(32)[None, :]
    r = np.arange(count)[:, None]
    if shape == "32x32b":
        lane, column = t + 0 * r, r + 0 * t
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t % 2) + 0 * r, 2 * r + t // 2 % 2
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
    elif shape == "16x256b":
        lane, column = t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
    else:
        lane, column = t % 16 + 0 * r, r + 0 * t
    if packed:
        column = 2 * column
    if shape == "16x32bx2":
        column = column + split * (t // 16)
    lanes = 32 if shape == "32x32b" else 16
    return Fragment(lane, column, packed, lanes, int(column.max()) + (2 if packed else 1))


def read_fragment(cells: NDArray[np.uint32], lane: int, column: int, f: Fragment) -> NDArray[np.uint32]:
    """The registers of one warp's tcgen05.ld. cells: (128, 512). Shape (registers, 32)."""
    if not f.packed:
        if f.lanes == 32:
            return cells[lane : lane + 32, column : column + f.columns].T
        return cells[lane + f.lane, column + f.column]
    low = cells[lane + f.lane, column + f.column] & np.uint32(0xFFFF)
    return low | cells[lane + f.lane, column + f.column + 1] << np.uint32(16)


def write_fragment(cells: NDArray[np.uint32], lane: int, column: int, f: Fragment, data: NDArray[np.uint32]) -> None:
    """Put the registers of one warp's tcgen05.st into cells (128, 512). data: (registers, 32)."""
    if not f.packed:
        if f.lanes == 32:
            cells[lane : lane + 32, column : column + f.columns] = data.T
        else:
            cells[lane + f.lane, column + f.column] = data
        return
    # The upper halves of the cells are not defined by the ISA; zero keeps runs reproducible.
    cells[lane + f.lane, column + f.column] = data & np.uint32(0xFFFF)
    cells[lane + f.lane, column + f.column + 1] = data >> np.uint32(16)


def mark_fragment(written: NDArray[np.bool_], lane: int, column: int, f: Fragment) -> None:
    """Note the cells of a fragment as written."""
    if f.lanes == 32:
        written[lane : lane + 32, column : column + f.columns] = True
        return
    written[lane + f.lane, column + f.column] = True
    if f.packed:
        written[lane + f.lane, column + f.column + 1] = True


def fragment_written(written: NDArray[np.bool_], lane: int, column: int, f: Fragment) -> bool:
    """Whether every cell of a fragment has been written."""
    if f.lanes == 32:
        return bool(written[lane : lane + 32, column : column + f.columns].all())
    whole = written[lane + f.lane, column + f.column].all()
    return bool(whole and (not f.packed or written[lane + f.lane, column + f.column + 1].all()))
