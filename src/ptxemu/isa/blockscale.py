"""Block scales of tcgen05.mma: which factor belongs to which block of K, and where the factors lie in tensor memory.

PTX ISA 9.7.16.10.7 "Block Scaling". A row of A (a column of B) is cut into blocks of 16 or 32 elements of K, each with
a factor of one byte: UE8M0 (a power of two) or UE4M3. In tensor memory the factors of row r lie in lane r % 32, in the
column r / 32 behind the address, one byte for each block from the byte "scale factor ID" on; past the fourth byte of a
word they go on in the next group of columns. All four windows of 32 lanes hold the same factors. With M = 128 over a
CTA pair the first two windows hold those of the first half of B's columns, the other two those of the second half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IllegalInstruction
from . import Decode
from .descriptors import InstructionDescriptor
from .minifloat import table
from .tmem import TmemState

WINDOW = 32

# .scale_vec::NX or .blockN -> elements of K to a factor, by kind
_BLOCK = {
    "mxf8f6f4": {"scale_vec::1X": 32, "block32": 32, None: 32},
    "mxf4": {"scale_vec::2X": 32, "block32": 32, None: 32},
    "mxf4nvf4": {"scale_vec::2X": 32, "block32": 32, "scale_vec::4X": 16, "block16": 16},
}


@dataclass(frozen=True, slots=True)
class Scales:
    """The block scales of one MMA. a, b: first columns of the factors of A and B.  block: elements of K to a factor."""

    a: int
    b: int
    block: int


def block_of(d: Decode, kind: str) -> int:
    """Elements of K to a factor, from the modifiers (PTX ISA 9.7.16.10.7.1, tables 54 and 55)."""
    vector = d.mods.one_of("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32", default=None)
    blocks: dict[str | None, int] = _BLOCK[kind]  # type: ignore[assignment]
    if vector not in blocks:
        raise d.unsupported(f".kind::{kind} goes with {', '.join(f'.{v}' for v in blocks if v)}, not .{vector}")
    return blocks[vector]


def column_of(address: int, what: str) -> int:
    """The column of a scale operand. Its two top bits are not looked at: CUTLASS keeps the byte in the word there."""
    lane, column = address >> 16 & 0x3FFF, address & 0xFFFF
    if lane:
        raise IllegalInstruction(f"tcgen05.mma: the scale factors of {what} at TMEM lane {lane}; it must be lane 0")
    return column


def check(shape: InstructionDescriptor, block: int) -> None:
    """The scale factor IDs and types that go with a block size (PTX ISA 9.7.16.10.7, table 55)."""
    count = shape.k // block
    allowed = {1: (0, 1, 2, 3), 2: (0, 2), 3: (0, 1, 2, 3), 4: (0,), 6: (0, 2)}[count]
    for what, found in (("A", shape.a_scale), ("B", shape.b_scale)):
        if found not in allowed:
            raise IllegalInstruction(
                f"tcgen05.mma with {count} scale factors to a row: the scale factor ID of {what} is {found}, must be"
                f" one of {allowed}"
            )
    if shape.scale == "ue4m3" and block != 16:
        raise IllegalInstruction("tcgen05.mma: factors of UE4M3 are for blocks of 16 elements (.block16) only")


def places(rows: int, count: int, first: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """(lane in the window, column behind the address, byte) of every factor, each (rows, count). first: the ID."""
    row = np.arange(rows)[:, None]
    at = first + np.arange(count)[None, :]
    groups = -(-rows // WINDOW)
    return row % WINDOW + 0 * at, row // WINDOW + at // 4 * max(groups, 4), at % 4 + 0 * row


def factors(
    cells: NDArray[np.uint32],
    state: TmemState,
    windows: tuple[int, ...],
    column: int,
    rows: int,
    count: int,
    first: int,
    kind: str,
    what: str,
    tell: Any = None,
) -> NDArray[np.float64]:
    """The factors of `rows` rows, (rows, count), as these windows of one CTA's tensor memory hold them.

    IllegalInstruction: columns not allocated, cells that nobody has written, windows that differ.  tell: called with
    (lanes, first column, columns) of what is read.
    """
    lane, behind, byte = places(rows, count, first)
    columns = int(behind.max()) + 1
    state.require(column, columns, f"tcgen05.mma, scale factors of {what}")
    found = None
    for window in windows:
        at = (WINDOW * window + lane, column + behind)
        if tell is not None:
            tell(slice(WINDOW * window, WINDOW * window + WINDOW), column, columns)
        if not state.written[at].all():
            raise IllegalInstruction(
                f"tcgen05.mma reads scale factors of {what} from TMEM lanes {WINDOW * window}-{WINDOW * window + 31},"
                f" columns {column}-{column + columns - 1}: not all of them have been written (all windows of 32 lanes"
                " need them: copy them with .warpx4)"
            )
        codes = (cells[at] >> (8 * byte).astype(np.uint32)) & np.uint32(0xFF)
        if found is not None and not np.array_equal(codes, found):
            raise IllegalInstruction(
                f"tcgen05.mma: the scale factors of {what} at TMEM columns {column}-{column + columns - 1} differ"
                f" between the windows of 32 lanes {windows[0]} and {window}; they must be the same (PTX ISA"
                " 9.7.16.10.7)"
            )
        found = codes
    assert found is not None
    return table(kind)[found].astype(np.float64)


def multiply(
    a: NDArray[np.float32], b: NDArray[np.float32], a_scales: NDArray[np.float64], b_scales: NDArray[np.float64]
) -> NDArray[np.float32]:
    """(A * scale_A) @ (B * scale_B).T for A (m, k), B (n, k) and factors (m, blocks), (n, blocks); summed in FP64."""
    blocks = a_scales.shape[1]
    left = a.reshape(len(a), blocks, -1) * a_scales[:, :, None]
    right = b.reshape(len(b), blocks, -1) * b_scales[:, :, None]
    total = left.reshape(len(a), -1) @ right.reshape(len(b), -1).T
    return total.astype(np.float32)
