"""Movable figures: every position is in the page, and what they say is what layouts, traces and NumPy say."""

import json
import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook import widgets
from attnbook.figures import layouts
from attnbook.figures.still import barrier_names, describe, pair, row_order
from attnbook.figures.still import pack as pack_trace
from attnbook.figures.svg import Svg
from attnbook.figures.traces import captured_mmas, stage_run, stage_trace
from attnbook.widgets import panel, roles, shared_memory, softmax
from attnbook.widgets.barriers import payments, story
from attnbook.widgets.explorer import Control, explore, pack, step_html, unpack
from ptxemu.isa import swizzle as sw
from ptxemu.isa.tmem import fragment
from ptxemu.memory import SHARED_RESERVED
from ptxemu.trace import Event, Trace

MAKERS = {
    "tma_box": lambda: widgets.tma_box(),
    "tmem_windows": lambda: widgets.tmem_windows(),
    "mbarrier_steps": lambda: widgets.mbarrier_steps(1),
    "descriptor_bits": lambda: widgets.descriptor_bits(1),
    "canonical_layout": lambda: widgets.canonical_layout(1),
    "bank_conflicts": lambda: widgets.bank_conflicts(1),
    "online_softmax": lambda: widgets.online_softmax(),
    "unit_limits": lambda: widgets.unit_limits(),
    "p_rounding": lambda: widgets.p_rounding(),
    "lazy_rescale": lambda: widgets.lazy_rescale(),
    "layout_explorer": lambda: widgets.layout_explorer(),
    "swizzle_bits": lambda: widgets.swizzle_bits(),
    "operand_chunks": lambda: widgets.operand_chunks(),
    "pipeline_steps": lambda: widgets.pipeline_steps(),
    "tmem_overlay": lambda: widgets.tmem_overlay(),
    "handover": lambda: widgets.handover(4),
    "timeline": lambda: widgets.timeline(stage_run(1).trace, caption="Two tiles."),
}
EXPLORERS = [name for name in MAKERS if name != "timeline"]
SMALL = {"seqlen": (128, 256), "dtype": ("bf16",), "scale": ("1/√128",), "family": ("normal", "rising_max")}


@pytest.fixture(scope="module")
def made():
    cache: dict = {}

    def get(name):
        if name not in cache:
            cache[name] = MAKERS[name]()
        return cache[name]

    return get


@pytest.fixture(scope="module")
def recorded():
    return panel.recorded(1, SMALL)


def plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_state_is_json_small_and_complete(name, made):
    w = made(name)
    state = {k: v for k, v in w.get_state().items() if not k.startswith("_")}
    assert len(json.dumps(state, ensure_ascii=False)) < 1_000_000
    assert w.name == name and len(w.title) > 10 and "bk-src" in w.caption
    assert (
        "export default { render }" in w._esm
        and "import(" not in w._esm
        and "http" not in w._esm.replace("http://www.w3.org/2000/svg", "")
    )


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_position_has_a_picture_and_a_sentence(name, made):
    w = made(name)
    count = math.prod(len(c["options"]) for c in w.controls)
    assert len(w.frames) == len(w.steps) == count
    assert all(len(plain(s)) > 20 for s in w.steps)
    names = {c["name"]: len(c["options"]) for c in w.controls}
    for i in range(0, count, max(1, count // 40)):
        body = "".join(w.pool[n] for n in unpack(w.frames, i))
        ElementTree.fromstring(f"<svg>{body}</svg>")
        for target in re.findall(r'data-set="([^"]+)"', body):
            for part in target.split(","):
                control, value = part.split(":")
                assert 0 <= int(value) < names[control]
    assert len({tuple(unpack(w.frames, i)) for i in range(count)}) > 1


@pytest.mark.parametrize("name", EXPLORERS)
def test_pictures_use_the_style_sheet_only(name, made):
    w = made(name)
    assert not any(re.search(r"#[0-9a-fA-F]{6}|rgb\(|fill=\"|style=", e) for e in w.pool)
    assert w.size[0] <= 760


def test_static_pages_bring_their_own_style(monkeypatch):
    def one():
        return explore(
            [Control("a", "a", ["0", "1"])], lambda i: (Svg(1, 1, title="t"), "s"), name="x", title="t", caption="c"
        )

    monkeypatch.setenv("ATTNBOOK_STATIC", "1")
    assert one()._css == ""
    monkeypatch.delenv("ATTNBOOK_STATIC")
    assert "--role-load" in one()._css


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12))
def test_packed_frames_unpack(frames):
    packed = pack(frames)
    assert [unpack(packed, i) for i in range(len(frames))] == frames


def test_explore_refuses_pictures_of_two_sizes():
    with pytest.raises(ValueError, match="give all one size"):
        explore(
            [Control("a", "a", ["0", "1"])], lambda i: (Svg(10 + i, 10, title="t"), ""), name="x", title="t", caption=""
        )


def test_step_text_marks_bold_and_code():
    assert step_html("**a < b** and `c`") == "<b>a &lt; b</b> and <code>c</code>"


# ---- shared memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swizzle", shared_memory.SWIZZLES, ids=lambda s: s.name)
def test_tile_holds_every_chunk_once_where_the_swizzle_puts_it(swizzle):
    tile = shared_memory.swizzled_tile(swizzle)
    assert sorted(tile.reshape(-1)) == list(range(64))
    span = swizzle.span or 128
    for slot, n in enumerate(tile.reshape(-1)):
        row, chunk = divmod(int(n), 8)
        box, inside = divmod(chunk * 16, span)
        assert swizzle(box * 8 * span + row * span + inside) == 16 * slot


@pytest.mark.parametrize(("mode", "fronts"), [(0, 8), (1, 1), (2, 1), (3, 1)])
def test_reading_a_column_takes_eight_turns_without_a_swizzle_and_one_with(mode, fronts, made):
    w = made("tma_box")
    for column in range(8):
        assert f": {fronts} wavefront" in plain(w.step_at(mode, 8 + column))
    for row in range(8):
        assert "1 wavefront." in plain(w.step_at(3, row))


def test_only_none_and_128b_spread_a_row_over_all_banks(made):
    """As the caption of tma_box says: under 32B and 64B a row is cut into boxes that fall on the same banks."""
    w = made("tma_box")
    for mode, fronts, groups in ((0, 1, 8), (1, 4, 2), (2, 2, 4), (3, 1, 8)):
        for row in range(8):
            assert f"in {groups} of the 8 bank groups, at most {fronts} in one" in plain(w.step_at(mode, row))
    assert "A row does too, without a swizzle or with 128B" in w.caption


def test_canonical_layout_says_what_each_step_reads(made):
    w = made("canonical_layout")
    assert "1 run of 4,096 bytes" in w.step_at(0, 3) and "starts 12,288 bytes" in w.step_at(0, 3)
    assert "16 runs of 256 bytes" in w.step_at(3, 3) and "starts 768 bytes" in w.step_at(3, 3)
    for which, name in enumerate("QKPV"):
        op = layouts.operands(1)[name]
        for step in range(8):
            k = 16 * step + np.arange(16)
            cells = {int(x) // 128 for x in op.offset(np.arange(128)[:, None], k[None, :]).reshape(-1)}
            picture = w.svg_at(which, step)
            assert picture.count('class="cell r-mma"') == 2 * len(cells) == 64


def test_bank_conflicts_counts(made):
    w = made("bank_conflicts")
    fronts = [
        int(re.match(r".*: (\d+) wavefronts", plain(w.step_at(i, 0)))[1]) for i in range(len(w.controls[0]["options"]))
    ]
    assert fronts[0] == 4, "stage 1's core matrices: no conflict"
    assert fronts[1] == 32, "plain rows: all in one bank group"
    assert fronts[2:] == [4, 4, 4], "the swizzles: no conflict"
    assert all(w.svg_at(i, 5).count(">lane ") == 32 for i in range(len(fronts)))


# ---- TMEM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("thread", [0, 13, 31])
def test_tmem_windows_show_the_fragment(which, thread, made):
    from attnbook.widgets.tmem import LOADS

    w, f = made("tmem_windows"), fragment(*LOADS[which])
    picture = w.svg_at(which, 2, thread)
    for r in range(f.registers):
        assert f">r{r}</text>" in picture
    assert picture.count("r-softmax") == f.registers + 1, "the chosen thread's cells, and the window"
    lanes = sorted({64 + int(x) for x in f.lane[:, thread]})
    assert all(str(x) in plain(w.step_at(which, 2, thread)) for x in lanes)


# ---- descriptors ----------------------------------------------------------------------------------------------------


def test_descriptor_bits_are_those_of_the_run(made):
    w, mmas = made("descriptor_bits"), captured_mmas(1)
    for group in range(2):
        for step in (0, 7):
            m = mmas[8 * group + step]
            for kind, value in enumerate((m.a.value, m.b.value, m.idesc.value)):
                width = 18 if kind < 2 else 10
                assert f"{value:#0{width}x}" in w.svg_at(group, kind, step)


def test_all_bits_are_drawn(made):
    picture = made("descriptor_bits").svg_at(0, 0, 2)
    value = captured_mmas(1)[2].a.value
    bits = re.findall(r'text-anchor="middle" class="tm(?: dim)?">([01])<', picture)
    assert int("".join(bits), 2) == value


def test_descriptor_fields_and_the_rest_make_all_bits(made):
    w = made("descriptor_bits")
    for kind, width in ((0, 64), (2, 32)):
        picture = w.svg_at(0, kind, 0)
        spans = re.findall(r'class="tc">(\d+)(?:–(\d+))?<', picture)
        shown = sum(int(hi) - int(lo or hi) + 1 for hi, lo in spans)
        assert f"the other {width - shown} bits are constant, reserved or not used here" in picture
    assert "the other 15 bits" in w.svg_at(0, 0, 0)
    assert "leading byte offset (LBO)" in w.svg_at(0, 0, 0) and "stride byte offset (SBO)" in w.svg_at(0, 0, 0)


# ---- barriers -------------------------------------------------------------------------------------------------------


def test_barrier_story_keeps_the_books():
    trace = stage_run(1).trace
    moments = story(trace, SHARED_RESERVED + 3 * 32768 + 8)
    assert [m.kind for m in moments].count("phase") == 2
    for before, after in pairwise(moments):
        if after.kind == "bytes":
            assert after.tx < before.tx
        if after.kind == "phase":
            assert before.tx == 0 and before.pending == 0 and after.phase == before.phase + 1
            assert after.pending == after.count
        if after.kind == "go":
            assert before.kind in ("phase", "go")
    assert max(m.expected for m in moments) == 65536
    assert set().union(*(m.waiting for m in moments)) == {0, 1, 2, 3}


def test_barrier_caption_says_how_many_copies_were_joined(made):
    trace, address = stage_run(1).trace, SHARED_RESERVED + 3 * 32768 + 8
    assert payments(trace, address) == 32
    told = [m.kind for m in story(trace, address, phases=1, pieces=2)].count("bytes")
    assert told == 2 and "32 copies pay them; the figure joins the copies into 2 steps." in plain(
        made("mbarrier_steps").caption
    )


def test_barrier_story_refuses_books_that_do_not_balance():
    trace = stage_run(1).trace
    address = SHARED_RESERVED + 3 * 32768 + 8
    mine = [e for e in trace.events if e.cta == 0 and e.row == f"mbar:{address:#x}" and e.name == "complete"]
    broken = Trace(trace.unit, [e for e in trace.events if e is not mine[3]], trace.meta)
    with pytest.raises(ValueError, match="would follow from"):
        story(broken, address)
    with pytest.raises(ValueError, match=r"no mbarrier\.init at 0x8"):
        story(trace, 8)


# ---- online softmax -------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.floats(-30, 30), min_size=8, max_size=64).filter(lambda x: len(x) % 4 == 0))
def test_online_softmax_gives_the_sum_of_two_passes(scores):
    row = softmax.walk(np.array(scores), tile=4)
    assert row.total[-1] == pytest.approx(row.direct, rel=1e-12)
    assert row.maximum[-1] == max(scores)
    assert (np.diff(row.maximum) >= 0).all() and (row.factor <= 1).all()


def test_online_softmax_shows_the_inputs_bite(made):
    w = made("online_softmax")
    assert list(w.values) == [1, 1], "it opens on the rising maximum"
    assert "New maximum" in w.step_at(1, 5), "rising maximum: every tile rescales"
    assert "the factor is 1" in w.step_at(2, 5), "falling maximum: none does"
    assert "the same" in w.step_at(3, 7)


# ---- timeline -------------------------------------------------------------------------------------------------------


def spans_of(data):
    return [data["spans"][i : i + 6] for i in range(0, len(data["spans"]), 6)]


def test_timeline_holds_every_event():
    trace = stage_run(1).trace
    mine = [e for e in trace.events if e.cta == 0]
    data = pack_trace(trace, 0)
    assert len(spans_of(data)) == sum(e.kind == "begin" for e in mine)
    assert len(data["marks"]) // 4 == sum(e.kind == "mark" for e in mine)
    assert all(0 <= a <= b <= data["end"] for _, _, _, a, b, _ in spans_of(data))
    assert [r["label"] for r in data["rows"]][:6] == ["warp 0", "warp 1", "warp 2", "warp 3", "TMA", "tensor core"]
    assert all(0 <= depth < data["rows"][row]["depth"] for row, depth, *_ in spans_of(data))
    by_name = {n: sum(1 for s in spans_of(data) if s[2] == i) for i, n in enumerate(data["names"])}
    assert by_name["MMA"] == 32 and by_name["TMA load"] == 16 + 2 * 32 and by_name["epilogue"] == 4


def test_timeline_names_barriers_by_itself(made):
    labels = [r["label"] for r in made("timeline").data["rows"]]
    assert labels[6:] == ["q_full", "kv_full", "s_full", "o_full"]
    assert any("barrier kv_full" in i for i in made("timeline").data["infos"])
    assert "order of events, not time" in made("timeline").caption


def test_nested_ranges_pair_and_lie_below_each_other():
    events = [
        Event(0, 0, "warp0", "begin", "a"),
        Event(1, 0, "warp0", "begin", "b"),
        Event(2, 0, "warp0", "end", "b"),
        Event(3, 0, "warp0", "begin", "b"),
        Event(4, 0, "warp0", "end", "b"),
        Event(5, 0, "warp0", "end", "a"),
        Event(6, 0, "warp0", "begin", "open"),
        Event(7, 0, "tma", "mark", "x"),
    ]
    spans, marks = pair(events)
    assert [(s["name"], s["from"], s["to"], s["depth"]) for s in spans] == [
        ("a", 0, 5, 0),
        ("b", 1, 2, 1),
        ("b", 3, 4, 1),
        ("open", 6, 7, 0),
    ]
    assert len(marks) == 1
    with pytest.raises(ValueError, match="end without a begin"):
        pair([Event(0, 0, "warp0", "end", "a")])


def test_rows_stand_in_order():
    rows = ["mbar:0x18", "tensor", "warp10", "warp2", "mbar:0x8", "tma", "other"]
    assert sorted(rows, key=row_order) == ["warp2", "warp10", "tma", "tensor", "other", "mbar:0x8", "mbar:0x18"]


def test_event_data_in_words():
    assert (
        describe({"bytes": 2048, "barrier": 99328, "phase": 1}, {99328: "kv_full"})
        == "2,048 bytes, barrier kv_full, phase 1"
    )


def test_a_cta_without_events_is_refused():
    with pytest.raises(ValueError, match="the trace holds CTAs"):
        widgets.timeline(stage_run(1).trace, cta=99)


# ---- the run panel --------------------------------------------------------------------------------------------------


def test_recorded_panel_ran_every_setting(recorded):
    assert len(recorded.results) == 4
    assert all(plain(r["text"]).startswith("Right.") for r in recorded.results)
    ctas = [int(re.search(r"(\d+) CTA", r["text"])[1]) for r in recorded.results]
    assert ctas == [1, 1, 2, 2]
    assert len({r["svg"] for r in recorded.results}) == 4
    assert {r["timeline"] for r in recorded.results} <= set(range(len(recorded.timelines)))
    for r in recorded.results:
        ElementTree.fromstring(r["svg"])
    assert len(json.dumps(recorded.get_state())) < 1_500_000


def test_row_errors_are_those_of_the_verdict():
    result = stage_run(1)
    mine, theirs = panel.row_errors(result)
    row = result.verdict.where[2]
    assert mine[row] == pytest.approx(result.verdict.error, rel=1e-6)
    assert len(mine) == len(theirs) == 256 and theirs.max() < 0.01


def test_panel_is_recorded_while_the_book_is_built_and_live_otherwise(monkeypatch):
    import ipywidgets

    monkeypatch.setenv("ATTNBOOK_STATIC", "1")
    one = {k: v[:1] for k, v in SMALL.items()}
    assert isinstance(widgets.run_panel(1, one), panel.RunPanel)
    monkeypatch.delenv("ATTNBOOK_STATIC")
    live = widgets.run_panel(1)
    assert isinstance(live, ipywidgets.VBox)


def test_swizzle_names_are_unique():
    assert len({s.name for s in shared_memory.SWIZZLES}) == 4 and sw.NONE in shared_memory.SWIZZLES


# ---- roles and barriers ---------------------------------------------------------------------------------------------


def test_handover_keeps_the_books_of_a_run():
    """Phases go up one at a time, a wait ends only when its phase has, and in stage 4 one role works at a time."""
    told = roles.moments(stage_trace(4, seqlen=384), roles.roles_of(4), barrier_names(4))
    for before, now in pairwise(told):
        assert before.tick < now.tick
        for name, b in now.barriers.items():
            assert b.phase == before.barriers[name].phase + (name in now.ended)
            assert 0 <= b.pending <= b.count
        for role, waits in before.waits.items():
            if waits and now.waits[role] != waits:
                assert now.barriers[waits[0]].phase > waits[1]
    assert {n: b.phase for n, b in told[-1].barriers.items()} == {
        **dict.fromkeys(("kv_full", "kv_empty", "s_full", "p_full"), 3),
        **dict.fromkeys(("q_full", "o_full"), 1),
    }
    assert all(sum(bool(m.doing[r]) and not m.waits[r] for r in m.doing) <= 1 for m in told)


def test_handover_needs_roles():
    with pytest.raises(ValueError, match="stage 3 has no roles"):
        widgets.handover(3)
    assert list(roles.roles_of(5)) == ["load", "mma", "softmax 0", "softmax 1"]
