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


def check_supported(d: SmemDescriptor, major: int, itemsize: int = 2, kbytes: int = 32) -> None:
    """Refuse what this emulator does not model and what the ISA forbids for an operand.

    itemsize: bytes of an element (of its container, where it is narrower).  kbytes: bytes of K, 32 or 48.
    UnsupportedInstruction: a matrix base offset.
    IllegalInstruction: a swizzle that does not go with the elements and their order (PTX ISA 9.7.16.10.3, table 52);
    the absolute leading-dimension mode but for K of 48 bytes (9.7.16.3.1.2).
    """
    if d.base_offset:
        raise UnsupportedInstruction(
            f"shared-memory descriptor {d.value:#018x}: matrix base offset (bits 49-51) = {d.base_offset}; only tiles"
            f" whose swizzle pattern starts on a {d.swizzle.period}-byte boundary are emulated"
        )
    if d.absolute and (kbytes != 48 or major != K_MAJOR or d.swizzle is not sw.SWIZZLE_128B):
        raise IllegalInstruction(
            f"shared-memory descriptor {d.value:#018x}: the absolute leading-dimension mode (bit 52) is for K of 48"
            f" bytes, K-major with the 128B swizzle; this operand has {kbytes} bytes of K, is"
            f" {'MN' if major else 'K'}-major, swizzle {d.swizzle.name}"
        )
    if (d.swizzle is sw.SWIZZLE_128B_ATOM_32B) != (major == MN_MAJOR and itemsize == 4):
        raise IllegalInstruction(
            f"shared-memory descriptor {d.value:#018x}: 128B swizzle with 32B atoms is for transposed 32-bit operands,"
            f" and they take no other; this one is {'MN' if major else 'K'}-major with {8 * itemsize}-bit elements,"
            f" swizzle {d.swizzle.name}"
        )


def linear_offsets(d: SmemDescriptor, rows: int, major: int, k: int = MMA_K, itemsize: int = 2) -> NDArray[np.int64]:
    """Byte offset of element (row, k) from the descriptor's start, before the swizzle. Shape (rows, k).

    The canonical layouts of PTX ISA 9.7.16.3.3, with T = 16 / itemsize elements to a 16-byte chunk and W = chunks
    in a swizzle row (1, 2, 4 or 8):
        K-major, no swizzle    ((8, m), (T, k)) : ((T, SBO), (1, LBO))
        K-major, swizzled      ((8, m), (T, k)) : ((W T, SBO), (1, T))        LBO is not used
        MN-major, no swizzle   ((T, m), (8, k)) : ((1, SBO), (T, LBO))
        MN-major, swizzled     ((T, W, m), (8, k)) : ((1, T, LBO), (W T, SBO))
        MN-major, 32B atoms    ((T, 8, m), (4, k)) : ((1, T, LBO), (8 T, SBO))
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
        deep = 4 if d.swizzle is sw.SWIZZLE_128B_ATOM_32B else 8
        return (row // w) * d.lbo + (row % w) * itemsize + (col // deep) * d.sbo + (col % deep) * span
    return (row // t) * d.sbo + (row % t) * itemsize + (col // 8) * d.lbo + (col % 8) * 16


@lru_cache(maxsize=4096)
def chunk_indices(
    phase: int, lbo: int, sbo: int, swizzle: sw.Swizzle, rows: int, major: int, itemsize: int = 2, kbytes: int = 32
) -> tuple[NDArray[np.intp], int]:
    """Indices of the 16-byte chunks that one operand is made of, and one past the highest.

    phase: start address modulo 1024, in which every swizzle repeats: the indices are relative to start - phase.
    itemsize: bytes of an element.  kbytes: bytes of K in a row, 32 (or 48).  With T = 16 / itemsize elements a chunk:
    K-major: shape (rows, kbytes / 16), chunk (row, k // T). MN-major: shape (rows / T, k), chunk (row // T, k).
    """
    d = SmemDescriptor(0, phase, lbo, sbo, 0, False, swizzle)
    t = 16 // itemsize
    address = d.addresses(rows, major, kbytes // itemsize, itemsize)
    first = address[:, ::t] if major == K_MAJOR else address[::t, :]
    index = (first // 16).astype(np.intp)
    return index, int(index.max()) + 1


def operand_chunks(
    d: SmemDescriptor, rows: int, major: int, itemsize: int = 2, kbytes: int = 32
) -> tuple[int, NDArray[np.intp], int]:
    """(base, indices of 16-byte chunks from base on, one past the highest) of an operand; see chunk_indices.

    In the absolute leading-dimension mode (PTX ISA 9.7.16.3.1.2) the bytes of K that would lie past the end of a
    128-byte row are those at the beginning of the row at the second address.
    """
    if not d.absolute:
        phase = d.start % 1024
        return d.start - phase, *chunk_indices(phase, d.lbo, d.sbo, d.swizzle, rows, major, itemsize, kbytes)
    return 0, *_chunks_at_two_places(d.start, d.lbo, d.sbo, d.swizzle, rows, kbytes)


@lru_cache(maxsize=1024)
def _chunks_at_two_places(
    start: int, second: int, sbo: int, swizzle: sw.Swizzle, rows: int, kbytes: int
) -> tuple[NDArray[np.intp], int]:
    row = np.arange(rows, dtype=np.int64)[:, None]
    position = start % 128 + 16 * np.arange(kbytes // 16, dtype=np.int64)[None, :]
    first, beyond = start - start % 128 + position, second + position - 128
    address = np.where(position < 128, first, beyond) + (row // 8) * sbo + (row % 8) * 128
    index = (np.asarray(swizzle(address)) // 16).astype(np.intp)
    return index, int(index.max()) + 1


@dataclass(frozen=True, slots=True)
class Kind:
    """What `.kind` of tcgen05.mma says (PTX ISA 9.7.16.2.1, table 39; 9.7.16.4.2, tables 42 to 44).

    inputs, outputs: code in the instruction descriptor -> type.  itemsize: bytes of an element of A and B in memory, or
    of its container.  k: elements of K.  scaled: has block scales.  transposes, negates: whether A and B may be.
    """

    name: str
    inputs: dict[int, str]
    outputs: dict[int, str]
    itemsize: int
    k: int
    scaled: bool = False
    transposes: bool = True
    negates: bool = True


FLOATS8 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
FLOATS4 = {1: "e2m1"}
FLOAT32 = {1: "f32"}
KINDS = {
    kind.name: kind
    for kind in (
        Kind("f16", {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}, 2, 16),
        Kind("tf32", {2: "tf32"}, FLOAT32, 4, 8),
        Kind("f8f6f4", FLOATS8, {0: "f16", 1: "f32"}, 1, 32),
        Kind("i8", {0: "u8", 1: "s8"}, {2: "s32"}, 1, 32, negates=False),
        Kind("mxf8f6f4", FLOATS8, FLOAT32, 1, 32, scaled=True),
        Kind("mxf4", FLOATS4, FLOAT32, 1, 64, scaled=True, transposes=False),
        Kind("mxf4nvf4", FLOATS4, FLOAT32, 1, 64, scaled=True, transposes=False),
    )
}


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """A decoded instruction descriptor of tcgen05.mma.

    m, n: rows of A, columns of B.  a, b, d: the types.  a_major, b_major: K_MAJOR or MN_MAJOR.  k: elements of K.
    kind: the name of the Kind.  saturate: of S32 sums.  With block scales: scale, their type ("ue8m0" or "ue4m3"), and
    a_scale, b_scale, the scale factor IDs.  shift: rows of B that a .ws MMA may shift by.
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
    kind: str = "f16"
    k: int = 16
    saturate: bool = False
    scale: str = ""
    a_scale: int = 0
    b_scale: int = 0
    shift: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element of A or B in shared memory (of its container)."""
        return KINDS[self.kind].itemsize

    @property
    def kbytes(self) -> int:
        """Bytes of K in a row of A or B."""
        return {64: 32, 96: 48}[self.k] if self.kind.startswith("mxf4") else self.k * self.itemsize

    def __str__(self) -> str:
        return table(self.fields)


def decode_instruction_descriptor(
    value: int, cta_group: int = 1, kind: str = "f16", stationary: bool = False
) -> InstructionDescriptor:
    """Decode the 32-bit instruction descriptor of tcgen05.mma (PTX ISA 9.7.16.4.2, tables 42 to 44).

    cta_group: 1 or 2, kind: "f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4" or "mxf4nvf4"; stationary: .ws. Which
    shapes are legal depends on them.
    IllegalInstruction: a field holds a value that the ISA does not define for the kind, or the shape does not exist.
    UnsupportedInstruction: sparse MMA.
    """
    return _decode_instruction(int(value) & 0xFFFF_FFFF, cta_group, kind, stationary)


class _Reader:
    """Takes a descriptor apart, field by field."""

    def __init__(self, value: int, kind: str) -> None:
        self.value, self.kind = value, kind
        self.fields: list[Field] = []

    def fail(self, text: str) -> IllegalInstruction:
        return IllegalInstruction(f"instruction descriptor {self.value:#010x} (kind::{self.kind}): {text}")

    def take(self, name: str, hi: int, lo: int, meanings: dict[int, str]) -> int:
        found = bits(self.value, hi, lo)
        if found not in meanings:
            known = ", ".join(f"{k} ({v})" for k, v in meanings.items())
            raise self.fail(f"{name} (bits {lo}-{hi}) is {found}, must be {known}")
        self.fields.append(Field(name, hi, lo, found, meanings[found]))
        return found

    def size(self, name: str, hi: int, lo: int, unit: int) -> int:
        found = bits(self.value, hi, lo)
        self.fields.append(Field(f"{name} / {unit}", hi, lo, found, f"{name} = {found * unit}"))
        return found * unit


@lru_cache(maxsize=256)
def _decode_instruction(value: int, cta_group: int, name: str, stationary: bool) -> InstructionDescriptor:
    kind, r = KINDS[name], _Reader(value, name)
    take = r.take
    sign = {0: "as it is", 1: "negated"} if kind.negates else {0: "as it is"}
    major = {K_MAJOR: "K-major", MN_MAJOR: "MN-major"} if kind.transposes else {K_MAJOR: "K-major"}
    if bits(value, 2, 2):
        raise UnsupportedInstruction(f"instruction descriptor {value:#010x}: sparse MMA (bit 2) is not emulated")
    take("reserved" if kind.scaled else "sparsity selector", 1, 0, {0: "dense"})
    take("sparsity", 2, 2, {0: "dense"})
    saturate, b_scale = 0, 0
    if kind.scaled:
        take("reserved", 3, 3, {0: "0"})
        b_scale = take("scale factor ID of B", 5, 4, {i: f"byte {i}" for i in range(4)})
        d = "f32"
    else:
        only = {0: "wraps", 1: "saturates"} if name == "i8" else {0: "not for floats"}
        saturate = take("saturate", 3, 3, only)
        d = kind.outputs[take("D type", 5, 4, kind.outputs)]
    take("reserved", 6, 6, {0: "0"})
    a = kind.inputs[take("A type", 9, 7, kind.inputs)]
    b = kind.inputs[take("B type", 12, 10, kind.inputs)]
    a_negate = bool(take("negate A", 13, 13, sign))
    b_negate = bool(take("negate B", 14, 14, sign))
    a_major = take("transpose A", 15, 15, major)
    b_major = take("transpose B", 16, 16, major)
    n = r.size("N", 22, 17, 8)
    scale, a_scale, shift, k = "", 0, 0, kind.k
    if kind.scaled:
        codes = {1: "ue8m0"} if name != "mxf4nvf4" else {0: "ue4m3", 1: "ue8m0"}
        scale = codes[take("scale type", 23, 23, codes)]
        take("reserved", 26, 24, {0: "0"})
        m = r.size("M", 28, 27, 128)
        a_scale = take("scale factor ID of A", 30, 29, {i: f"byte {i}" for i in range(4)})
        deep = {0: "32"} if name == "mxf8f6f4" else {0: "64", 1: "96"}
        k = int(deep[take("K dimension" if len(deep) > 1 else "reserved", 31, 31, deep)])
    else:
        take("reserved", 23, 23, {0: "0"})
        m = r.size("M", 28, 24, 16)
        take("reserved", 29, 29, {0: "0"})
        shifts = {0: "none", 1: "8", 2: "16", 3: "32"} if stationary else {0: "none (it is for .ws)"}
        code = take("maximum shift", 31, 30, shifts)
        shift = 4 << code if code else 0
    _check_shape(r, kind, cta_group, stationary, m, n, k, b_major)
    if d == "f16" and "bf16" in (a, b):
        raise r.fail("D of type f16 takes A and B of type f16 only")
    return InstructionDescriptor(
        value, m, n, a, b, d, a_major, b_major, a_negate, b_negate, tuple(r.fields), name, k, bool(saturate),
        scale, a_scale, b_scale, shift,
    )  # fmt: skip


def _check_shape(
    r: _Reader, kind: Kind, cta_group: int, stationary: bool, m: int, n: int, k: int, b_major: int
) -> None:
    """The shapes that exist (PTX ISA 9.7.16.2.1, table 39; 9.7.16.10.1, table 50)."""
    where = f"with cta_group::{cta_group}{' and .ws' if stationary else ''}"
    heights: tuple[int, ...]
    if stationary:
        heights, widths = (32, 64, 128), "64, 128 or 256"
        good = n in (64, 128, 256)
    else:
        heights = (64, 128) if cta_group == 1 else (128, 256)
        if kind.scaled and cta_group == 1:
            heights = (128,)
        if k == 96 and cta_group == 2:
            heights = (256,)
        step = 8 * cta_group
        if kind.name == "i8":
            step = 16 * cta_group if n > 32 or cta_group == 2 else 8
        if b_major == MN_MAJOR and kind.itemsize == 1:
            step = max(step, 16 * cta_group)
        good, widths = n % step == 0 and step <= n <= 256, f"a multiple of {step} up to 256"
    if m not in heights:
        raise r.fail(f"M = {m} {where}: must be {' or '.join(map(str, heights))}")
    if not good:
        raise r.fail(f"N = {n} {where}: must be {widths}")


def encode_instruction_descriptor(
    m: int,
    n: int,
    *,
    a: str = "bf16",
    b: str = "bf16",
    d: str = "f32",
    a_major: int = 0,
    b_major: int = 0,
    kind: str = "f16",
    saturate: bool = False,
    scale: str = "ue8m0",
    a_scale: int = 0,
    b_scale: int = 0,
    k: int | None = None,
    shift: int = 0,
) -> int:
    """The 32-bit instruction descriptor of a dense MMA. See InstructionDescriptor for what the arguments mean."""
    types = KINDS[kind]
    codes = {name: code for code, name in types.inputs.items()}
    common = codes[a] << 7 | codes[b] << 10 | a_major << 15 | b_major << 16 | n // 8 << 17
    if types.scaled:
        deep = int(k == 96)
        return common | b_scale << 4 | int(scale == "ue8m0") << 23 | m // 128 << 27 | a_scale << 29 | deep << 31
    outputs = {name: code for code, name in types.outputs.items()}
    code = {0: 0, 8: 1, 16: 2, 32: 3}[shift]
    return common | int(saturate) << 3 | outputs[d] << 4 | m // 16 << 24 | code << 30


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
