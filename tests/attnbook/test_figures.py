"""Figures: each names and describes itself, draws with the style sheet's classes only, and says what is true."""

import re
from html import unescape
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from attnbook import figures
from attnbook.chips import B200, CHIPS, FA4_FORWARD, H200, human_bytes
from attnbook.figures import boxes, budget, layouts, listings, mix, order, style, traffic, waits
from attnbook.figures.stages import mma_operands
from attnbook.figures.svg import Svg, caption_html, inline
from attnbook.figures.traces import captured_mmas, stage_run
from attnbook.ladder import LADDER
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import decode_smem_descriptor, encode_smem_descriptor

STATIC = {
    "sm_map": lambda: figures.sm_map(),
    "sm_map_h200": lambda: figures.memory_ladder(B200),
    "memory_ladder": lambda: figures.memory_ladder(),
    "mma_operands": lambda: figures.mma_operands(),
    "tile_budget": lambda: figures.tile_budget(1),
    "tile_budget_2": lambda: figures.tile_budget(2),
    "tile_budget_5": lambda: figures.tile_budget(5),
    "serial_budget": lambda: figures.serial_budget("baseline"),
    "predicted_and_published": lambda: figures.predicted_and_published(1),
    "predicted_and_guessed": lambda: figures.predicted_and_published(5, guess=100),
    "roofline": lambda: figures.roofline(1),
    "ladder_plot": lambda: figures.ladder_plot(mark=1),
    "ladder_plot_unmarked": lambda: figures.ladder_plot(),
    "dataflow": lambda: figures.dataflow(1),
    "smem_map": lambda: figures.smem_map(1),
    "tmem_map": lambda: figures.tmem_map(1),
    "grid_map": lambda: figures.grid_map(1),
    "grid_map_large": lambda: figures.grid_map(1, 2, 8, 8192),
    "instruction_mix": lambda: figures.instruction_mix(stage_run(1)),
    "shared_traffic": lambda: figures.shared_traffic(1, 2),
    "exp_order": lambda: figures.exp_order(1, 2),
    "tma_boxes": lambda: figures.tma_boxes(2, 3),
    "box_cost": lambda: figures.box_cost(),
    "barrier_graph": lambda: figures.barrier_graph(4),
    "barrier_graph_7": lambda: figures.barrier_graph(7),
    "timeline_still": lambda: figures.timeline_still(stage_run(1).trace, caption="Two tiles."),
}


@pytest.fixture(scope="module", params=STATIC)
def figure(request):
    return STATIC[request.param]()


def root_of(svg: Svg) -> ElementTree.Element:
    return ElementTree.fromstring(svg.svg())


def texts(svg: Svg) -> list[str]:
    return ["".join(t.itertext()) for t in root_of(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_names_and_describes_itself(figure):
    root = root_of(figure)
    title, desc = (root.find(f"{{http://www.w3.org/2000/svg}}{x}") for x in ("title", "desc"))
    assert title is not None and len(title.text) > 10
    assert desc is not None and len(desc.text) > 40
    assert root.get("role") == "img" and root.get("aria-label") == title.text
    assert len(figure.caption) > 40 and figure.source, (
        "a caption that can be read alone, and where the numbers come from"
    )
    assert figure.name in figure.html()


def test_has_no_colour_of_its_own(figure):
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(|fill=|stroke=\"", figure.svg())
    assert figure.width <= 760


def test_classes_are_in_the_style_sheet(figure):
    sheet = style.figures_css()
    used = {c for value in re.findall(r'class="([^"]*)"', figure.body) for c in value.split()}
    known = set(re.findall(r"\.([a-zA-Z][\w-]*)", sheet)) | {"t", "arrow", ""}
    assert used <= known, used - known


def test_ids_are_absent(figure):
    assert " id=" not in figure.html(), "two figures on a page must not share ids"


def test_live_output_brings_the_style_and_static_output_does_not(monkeypatch):
    monkeypatch.delenv("ATTNBOOK_STATIC", raising=False)
    assert "<style>" in mma_operands()._repr_mimebundle_()["text/html"]
    monkeypatch.setenv("ATTNBOOK_STATIC", "1")
    assert "<style>" not in mma_operands()._repr_mimebundle_()["text/html"]


# ---- the writer -----------------------------------------------------------------------------------------------------


def test_text_is_escaped():
    s = Svg(10, 10, title="a < b", desc="x & y")
    s.text(1, 1, "P < 1 & Q > 2")
    assert ElementTree.fromstring(s.svg()) is not None
    assert texts(s) == ["P < 1 & Q > 2"]


def test_caption_marks_code():
    assert inline("a `b<c>` d") == "a <code>b&lt;c&gt;</code> d"
    assert caption_html("", "") == ""
    assert "bk-src" in caption_html("x", "published")


def test_hatch_stays_inside_its_rectangle():
    s = Svg(100, 100, title="t")
    s.hatch(10, 20, 33, 17)
    numbers = [float(x) for x in re.findall(r"[\d.]+", re.search(r' d="([^"]*)"', s.body)[1])]
    xs, ys = numbers[::2], numbers[1::2]
    assert min(xs) >= 10 and max(xs) <= 43 and min(ys) >= 20 and max(ys) <= 37 and len(xs) > 6


# ---- chips and budgets ----------------------------------------------------------------------------------------------


def test_every_fact_has_unit_source_and_sureness():
    for chip in CHIPS.values():
        for name, fact in chip.facts.items():
            assert fact.unit and fact.what and fact.source, name
            assert fact.sure in ("documented", "published", "derived", "assumed")
    assert all(f.sure == "published" for f in FA4_FORWARD.values())


def test_peaks_come_out_as_stated():
    assert B200.bf16_flops == pytest.approx(2.25e15, rel=0.005)
    assert H200.bf16_flops == pytest.approx(989e12, rel=0.001)
    assert B200.tmem_bytes == 256 * 1024 and "tmem_bytes" not in H200
    with pytest.raises(AttributeError, match="has no fact"):
        H200.tmem_bytes  # noqa: B018


def test_human_bytes():
    assert human_bytes(32768) == "32 KiB"
    assert human_bytes(8e12, binary=False) == "8 TB"
    assert human_bytes(1536) == "1.5 KiB"


def test_tile_costs_are_those_of_the_paper():
    cost = {(c.lane, c.label): c.clocks for c in budget.tile_costs(p_in="tmem")}
    assert cost["tensor core", "QK"] + cost["tensor core", "PV"] == 4 * 128**3 / 8192 == 1024
    assert cost["exp", "ex2"] == 128 * 128 / 16 == 1024
    assert cost["shared memory", "Q, K"] + cost["shared memory", "V"] == 3 * 128**3 / 8192 == 768


def test_shared_memory_is_one_unit():
    """Operands, the TMA's writes and the stores of P take turns on the same banks: the longest bar of stage 1."""
    parts = [(c.label, c.clocks) for c in budget.stage_costs(1) if c.lane == "shared memory"]
    assert parts == [("Q, K", 512), ("P, V", 512), ("K, V by TMA", 512), ("P", 256)]
    totals = [budget.lane_totals(budget.stage_costs(n))["shared memory"] for n in (1, 2, 4, 5, 7)]
    assert totals == [1792, 1280, 1280, 1024, 1024], "P in TMEM, then two Q tiles for one K and V"
    assert {"1,792", "Q, K 512", "P, V 512", "K, V by TMA 512", "P 256"} <= set(texts(figures.tile_budget(1)))
    caption = figures.tile_budget(1).caption
    assert "57 %" in caption and "(768 clocks)" in caption and "our reading, not measured" in caption
    with pytest.raises(ValueError, match="software_exp2"):
        figures.tile_budget(9)


def test_serial_ceiling_counts_what_the_steps_say():
    steps = budget.serial_steps(1)
    busy, total = sum(s.clocks for s in steps if s.tensor), sum(s.clocks for s in steps)
    assert busy == 1024
    assert budget.serial_ceiling(1) == busy / total
    assert total == 2912
    assert f"{budget.serial_ceiling(2, ctas_per_sm=2):.4f}" == f"{2 * 1024 / 2656:.4f}", "below its longest unit"
    for ctas in (2, 3, 10):
        assert budget.serial_ceiling(1, ctas_per_sm=ctas) == 1024 / 1792, "two CTAs do not double shared memory"
    assert f"{total:,.0f} clocks" in texts(figures.serial_budget(1))
    with pytest.raises(ValueError, match="overlaps its steps"):
        budget.serial_steps(5)


def test_predicted_and_published_says_where_its_bars_come_from():
    s = figures.predicted_and_published(1)
    shown = texts(s)
    assert {"1,282", "789", "223", "modelled: shared memory", "1,792 clocks"} <= set(shown) and "1,577" not in shown
    assert "published %, times published" in shown
    assert "bank conflicts" not in s.caption and "product: 14.1 %" in s.caption
    assert "your guess" not in shown
    assert {"1,532", "218"} <= set(texts(figures.predicted_and_published(1, seqlen=4096)))
    assert "ceiling, the longest unit" in texts(figures.predicted_and_published(5))


def test_a_guess_is_one_more_bar():
    shown = texts(figures.predicted_and_published("baseline", guess=45))
    assert "your guess" in shown and "45 % of peak" in shown
    assert f"{0.45 * B200.bf16_flops / 1e12:,.0f}" in shown
    for wrong in (-1, 101):
        with pytest.raises(ValueError, match="from 0 to 100"):
            figures.predicted_and_published(1, guess=wrong)
    with pytest.raises(ValueError, match="take one of 4096, 8192, 16384"):
        figures.predicted_and_published(1, seqlen=2048)


def test_memory_ladder_hatches_what_nobody_published():
    s = figures.memory_ladder()
    assert "1,536 B/clk: what 128 FMA/clk need" in texts(s) and "2,048 B/clk: a guess" in texts(s)
    hatched = re.findall(r'class="ln m-(\w+)"', s.body)
    assert hatched == ["reg", "tmem"]
    assert "29.2 bytes a clock" in s.caption and "small" not in s.caption


def test_sm_map_draws_every_way():
    s = figures.sm_map()
    ways = [g.get("class") for g in root_of(s).iter("{http://www.w3.org/2000/svg}g") if "arrow" in g.get("class", "")]
    assert ways.count("arrow r-mma") == 4 * 2 + 1, "the tensor core reaches every quarter of TMEM, both ways"
    assert ways.count("arrow r-epilogue") == 2, "O goes through L2 to HBM"


def test_captions_say_what_was_counted():
    assert "262,144 multiplications and as many additions" in mma_operands().caption
    assert "98,340 bytes" in figures.smem_map(1).caption and "98,344" in figures.smem_map(1).caption
    assert "stands at 10 % of the roof" in figures.roofline(1).caption


def test_conflicts_lengthen_the_budget():
    free, slow = budget.serial_ceiling(1), budget.serial_ceiling(1, p_store_wavefronts=2048)
    assert slow < free


def test_ladder_plot_prints_what_is_published():
    shown = texts(figures.ladder_plot(1))
    bold = {"".join(t.itertext()) for t in root_of(figures.ladder_plot(1)).iter() if t.get("class") == "tb"}
    assert f"In bold: the {len(LADDER.implemented)} of {len(LADDER)}" in figures.ladder_plot(1).caption
    for stage in LADDER:
        assert stage.title in shown
        assert (stage.title in bold) == stage.implemented
        if stage.published:
            assert f"{stage.published[8192]:.1f}" in shown
    assert shown.count("no published figure") == sum(1 for s in LADDER if not s.published)


def test_mma_operands_to_scale():
    boxes = [r.attrib for r in root_of(mma_operands()).iter("{http://www.w3.org/2000/svg}rect")]
    d, a, b = ((float(x["width"]), float(x["height"])) for x in boxes[:3])
    assert (
        d[0] == d[1]
        and a[0] / a[1] == pytest.approx(16 / 128, rel=0.01)
        and b[1] / b[0] == pytest.approx(16 / 128, rel=0.01)
    )


def test_grid_map_numbers_ctas_as_the_hardware_does():
    s = figures.grid_map(1, batch=2, heads=3, seqlen=512, chosen=17)
    assert any("CTA 17: batch 1, head 1, query rows 128–255" in t for t in texts(s))
    with pytest.raises(ValueError, match="CTAs 0 to 23"):
        figures.grid_map(1, batch=2, heads=3, seqlen=512, chosen=24)


def test_smem_map_is_to_scale_and_names_all():
    from attnbook.kernels.blackwell import s01_baseline as stage

    s = figures.smem_map(1)
    shown = texts(s)
    for name in stage.BARRIERS:
        assert name in shown
    assert "K, then P" in shown
    widths = [
        float(r.get("width")) for r in root_of(s).iter("{http://www.w3.org/2000/svg}rect") if r.get("class") == "m-smem"
    ]
    assert widths == pytest.approx([744 * 32768 / B200.smem_cta_bytes] * 3, rel=1e-3)


# ---- layouts --------------------------------------------------------------------------------------------------------


def test_layouts_evaluate_as_cute_does():
    import cutlass
    import cutlass.cute as cute

    from attnbook.kernels.blackwell import s01_baseline as stage

    rng = np.random.default_rng(0)
    points = [(int(r), int(k)) for r, k in rng.integers(0, 128, (60, 2))]
    want: dict[str, list[int]] = {}

    @cute.jit
    def probe():
        for name, (function, *_) in layouts.OPERANDS.items():
            layout = getattr(stage, function)(cutlass.BFloat16)
            want[name] = [2 * layout(((r, k % 16), 0, k // 16)) for r, k in points]

    probe()
    for name in layouts.OPERANDS:
        assert [layouts.operand_offset(1, name, r, k) for r, k in points] == want[name], name


@pytest.mark.parametrize(
    ("kind", "swizzle"), [("SW32", sw.SWIZZLE_32B), ("SW64", sw.SWIZZLE_64B), ("SW128", sw.SWIZZLE_128B)]
)
def test_swizzled_tiles_lie_as_the_tensor_core_reads_them(kind, swizzle):
    """The DSL's swizzled tiles, evaluated here, against the PTX ISA's canonical K-major layout in the emulator."""
    text, tile = layouts.k_major_tile(kind)
    for first in range(0, 128, 16):
        start = int(swizzle(tile[0, first]))  # row 0 is not swizzled: its linear offset
        desc = decode_smem_descriptor(encode_smem_descriptor(start, 16, 8 * swizzle.span, swizzle))
        assert (desc.addresses(128, 0) == tile[:, first : first + 16]).all(), (text, first)


def test_operands_cover_their_tile():
    for op in layouts.operands(1).values():
        r, k = np.meshgrid(np.arange(128), np.arange(128), indexing="ij")
        assert sorted(op.offset(r, k).reshape(-1)) == list(range(0, 32768, 2)), op.name


def test_operand_offset_refuses_what_is_not_there():
    with pytest.raises(ValueError, match="keeps Q, K, P, V"):
        layouts.operand_offset(1, "S", 0, 0)
    with pytest.raises(ValueError, match="not in the 128 x 128"):
        layouts.operand_offset(1, "P", 128, 0)


@pytest.mark.parametrize(
    ("text", "swizzle"),
    [
        ("S<0,4,3> o 0 o (8,8):(8,1)", sw.NONE),
        ("S<1,4,3> o 0 o x", sw.SWIZZLE_32B),
        ("S<2,4,3> o 0 o x", sw.SWIZZLE_64B),
        ("S<3,4,3> o 0 o x", sw.SWIZZLE_128B),
        ("(8,8):(8,1)", sw.NONE),
    ],
)
def test_swizzles_are_read_from_the_print(text, swizzle):
    assert layouts.parse_swizzle(text) is swizzle


def test_wavefronts_of_simple_accesses():
    lane = np.arange(32)
    assert len(layouts.wavefronts(lane * 4, 4)) == 1, "32 neighbouring words"
    assert len(layouts.wavefronts(lane * 128, 4)) == 32, "all in one bank"
    assert len(layouts.wavefronts(lane * 8, 4)) == 2, "every other word"
    assert len(layouts.wavefronts(lane * 0, 4)) == 1, "one word for all is a broadcast"
    assert len(layouts.wavefronts(lane * 16, 16)) == 4, "512 bytes in a row"


@pytest.mark.parametrize(("kind", "fronts"), [("INTER", 4), ("SW128", 4)])
def test_wavefronts_of_tiles(kind, fronts):
    offsets = layouts.k_major_tile(kind)[1][np.arange(32), 0]
    assert len(layouts.wavefronts(offsets, 16)) == fronts


def test_emulator_counts_the_same_wavefronts():
    """The figure's wavefronts of stage 1's P stores are what the emulator's bank counters saw."""
    run = stage_run(1).run
    stores = [b for b in run.bank_conflicts.values() if b.instruction == "st.shared.v4.b32"]
    rows = layouts.operands(1)["P"].offset(np.arange(32), 0)
    assert stores and all(b.wavefronts == b.accesses * len(layouts.wavefronts(rows, 16)) for b in stores)


# ---- captured MMAs --------------------------------------------------------------------------------------------------


def test_captured_descriptors_step_as_the_layouts_say():
    mmas = captured_mmas(1)
    ops = layouts.operands(1)
    for first, names in ((0, "QK"), (8, "PV")):
        for side, name in zip("ab", names, strict=True):
            series = [getattr(m, side) for m in mmas[first : first + 8]]
            assert (series[0].lbo, series[0].sbo) == (ops[name].lbo, ops[name].sbo)
            assert [d.start - series[0].start for d in series] == [int(ops[name].offset(0, 16 * s)) for s in range(8)]
    assert figures.captured_mma("baseline").idesc.value == 0x08200490
    assert mmas[8].idesc.value == 0x08210490
    assert [m.accumulate for m in mmas[:8]] == [False] + [True] * 7


# ---- listings and the mix -------------------------------------------------------------------------------------------


def test_listing_finds_all_its_lines():
    html = figures.listing(1).html()
    assert html.count('class="note"') == len(listings.STAGE_NOTES[1])
    for note in listings.STAGE_NOTES[1]:
        assert inline(note.text) in html


def test_code_takes_text_or_numbers(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("a = 1\nif a:\n    b = 'two'  # note\nc = 3\n")
    html = figures.code(path, "if a", "c = 3", [listings.Note("b =", "look here")]).html()
    assert "look here" in html and '<span class="k">if</span>' in html and '<span class="c"># note</span>' in html
    assert ">1<" not in html, "the first line is not shown"
    with pytest.raises(ValueError, match="no line contains 'zzz'"):
        figures.code(path, "zzz")
    with pytest.raises(ValueError, match="outside of the lines"):
        figures.code(path, 1, 2, [listings.Note("c =", "not shown")])


def test_diff_shows_both_sides(tmp_path):
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("x = 1\ny = 2\nz = 3\n")
    b.write_text("x = 1\ny = 20\nz = 3\n")
    html = figures.diff(a, b).html()
    assert html.count('class="del"') == 1 and html.count('class="add"') == 1
    assert '<span class="sign">−</span>y' in html and '<span class="sign">+</span>y' in html, "signs, not colour alone"
    assert "<mark>2</mark>" in html and "<mark>20</mark>" in html and "<mark>y" not in html, "the word that changed"
    assert "1 line of" in html
    assert 'class="del"' not in figures.diff(a, a).html()


@pytest.mark.parametrize("pair", [(1, 2), (2, 3)])
def test_diff_of_stages_shows_all_that_changed(pair):
    """Cut out nothing that changed, fold what did not, and leave the text of every line as it is in the file."""
    html = figures.diff(*pair).html()
    files = [LADDER[n].path.read_text().splitlines() for n in pair]
    rows = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]

    def text(cell):
        sign = re.search(r'class="sign">(.)', cell)
        plain = re.sub(r'<span class="sign">.</span>|<[^>]*>', "", cell)
        return (sign and sign[1]), unescape(plain)

    for side, lines, sign in ((0, files[0], "−"), (2, files[1], "+")):
        seen = {}
        for row in rows:
            if len(row) == 4 and (number := text(row[side])[1]):
                seen[int(number) - 1] = text(row[side + 1])
        assert all(
            lines[i].endswith(line) and not lines[i][: len(lines[i]) - len(line)].strip()
            for i, (_, line) in seen.items()
        )
        kept = [line for i, line in enumerate(lines) if seen.get(i, ("", ""))[0] != sign]
        if side == 0:
            common = kept
        assert kept == common, "what carries no sign is the same on both sides"
    folded = [int(n) for n in re.findall(r"⋯ (\d+) line", html)]
    assert folded and min(folded) > listings.FOLD


def test_changed_lines_stand_beside_their_likes():
    old, new = ["a = load(x)", "b = 1"], ["# a note", "a = load(y)", "c()", "b = 2"]
    pairs = listings._pairs(old, new, range(2), range(4))
    assert pairs == [(None, 0), (0, 1), (None, 2), (1, 3)]


def test_marks_never_cross_a_tag():
    assert listings._mark('<span class="k">if</span> a &lt; b', [(0, 4), (5, 6)]) == (
        '<span class="k"><mark>if</mark></span><mark> a</mark> <mark>&lt;</mark> b'
    )


def test_instruction_mix_loses_nothing():
    run = stage_run(1).run
    groups = mix.by_pipe(run.instructions)
    assert sum(sum(c.values()) for c in groups.values()) == run.warp_instructions
    assert groups["tensor core, issue"] and groups["special functions"] and groups["TMEM load, store"]
    shown = texts(figures.instruction_mix(SimpleNamespace(run=run)))
    assert f"{sum(groups['special functions'].values()):,}" in shown


@pytest.mark.parametrize(
    ("opcode", "pipe"),
    [
        ("tcgen05.mma.cta_group::1.kind::f16", "tensor core, issue"),
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", "TMEM load, store"),
        ("tcgen05.wait::ld.sync.aligned", "barriers, fences, waits"),
        ("cp.async.bulk.tensor.4d.shared::cluster.global", "TMA, issue"),
        ("ex2.approx.ftz.f32", "special functions"),
        ("fma.rn.f32", "fp32 arithmetic"),
        ("max.f32", "fp32 arithmetic"),
        ("add.s32", "integer, control"),
        ("add.rn.ftz.f32x2", "fp32 arithmetic"),
        ("st.shared.v4.b32", "shared memory"),
        ("bar.sync", "barriers, fences, waits"),
        ("bra", "integer, control"),
        ("setp.lt.s32", "integer, control"),
    ],
)
def test_pipes(opcode, pipe):
    assert mix.pipe_of(opcode) == pipe


def test_shared_traffic_is_what_the_budget_counts():
    for stage in (1, 2):
        trips = traffic.shared_trips(stage)
        clocks = budget.lane_totals(budget.stage_costs(stage))[budget.SMEM]
        assert sum(t.bytes for t in trips) == clocks * B200.smem_bytes_per_clk
    assert "64 KiB of it P" in figures.shared_traffic(1, 2).desc


def test_the_order_of_the_exponentials_is_read_off_the_machine_code():
    """Stage 1 loads ahead; stage 2, which stores where it loads from, does not. All take 128 exponentials."""
    one, two = (order.exp_pass(stage) for stage in (1, 2))
    assert (one.under_way, one.load_is_early) == (2, 15)
    assert (two.under_way, two.load_is_early) == (1, 0)
    for p in (one, two):
        assert p.opcodes.count("MUFU.EX2") == 128 and p.opcodes[0] == "LDTM.x8"
        assert list(p.loads) == sorted(p.loads) and list(p.stores) == sorted(p.stores)


def test_a_row_of_a_box_costs_the_tma_a_cycle():
    """Of the record: narrow rows cost what wider ones do, and the boxes of a KV tile hold all of its bytes."""
    costs, machine = boxes.box_costs()
    assert "H200" in machine and [c.boxes * c.width * boxes.ROWS for c in costs] == [64 * 1024] * 4
    assert [c.step / boxes.ROWS for c in costs[:3]] == pytest.approx([1, 1, 1], rel=0.02)
    assert costs[3].step < 1.3 * costs[2].step
    assert "32 boxes with rows of 16 bytes" in figures.box_cost().desc


def test_barrier_graph_draws_every_barrier_from_its_facts():
    assert waits.barrier_edges(4) == [
        ("q_full", "load", "mma", "Q: 32,768 bytes, once"),
        ("kv_full", "load", "mma", "K, V: 65,536 bytes"),
        ("kv_empty", "mma", "load", "P V"),
        ("s_full", "mma", "softmax", "Q Kᵀ"),
        ("p_full", "softmax", "mma", "4 arrivals, one a warp"),
        ("o_full", "mma", "softmax", "last P V, once"),
    ]
    graph = figures.barrier_graph(4)
    assert graph.svg().count('class="arrow') == 6 and "a circle" in graph.caption
    with pytest.raises(ValueError, match="stage 3 has no roles"):
        figures.barrier_graph(3)
