"""Tensor maps: decoding, refusing what is not understood, and the maps that CuTe-DSL's host code writes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxemu.errors import IllegalInstruction, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.tensormap import SUB_BYTE, SWIZZLE_CODES, TYPE_CODES, TensorMap, tensor_map

# Words 1-7 as printed host functions of CuTe-DSL 4.8.1 hold them (sm_100a; words 0 and 3 hold nothing but address and
# strides): tensor sizes and byte strides innermost first, box, swizzle.
FROM_CUTE = {
    "bf16, no swizzle": (["0x1000040512", 0, 0, "0xff0000007f", 0, "0x3f00000000000000", 7], "bf16", sw.NONE),
    "bf16, 32B": (["0x1000042512", 0, 0, "0xff0000007f", 0, "0x0f00000000000000", 7], "bf16", sw.SWIZZLE_32B),
    "bf16, 64B": (["0x1000044512", 0, 0, "0xff0000007f", 0, "0x1f00000000000000", 7], "bf16", sw.SWIZZLE_64B),
    "bf16, 128B": (["0x1000046512", 0, 0, "0xff0000007f", 0, "0x3f00000000000000", 7], "bf16", sw.SWIZZLE_128B),
    "32B atoms": (["0x10000c6512", 0, 0, "0xff0000007f", 0, "0x3f00000000000000", 7], "bf16", sw.SWIZZLE_128B_ATOM_32B),
    "64B atoms": (["0x10001c6512", 0, 0, "0xff0000007f", 0, "0x3f00000000000000", 7], "bf16", sw.SWIZZLE_128B_ATOM_64B),
    "f16": (["0x1000040312", 0, 0, "0xff0000007f", 0, "0x0f00000000000000", 7], "f16", sw.NONE),
    "f32": (["0x2000240392", 0, 0, "0xff0000007f", 0, "0x0f00000000000000", 7], "f32", sw.NONE),
}


def raw(words: list, address: int = 0x7F0000001000) -> bytes:
    return struct.pack("<16Q", address, *(int(w, 16) if isinstance(w, str) else w for w in words), *[0] * 8)


@pytest.mark.parametrize("case", FROM_CUTE)
def test_maps_of_cute_host_code(case: str) -> None:
    words, element, swizzle = FROM_CUTE[case]
    m = TensorMap.decode(raw(words))
    assert (m.element, m.swizzle, m.sizes, m.fill, m.l2_promotion) == (element, swizzle, (128, 256), "zero", 128)
    assert m.strides == (m.itemsize, 128 * m.itemsize)
    assert m.box[1] == 8


def test_five_dimensions_of_cute_host_code() -> None:
    words = ["0x1000246342", "0x120000000600", "0x2400", "0x5f0000007f", "0x100000002", "0x3f00000000000001", "0x1f"]
    m = TensorMap.decode(raw(words))
    assert (m.rank, m.sizes, m.box) == (5, (128, 96, 3, 2, 2), (64, 32, 1, 1, 1))
    assert m.strides == (2, 256, 0x6000, 0x12000, 0x24000)
    assert m.box_bytes == 64 * 32 * 2


def word(m: TensorMap, number: int, change: int) -> bytes:
    words = list(struct.unpack("<16Q", m.encode()))
    words[number] ^= change
    return struct.pack("<16Q", *words)


SAMPLE = tensor_map(0x1000, "bf16", (128, 64), (256,), (64, 16), swizzle=sw.SWIZZLE_128B)


@pytest.mark.parametrize(
    ("number", "change", "field"),
    [
        (1, 1, "format"),
        (1, 7 << 4, "rank"),
        (1, 0xF << 7 ^ 10 << 7, "element type"),
        (1, 1 << 11, "interleave"),
        (1, 1 << 16, "TF32"),
        (1, 2 << 19, "swizzle atom"),
        (1, 1 << 22, "bits 22-31 of word 1"),
        (2, 1, "dimension 2"),
        (3, 1 << 48, "bits 48-63 of word 3"),
        (5, 1, "dimension 2"),
        (6, 1 << 47, "bits 47-55 of word 6"),
        (7, 1 << 32, "bits 32-63 of word 7"),
    ],
)
def test_unknown_bits_are_refused_with_the_name_of_the_field(number: int, change: int, field: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=field):
        TensorMap.decode(word(SAMPLE, number, change))


def test_impossible_maps_are_illegal() -> None:
    with pytest.raises(IllegalInstruction, match="128 bytes"):
        TensorMap.decode(b"short")
    with pytest.raises(IllegalInstruction, match="16-byte aligned"):
        TensorMap.decode(word(SAMPLE, 0, 8))
    with pytest.raises(IllegalInstruction, match="more than the swizzle"):
        TensorMap.decode(word(SAMPLE, 6, (64 + 64) << 56 ^ 0 << 56))
    with pytest.raises(IllegalInstruction, match="not a multiple of 16"):
        TensorMap.decode(word(SAMPLE, 6, 1 << 56))
    with pytest.raises(ValueError, match="float8"):
        tensor_map(0, "float8", (16,), (), (16,))


@given(data=st.data())
def test_encode_and_decode_agree(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 5))
    element = data.draw(st.sampled_from(sorted(set(TYPE_CODES) - set(SUB_BYTE))))
    swizzle = data.draw(st.sampled_from(list(SWIZZLE_CODES)))
    item = {"u8": 1, "u16": 2, "f16": 2, "bf16": 2, "u64": 8, "s64": 8, "f64": 8}.get(element, 4)
    m = tensor_map(
        16 * data.draw(st.integers(0, 1 << 40)),
        element,
        tuple(data.draw(st.integers(1, 1 << 32)) for _ in range(rank)),
        tuple(16 * data.draw(st.integers(0, (1 << 36) - 1)) for _ in range(rank - 1)),
        (
            16 // item * data.draw(st.integers(1, (swizzle.span or 128) // 16)),
            *(data.draw(st.integers(1, 256)) for _ in range(rank - 1)),
        ),
        element_strides=(1, *(data.draw(st.integers(1, 8)) for _ in range(rank - 1))),
        swizzle=swizzle,
        l2_promotion=data.draw(st.sampled_from([0, 64, 128, 256])),
    )
    assert TensorMap.decode(m.encode()) == m
    # The fields tell the whole story: every bit of the first 64 bytes that is set belongs to one of them.
    value = int.from_bytes(m.encode()[:64], "little")
    assert sum(f.value << f.lo for f in m.fields) == value
    assert "swizzle" in str(m)
