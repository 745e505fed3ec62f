"""What the chapters of the foundations compute and draw."""

from __future__ import annotations

import numpy as np
import pytest

from attnbook import figures, onemma, pipeline
from attnbook.chips import B200, B300, H200
from attnbook.figures import cute_layouts, feeding, limits, rounding
from attnbook.figures.budget import lane_totals, tile_costs
from attnbook.figures.layouts import index
from attnbook.widgets import operand
from attnbook.widgets import pipeline as steps
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import K_MAJOR, MN_MAJOR

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


# ---- online softmax ---------------------------------------------------------------------------------------------


def test_rounding_p_costs_what_rounding_the_output_costs() -> None:
    for keys in (128, 2048):
        found = rounding.cost("bf16", "random", "P before rounding", keys)
        assert 0.7 < found.of_output / found.output < 1.4
    half = rounding.cost("fp16", "random", "P before rounding", 2048)
    assert half.of_output == pytest.approx(found.of_output / 8, rel=0.2)


def test_values_against_us_cost_at_most_one_rounding_of_p() -> None:
    for kind in ("fp16", "bf16"):
        worst = rounding.cost(kind, "against us", "P before rounding", 2048)
        assert worst.of_values <= rounding.unit_roundoff(rounding.P_TYPES[kind])
        assert worst.of_output > 10 * worst.of_values
    with pytest.raises(ValueError, match="against us"):
        rounding.cost("bf16", "kind", "P before rounding", 128)


def test_a_row_sum_of_rounded_weights_keeps_ones() -> None:
    assert rounding.cost("bf16", "all ones", "P after rounding", 512).of_output < 1e-12
    assert rounding.cost("bf16", "all ones", "P before rounding", 512).of_output > 1e-5


@pytest.mark.parametrize("threshold", [0, 4, 8])
@pytest.mark.parametrize("family", ["normal", "rising_max", "just_under", "just_over"])
def test_a_lazy_walk_gives_the_same_log_sum_exp(family: str, threshold: int) -> None:
    scores = rounding.family_scores(family)[75]
    walk = rounding.lazy_walk(scores, threshold)
    assert walk.reference[-1] + np.log2(walk.total) == pytest.approx(np.log2(np.exp2(scores).sum()), rel=1e-12)
    assert walk.largest <= 2.0**threshold


def test_the_two_inputs_beside_the_threshold_lie_beside_it() -> None:
    assert not rounding.lazy_walk(rounding.family_scores("just_under")[75], 8).fires.any()
    assert rounding.lazy_walk(rounding.family_scores("just_over")[75], 8).fires.sum() == 1
    assert rounding.warp_share(rounding.family_scores("normal")[:128], 4) == 0
    assert rounding.warp_share(rounding.family_scores("normal")[:128], 0) > 0.9


# ---- CuTe layouts -----------------------------------------------------------------------------------------------


def test_the_examples_are_what_their_text_says() -> None:
    for name in cute_layouts.EXAMPLES:
        t = cute_layouts.example(name)
        assert (t.rows, t.columns) == (4, 8)
        if name == "swizzled":
            assert t.index == tuple(tuple(8 * i + (j ^ i) for j in range(8)) for i in range(4))
            continue
        shape, stride = (eval(part) for part in t.text.split(":"))
        assert all(t.index[i][j] == index((i, j), shape, stride) for i in range(4) for j in range(8))
    assert cute_layouts.example("broadcast").cosize == 8


def test_the_swizzle_is_that_of_the_ptx_isa() -> None:
    for bits, swizzle in enumerate((sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B)):
        _, address = cute_layouts.swizzled_chunks(bits)
        linear = 128 * np.arange(8)[:, None] + 16 * np.arange(8)[None, :]
        assert np.array_equal(np.array(address), np.asarray(swizzle(linear)))


def test_a_tile_and_a_fragment_cover_every_element_once() -> None:
    _, _, found = cute_layouts._tv()
    assert sorted(i for row in found for i in row) == list(range(128))
    assert figures.layout_tv().desc.endswith("[0, 8, 1, 9].")
    assert "[0, 16, 32, 48, 1," in figures.layout_divide().desc
    assert figures.layout_composition().desc.startswith("B = (3,4):(2,12) of A = (6,8):(8,1) gives (3,4):(16,2)")


# ---- feeding the tensor core ------------------------------------------------------------------------------------


@pytest.mark.parametrize("major", [K_MAJOR, MN_MAJOR])
@pytest.mark.parametrize("swizzle", operand.SWIZZLES, ids=lambda s: s.name)
def test_one_multiplication_in_every_layout_that_the_figure_shows(major: int, swizzle: sw.Swizzle) -> None:
    where = operand.canonical(major, swizzle)
    chunks = operand._chunks(where.addresses(16), major)
    assert len(set(chunks // 16)) == 32 and chunks.max() < 2048
    image = np.zeros(onemma.IMAGE, np.uint8)
    left, right = onemma.integers(128, 0), onemma.integers(16, 1)
    a, b = onemma.Operand(0, 2048, 128), onemma.Operand(32768, where.lbo, where.sbo, swizzle, major)
    onemma.place(image, a, left)
    onemma.place(image, b, right)
    product = onemma.multiply(image, a.descriptor, b.descriptor, onemma.instruction(16, b_major=major), n=16)
    assert np.array_equal(product, left @ right.T)


def test_a_shape_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="sixteens"):
        onemma.multiply(np.zeros(onemma.IMAGE, np.uint8), 0, 0, 0, n=24)


def test_the_rows_of_an_accumulator_stay_in_their_windows() -> None:
    assert feeding.lanes_of(128) == list(range(128))
    for lane in (0, 16):
        assert [i // 16 for i in range(64)] == [found // 32 for found in feeding.lanes_of(64, lane)]
    assert set(feeding.lanes_of(64)).isdisjoint(feeding.lanes_of(64, 16))
    assert "rows 48–63" in figures.accumulator_rows().svg()


# ---- waiting well -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_the_pipeline_is_right_under_any_order_and_clean(slots: int) -> None:
    for seed in (None, 0, 1):
        assert pipeline.run(pipeline.kernel(slots), seed=seed).kind == "right"
    checked = pipeline.run(pipeline.kernel(slots), races=True)
    assert (checked.kind, checked.findings) == ("right", ())


def test_every_break_is_noticed() -> None:
    for name in pipeline.BREAKS:
        outcome = pipeline.run(pipeline.broken(name), races=True)
        assert outcome.kind != "right" or outcome.findings, name
    early = pipeline.broken("the slot is freed before it is read")
    assert {pipeline.run(early, seed=seed).kind for seed in range(4)} == {"right"}  # only the checker sees it
    with pytest.raises(ValueError, match="1 to 4"):
        pipeline.kernel(5)


@pytest.mark.parametrize("slots", steps.SLOTS)
def test_the_moments_tell_the_whole_run(slots: int) -> None:
    found = steps.moments(slots)
    assert sum("asks for tile" in m.text for m in found) == pipeline.TILES
    assert sum("32 lanes have read" in m.text for m in found) == pipeline.TILES
    assert sum(found[-1].full) == sum(found[-1].empty) == pipeline.TILES
    assert all(state == "free" for state, _ in found[-1].content)
