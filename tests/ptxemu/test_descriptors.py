"""Descriptors of the tensor core: fields, refusals, and addresses against cute's own shared-memory layouts."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxemu.errors import IllegalInstruction, MemoryFault, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import (
    K_MAJOR,
    MN_MAJOR,
    SWIZZLE_CODES,
    accumulator_lanes,
    check_supported,
    decode_instruction_descriptor,
    decode_smem_descriptor,
    encode_instruction_descriptor,
    encode_smem_descriptor,
    split_tmem_address,
)
from ptxemu.isa.mma import operand_bits

cute = pytest.importorskip("cutlass.cute")

ROWS, DEPTH = 128, 64
KINDS = {
    ("K_INTER", K_MAJOR): sw.NONE,
    ("K_SW32", K_MAJOR): sw.SWIZZLE_32B,
    ("K_SW64", K_MAJOR): sw.SWIZZLE_64B,
    ("K_SW128", K_MAJOR): sw.SWIZZLE_128B,
    ("MN_INTER", MN_MAJOR): sw.NONE,
    ("MN_SW32", MN_MAJOR): sw.SWIZZLE_32B,
    ("MN_SW64", MN_MAJOR): sw.SWIZZLE_64B,
    ("MN_SW128", MN_MAJOR): sw.SWIZZLE_128B,
}
ORDERS = [(0, 1), (1, 0)]


@lru_cache(maxsize=1)
def cute_layouts() -> dict:
    """A (128, 64) bf16 tile as cute lays it out: (kind, order) -> sampled {(i, k): byte offset}, and plain offsets.

    A shared-memory pointer applies the swizzle to bytes, so the layout's swizzle is taken of twice the element offset.
    """
    import cutlass
    from cutlass.cute.nvgpu import tcgen05

    rng = random.Random(1)
    places = [(rng.randrange(ROWS), rng.randrange(DEPTH)) for _ in range(300)]
    found = {}

    def evaluate() -> None:
        for kind, _ in KINDS:
            atom = tcgen05.make_smem_layout_atom(getattr(tcgen05.SmemLayoutAtomKind, kind), cutlass.BFloat16)
            for order in ORDERS:
                layout = cute.tile_to_shape(atom, (ROWS, DEPTH), order)
                in_bytes = cute.make_composed_layout(layout.inner, 0, cute.make_layout(4 * ROWS * DEPTH))
                plain = {(i, k): layout.outer((i, k)) for i in (0, 8, 16, 32, 64) for k in (0, 8, 16, 32, 48)}
                found[kind, order] = ({at: in_bytes(2 * layout.outer(at)) for at in places}, plain)

    @cute.jit
    def host() -> None:
        evaluate()

    host()
    return found


def strides(swizzle: sw.Swizzle, major: int, plain: dict) -> tuple[int, int]:
    """(LBO, SBO) in bytes of a tile, read off cute's layout as PTX ISA 9.7.16.3.3 defines them."""
    if major == K_MAJOR:
        return (2 * plain[0, 8] if swizzle is sw.NONE else 16), 2 * plain[8, 0]
    if swizzle is sw.NONE:
        return 2 * plain[0, 8], 2 * plain[8, 0]
    return 2 * plain[swizzle.span // 2, 0], 2 * plain[0, 8]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k[0])
def test_addresses_as_cute_lays_the_tile_out(kind: tuple[str, int], order: tuple[int, int]) -> None:
    name, major = kind
    swizzle = KINDS[kind]
    offsets, plain = cute_layouts()[name, order]
    lbo, sbo = strides(swizzle, major, plain)
    base = 5 * 1024
    tiles = {}
    for slab in range(DEPTH // 16):
        d = decode_smem_descriptor(encode_smem_descriptor(base + 2 * plain[0, 16 * slab], lbo, sbo, swizzle))
        check_supported(d, major)
        assert (d.lbo, d.sbo, d.swizzle) == (lbo, sbo, swizzle)
        tiles[slab] = d.addresses(ROWS, major)
    for (i, k), offset in offsets.items():
        assert tiles[k // 16][i, k % 16] == base + offset


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k[0])
@pytest.mark.parametrize("rows", [8, 64, 128, 256])
def test_operand_gather_is_the_address_function(kind: tuple[str, int], rows: int) -> None:
    _, major = kind
    swizzle = KINDS[kind]
    rng = np.random.default_rng(rows)
    shared = rng.integers(0, 256, 160 << 10, dtype=np.uint8)
    for start in (1024, 1024 + 32, 9 * 1024 + 96, 2048 + 128):
        d = decode_smem_descriptor(encode_smem_descriptor(start, 2064 if not swizzle.span else 4096, 1024, swizzle))
        address = d.addresses(rows, major)
        expected = shared[address] | shared[address + 1].astype(np.uint16) << 8
        assert np.array_equal(operand_bits(shared, d, rows, major), expected)


def test_operands_outside_of_shared_memory_are_a_fault() -> None:
    shared = np.zeros(8192, np.uint8)
    d = decode_smem_descriptor(encode_smem_descriptor(4096, 16, 1024, sw.SWIZZLE_128B))
    operand_bits(shared, d, 32, K_MAJOR, first=1024)
    with pytest.raises(MemoryFault, match="0x1000"):
        operand_bits(shared, d, 64, K_MAJOR, first=1024)
    with pytest.raises(MemoryFault):
        operand_bits(
            shared, decode_smem_descriptor(encode_smem_descriptor(0, 16, 256, sw.NONE)), 8, K_MAJOR, first=1024
        )


@given(
    start=st.integers(0, (1 << 14) - 1),
    lbo=st.integers(0, (1 << 14) - 1),
    sbo=st.integers(0, (1 << 14) - 1),
    swizzle=st.sampled_from(list(SWIZZLE_CODES)),
)
def test_smem_descriptor_fields(start: int, lbo: int, sbo: int, swizzle: sw.Swizzle) -> None:
    value = encode_smem_descriptor(16 * start, 16 * lbo, 16 * sbo, swizzle)
    d = decode_smem_descriptor(value)
    assert (d.start, d.lbo, d.sbo, d.swizzle) == (16 * start, 16 * lbo, 16 * sbo, swizzle)
    assert sum(f.value << f.lo for f in d.fields) == value
    assert all(f.value >> (f.hi - f.lo + 1) == 0 for f in d.fields)
    assert "swizzle mode" in str(d)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 53, 60, 61])
def test_bad_smem_descriptors_name_the_field(bit: int) -> None:
    value = encode_smem_descriptor(1024, 16, 1024, sw.SWIZZLE_128B)
    with pytest.raises(IllegalInstruction, match="bits"):
        decode_smem_descriptor(value ^ 1 << bit)


def test_unsupported_and_illegal_descriptors() -> None:
    value = encode_smem_descriptor(1024, 16, 1024, sw.SWIZZLE_128B)
    with pytest.raises(UnsupportedInstruction, match="base offset"):
        check_supported(decode_smem_descriptor(value | 1 << 49), K_MAJOR)
    with pytest.raises(IllegalInstruction, match="absolute"):
        check_supported(decode_smem_descriptor(value | 1 << 52), K_MAJOR)
    atom = decode_smem_descriptor(encode_smem_descriptor(1024, 16, 1024, sw.SWIZZLE_128B_ATOM_32B))
    with pytest.raises(IllegalInstruction, match="32B atoms"):
        check_supported(atom, MN_MAJOR)


def test_instruction_descriptor() -> None:
    # What CuTe-DSL gives a 128x256 fp16 MMA with FP32 accumulation, both operands K-major.
    d = decode_instruction_descriptor(0x08400010)
    assert (d.m, d.n, d.a, d.b, d.d, d.a_major, d.b_major) == (128, 256, "f16", "f16", "f32", 0, 0)
    value = encode_instruction_descriptor(64, 24, a="bf16", b="bf16", b_major=1)
    d = decode_instruction_descriptor(value)
    assert (d.m, d.n, d.a, d.b_major) == (64, 24, "bf16", MN_MAJOR)
    assert sum(f.value << f.lo for f in d.fields) == value
    assert decode_instruction_descriptor(value | 3 << 13).a_negate


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (encode_instruction_descriptor(128, 64) | 1, "sparsity selector"),
        (encode_instruction_descriptor(128, 64) | 1 << 3, "saturate"),
        (encode_instruction_descriptor(128, 64) ^ 3 << 4, "D type"),
        (encode_instruction_descriptor(128, 64) | 1 << 6, "reserved"),
        (encode_instruction_descriptor(128, 64) | 2 << 7, "A type"),
        (encode_instruction_descriptor(128, 64) | 4 << 10, "B type"),
        (encode_instruction_descriptor(128, 64) | 1 << 23, "reserved"),
        (encode_instruction_descriptor(128, 64) | 1 << 29, "reserved"),
        (encode_instruction_descriptor(32, 64), "M = 32"),
        (encode_instruction_descriptor(256, 64), "M = 256"),
        (encode_instruction_descriptor(128, 0), "N = 0"),
        (encode_instruction_descriptor(128, 264), "N = 264"),
        (encode_instruction_descriptor(128, 64, d="f16"), "D of type f16"),
    ],
)
def test_bad_instruction_descriptors_name_the_field(value: int, match: str) -> None:
    with pytest.raises(IllegalInstruction, match=match):
        decode_instruction_descriptor(value)


def test_sparse_mma_is_unsupported_and_a_shift_is_for_ws() -> None:
    with pytest.raises(UnsupportedInstruction, match="sparse"):
        decode_instruction_descriptor(encode_instruction_descriptor(128, 64) | 4)
    with pytest.raises(IllegalInstruction, match="maximum shift"):
        decode_instruction_descriptor(encode_instruction_descriptor(128, 64) | 1 << 30)
    assert decode_instruction_descriptor(encode_instruction_descriptor(128, 64, shift=16), stationary=True).shift == 16


def test_tmem_addresses_and_rows() -> None:
    assert split_tmem_address(0x00600123) == (0x60, 0x123)
    assert accumulator_lanes(128, 0) == slice(0, 128)
    lanes = accumulator_lanes(64, 16)
    assert list(np.arange(128)[lanes][[0, 15, 16, 63]]) == [16, 31, 48, 127]
    for m, lane in ((128, 16), (64, 32)):
        with pytest.raises(IllegalInstruction, match="lane"):
            accumulator_lanes(m, lane)
