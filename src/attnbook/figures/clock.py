"""The clock in pictures: its table, what it says of the ladder, what its uncertainty does, and how it finds its way."""

from __future__ import annotations

from html import escape
from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Html, Svg

WORDS = {
    "fma": "fp32 multiply-add, for a warp",
    "imad": "integer multiply-add, for a warp",
    "packed": "two fp32 multiply-adds in one instruction",
    "alu": "integer, logic, maximum, for a warp",
    "convert": "two fp32 to a bf16 pair, for a warp",
    "mufu": "exponential, reciprocal, for a warp",
    "shuffle": "shuffle, for a warp",
    "uniform": "uniform datapath",
    "shared_bytes": "shared memory",
    "mufu_latency": "exponential, until it can be used",
    "shuffle_latency": "shuffle, until it can be used",
    "lds_latency": "load from shared memory",
    "ldg_latency": "load from L2",
    "try_wait_latency": "try_wait, when the phase is over",
    "arrive_latency": "arrival, until the barrier has it",
    "wake_latency": "end of a phase, until a waiting warp goes on",
    "bar_latency": "named barrier",
    "bar_warp": "named barrier, for each warp",
    "tma_row": "TMA, a row of a box, one SM",
    "l2_row": "TMA, a row of a box, all SMs",
    "tma_bytes": "TMA, one SM",
    "l2_bytes": "TMA, all SMs",
    "tma_latency": "TMA, beyond its rows",
    "tma_issue": "TMA, until it starts",
    "special_latency": "special registers, votes",
    "uniform_latency": "uniform datapath, until it can be used",
    "read_latency": "until a store has read its registers",
    "fence_latency": "fence",
    "clock_hz": "clock",
    "sms": "SMs",
    "mma_flops": "tensor core",
    "mma_latency": "MMA, from its end to the arrival",
    "mma_issue": "MMA, until it starts",
    "tmem_load_bytes": "load from TMEM, a quarter",
    "tmem_store_bytes": "store to TMEM, a quarter",
    "tmem_latency": "TMEM, beyond its bytes",
}


def chip_table(chip: str = "B200") -> Html:
    """The clock's table of a chip: each figure, its unit, its source, how sure it is, by what factor it may be off."""
    from ptxemu.clock import CHIPS

    facts = CHIPS[chip].facts
    order = {"documented": 0, "published": 1, "derived": 2, "measured": 3, "assumed": 4}
    rows = sorted(facts.items(), key=lambda item: (order[item[1].sure], list(WORDS).index(item[0])))
    body = "".join(
        f"<tr><td>{escape(WORDS[key])}</td><td class='num'>{fact.value:,g}</td><td>{escape(fact.unit)}</td>"
        f"<td>{fact.sure}</td><td class='num'>{'' if fact.spread == 1 else f'{fact.spread:g}'}</td>"
        f"<td>{escape(fact.source)}</td></tr>"
        for key, fact in rows
    )
    counts = {sure: sum(fact.sure == sure for fact in facts.values()) for sure in order}
    said = ", ".join(f"{n} {sure}" for sure, n in counts.items() if n)
    return Html(
        "<div class='bk-scroll' role='region' tabindex='0' aria-label='Table of the clock'><table class='bk-table'>"
        "<thead><tr><th>what</th><th>value</th><th>unit</th><th>how sure</th><th>may be off by a factor of</th>"
        f"<th>source</th></tr></thead><tbody>{body}</tbody></table></div>",
        title=f"What the clock knows of the {chip}",
        desc=f"{len(rows)} figures: {said}.",
        caption=f"Every figure that the clock has of a {chip}: {said}. No figure was fitted to a kernel of the ladder.",
        source="ptxemu.clock.chips",
        name="chip_table",
    )


def _stages(record: Any) -> list[Any]:
    """The entries of a record that are about stages of the ladder."""
    from attnbook.ladder import LADDER

    slugs = {stage.slug for stage in LADDER}
    return [e for e in record.entries if e.subject.partition(",")[0] in slugs]


def clock_judged() -> Html:
    """Kernels that took no part in any table, under the clock, beside what was published or measured for them."""
    from attnbook.chips import FA4_FORWARD
    from attnbook.results import load_all, results_dir

    records = load_all(results_dir()).values()
    measured = {
        (e.subject.partition(",")[0], tuple(sorted(e.shape.items()))): (e.value, r.label)
        for r in records
        if r.provenance == "measured"
        for e in r.entries
        if e.quantity == "throughput"
    }
    rows, errors = [], []
    for record in records:
        if record.provenance != "modelled" or _stages(record):
            continue
        for e in record.entries:
            if e.quantity != "throughput":
                continue
            key = e.subject.partition(",")[0], tuple(sorted(e.shape.items()))
            if record.machine["name"] == "B200" and "two CTAs" in e.subject:
                truth, label = FA4_FORWARD[int(e.shape["seqlen"])].value / 1e12, "published, read off its paper's plots"
            elif record.machine["name"] == "H200" and key in measured:
                truth, label = measured[key]
            else:
                continue
            errors.append(e.value / truth - 1)
            numbers = (f"{e.shape['seqlen']:,}", f"{e.value:,.0f}", f"{truth:,.0f}", f"{errors[-1]:+.0%}")
            cells = "".join(f"<td class='num'>{number}</td>" for number in numbers)
            rows.append(
                f"<tr><td>{escape(e.subject)}</td><td>{record.machine['name']}</td>{cells}<td>{escape(label)}</td></tr>"
            )
    mean = sum(map(abs, errors)) / len(errors)
    return Html(
        "<div class='bk-scroll' role='region' tabindex='0' aria-label='Modelled and measured'><table class='bk-table'>"
        "<thead><tr><th>kernel</th><th>chip</th><th>sequence</th><th>modelled, TFLOPS</th><th>found</th>"
        f"<th>error</th><th>whose</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
        title="The clock judged by kernels that it was not fitted to",
        desc=f"{len(rows)} rows; mean error {mean:.0%}, worst {max(errors, key=abs):+.0%}.",
        caption=(
            f"Dense forward, head dim 128, 16 heads, 32K tokens; found: published or measured, see the last column. "
            f"{len(rows)} rows: mean absolute error {mean:.0%}, worst {max(errors, key=abs):+.0%}."
        ),
        source="modelled: ptxemu clock; the last column says whose the other figure is",
        name="clock_judged",
    )


def _records(chip: str) -> Any:
    """The newest modelled record of a chip."""
    from attnbook.results import load_all, results_dir

    found = [
        r
        for r in load_all(results_dir()).values()
        if r.provenance == "modelled" and r.machine["name"] == chip and any("CTA" in e.subject for e in _stages(r))
    ]
    if not found:
        raise FileNotFoundError(
            f"book/results has no modelled record of the {chip}: attnbook clock --chip {chip} --record book/results/..."
        )
    return max(found, key=lambda r: r.date)


def clock_ladder(chip: str = "B200") -> Svg:
    """What the clock says of each stage, beside what is published for the same idea, at 8K."""
    from attnbook.chips import FA4_FORWARD
    from attnbook.ladder import LADDER

    entries = [e for e in _records(chip).entries if e.quantity == "throughput" and e.shape["seqlen"] == 8192]
    stages = [st for st in LADDER.implemented if any(e.subject.startswith(f"{st.slug},") for e in entries)]
    peak = 1000.0
    x0, w, pitch, y0 = 190, 420, 46, 56
    fa4 = FA4_FORWARD[8192].value / 1e12
    s = Svg(
        760,
        y0 + pitch * len(stages) + 18,
        title="The ladder under the clock",
        name="clock_ladder",
        caption=(
            "Throughput at sequence length 8,192. Filled: published for a CUDA kernel of the same idea (percent of "
            "FlashAttention-4, times its published TFLOPS). Open: what the clock says of this book's kernel; the line "
            "is the range that its uncertain figures leave. Where two CTAs fit on an SM, both are shown: upper one "
            "CTA, lower two."
        ),
        source="published: b200-attention, FlashAttention-4; modelled: ptxemu clock",
    )
    for tick in range(0, 1001, 250):
        x = x0 + w * tick / peak
        s.line(x, y0 - 12, x, y0 + pitch * len(stages) - 8, "ln hair")
        s.text(x, y0 - 20, f"{tick:,}", "ts", anchor="middle")
    s.text(x0, y0 - 38, "TFLOPS", "ts")
    said = []
    for i, st in enumerate(stages):
        y = y0 + pitch * i
        s.text(30, y + 17, st.number, "ts", anchor="end")
        s.text(40, y + 17, st.title, "tb")
        published = fa4 * st.published[8192] / 100
        s.circle(x0 + w * published / peak, y + 14, 5.5, "dot")
        mine = [e for e in entries if e.subject.startswith(f"{st.slug},")]
        for n, e in enumerate(mine):
            yy = y + 6 + 16 * n if len(mine) > 1 else y + 14
            s.line(x0 + w * e.low / peak, yy, x0 + w * min(e.high, peak) / peak, yy, "ln ink")
            s.circle(x0 + w * e.value / peak, yy, 5, "ring", fill="none")
            s.text(756, yy + 4, f"{e.value:,.0f} ({e.low:,.0f} to {e.high:,.0f})", "ts", anchor="end")
        modelled = ", ".join(f"{e.value:,.0f}" for e in mine)
        said.append(f"{st.title} {published:,.0f} published, {modelled} modelled")
    s.desc = "TFLOPS: " + "; ".join(said) + "."
    return s


def clock_sensitivity(stage: Any = "interleave", chip: str = "B200") -> Svg:
    """What a stage's predicted cycles do when each uncertain figure of the table moves by its spread."""
    from attnbook.ladder import LADDER
    from ptxemu.clock import CHIPS

    slug = LADDER[stage_number(stage)].slug
    record = _records(chip)
    mine = [e for e in record.entries if e.subject.startswith(f"{slug},")]
    subject = mine[-1].subject
    (total,) = (e for e in mine if e.quantity == "cycles" and e.subject == subject)
    rows = [e for e in mine if e.subject == subject and e.quantity.endswith(" moved")]
    rows.sort(key=lambda e: e.low - e.high)
    rows = [total, *rows[:10]]
    least, most = min(e.low for e in rows), max(e.high for e in rows)
    x0, w, pitch, y0 = 300, 330, 26, 54
    scale = w / (most - least)
    s = Svg(
        760,
        y0 + pitch * len(rows) + 12,
        title=f"How sure is the clock of stage {stage_number(stage)}?",
        name="clock_sensitivity",
        caption=(
            "Cycles of an SM for 128 queries by 128 keys, when one figure of the table is divided and multiplied by "
            "the factor by which it may be off. At the top all together, added as squares."
        ),
        source=f"modelled: ptxemu clock, {subject}",
    )
    for tick in range(int(least // 250 + 1) * 250, int(most) + 1, 250):
        x = x0 + scale * (tick - least)
        s.line(x, y0 - 10, x, y0 + pitch * len(rows), "ln hair")
        s.text(x, y0 - 18, f"{tick:,}", "ts", anchor="middle")
    middle = x0 + scale * (total.value - least)
    for i, e in enumerate(rows):
        y = y0 + pitch * i
        key = e.quantity.removeprefix("cycles, ").removesuffix(" moved")
        label = "all of them" if i == 0 else WORDS[key]
        s.text(x0 - 12, y + 15, label, "tb" if i == 0 else "t", anchor="end")
        wide = max(1, scale * (e.high - e.low))
        s.rect(x0 + scale * (e.low - least), y + 4, wide, 14, "m-reg" if i else "r-softmax")
        if i:
            fact = CHIPS[chip][key]
            s.text(x0 + w + 10, y + 15, f"{fact.value:g}, by {fact.spread:g}", "ts")
    s.line(middle, y0 - 4, middle, y0 + pitch * len(rows), "ln ink")
    s.text(middle, y0 - 34, f"{total.value:,.0f} cycles", "tb", anchor="middle")
    named = [(WORDS[e.quantity.removeprefix("cycles, ").removesuffix(" moved")], e) for e in rows[1:]]
    s.desc = f"{total.value:,.0f} cycles, between {total.low:,.0f} and {total.high:,.0f}. " + "; ".join(
        f"{name}: {e.low:,.0f} to {e.high:,.0f}" for name, e in named
    )
    return s


def sass_way(stage: Any = "interleave", warp: int = 9, first: int = 12, count: int = 18) -> Html:
    """How the clock finds a warp's way: its anchors in the PTX run and the SASS instructions they became."""
    from attnbook import clock

    number = stage_number(stage)
    clock.time(number)
    recorder, code = clock.recorded(number)
    program, steps = recorder.programs[id(code)][1][0, warp]
    rows = []
    before = -1
    for at in sorted(steps)[first : first + count]:
        step, op = steps[at], code[program[at]]
        between = at - before - 1 if before >= 0 else None
        before = at
        rows.append(
            f"<tr><td><code>{escape(step.text)}</code></td><td class='num'>{step.anchor.line}</td>"
            f"<td><code>{escape(op.opcode)}</code></td><td class='num'>{op.address:#x}</td>"
            f"<td class='num'>{'' if between is None else between}</td><td class='num'>{op.stall}</td></tr>"
        )
    anchors = len(steps)
    return Html(
        "<div class='bk-scroll' role='region' tabindex='0' aria-label='Anchors of a warp'><table class='bk-table'>"
        "<thead><tr><th>PTX, as the emulator ran it</th><th>line</th><th>SASS</th><th>address</th>"
        f"<th>instructions before</th><th>stall</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
        title=f"A warp's way through the SASS of stage {number}",
        desc=f"{count} of the {anchors} anchors of warp {warp}, each with the SASS instruction it became.",
        caption=(
            f"Warp {warp} of stage {number}: {count} of its {anchors} anchors, one after another. Between two the "
            f"clock takes the shortest way that the branches leave open. All {anchors} are found; "
            f"{len(program):,} SASS instructions lie on the way."
        ),
        source="emulated run, and the CUBIN as nvdisasm prints it",
        name="sass_way",
    )
