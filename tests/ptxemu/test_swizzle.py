"""Swizzles: the tables of the PTX ISA, and cute's own function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxemu.isa import swizzle as sw

# PTX ISA 5.5.7: which 16-byte chunk lies in each place of each 128-byte line.
TABLES = {
    sw.NONE: ["01234567"],
    sw.SWIZZLE_32B: ["01234567", "10325476"],
    sw.SWIZZLE_64B: ["01234567", "10325476", "23016745", "32107654"],
    sw.SWIZZLE_128B: [
        "01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210",
    ],
    sw.SWIZZLE_128B_ATOM_32B: ["01234567", "23016745", "45670123", "67452301"],
    sw.SWIZZLE_128B_ATOM_64B: ["01234567", "45670123"],
}  # fmt: skip


@pytest.mark.parametrize("swizzle", sw.ALL, ids=lambda s: s.name)
def test_tables_of_the_isa(swizzle: sw.Swizzle) -> None:
    lines = TABLES[swizzle]
    # The tables of the 32B and 64B modes count lines of the box; 32 or 64 bytes wide boxes fill 128-byte lines.
    got = sw.pattern(swizzle)
    for row in range(8):
        assert "".join(map(str, got[row])) == lines[row % len(lines)]
    assert swizzle.period == max(16, 128 * len(lines) * (len(lines) > 1))


@given(address=st.integers(0, 1 << 18), swizzle=st.sampled_from(sw.ALL))
def test_own_inverse_keeps_atoms_and_periods(address: int, swizzle: sw.Swizzle) -> None:
    moved = swizzle(address)
    assert swizzle(moved) == address
    assert moved % swizzle.atom == address % swizzle.atom
    assert moved // 128 == address // 128
    assert swizzle(address + swizzle.period) == moved + swizzle.period
    assert swizzle(np.array([address]))[0] == moved


def test_same_as_cute() -> None:
    cute = pytest.importorskip("cutlass.cute")
    found: dict[sw.Swizzle, list[int]] = {}

    def evaluate() -> None:
        for s in sw.ALL:
            layout = cute.make_composed_layout(cute.make_swizzle(s.bits, s.base, s.shift), 0, cute.make_layout(4096))
            found[s] = [layout(i) for i in range(0, 4096, 61)]

    @cute.jit
    def host() -> None:
        evaluate()

    host()
    for s in sw.ALL:
        assert found[s] == [s(i) for i in range(0, 4096, 61)]
