"""The stages under the clock: SASS fits run, no unit does more than it can, each idea does what it is for."""

import functools

import pytest

pytest.importorskip("torch")

from attnbook import clock
from attnbook.clock import residents
from attnbook.ladder import LADDER
from attnbook.results import load, results_dir
from ptxemu.clock import CHIPS

STAGES = [stage.number for stage in LADDER.implemented]


@functools.cache
def timed(number, **keywords):
    return clock.time(number, **keywords)


@pytest.mark.parametrize("number", STAGES)
def test_the_tensor_core_does_what_the_arithmetic_asks_for(number):
    t = timed(number)
    rows = t.rows * t.resident
    assert t.timing.busy["tensor"] == 4 * rows * 128 * t.tiles * 128 / CHIPS["B200"].of("mma_flops")


@pytest.mark.parametrize("number", STAGES)
def test_no_unit_is_busier_than_the_clock_runs(number):
    t = timed(number)
    assert all(0 <= share <= 1 for share in t.timing.utilisation().values())
    assert t.share_of_peak() < 1 and t.fixed > 0
    for stalls in t.timing.stalls.values():
        assert all(cycles >= 0 for cycles in stalls.values())
        assert sum(stalls.values()) <= t.timing.cycles + 1


@pytest.mark.parametrize("number", STAGES)
def test_every_wait_has_a_cause(number):
    """A warp that waited on a barrier went on after the end of that phase, and not long after."""
    t = timed(number).timing
    waits = [i for i in t.intervals if i.name == "wait"]
    assert waits
    for wait in waits:
        ended = t.phases[(wait.cta, wait.data["barrier"]), wait.data["phase"]]
        assert wait.end == pytest.approx(ended + t.chip.of("wake_latency"))


def test_the_ladder_rises():
    """One CTA an SM, as the published kernels count their steps. Stage 2 and stage 4 win little by themselves."""
    share = {n: timed(n, resident=1).share_of_peak() for n in STAGES}
    for before, after in [(2, 3), (4, 5), (5, 6), (6, 7)]:
        assert share[after] > 1.08 * share[before], (before, after)
    assert share[2] == pytest.approx(share[1], rel=0.15) and share[4] == pytest.approx(share[3], rel=0.15)


def test_a_second_cta_fills_gaps():
    assert timed(1).resident == 2 and timed(1).cycles_per_product < timed(1, resident=1).cycles_per_product
    with pytest.raises(ValueError, match="resident = 2: 1 CTAs of stage 7 fit on an SM"):
        clock.time(7, resident=2)


def test_the_time_of_a_grid_comes_in_waves():
    t = timed(7)
    one = t.cycles(1024, batch=1, heads=1)
    assert t.cycles(1024, 1, 37) == one and t.cycles(1024, 1, 38) == 2 * one  # 4 CTAs a head, 148 SMs
    assert t.tflops(8192, 4, 16) == pytest.approx(4 * 64 * 8192**2 * 128 / t.seconds(8192, 4, 16) / 1e12)


def test_a_chip_with_faster_exponentials_spends_less_on_them():
    """What it wins depends on what else is waited for: stage 7 waits for tensor memory, and wins next to nothing."""
    b200, b300 = timed(7), timed(7, chip="B300")
    assert b300.timing.busy["mufu"] == pytest.approx(b200.timing.busy["mufu"] / 2)
    assert b300.timing.stalls[0, 0].get("mufu busy", 0) <= b200.timing.stalls[0, 0]["mufu busy"]
    assert b300.cycles_per_product == pytest.approx(b200.cycles_per_product, rel=0.05)


def test_an_unknown_chip_is_named():
    with pytest.raises(ValueError, match="chip = 'GTX': the clock has a table for H200, B200, B300"):
        clock.time(1, "GTX")


def test_how_many_ctas_fit():
    assert residents(98344, 44, 128, 256) == 2  # shared memory and tensor memory
    assert residents(1024, 255, 256, 0) == 1  # registers
    assert residents(1024, 32, 1024, 0) == 2  # threads


def test_the_timeline_is_in_cycles_and_has_the_kernels_ranges():
    trace = timed(4, resident=1, ranges=True).timing.trace()
    assert trace.unit == "cycle" and trace.meta["chip"] == "B200"
    names = {e.name for e in trace.events if e.row == "warp0"}
    assert {"softmax", "exp", "wait"} <= names
    assert [e.t for e in trace.events] == sorted(e.t for e in trace.events)


def test_the_record_says_what_the_clock_says():
    """book/results/modelled-b200.json is of these kernels and this table; `attnbook clock --record` makes it anew."""
    record = load(results_dir() / "modelled-b200.json")
    entries = [e for e in record.entries if e.quantity == "cycles"]
    assert {e.subject.partition(",")[0] for e in entries} == {LADDER[n].slug for n in STAGES}
    for e in entries:
        slug, _, resident = e.subject.partition(", ")
        now = timed(LADDER[slug].number, resident=int(resident[0])).cycles_per_product
        assert e.value == pytest.approx(now, rel=1e-3), f"{e.subject}: record it anew"
        assert e.low <= e.value <= e.high


def test_uncertain_figures_move_the_prediction_and_certain_ones_do_not():
    effects = clock.sensitivity(4, resident=1)
    assert effects[0].key == "tmem_latency" and effects[0].divided < effects[0].as_is < effects[0].multiplied
    assert all(effect.fact.spread > 1 for effect in effects)
    low, high = clock.spread(effects)
    assert low < effects[0].as_is < high
