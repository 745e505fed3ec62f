"""What the tensor core's descriptors say: shared-memory descriptors, instruction descriptors, TMEM addresses.

A shared-memory descriptor (64 bits) says where one operand tile of a tcgen05.mma lies in shared memory; the instruction
descriptor (32 bits) says the shapes, types and signs. Each decoder checks every field, refuses what the ISA calls
invalid and keeps the fields (name, bits, value, meaning) for whoever draws them.

Sources: PTX ISA "Shared memory descriptor" (9.7.16.4.1), "Instruction descriptor" (9.7.16.4.2), "Canonical Layouts"
(9.7.16.3.3), "Matrix Shape" (9.7.16.2.1), "Tensor Memory Addressing" (9.7.16.1.1), "Data Path Layout" (9.7.16.10.5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxemu.errors import IllegalInstruction, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.bits import Field, bits, table

SWIZZLE_MODES = {
    0: sw.NONE,
    1: sw.SWIZZLE_128B_ATOM_32B,
    2: sw.SWIZZLE_128B,
    4: sw.SWIZZLE_64B,
    6: sw.SWIZZLE_32B,
}
SWIZZLE_CODES = {swizzle: code for code, swizzle in SWIZZLE_MODES.items()}
K_MAJOR, MN_MAJOR = 0, 1
MMA_K = 16
TMEM_LANES, TMEM_COLUMNS = 128, 512


def encode_matrix_field(x: int) -> int:
    """matrix-descriptor-encode of PTX ISA 9.7.16.4.1: bytes to the 14-bit field in units of 16 bytes."""
    return (x & 0x3FFFF) >> 4


@dataclass(frozen=True, slots=True)
class SmemDescriptor:
    """A decoded shared-memory descriptor.

    value: the 64 bits.  start: byte address of the first element.  lbo, sbo: leading and stride dimension byte offsets.
    base_offset: matrix base offset (0..7).  absolute: the leading dimension field is an address.  swizzle: the
    function.
    """

    value: int
    start: int
    lbo: int
    sbo: int
    base_offset: int
    absolute: bool
    swizzle: sw.Swizzle
    fields: tuple[Field, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return table(self.fields)

    def addresses(self, rows: int, major: int, k: int = MMA_K, itemsize: int = 2) -> NDArray[np.int64]:
        """Shared-memory byte address of every element of the operand, swizzle applied. Shape (rows, k).

        rows: M of an A operand, N of a B operand.  major: K_MAJOR or MN_MAJOR.  itemsize: bytes of an element.
        """
        return np.asarray(self.swizzle(self.start + linear_offsets(self, rows, major, k, itemsize)))


def decode_smem_descriptor(value: int) -> SmemDescriptor:
    """Decode the 64-bit shared-memory descriptor (PTX ISA 9.7.16.4.1).

    IllegalInstruction: a constant field is wrong or the swizzle mode is one of the invalid ones.
    """
    return _decode_smem(int(value) & 0xFFFF_FFFF_FFFF_FFFF)


@lru_cache(maxsize=1024)
def _decode_smem(value: int) -> SmemDescriptor:
    def bad(name: str, hi: int, lo: int, expected: str) -> IllegalInstruction:
        found = bits(value, hi, lo)
        return IllegalInstruction(
            f"shared-memory descriptor {value:#018x}: {name} (bits {lo}-{hi}) is {found:#x}, must be {expected}"
        )

    start, lbo, sbo = (bits(value, lo + 13, lo) * 16 for lo in (0, 16, 32))
    mode = bits(value, 63, 61)
    absolute = bool(bits(value, 52, 52))
    base_offset = bits(value, 51, 49)
    for hi, lo in ((15, 14), (31, 30)):
        if bits(value, hi, lo):
            raise bad("reserved field", hi, lo, "0")
    if bits(value, 48, 46) != 1:
        raise bad("the fixed constant", 48, 46, "0b001")
    if bits(value, 60, 53):
        raise bad("the fixed constant", 60, 53, "0")
    if mode not in SWIZZLE_MODES:
        raise bad("the swizzle mode", 63, 61, "0 (none), 1 (128B, 32B atom), 2 (128B), 4 (64B) or 6 (32B)")
    swizzle = SWIZZLE_MODES[mode]
    fields = (
        Field("start address", 13, 0, start >> 4, f"{start:#x}"),
        Field("leading dimension byte offset", 29, 16, lbo >> 4, f"{lbo} bytes"),
        Field("stride dimension byte offset", 45, 32, sbo >> 4, f"{sbo} bytes"),
        Field("fixed constant", 48, 46, 1, "0b001"),
        Field("matrix base offset", 51, 49, base_offset, str(base_offset)),
        Field("leading dimension mode", 52, 52, int(absolute), "absolute address" if absolute else "relative offset"),
        Field("fixed constant", 60, 53, 0, "0"),
        Field("swizzle mode", 63, 61, mode, swizzle.name),
    )
    return SmemDescriptor(value, start, lbo, sbo, base_offset, absolute, swizzle, fields)


def encode_smem_descriptor(start: int, lbo: int, sbo: int, swizzle: sw.Swizzle) -> int:
    """The 64-bit shared-memory descriptor of a tile. start, lbo, sbo: bytes, multiples of 16."""
    for name, x in (("start", start), ("lbo", lbo), ("sbo", sbo)):
        if x % 16 or not 0 <= x < 1 << 18:
            raise ValueError(f"{name} = {x}: must be a multiple of 16 in 0..2^18")
    return (
        encode_matrix_field(start)
        | encode_matrix_field(lbo) << 16
        | encode_matrix_field(sbo) << 32
        | 1 << 46
        | SWIZZLE_CODES[swizzle] << 61
    )


def check_supported(d: SmemDescriptor, major: int) -> None:
    """Refuse what this emulator does not model and what the ISA forbids for 16-bit operands.

    UnsupportedInstruction: a matrix base offset, the absolute leading-dimension mode (sm_103a, K of 48 bytes).
    IllegalInstruction: the 32-byte-atom swizzle with 16-bit transposed operands (PTX ISA 9.7.16.10.1) or K-major ones.
    """
    if d.base_offset:
        raise UnsupportedInstruction(
            f"shared-memory descriptor {d.value:#018x}: matrix base offset (bits 49-51) = {d.base_offset}; only tiles"
            f" whose swizzle pattern starts on a {d.swizzle.period}-byte boundary are emulated"
        )
    if d.absolute:
        raise UnsupportedInstruction(
            f"shared-memory descriptor {d.value:#018x}: absolute leading-dimension mode (bit 52), for K of 48 bytes"
        )
    if d.swizzle is sw.SWIZZLE_128B_ATOM_32B:
        raise IllegalInstruction(
            f"shared-memory descriptor {d.value:#018x}: 128B swizzle with 32B atoms is for transposed 32-bit operands"
            f" only, this one is {'MN' if major else 'K'}-major with 16-bit elements"
        )


def linear_offsets(d: SmemDescriptor, rows: int, major: int, k: int = MMA_K, itemsize: int = 2) -> NDArray[np.int64]:
    """Byte offset of element (row, k) from the descriptor's start, before the swizzle. Shape (rows, k).

    The canonical layouts of PTX ISA 9.7.16.3.3, with T = 16 / itemsize elements to a 16-byte chunk and W = chunks
    in a swizzle row (1, 2, 4 or 8):
        K-major, no swizzle    ((8, m), (T, k)) : ((T, SBO), (1, LBO))
        K-major, swizzled      ((8, m), (T, k)) : ((W T, SBO), (1, T))        LBO is not used
        MN-major, no swizzle   ((T, m), (8, k)) : ((1, SBO), (T, LBO))
        MN-major, swizzled     ((T, W, m), (8, k)) : ((1, T, LBO), (W T, SBO))
    """
    t = 16 // itemsize
    row = np.arange(rows, dtype=np.int64)[:, None]
    col = np.arange(k, dtype=np.int64)[None, :]
    span = d.swizzle.span
    if major == K_MAJOR:
        if span:
            return (row // 8) * d.sbo + (row % 8) * span + col * itemsize
        return (row // 8) * d.sbo + (row % 8) * 16 + (col // t) * d.lbo + (col % t) * itemsize
    if span:
        w = span // itemsize
        return (row // w) * d.lbo + (row % w) * itemsize + (col // 8) * d.sbo + (col % 8) * span
    return (row // t) * d.sbo + (row % t) * itemsize + (col // 8) * d.lbo + (col % 8) * 16


@lru_cache(maxsize=4096)
def chunk_indices(
    phase: int, lbo: int, sbo: int, swizzle: sw.Swizzle, rows: int, major: int
) -> tuple[NDArray[np.intp], int]:
    """Indices of the 16-byte chunks that one 16-bit operand of K = 16 is made of, and one past the highest.

    phase: start address modulo 1024, in which every swizzle repeats: the indices are relative to start - phase.
    K-major: shape (rows, 2), chunk (row, k // 8). MN-major: shape (rows / 8, 16), chunk (row // 8, k).
    """
    d = SmemDescriptor(0, phase, lbo, sbo, 0, False, swizzle)
    address = d.addresses(rows, major)
    first = address[:, ::8] if major == K_MAJOR else address[::8, :]
    index = (first // 16).astype(np.intp)
    return index, int(index.max()) + 1


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """A decoded instruction descriptor of kind::f16.

    m, n: rows of A, columns of B.  a, b: "f16" or "bf16".  d: "f16" or "f32".  a_major, b_major: K_MAJOR or MN_MAJOR.
    """

    value: int
    m: int
    n: int
    a: str
    b: str
    d: str
    a_major: int
    b_major: int
    a_negate: bool
    b_negate: bool
    fields: tuple[Field, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return table(self.fields)


def decode_instruction_descriptor(value: int, cta_group: int = 1) -> InstructionDescriptor:
    """Decode the 32-bit instruction descriptor of tcgen05.mma kind::f16 (PTX ISA 9.7.16.4.2, table 42).

    cta_group: 1 or 2, which shapes are legal depends on it.
    IllegalInstruction: a field holds a value that the ISA does not define for kind::f16, or the shape does not exist.
    UnsupportedInstruction: sparse MMA and .ws shifts.
    """
    return _decode_instruction(int(value) & 0xFFFF_FFFF, cta_group)


@lru_cache(maxsize=256)
def _decode_instruction(value: int, cta_group: int) -> InstructionDescriptor:
    fields: list[Field] = []

    def fail(text: str) -> IllegalInstruction:
        return IllegalInstruction(f"instruction descriptor {value:#010x} (kind::f16): {text}")

    def take(name: str, hi: int, lo: int, meanings: dict[int, str]) -> int:
        found = bits(value, hi, lo)
        if found not in meanings:
            known = ", ".join(f"{k} ({v})" for k, v in meanings.items())
            raise fail(f"{name} (bits {lo}-{hi}) is {found}, must be {known}")
        fields.append(Field(name, hi, lo, found, meanings[found]))
        return found

    inputs = {0: "f16", 1: "bf16"}
    sign = {0: "as it is", 1: "negated"}
    major = {K_MAJOR: "K-major", MN_MAJOR: "MN-major"}
    if bits(value, 2, 2):
        raise UnsupportedInstruction(f"instruction descriptor {value:#010x}: sparse MMA (bit 2) is not emulated")
    take("sparsity selector", 1, 0, {0: "dense"})
    take("sparsity", 2, 2, {0: "dense"})
    take("saturate", 3, 3, {0: "not for floats"})
    d = {0: "f16", 1: "f32"}[take("D type", 5, 4, {0: "f16", 1: "f32"})]
    take("reserved", 6, 6, {0: "0"})
    a = inputs[take("A type", 9, 7, inputs)]
    b = inputs[take("B type", 12, 10, inputs)]
    a_negate = bool(take("negate A", 13, 13, sign))
    b_negate = bool(take("negate B", 14, 14, sign))
    a_major = take("transpose A", 15, 15, major)
    b_major = take("transpose B", 16, 16, major)
    n = bits(value, 22, 17) * 8
    fields.append(Field("N / 8", 22, 17, n // 8, f"N = {n}"))
    take("reserved", 23, 23, {0: "0"})
    m = bits(value, 28, 24) * 16
    fields.append(Field("M / 16", 28, 24, m // 16, f"M = {m}"))
    take("reserved", 29, 29, {0: "0"})
    if bits(value, 31, 30):
        raise UnsupportedInstruction(f"instruction descriptor {value:#010x}: maximum shift (bits 30-31) is for .ws")
    take("maximum shift", 31, 30, {0: "none"})

    heights, step = ((64, 128), 8) if cta_group == 1 else ((128, 256), 16)
    if m not in heights:
        raise fail(f"M = {m} with cta_group::{cta_group}: must be {heights[0]} or {heights[1]}")
    if n % step or not step <= n <= 256:
        raise fail(f"N = {n} with cta_group::{cta_group}: must be a multiple of {step} up to 256")
    if d == "f16" and "bf16" in (a, b):
        raise fail("D of type f16 takes A and B of type f16 only")
    return InstructionDescriptor(value, m, n, a, b, d, a_major, b_major, a_negate, b_negate, tuple(fields))


def encode_instruction_descriptor(
    m: int, n: int, *, a: str = "bf16", b: str = "bf16", d: str = "f32", a_major: int = 0, b_major: int = 0
) -> int:
    """The 32-bit instruction descriptor of a dense kind::f16 MMA."""
    types = {"f16": 0, "bf16": 1}
    return (
        {"f16": 0, "f32": 1}[d] << 4
        | types[a] << 7
        | types[b] << 10
        | a_major << 15
        | b_major << 16
        | n // 8 << 17
        | m // 16 << 24
    )


def split_tmem_address(address: int) -> tuple[int, int]:
    """(lane, column) of a 32-bit TMEM address (PTX ISA 9.7.16.1.1)."""
    return bits(int(address), 31, 16), bits(int(address), 15, 0)


@lru_cache(maxsize=64)
def accumulator_lanes(m: int, lane: int) -> NDArray[np.intp] | slice:
    """TMEM lanes of rows 0..m-1 of D (and of A when it lies in TMEM), cta_group::1 without .ws.

    M = 128 is layout D, row i in lane i. M = 64 is layout F: sixteen rows to each warp's window, half of its lanes,
    the lower half when the address has lane 0 and the upper with lane 16. (PTX ISA 9.7.16.10.5.)
    """
    if m == 128:
        if lane:
            raise IllegalInstruction(f"TMEM lane {lane} for M = 128: the address must have lane 0")
        return slice(0, 128)
    if m != 64:
        raise UnsupportedInstruction(f"TMEM layout of M = {m}")
    if lane not in (0, 16):
        raise IllegalInstruction(f"TMEM lane {lane} for M = 64: the address must have lane 0 or 16")
    row = np.arange(64)
    return lane + (row % 16) + 32 * (row // 16)
