"""Box copies against slow loops that follow the definition element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxemu.errors import IllegalInstruction, MemoryFault
from ptxemu.isa import swizzle as sw
from ptxemu.isa import tmabox
from ptxemu.isa.tensormap import ELEMENT_TYPES, TYPE_CODES, TensorMap, tensor_map


@st.composite
def copies(draw: st.DrawFn) -> tuple[TensorMap, list[int], int]:
    """A small tensor, a box over or beyond its edges, and a shared-memory address."""
    rank = draw(st.integers(1, 5))
    element = draw(st.sampled_from(["u8", "bf16", "f16", "u32", "f32", "f64"]))
    item = ELEMENT_TYPES[TYPE_CODES[element]][1]
    swizzle = draw(st.sampled_from(sw.ALL))
    inner = draw(st.integers(1, (swizzle.span or 256) // 16)) * (16 // item)
    sizes = [draw(st.integers(1, 40)), *(draw(st.integers(1, 5)) for _ in range(rank - 1))]
    strides, least = [], sizes[0] * item
    for size in sizes[1:]:
        strides.append(-(-least // 16) * 16 + 16 * draw(st.integers(0, 2)))
        least = strides[-1] * size
    box = [min(inner, 256 // 16 * 16), *(draw(st.integers(1, 4)) for _ in range(rank - 1))]
    steps = [1, *(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank - 1))]
    coords = [draw(st.integers(-4, 4)) * (16 // item), *(draw(st.integers(-3, 6)) for _ in range(rank - 1))]
    m = tensor_map(
        256,
        element,
        tuple(sizes),
        tuple(strides),
        tuple(box),
        element_strides=tuple(steps),
        swizzle=swizzle,
        fill=draw(st.sampled_from(["zero", "nan"])) if element not in ("u8", "u32") else "zero",
    )
    return m, coords, 1024 + 128 * draw(st.integers(0, 9))


def elements(m: TensorMap) -> list[tuple[int, ...]]:
    """Positions in the box, innermost first, in the order in which the box lies in shared memory."""
    return [tuple(reversed(p)) for p in np.ndindex(*reversed(m.smem_box))]


def slow_address(m: TensorMap, address: int, position: tuple[int, ...]) -> int:
    """Shared-memory address of the first byte of an element."""
    row = 0
    for i in range(m.rank - 1, 0, -1):
        row = row * m.smem_box[i] + position[i]
    pitch = m.swizzle.span or m.box[0] * m.itemsize
    return m.swizzle(address + row * pitch + position[0] * m.itemsize)


def slow_global(m: TensorMap, coords: list[int], position: tuple[int, ...]) -> int | None:
    """Global address of an element of the box, None when it lies out of bounds."""
    address = m.address
    for i, p in enumerate(position):
        at = coords[i] + p * (m.element_strides[i] if i else 1)
        if not 0 <= at < m.sizes[i]:
            return None
        address += at * m.strides[i]
    return address


@settings(max_examples=150, deadline=None)
@given(copy=copies(), seed=st.integers(0, 1000))
def test_load_is_the_slow_loop(copy: tuple[TensorMap, list[int], int], seed: int) -> None:
    m, coords, address = copy
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, 1 << 18, dtype=np.uint8)
    shared = rng.integers(0, 256, 1 << 19, dtype=np.uint8)
    expected = shared.copy()
    fill = np.frombuffer(b"\xf7\x7f" * 4, np.uint8)[: m.itemsize] if m.fill == "nan" else np.zeros(m.itemsize, np.uint8)
    for position in elements(m):
        source = slow_global(m, coords, position)
        to = slow_address(m, address, position)
        expected[to : to + m.itemsize] = fill if source is None else memory[source : source + m.itemsize]
    box = tmabox.gather(m, coords, lambda a, n: memory[a : a + n])
    assert len(box) == m.box_bytes
    tmabox.put(shared, address, box, m.box[0] * m.itemsize, m.swizzle)
    assert np.array_equal(shared, expected)


@settings(max_examples=100, deadline=None)
@given(copy=copies(), seed=st.integers(0, 1000))
def test_store_is_the_slow_loop_and_touches_nothing_else(copy: tuple[TensorMap, list[int], int], seed: int) -> None:
    m, coords, address = copy
    coords = [abs(c) for c in coords]
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, 1 << 18, dtype=np.uint8)
    shared = rng.integers(0, 256, 1 << 19, dtype=np.uint8)
    before = memory.copy()
    padding = np.zeros(len(memory), bool)
    for position in elements(m):
        to = slow_global(m, coords, position)
        at = slow_address(m, address, position)
        if to is not None:
            before[to : to + m.itemsize] = shared[at : at + m.itemsize]
            padding[to : -(-to // 16) * 16 + 16] = True  # whole 16-byte chunks are written
    box = tmabox.take(shared, address, m.box_bytes, m.box[0] * m.itemsize, m.swizzle)
    tmabox.scatter(m, coords, lambda a, n: memory[a : a + n], box)
    row_end = m.sizes[0] * m.itemsize % 16 != 0
    same = memory == before
    assert same.all() or (row_end and same[~padding].all())


def test_store_fills_the_last_chunk_of_a_ragged_row() -> None:
    m = tensor_map(0, "bf16", (5, 2), (32,), (8, 2))
    memory = np.zeros(64, np.uint8)
    tmabox.scatter(m, [0, 0], lambda a, n: memory[a : a + n], np.full(32, 7, np.uint8))
    assert memory.nonzero()[0].tolist() == [*range(16), *range(32, 48)]


def test_rules() -> None:
    m = tensor_map(0, "bf16", (64, 8), (128,), (64, 8))
    tmabox.check(m, [-8, -3], 1024, store=False)
    for coords, address, store, error in (
        ([4, 0], 1024, False, IllegalInstruction),
        ([0, -1], 1024, True, IllegalInstruction),
        ([0, 0, 0], 1024, False, IllegalInstruction),
        ([0, 0], 1040, False, MemoryFault),
    ):
        with pytest.raises(error):
            tmabox.check(m, coords, address, store=store)


def test_global_memory_is_asked_for_exactly_what_is_read() -> None:
    m = tensor_map(4096, "bf16", (64, 8), (256,), (32, 4))
    asked = []

    def window(address: int, length: int) -> np.ndarray:
        asked.append((address, length))
        return np.zeros(length, np.uint8)

    tmabox.gather(m, [48, 6], window)
    assert asked == [(4096 + 6 * 256 + 96, 256 + 32)]
    tmabox.gather(m, [64, 0], window)
    assert len(asked) == 1
