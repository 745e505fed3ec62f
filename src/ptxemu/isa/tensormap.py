"""The 128-byte tensor map (CUtensorMap): what a bulk tensor copy knows about its tensor and its box.

The PTX ISA calls the object opaque (5.5.8 "Tensor-map"). The layout below was read off descriptors: 450 of them
encoded by the driver API for random tensors (tests/ptxemu/data/tensormaps.json) and those that CuTe-DSL's compiled host
functions write. Eight little-endian 64-bit words carry it; the other eight are the driver's own and are not read.

    word 0   the tensor's global address
    word 1   0-3 format, 4-6 rank - 1, 7-10 element type, 11-12 interleave, 13-14 swizzle, 15 out-of-bounds fill,
             16 round to TF32, 17-18 L2 promotion, 19-20 swizzle atom, 21 "at least 128 KiB", 32-63 stride 1 / 16
    word 2   strides 2 and 3, / 16, low 32 bits
    word 3   stride 4 / 16, low 32 bits; 32-47 bits 32-35 of the four strides / 16
    word 4   sizes 0 and 1, less one;  word 5 sizes 2 and 3;  word 6 low half size 4
    word 6   32-46 element strides less one, three bits each; 56-63 box size 0 less one
    word 7   box sizes 1 to 4 less one, a byte each

Only the tiled mode is decoded; a bit pattern that is not in this list is refused with the field's name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache

from ptxemu.errors import IllegalInstruction, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.bits import Field, bits, table

MAX_RANK = 5
MAX_BOX = 256

# Encoded element type -> (name, bytes). The driver's enumeration is in another order.
ELEMENT_TYPES = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    3: ("s32", 4),
    4: ("u64", 8),
    5: ("s64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    8: ("f32.ftz", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
    11: ("b4x16", 1),
    12: ("b4x16_p64", 8),
    13: ("b6x16_p32", 12),
}
# Elements that are smaller than a byte (PTX ISA 5.5.1.1) come in items of several: type -> (elements of an item, bytes
# of an item in shared memory). The table above has the bytes of an item in global memory.
SUB_BYTE = {"b4x16": (2, 1), "b4x16_p64": (16, 16), "b6x16_p32": (16, 16)}
TYPE_CODES = {name: code for code, (name, _) in ELEMENT_TYPES.items()}
FLOATS = frozenset({"f16", "f32", "f32.ftz", "f64", "bf16"})

# (swizzle, atom) -> the function.
SWIZZLES = {
    (0, 0): sw.NONE,
    (1, 0): sw.SWIZZLE_32B,
    (2, 0): sw.SWIZZLE_64B,
    (3, 0): sw.SWIZZLE_128B,
    (3, 1): sw.SWIZZLE_128B_ATOM_32B,
    (3, 3): sw.SWIZZLE_128B_ATOM_64B,
}
SWIZZLE_CODES = {swizzle: code for code, swizzle in SWIZZLES.items()}
L2_PROMOTION = {0: 0, 1: 64, 2: 128, 3: 256}
INTERLEAVE = {0: "none", 1: "16B", 2: "32B"}
HALF_LINE = 1 << 17


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded tensor map, tiled mode.

    address: global byte address of element (0, ..., 0).
    element: element type, e.g. "bf16";  itemsize: its bytes.  Types of 4 and 6 bits come in items of 2 or 16 elements
    (`group`): all numbers here count items; `wide` is the bytes of an item in shared memory, padding included.
    sizes: elements in each dimension, innermost first;  strides: byte strides, strides[0] == itemsize.
    box: elements of the box in each dimension;  element_strides: traversal strides.
    swizzle: the shared-memory swizzle.  fill: "zero" or "nan" for what lies out of bounds.
    l2_promotion: bytes (0, 64, 128 or 256), a hint.  tf32: values are rounded to TF32 on the way in.
    fields: every bit field of the 128 bytes, bits counted from the first byte on (64 * word + bit).
    """

    address: int
    element: str
    itemsize: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: sw.Swizzle
    fill: str
    l2_promotion: int
    tf32: bool = False
    fields: tuple[Field, ...] = field(default=(), repr=False, compare=False)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def group(self) -> int:
        """Elements of an item: 1, but for types of 4 and 6 bits."""
        return SUB_BYTE.get(self.element, (1, 0))[0]

    @property
    def wide(self) -> int:
        """Bytes of an item in shared memory."""
        return SUB_BYTE.get(self.element, (1, self.itemsize))[1]

    @property
    def inner(self) -> int:
        """Bytes of the box's innermost dimension in shared memory."""
        return self.box[0] * self.wide

    def items(self, coords: list[int]) -> list[int]:
        """Coordinates of elements -> of items. IllegalInstruction: the first one is no multiple of what the type asks
        for (PTX ISA 9.7.9.25.5.1).
        """
        step = {1: 1, 2: 32, 16: 128}[self.group]
        if self.group == 1:
            return coords
        if coords[0] % step:
            raise IllegalInstruction(
                f"innermost coordinate {coords[0]} of {self.element}: must be a multiple of {step}"
            )
        return [coords[0] // self.group, *coords[1:]]

    @property
    def smem_box(self) -> tuple[int, ...]:
        """Elements written in each dimension: ceil(box / element stride), where dimension 0 has no stride."""
        return self.box[:1] + tuple(-(-b // s) for b, s in zip(self.box[1:], self.element_strides[1:], strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy moves, out-of-bounds elements included: what complete_tx counts."""
        n = self.wide
        for size in self.smem_box:
            n *= size
        return n

    def __str__(self) -> str:
        return table(self.fields)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> TensorMap:
        """Decode the 128 bytes of a tensor map.

        IllegalInstruction: not 128 bytes, or values that no encoder accepts. UnsupportedInstruction: a bit pattern
        that is not understood (the message names the field), interleaved layouts, the 8-byte-flip swizzle.
        """
        raw = bytes(data)
        if len(raw) != 128:
            raise IllegalInstruction(f"a tensor map has 128 bytes, not {len(raw)}")
        return _decode(raw[:64])

    def encode(self) -> bytes:
        """The 128 bytes of this map, as the driver API writes them for a sm_90 device (words 8-15 left zero)."""
        code, atom = SWIZZLE_CODES[self.swizzle]
        rank = self.rank
        strides = [s // 16 for s in self.strides[1:]] + [0] * (MAX_RANK - rank)
        sizes = [self.sizes[0] * self.group - 1, *(n - 1 for n in self.sizes[1:])] + [0] * (MAX_RANK - rank)
        box = [self.box[0] * self.group - 1, *(n - 1 for n in self.box[1:])] + [0] * (MAX_RANK - rank)
        promotion = next(k for k, v in L2_PROMOTION.items() if v == self.l2_promotion)
        word1 = (
            (rank - 1) << 4
            | TYPE_CODES[self.element] << 7
            | code << 13
            | (self.fill == "nan") << 15
            | self.tf32 << 16
            | promotion << 17
            | atom << 19
        )
        low = 0xFFFFFFFF
        words = [
            self.address,
            word1 | (strides[0] & low) << 32,
            (strides[1] & low) | (strides[2] & low) << 32,
            (strides[3] & low) | sum((s >> 32) << (32 + 4 * i) for i, s in enumerate(strides)),
            sizes[0] | sizes[1] << 32,
            sizes[2] | sizes[3] << 32,
            sizes[4] | sum((e - 1) << (32 + 3 * i) for i, e in enumerate(self.element_strides)) | box[0] << 56,
            sum(b << (8 * i) for i, b in enumerate(box[1:])),
        ]
        return struct.pack("<8Q", *words) + bytes(64)


def tensor_map(
    address: int,
    element: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    *,
    element_strides: tuple[int, ...] | None = None,
    swizzle: sw.Swizzle = sw.NONE,
    fill: str = "zero",
    l2_promotion: int = 0,
    tf32: bool = False,
) -> TensorMap:
    """A tensor map from its facts, checked. sizes, box: elements, innermost first; strides: bytes of dimensions 1 on.
    (Of types of 4 and 6 bits, too: elements.)

    ValueError: what the encoder of the driver API would refuse.
    """
    if element not in TYPE_CODES:
        raise ValueError(f"element type {element!r}: use one of {', '.join(TYPE_CODES)}")
    itemsize = ELEMENT_TYPES[TYPE_CODES[element]][1]
    group = SUB_BYTE.get(element, (1, 0))[0]
    if sizes[0] % group or box[0] % group:
        raise ValueError(f"the innermost size and box of {element} must be multiples of {group}")
    made = TensorMap(
        address,
        element,
        itemsize,
        (sizes[0] // group, *sizes[1:]),
        (itemsize, *strides),
        (box[0] // group, *box[1:]),
        element_strides or (1,) * len(sizes),
        swizzle,
        fill,
        l2_promotion,
        tf32,
    )
    problem = _problem(made)
    if problem:
        raise ValueError(problem)
    return TensorMap.decode(made.encode())


def _problem(m: TensorMap) -> str | None:
    """Why no encoder would have made this map; None if it could."""
    if not 1 <= m.rank <= MAX_RANK:
        return f"rank {m.rank} is not in 1..5"
    if not m.rank == len(m.strides) == len(m.box) == len(m.element_strides):
        return "sizes, strides, box and element strides differ in length"
    if m.address % 16:
        return f"global address {m.address:#x} is not 16-byte aligned"
    for i, stride in enumerate(m.strides[1:], 1):
        if stride % 16 or not 0 <= stride < 1 << 40:
            return f"stride {i} = {stride} bytes is not a multiple of 16 below 2^40"
    for i, (size, box, step) in enumerate(zip(m.sizes, m.box, m.element_strides, strict=True)):
        if not 1 <= size <= 1 << 32:
            return f"size {i} = {size} is not in 1..2^32"
        elements = box if i else box * m.group
        if not 1 <= elements <= MAX_BOX:
            return f"box size {i} = {elements} is not in 1..256"
        if not 1 <= step <= 8:
            return f"element stride {i} = {step} is not in 1..8"
    inner = m.inner
    if m.group == 16:
        if m.box[0] != 8 or m.sizes[0] % 8:
            return f"the box's inner dimension must be 128 elements of {m.element}, and the tensor's a multiple of it"
        if m.address % 32 or any(s % 32 for s in m.strides[1:]):
            return f"address and strides of a tensor of {m.element} must be multiples of 32 bytes"
        if m.swizzle.span not in (0, 128):
            return f"{m.element} goes with no swizzle or one of 128 bytes"
    if inner % 16:
        return f"the box's inner dimension is {inner} bytes, not a multiple of 16"
    if m.swizzle.span and inner > m.swizzle.span:
        return f"the box's inner dimension is {inner} bytes, more than the swizzle's {m.swizzle.span}"
    if m.fill == "nan" and m.element not in FLOATS:
        return f"NaN fill of {m.element}: only floating-point types have one"
    return None


@lru_cache(maxsize=256)
def _decode(raw: bytes) -> TensorMap:
    w = struct.unpack("<8Q", raw)
    fields: list[Field] = []

    def take(name: str, word: int, hi: int, lo: int, meaning=None) -> int:
        value = bits(w[word], hi, lo)
        text = meaning(value) if callable(meaning) else (meaning or str(value))
        fields.append(Field(name, 64 * word + hi, 64 * word + lo, value, text))
        return value

    def unknown(name: str, value: int, why: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(f"tensor map: {name} = {value:#x}: {why}; words {[hex(x) for x in w]}")

    address = take("global address", 0, 63, 0, hex)
    form = take("format", 1, 3, 0, lambda v: "tiled" if v in (0, 2) else "not understood")
    if form not in (0, 2):
        raise unknown("format (bits 0-3)", form, "only tiled maps are decoded (im2col is not)")
    rank = take("rank", 1, 6, 4, lambda v: f"{v + 1}") + 1
    if rank > MAX_RANK:
        raise unknown("rank - 1 (bits 4-6)", rank - 1, "ranks 1 to 5 exist")
    code = take("element type", 1, 10, 7, lambda v: ELEMENT_TYPES.get(v, ("?",))[0])
    if code not in ELEMENT_TYPES:
        raise unknown("element type (bits 7-10)", code, f"known are {ELEMENT_TYPES}")
    element, itemsize = ELEMENT_TYPES[code]
    interleave = take("interleave", 1, 12, 11, lambda v: INTERLEAVE.get(v, "?"))
    if interleave:
        raise unknown("interleave (bits 11-12)", interleave, "only the layout without interleave is emulated")
    mode = take("swizzle", 1, 14, 13, lambda v: ("none", "32B", "64B", "128B")[v])
    nan = take("out-of-bounds fill", 1, 15, 15, lambda v: "NaN" if v else "zero")
    tf32 = take("round to TF32", 1, 16, 16, lambda v: "yes" if v else "no")
    if tf32 and element not in ("f32", "f32.ftz"):
        raise unknown("round to TF32 (bit 16)", tf32, f"set with element type {element}")
    promotion = take("L2 promotion", 1, 18, 17, lambda v: f"{L2_PROMOTION[v]} bytes" if v else "none")
    atom = take("swizzle atom", 1, 20, 19, lambda v: ("16B", "32B", "32B with 8B flip", "64B")[v])
    if (mode, atom) not in SWIZZLES:
        raise unknown("swizzle atom (bits 19-20)", atom, f"not emulated with swizzle mode {mode}")
    take("spans at least 128 KiB", 1, 21, 21, lambda v: "yes" if v else "no or not said")
    reserved = bits(w[1], 31, 22)
    if reserved:
        raise unknown("bits 22-31 of word 1", reserved, "expected 0")

    low = [
        take("stride 1 / 16, low", 1, 63, 32),
        take("stride 2 / 16, low", 2, 31, 0),
        take("stride 3 / 16, low", 2, 63, 32),
        take("stride 4 / 16, low", 3, 31, 0),
    ]
    high = [take(f"stride {i + 1} / 16, high", 3, 35 + 4 * i, 32 + 4 * i) for i in range(4)]
    strides = [(hi << 32 | lo) * 16 for lo, hi in zip(low, high, strict=True)]
    if bits(w[3], 63, 48):
        raise unknown("bits 48-63 of word 3", bits(w[3], 63, 48), "expected 0")

    def less_one(v: int) -> str:
        return f"{v + 1}"

    sizes = [take(f"size {i} - 1", 4 + i // 2, 31 + 32 * (i % 2), 32 * (i % 2), less_one) + 1 for i in range(5)]
    steps = [take(f"element stride {i} - 1", 6, 34 + 3 * i, 32 + 3 * i, less_one) + 1 for i in range(5)]
    if bits(w[6], 55, 47):
        raise unknown("bits 47-55 of word 6", bits(w[6], 55, 47), "expected 0")
    box = [take("box 0 - 1", 6, 63, 56, less_one) + 1]
    box += [take(f"box {i + 1} - 1", 7, 7 + 8 * i, 8 * i, less_one) + 1 for i in range(4)]
    if bits(w[7], 63, 32):
        raise unknown("bits 32-63 of word 7", bits(w[7], 63, 32), "expected 0")
    for i in range(rank, MAX_RANK):
        if sizes[i] != 1 or box[i] != 1 or steps[i] != 1 or strides[i - 1]:
            raise unknown(f"dimension {i}", sizes[i] - 1, f"a map of rank {rank} leaves it 0")

    group = SUB_BYTE.get(element, (1, 0))[0]
    if sizes[0] % group or box[0] % group:
        raise unknown("sizes", sizes[0], f"elements of {element} come in groups of {group}")
    made = TensorMap(
        address,
        element,
        itemsize,
        (sizes[0] // group, *sizes[1:rank]),
        (itemsize, *strides[: rank - 1]),
        (box[0] // group, *box[1:rank]),
        tuple(steps[:rank]),
        SWIZZLES[mode, atom],
        "nan" if nan else "zero",
        L2_PROMOTION[promotion],
        bool(tf32),
        tuple(fields),
    )
    problem = _problem(made)
    if problem:
        raise IllegalInstruction(f"tensor map: {problem}")
    return made
