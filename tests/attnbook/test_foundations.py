"""What the chapters of the foundations compute and draw."""

from __future__ import annotations

import pytest

from attnbook import figures
from attnbook.chips import B200, B300, H200
from attnbook.figures import limits
from attnbook.figures.budget import lane_totals, tile_costs

# ---- attention and where its time goes --------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_units_agree_with_the_budget_of_a_tile(head_dim: int) -> None:
    totals = lane_totals(tile_costs(d=head_dim, p_in="tmem", q_tiles=2))
    cycles = limits.unit_cycles(4096, head_dim)
    for unit in ("tensor core", "exp", "shared memory"):
        assert cycles[unit] == totals[unit]


def test_memory_limits_short_sequences_and_the_ridge_says_up_to_where() -> None:
    for chip in (B200, B300, H200):
        ridge = 2 * chip.bf16_flops / chip.hbm_bytes_per_s
        at = limits.unit_cycles(ridge, chip=chip)
        assert at["HBM"] == pytest.approx(at["tensor core"])
        assert limits.longest(limits.unit_cycles(0.99 * ridge, chip=chip)) == "HBM"


def test_exponentials_bend_the_roof_where_the_units_say() -> None:
    assert limits.exp_ceiling(128) == pytest.approx(B200.bf16_flops)
    assert limits.exp_ceiling(64, B300) == pytest.approx(B300.bf16_flops)
    assert limits.longest(limits.unit_cycles(16384, 64)) == "exp"
    assert "dimension 128" in figures.exp_roof().desc
