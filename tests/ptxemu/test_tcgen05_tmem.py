"""Tensor memory: allocation rules, and fragments against cute's copy atoms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxemu.errors import IllegalInstruction
from ptxemu.isa.tmem import (
    SHAPES,
    TmemState,
    fragment,
    fragment_written,
    mark_fragment,
    read_fragment,
    write_fragment,
)


def sizes() -> list[tuple[str, int]]:
    return [(s, 1 << i) for s in SHAPES for i in range(8) if SHAPES[s] << i <= 128]


def test_fragments_are_those_of_cute() -> None:
    cutlass = pytest.importorskip("cutlass")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import tcgen05

    ops = {
        "32x32b": tcgen05.Ld32x32bOp,
        "16x64b": tcgen05.Ld16x64bOp,
        "16x128b": tcgen05.Ld16x128bOp,
        "16x256b": tcgen05.Ld16x256bOp,
    }
    found = {}

    def evaluate() -> None:
        for shape, op in ops.items():
            for repeat in (1, 2, 8):
                for packed in (False, True):
                    pack = tcgen05.Pack.PACK_16b_IN_32b if packed else tcgen05.Pack.NONE
                    kind = cutlass.Float16 if packed else cutlass.Float32
                    atom = cute.make_copy_atom(op(getattr(tcgen05.Repetition, f"x{repeat}"), pack), kind)
                    count = SHAPES[shape] * repeat * (2 if packed else 1)
                    found[shape, repeat, packed] = [
                        [atom.layout_dst_tv((t, v)) for t in range(32)] for v in range(count)
                    ]

    @cute.jit
    def host() -> None:
        evaluate()

    host()
    for (shape, repeat, packed), index in found.items():
        f = fragment(shape, repeat, packed)
        # cute numbers the cells of the atom lane by lane.
        cell = f.lane * f.columns + f.column
        if packed:
            cell = np.stack([cell, cell + 1], axis=1).reshape(-1, 32)
        assert np.array_equal(cell, index), (shape, repeat, packed)


def test_two_halves_of_16x32bx2() -> None:
    f = fragment("16x32bx2", 4, split=32)
    assert f.lane[0].tolist() == [*range(16)] * 2
    assert f.column[2].tolist() == [2] * 16 + [34] * 16
    assert f.columns == 36


@pytest.mark.parametrize(("shape", "repeat"), sizes())
@pytest.mark.parametrize("packed", [False, True])
def test_store_then_load_gives_the_registers_back(shape: str, repeat: int, packed: bool) -> None:
    f = fragment(shape, repeat, packed, 128 if shape == "16x32bx2" and repeat < 128 else 256)
    rng = np.random.default_rng(repeat)
    data = rng.integers(0, 1 << 32, (f.registers, 32), dtype=np.uint32)
    cells, written = np.zeros((128, 512), np.uint32), np.zeros((128, 512), bool)
    lane, column = 32 + (16 if f.lanes == 16 else 0), 64 if f.columns <= 448 else 0
    assert not fragment_written(written, lane, column, f)
    write_fragment(cells, lane, column, f, data)
    mark_fragment(written, lane, column, f)
    assert fragment_written(written, lane, column, f)
    assert np.array_equal(read_fragment(cells, lane, column, f), data)
    # Exactly the fragment's cells were touched, each once.
    assert written.sum() == f.registers * 32 * (2 if packed else 1)
    assert not cells[~written].any()


def test_no_such_size() -> None:
    with pytest.raises(IllegalInstruction, match="256 registers"):
        fragment("16x256b", 64)


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_bad_sizes(columns: int) -> None:
    with pytest.raises(IllegalInstruction, match="power of two"):
        TmemState().allocate(columns)


def test_allocation_rules() -> None:
    t = TmemState()
    assert t.allocate(256) == 0
    with pytest.raises(IllegalInstruction, match="must not grow"):
        t.allocate(512)
    assert t.allocate(128) == 256
    assert t.allocate(128) == 384
    assert t.allocate(32) is None
    with pytest.raises(IllegalInstruction, match=r"columns 0-255"):
        t.free(0, 128)
    t.require(0, 256, "x")
    t.require(250, 10, "across two allocations")
    t.free(256, 128)
    with pytest.raises(IllegalInstruction, match="column 256 is not"):
        t.require(250, 10, "x")
    assert t.allocate(64) == 256
    t.permit = False
    with pytest.raises(IllegalInstruction, match="relinquish"):
        t.allocate(32)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([32, 64, 128, 256])), max_size=30))
def test_allocations_never_overlap(steps: list[tuple[bool, int]]) -> None:
    t, live = TmemState(), {}
    for free, columns in steps:
        t.latest = None  # only the overlap is looked at
        if free and live:
            first = next(iter(live))
            t.free(first, live.pop(first))
        else:
            first = t.allocate(columns)
            taken = {c for a, n in live.items() for c in range(a, a + n)}
            if first is None:
                continue
            assert not taken & set(range(first, first + columns))
            assert 0 <= first <= 512 - columns
            live[first] = columns
    assert t.allocations == live
