"""The order of the tensor core's products, read off runs, and the schedules made of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attnbook.figures import schedule
from attnbook.widgets import mma_order, softmax_lanes


def names(stage: int) -> list[str]:
    return [f"{p.what}{p.q}.{p.tile}" for p in schedule.products(stage)]


def test_the_order_of_products_is_the_stages_idea() -> None:
    assert names(4)[:4] == ["QK0.0", "PV0.0", "QK0.1", "PV0.1"]
    assert names(5)[:8] == ["QK0.0", "QK1.0", "PV0.0", "PV1.0", "QK0.1", "QK1.1", "PV0.1", "PV1.1"]
    assert names(6) == names(5)
    assert names(7)[:8] == ["QK0.0", "QK1.0", "PV0.0", "QK0.1", "PV1.0", "QK1.1", "PV0.1", "QK0.2"]
    assert sorted(names(7)) == sorted(names(6))


def test_each_place_of_the_ring_follows_the_other() -> None:
    tokens = {(p.what, p.tile): p.place for p in schedule.products(6)}
    assert [tokens[what, tile] for tile in range(3) for what in ("QK", "PV")] == ["KV0", "KV1", "KV2"] * 2


@pytest.mark.parametrize(
    ("stage", "softmax", "period", "share"),
    [(4, 1024, 2048, 0.5), (5, 512, 2048, 1.0), (5, 1024, 2560, 0.8), (7, 1024, 2048, 1.0), (7, 2048, 3072, 2 / 3)],
)
def test_the_steady_state_is_what_paper_gives(stage: int, softmax: float, period: float, share: float) -> None:
    assert schedule.steady(stage, softmax) == pytest.approx((period, share))


def test_no_lane_does_two_things_at_once_and_nothing_starts_before_its_operand() -> None:
    for stage in (4, 5, 7):
        plan = schedule.plan(stage, 1500, 6)
        softmaxes = {(s.q, s.tile): s for s in plan if s.product is None}
        for lane in {s.lane for s in plan}:
            spans = sorted((s for s in plan if s.lane == lane), key=lambda s: s.start)
            assert all(a.end <= b.start for a, b in pairwise(spans)), lane
        for s in plan:
            if s.product and s.product.what == "PV":
                assert s.start >= softmaxes[s.q, s.tile].end
            elif s.product:
                assert softmaxes[s.q, s.tile].start == s.end


def test_the_repeated_order_is_the_order_of_a_longer_run() -> None:
    for stage in (5, 7):
        longer = schedule.products(stage, 6)
        again = schedule.onwards(stage, 6)
        shown = len(longer) - 4
        assert [(p.what, p.q, p.tile) for p in again[:shown]] == [(p.what, p.q, p.tile) for p in longer[:shown]]


def test_the_movable_figures_say_what_they_draw() -> None:
    lanes = softmax_lanes(4, 5)
    assert "80%" in lanes.step_at(1, 3)
    assert "50%" in lanes.step_at(0, 3)
    order = mma_order(6, 7)
    assert all("in stage 6 1, in stage 7 2" in step for step in order.steps[2:-2])
