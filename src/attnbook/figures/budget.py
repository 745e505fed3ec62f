"""Budgets on paper: what one tile costs each unit, what the steps of a stage cost in turn, and where attention stands
on the roofline. All of it is modelled from the rates in attnbook.chips and says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attnbook.chips import B200, FA4_FORWARD, Chip
from attnbook.figures.svg import Svg


@dataclass(frozen=True)
class Cost:
    """Clocks that one part of a tile's work keeps one unit busy."""

    lane: str
    role: str
    label: str
    clocks: float
    how: str
    guess: bool = False


def stage_number(stage: Any) -> int:
    """The number of a stage given as a number, a slug or a Stage."""
    if hasattr(stage, "number"):
        return int(stage.number)
    if isinstance(stage, str):
        from attnbook.ladder import LADDER

        return int(LADDER[stage].number)
    return int(stage)


# What a stage's file adds and this model of a tile does not follow: a budget for it would be that of an earlier stage.
NOT_MODELLED = ("software_exp2", "two_cta")
SMEM = "shared memory"
SERIAL = (1, 2, 3)  # the stages that do one thing after another


def tile_costs(
    *,
    m: int = 128,
    n: int = 128,
    d: int = 128,
    p_in: str = "smem",
    q_tiles: int = 1,
    p_store_wavefronts: float | None = None,
    s_reads: int = 2,
    chip: Chip = B200,
) -> list[Cost]:
    """Clocks for one Q tile (m rows) against one KV tile (n keys) of head dim d, unit by unit.

    Args:
        p_in: where PV takes P from: "smem" or "tmem".
        q_tiles: how many Q tiles of a CTA share a K and a V tile; the costs are those of one of them.
        p_store_wavefronts: shared-memory wavefronts that storing P takes, all warps together; default: the fewest.
        s_reads: how often S is read out of TMEM.
    The formulas for the tensor core (2mnd FLOP each MMA), exp (one ex2 a score) and the operands that MMAs read from
    shared memory (2 bytes an element at 128 bytes a clock) are those of the FlashAttention-4 paper. That the TMA's
    writes and the stores of P take their turns on the same 32 banks is this book's reading, not measured. O is
    rescaled for every tile.
    """
    v = chip.value
    flops, smem = v("mma_flops_per_clk"), v("smem_bytes_per_clk")
    half = 2 * m * n * d / flops
    pv_bytes = 2 * ((m * n if p_in == "smem" else 0) + n * d)
    costs = [
        Cost("tensor core", "mma", "QK", half, f"2·{m}·{n}·{d} / {flops:.0f}"),
        Cost("tensor core", "mma", "PV", half, f"2·{m}·{n}·{d} / {flops:.0f}"),
        Cost("exp", "softmax", "ex2", m * n / v("mufu_per_clk"), f"{m}·{n} / {v('mufu_per_clk'):.0f}"),
        Cost(SMEM, "mma", "Q, K", 2 * (m * d + n * d) / smem, f"2·({m}+{n})·{d} / {smem:.0f}"),
        Cost(SMEM, "mma", "P, V" if p_in == "smem" else "V", pv_bytes / smem, f"{pv_bytes} / {smem:.0f}"),
        Cost(SMEM, "load", "K, V by TMA", 2 * 2 * n * d / smem / q_tiles, f"2·2·{n}·{d} / {smem:.0f} / {q_tiles}"),
    ]
    if p_in == "smem":
        waves = 2 * m * n / smem if p_store_wavefronts is None else p_store_wavefronts
        costs.append(Cost(SMEM, "softmax", "P", waves, f"{waves:.0f} wavefronts of at most {smem:.0f} B"))
    if "tmem_bytes_per_clk" in chip:
        rate = v("tmem_bytes_per_clk")
        reads = s_reads * 4 * m * n / rate
        costs += [
            Cost("TMEM", "softmax", f"S ×{s_reads}", reads, f"{s_reads}·4·{m}·{n} / {rate:.0f}", True),
            Cost("TMEM", "correction", "O in, out", 2 * 4 * m * d / rate, f"2·4·{m}·{d} / {rate:.0f}", True),
        ]
    return costs


def stage_costs(stage: Any = 1, *, chip: Chip = B200, p_store_wavefronts: float | None = None) -> list[Cost]:
    """tile_costs as a stage of the ladder has them. ValueError for a stage with an idea that they do not follow."""
    from attnbook.ladder import LADDER

    number = stage_number(stage)
    features = LADDER[number].features
    for feature in NOT_MODELLED:
        if feature in features:
            first = next(s.number for s in LADDER if feature in s.features)
            raise ValueError(f"the budget of stage {number} is not modelled: {feature} (stage {first}) is not in it")
    return tile_costs(
        p_in="smem" if "p_in_smem" in features else "tmem",
        q_tiles=2 if "two_q_tiles" in features else 1,
        s_reads=1 if "register_cache" in features else 2,
        p_store_wavefronts=p_store_wavefronts,
        chip=chip,
    )


def lane_totals(costs: Iterable[Cost]) -> dict[str, float]:
    """Clocks by unit, in the order of the costs."""
    totals: dict[str, float] = {}
    for c in costs:
        totals[c.lane] = totals.get(c.lane, 0.0) + c.clocks
    return totals


def tile_budget(stage: Any = 1, *, chip: Chip = B200, p_store_wavefronts: float | None = None) -> Svg:
    """How many clocks one 128 x 128 tile keeps each unit busy, on one axis.

    Args:
        stage: in stage 1, P goes through shared memory; from stage 2 on it stays in TMEM; from stage 5 on two Q tiles
            share a K and a V tile, and what is shown is the cost of one of them. ValueError from stage 9 on.
        p_store_wavefronts: what storing P costs, from an emulated run's bank counters; default: no conflicts.
    """
    number = stage_number(stage)
    costs = stage_costs(stage, p_store_wavefronts=p_store_wavefronts, chip=chip)
    totals = lane_totals(costs)
    lanes = list(totals)
    mma, exp, smem = totals["tensor core"], totals["exp"], totals[SMEM]
    shared = number >= 5
    paper = 3 * 128**3 / 64 / chip.value("smem_bytes_per_clk")  # 3 operand tiles of 2 bytes an element, at 128 B/clk
    rates = {
        "tensor core": f"{chip.value('mma_flops_per_clk'):,.0f} FLOP/clk",
        "exp": f"{chip.value('mufu_per_clk'):,.0f} ex2/clk",
        SMEM: f"{chip.value('smem_bytes_per_clk'):,.0f} B/clk",
    }
    if "tmem_bytes_per_clk" in chip:
        rates["TMEM"] = f"{chip.value('tmem_bytes_per_clk'):,.0f} B/clk, a guess"
    pitch, y0 = 52, 48
    s = Svg(
        760,
        y0 + pitch * len(lanes) + 4,
        title=f"Stage {number}: what one 128 × 128 tile costs each unit",
        name="tile_budget",
        desc="Clocks by unit: " + "; ".join(f"{k} {t:,.0f}" for k, t in totals.items()),
        caption=(
            "The work of one Q tile against one KV tile (128 queries, 128 keys, head dim 128), unit by unit: work "
            "divided by rate, without latency. "
            + ("Two Q tiles share each K and V tile, so half of the TMA's writes count for one. " if shared else "")
            + f"The tensor core needs {mma:,.0f} clocks, the exponentials {exp:,.0f}, shared memory {smem:,.0f}. One "
            "after the other they add up; side by side, none can take less than the longest bar"
            + (
                f", so the tensor core works at most {100 * mma / max(totals.values()):.0f} % of the time. "
                if max(totals.values()) > mma
                else ". "
            )
            + "The formulas for tensor core, exponentials and operands read are FlashAttention-4's; its paper counts "
            f"for shared memory only the operands, with P in TMEM ({paper:,.0f} clocks). That the TMA's writes"
            + (" and the stores of P" if "p_in_smem" in _features(number) else "")
            + " take turns with them on the same 32 banks is our reading, not measured. Hatched: the TMEM rate is a "
            "working guess."
        ),
        source="modelled from published rates; one count for all of shared memory is this book's",
    )
    top = max(totals.values())
    x0, w = 146, 522
    for tick in range(0, int(top) + 1, 256):
        x = x0 + w * tick / top
        s.line(x, 34, x, y0 + pitch * len(lanes) - 14, "ln hair")
        s.text(x, 24, f"{tick:,}", "ts", anchor="middle")
    s.text(8, 24, "clocks", "ts")
    for i, lane in enumerate(lanes):
        y = y0 + pitch * i
        s.text(8, y + 13, lane, "tb")
        s.text(8, y + 29, rates[lane], "ts")
        x = float(x0)
        for c in (c for c in costs if c.lane == lane):
            cw = w * c.clocks / top
            _bar(s, x, y, cw, 28, c.role, c.label, c.clocks, guess=c.guess)
            x += cw
        if totals[lane] < 200:
            parts = ", ".join(f"{c.label}: {c.clocks:,.0f}" for c in costs if c.lane == lane)
            s.text(x + 8, y + 19, f"{totals[lane]:,.0f}", "tb")
            s.text(x + 44, y + 19, parts, "ts")
        else:
            s.text(x + 8, y + 19, f"{totals[lane]:,.0f}", "tb")
    return s


def _features(number: int) -> tuple[str, ...]:
    from attnbook.ladder import LADDER

    return LADDER[number].features


def _bar(s: Svg, x: float, y: float, w: float, h: float, role: str, label: str, clocks: float, *, guess: bool) -> None:
    s.rect(x + 0.5, y, max(w - 1, 1), h, f"r-{role}", rx=2)
    if guess:
        s.hatch(x + 0.5, y, max(w - 1, 1), h, "hatch on")
        return
    full = f"{label} {clocks:,.0f}"
    shown = full if len(full) * 8 + 8 < w else label
    if len(shown) * 8 + 8 < w:
        s.text(x + w / 2, y + h / 2 + 5, shown, "tb on", anchor="middle")


@dataclass(frozen=True)
class Step:
    """One step of a stage that nothing overlaps: its name, its colour, its clocks, and whether the tensor core "
    "works."""

    name: str
    role: str
    clocks: float
    what: str
    tensor: bool = False
    guess: bool = False


def serial_steps(stage: Any = 1, *, chip: Chip = B200, p_store_wavefronts: float | None = None) -> list[Step]:
    """The steps of one KV tile in the order in which the stage takes them, each with the least it can cost.

    ValueError for a stage whose steps overlap: a sum says nothing about it.
    """
    number = stage_number(stage)
    if number not in SERIAL:
        raise ValueError(f"stage {number} overlaps its steps: a sum of them says nothing; use tile_budget({number})")
    by = {(c.lane, c.label): c.clocks for c in stage_costs(number, p_store_wavefronts=p_store_wavefronts, chip=chip)}
    s_read = by["TMEM", "S ×2"] / 2
    steps = [
        Step("load", "load", by[SMEM, "K, V by TMA"], "K and V arrive, at shared memory's own rate"),
        Step("QK", "mma", by["tensor core", "QK"], "S = Q Kᵀ", tensor=True),
        Step("max", "softmax", s_read, "read S, row maximum", guess=True),
        Step("rescale", "correction", by["TMEM", "O in, out"], "O times the factor", guess=True),
        Step("exp", "softmax", by["exp", "ex2"], "P = exp(S - max)"),
    ]
    if number == 1:
        steps.append(Step("P out", "softmax", by[SMEM, "P"], "P into shared memory"))
    steps.append(Step("PV", "mma", by["tensor core", "PV"], "O += P V", tensor=True))
    return steps


def serial_ceiling(stage: Any = 1, *, ctas_per_sm: int = 1, chip: Chip = B200, **kw: Any) -> float:
    """The largest fraction of the tensor cores' peak that the stage's serial steps leave.

    Args:
        ctas_per_sm: how many CTAs share the SM. Each takes its own steps in turn; one's may stand beside another's, but
            however many there are, a tile takes as long as the unit that it keeps busy longest.
    """
    steps = serial_steps(stage, chip=chip, **kw)
    alone = sum(p.clocks for p in steps if p.tensor) / sum(p.clocks for p in steps)
    return min(ctas_per_sm * alone, unit_ceiling(stage, chip=chip, **kw)[0])


def unit_ceiling(
    stage: Any = 1, *, chip: Chip = B200, p_store_wavefronts: float | None = None
) -> tuple[float, str, float]:
    """The largest fraction of peak that any order of the work leaves, the unit that sets it, and its clocks a tile.

    A tile takes at least as long as the unit that it keeps busy longest.
    """
    totals = lane_totals(stage_costs(stage, chip=chip, p_store_wavefronts=p_store_wavefronts))
    longest = max(totals, key=lambda lane: totals[lane])
    return totals["tensor core"] / totals[longest], longest, totals[longest]


def serial_budget(stage: Any = 1, *, chip: Chip = B200, p_store_wavefronts: float | None = None) -> Svg:
    """The steps of one KV tile laid end to end, and the share of the time in which the tensor core works."""
    steps = serial_steps(stage, chip=chip, p_store_wavefronts=p_store_wavefronts)
    total = sum(p.clocks for p in steps)
    ceiling = serial_ceiling(stage, chip=chip, p_store_wavefronts=p_store_wavefronts)
    busy = sum(p.clocks for p in steps if p.tensor)
    tflops = ceiling * chip.bf16_flops / 1e12
    s = Svg(
        760,
        178,
        title=f"Stage {stage_number(stage)}, one KV tile: the steps in turn",
        name="serial_budget",
        desc="; ".join(f"{p.name}: {p.clocks:,.0f} clocks" for p in steps) + f"; together {total:,.0f}.",
        caption=(
            f"One step after another, a tile costs at least {total:,.0f} clocks, and the tensor core works in "
            f"{busy:,.0f} "
            f"of them: {100 * ceiling:.0f} % of its peak, {tflops:,.0f} TFLOPS on a whole {chip.name}, with one CTA "
            f"on each "
            f"SM. Every "
            "bar is the least that its step can cost: no latency, no waiting, no instructions around it. The load "
            "takes 64 KiB at shared memory's own rate, as if L2 had all of them. Hatched: the TMEM rate is a working "
            "guess."
        ),
        source="modelled from published rates",
    )
    x0, w, y = 8.0, 744.0, 58
    x = x0
    for p in steps:
        cw = w * p.clocks / total
        s.rect(x + 0.5, y, max(cw - 1, 1.5), 40, f"r-{p.role}", rx=2)
        if p.guess:
            s.hatch(x + 0.5, y, max(cw - 1, 1.5), 40, "hatch on")
        elif len(p.name) * 8 + 6 < cw:
            s.text(x + cw / 2, y + 18, p.name, "tb on", anchor="middle")
            s.text(x + cw / 2, y + 34, f"{p.clocks:,.0f}", "t on", anchor="middle")
        x += cw
    small = [p for p in steps if p.guess]
    if small:
        first = x0 + w * sum(p.clocks for p in steps[: steps.index(small[0])]) / total
        last = first + w * sum(p.clocks for p in small) / total
        s.line((first + last) / 2, y - 4, (first + last) / 2, y - 14, "ln thin")
        s.text((first + last) / 2, y - 20, ", ".join(f"{p.name} {p.clocks:,.0f}" for p in small), "ts", anchor="middle")
    s.text(x0, 16, "one KV tile, in turn", "tl")
    s.text(x0 + w, 16, f"{total:,.0f} clocks", "tl", anchor="end")
    s.text(x0, y + 66, "tensor core at work", "ts")
    x = x0
    for p in steps:
        cw = w * p.clocks / total
        s.rect(x + 0.5, y + 74, cw - 1, 10, "r-mma" if p.tensor else "off", rx=1)
        x += cw
    s.text(x0, y + 106, f"{busy:,.0f} of {total:,.0f} clocks = {100 * ceiling:.0f} % of peak, at most", "tb")
    return s


def predicted_and_published(
    stage: Any = 1,
    *,
    chip: Chip = B200,
    seqlen: int = 8192,
    p_store_wavefronts: float | None = None,
    guess: float | None = None,
) -> Svg:
    """The ceiling that the budget sets, beside what was published for this stage and for FlashAttention-4.

    Args:
        seqlen: 4096, 8192 or 16384.
        guess: the reader's own, in percent of the tensor cores' peak (0 to 100), drawn as one more bar; None: no bar.
    Stages 1 to 3 do one thing after another: their ceilings are those of the serial steps. From stage 4 on the ceiling
    is the unit that is busy longest. ValueError for a stage without published figures or without a budget.
    """
    from attnbook.ladder import LADDER

    if guess is not None and not 0 <= guess <= 100:
        raise ValueError(f"guess={guess:g}: give percent of the tensor cores' peak, from 0 to 100, or None")

    number = stage_number(stage)
    have = LADDER[number].published
    if seqlen not in have:
        there = f"take one of {', '.join(map(str, have))}" if have else "nothing is published for this stage"
        raise ValueError(f"stage {number}, sequence length {seqlen}: {there}")
    published = have[seqlen]
    fa4 = FA4_FORWARD[seqlen].value / 1e12
    peak = chip.bf16_flops / 1e12
    kw: dict[str, Any] = {"chip": chip, "p_store_wavefronts": p_store_wavefronts}
    bound, unit, clocks = unit_ceiling(number, **kw)
    because, a_tile = f"modelled: {unit}", f"{clocks:,.0f} clocks"
    if number in SERIAL:
        one, two = serial_ceiling(number, **kw), serial_ceiling(number, ctas_per_sm=2, **kw)
        kind, why = (because, a_tile) if two == bound else ("modelled", "each in turn")
        ceilings = [
            ("ceiling, two CTAs an SM", two * peak, kind, "m-reg", why),
            ("ceiling, one CTA an SM", one * peak, "modelled", "m-reg", "nothing overlaps"),
        ]
    else:
        kind, why = (because, a_tile) if bound < 1 else ("modelled", "")
        ceilings = [("ceiling, the longest unit", bound * peak, kind, "m-reg", why)]
    rows = [
        ("tensor-core peak", peak, "published", "panel", ""),
        ("FlashAttention-4", fa4, "published, read off plots", "m-hbm", ""),
        *ceilings,
        (
            f"stage {number}",
            published / 100 * fa4,
            "published %, times published",
            "r-mma",
            f"{published:g} % of FlashAttention-4",
        ),
    ]
    if guess is not None:
        rows.append(("your guess", guess / 100 * peak, f"{guess:g} % of peak", "guess", ""))
    s = Svg(
        760,
        40 + 46 * len(rows) + 26,
        title=f"Stage {number}: what the budget allows and what was published",
        name="predicted_and_published",
        desc="; ".join(f"{label}: {value:,.0f} TFLOPS ({kind})" for label, value, kind, _, _ in rows),
        caption=(
            f"What the budget allows and what came out, at sequence length {seqlen:,}. The budget counts rates only; "
            f"the distance from the ceiling down to the published figure is what it leaves out: latencies, waits, the "
            "way the operands travel, the instructions between. "
            + (
                f"Two CTAs on an SM fill each other's gaps, but both need the same units: no ceiling is above the "
                f"longest, {unit}, with {clocks:,.0f} clocks a tile. "
                if number in SERIAL and unit != "tensor core"
                else ""
            )
            + f"The stage's bar is a product: {published:g} %, measured against FlashAttention-4 in one run by others "
            "with a CUDA kernel built on the same idea, times FlashAttention-4's own figure, which others have read "
            "off the paper's plots."
        ),
        source=(
            "published: b200-attention (percent of FlashAttention-4), FlashAttention-4 paper; "
            "modelled: attnbook.figures.budget"
        ),
    )
    x0, w = 204, 456
    s.text(x0, 20, "TFLOPS, dense forward, bf16", "ts")
    for tick in (0, 500, 1000, 1500, 2000):
        x = x0 + w * tick / peak
        s.line(x, 32, x, 40 + 46 * len(rows), "ln hair")
        s.text(x, 40 + 46 * len(rows) + 18, f"{tick:,}", "ts", anchor="middle")
    for i, (label, value, kind, cls, note) in enumerate(rows):
        y = 42 + 46 * i
        bw = w * value / peak
        s.text(8, y + 14, label, "tb")
        s.text(8, y + 30, kind, "ts")
        s.rect(x0, y, bw, 24, "mark" if cls == "guess" else cls, rx=2)
        if cls == "m-reg":  # modelled
            s.hatch(x0, y, bw, 24, "ln m-reg")
        s.text(x0 + bw + 8, y + 17, f"{value:,.0f}", "tb")
        if note:
            s.text(x0 + bw + 56, y + 17, note, "ts halo")
    return s


def attention_intensity(seqlen: int, *, head_dim: int = 128, element: int = 2) -> float:
    """FLOP per HBM byte of one head when Q, K, V are read once and O is written once: 4 S² d / (4 S d e) = S / e."""
    return 4 * seqlen**2 * head_dim / (4 * seqlen * head_dim * element)


def roofline(stage: Any = 1, *, chip: Chip = B200, seqlens: tuple[int, ...] = (256, 1024, 4096, 16384)) -> Svg:
    """Attention on the HBM roofline, with what was published for FlashAttention-4 and for one stage of the ladder."""
    from attnbook.ladder import LADDER

    number = stage_number(stage)
    row = LADDER[number].published
    peak, bw = chip.bf16_flops / 1e12, chip.hbm_bytes_per_s / 1e12
    ridge = peak / bw
    share = row[max(row)] * FA4_FORWARD[max(row)].value / 1e12 / peak
    s = Svg(
        760,
        404,
        title=f"Attention on the roofline of a {chip.name}",
        name="roofline",
        desc=(
            f"A slope of {bw:g} TB/s meets the roof of {peak:,.0f} TFLOPS at {ridge:.0f} FLOP per byte. Attention of "
            + ", ".join(f"{n:,} tokens does {attention_intensity(n):,.0f}" for n in seqlens)
            + " FLOP per byte."
        ),
        caption=(
            f"Above {ridge:.0f} FLOP for each byte of HBM traffic a {chip.name} is limited by its tensor cores, not "
            f"by its memory. "
            f"Attention that reads Q, K and V once and writes O once is there from {2 * ridge:,.0f} tokens on. What "
            f"a slow "
            f"attention kernel wastes, it wastes inside the SM: at {max(row):,} tokens stage {number} stands at "
            f"{share:.0f} % of the roof, and memory is not why. FlashAttention-4's figures are quoted from readings of "
            "its paper's plots; the stage's are a published percentage of them."
        ),
        source="roof and slope: published peak and bandwidth; filled points: published; open points: modelled",
    )
    x0, y0, w, h = 70, 336, 640, 296
    lx0, lx1, ly0, ly1 = math.log10(40), math.log10(20000), math.log10(100), math.log10(4000)

    def px(value: float) -> float:
        return x0 + w * (math.log10(value) - lx0) / (lx1 - lx0)

    def py(value: float) -> float:
        return y0 - h * (math.log10(value) - ly0) / (ly1 - ly0)

    for t in (100, 1000, 10000):
        s.line(px(t), y0, px(t), y0 - h, "ln hair")
        s.text(px(t), y0 + 20, f"{t:,}", "ts", anchor="middle")
    for t in (100, 300, 1000, 3000):
        s.line(x0, py(t), x0 + w, py(t), "ln hair")
        s.text(x0 - 8, py(t) + 4, f"{t:,}", "ts", anchor="end")
    s.text(x0 + w, y0 + 44, "FLOP per byte of HBM traffic", "ts", anchor="end")
    s.text(8, 20, "TFLOPS", "ts")
    s.polyline([(px(40), py(40 * bw)), (px(ridge), py(peak)), (x0 + w, py(peak))], "ln ink", stroke_width=2)
    s.text(px(ridge) + 14, py(peak) - 32, f"tensor cores: {peak:,.0f} TFLOPS", "tb")
    s.text(px(90) + 12, py(90 * bw) + 18, f"HBM: {bw:g} TB/s", "tb")
    s.line(px(ridge), py(peak), px(ridge), y0, "ln dash")
    s.text(px(ridge) + 6, y0 - 8, f"{ridge:.0f} FLOP/B", "ts")
    for n in seqlens:
        x = attention_intensity(n)
        y = min(peak, x * bw)
        s.circle(px(x), py(y), 4.5, "paper ring")
        if y < peak:
            s.text(px(x) + 12, py(y) + 5, f"{n:,} tokens", "ts halo")
        else:
            s.text(px(x), py(y) - 12, f"{n:,} tokens", "ts halo", anchor="middle")
    for n in sorted(set(row) & set(FA4_FORWARD)):
        x, fa4 = px(attention_intensity(n)), FA4_FORWARD[n].value / 1e12
        s.circle(x, py(fa4), 5, "r-epilogue")
        s.circle(x, py(fa4 * row[n] / 100), 5, "r-mma")
        if n == max(row):
            s.text(x + 10, py(fa4) + 18, f"FlashAttention-4: {fa4:,.0f}", "t halo r-epilogue", anchor="end")
            s.text(
                x + 10,
                py(fa4 * row[n] / 100) + 22,
                f"stage {number}: {fa4 * row[n] / 100:,.0f}",
                "t halo r-mma",
                anchor="end",
            )
    return s
