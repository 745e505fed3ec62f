"""Movable figure of one mbarrier: arrivals, bytes, phase and waiters, step by step through a real trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnbook.chips import human_bytes
from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.still import barrier_names
from attnbook.figures.svg import Svg
from attnbook.figures.traces import stage_trace
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.trace import Trace


@dataclass(frozen=True)
class Moment:
    """The state of a barrier after one thing has happened.

    kind: init, wait, expect, arrive, bytes, phase or go. pending: arrivals still missing. tx: bytes still missing
        (expected
    and not yet there). phase: phases completed. waiting: warp -> the phase whose end it waits for. tick: when in the
    trace. source: the kernel's line that caused it.
    """

    tick: float
    kind: str
    text: str
    pending: int
    count: int
    tx: int
    phase: int
    expected: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    source: str = ""


def story(trace: Trace, address: int, cta: int = 0, *, phases: int = 2, pieces: int = 4) -> list[Moment]:
    """What happens to the mbarrier at a shared-memory address, from its initialisation to the end of `phases` phases.

    Bytes that arrive one after another are told in at most `pieces` moments a phase. ValueError when the trace says
    nothing
    of the barrier, or when one event does not follow from the one before.
    """
    row = f"mbar:{address:#x}"
    events = sorted((e for e in trace.events if e.cta == cta), key=lambda e: e.t)
    if not any(e.row == row and e.name == "init" for e in events):
        there = sorted({e.row for e in events if e.row.startswith("mbar")})
        raise ValueError(f"no mbarrier.init at {address:#x} in CTA {cta}; barriers: {there}")
    out: list[Moment] = []
    for e in events:
        if e.row == row:
            now = _after(out, e.name, e.data, e.t, pieces, address)
            merged = now.kind == "bytes" and out[-1].kind == "bytes" and _inside_a_piece(out[-1], pieces)
            out[-1:] = [now] if merged or not out else [out[-1], now]
        elif e.name == "wait" and e.row.startswith("warp") and e.data.get("barrier") == address and out:
            before, warp = out[-1], int(e.row[4:])
            waiting = dict(before.waiting)
            if e.kind == "begin":
                waiting[warp] = int(e.data["phase"])
                merged = before.kind == "wait"
                earlier = out[-2].waiting if merged else before.waiting
                text = f"{_warps(set(waiting) - set(earlier))} must wait: phase {waiting[warp]} is not complete."
                now = replace(
                    before, tick=e.t, kind="wait", text=text, waiting=waiting, source=str(e.data.get("source") or "")
                )
            else:
                waiting.pop(warp, None)
                merged = before.kind == "go"
                text = f"{_warps({warp})} goes on." if waiting else "All warps have seen the phase end and go on."
                now = replace(before, tick=e.t, kind="go", text=text, waiting=waiting, source="")
            out[-1:] = [now] if merged else [before, now]
            if now.phase >= phases and not waiting:
                break
    return out


def payments(trace: Trace, address: int, cta: int = 0) -> int:
    """How many times bytes arrive at a barrier before its first phase ends."""
    row = f"mbar:{address:#x}"
    return sum(e.row == row and e.cta == cta and e.name == "complete" and not e.data["phase"] for e in trace.events)


def _after(out: list[Moment], name: str, data: dict[str, Any], tick: float, pieces: int, address: int) -> Moment:
    """The moment that an event of the barrier itself makes. ValueError when its counters do not follow."""
    pending, tx, phase = int(data["pending"]), int(data["tx"]), int(data["phase"])
    source = str(data.get("source") or "")
    if name == "init":
        count = int(data["count"])
        text = f"Initialised: a phase ends after {count} arrival{'s' if count > 1 else ''}."
        return Moment(tick, "init", text, pending, count, tx, phase, source=source)
    before = out[-1]
    follows = {
        "expect": (before.pending, before.tx + int(data.get("bytes", 0)), before.phase),
        "arrive": (before.pending - int(data.get("count", 0)), before.tx, before.phase),
        "complete": (before.pending, before.tx - int(data.get("bytes", 0)), before.phase),
        "phase": (before.count, 0, before.phase + 1),
    }[name]
    if (pending, tx, phase) != follows or (name == "phase" and (before.pending or before.tx)):
        raise ValueError(
            f"barrier {address:#x}: {name} at tick {tick:.0f} leaves (arrivals, bytes, phase) = "
            f"{(pending, tx, phase)} where "
            f"{follows} would follow from {(before.pending, before.tx, before.phase)}"
        )
    expected = before.expected
    if name == "expect":
        kind, expected = "expect", tx
        text = f"One thread says that {data['bytes']:,} bytes will come."
    elif name == "arrive":
        kind = "arrive"
        who = (
            "It arrives, in the same instruction"
            if before.kind == "expect"
            else "The tensor core arrives: all MMAs before the commit are complete"
        )
        text = f"{who}. {tx:,} bytes are missing." if tx else f"{who}."
    elif name == "complete":
        kind, text = "bytes", f"The TMA has written {expected - tx:,} of {expected:,} bytes."
    else:
        kind, expected = "phase", 0
        text = (
            f"No arrival and no byte is missing: phase {before.phase} is complete. The counters start anew, the "
            f"parity flips."
        )
    return replace(
        before, tick=tick, kind=kind, text=text, pending=pending, tx=tx, phase=phase, expected=expected, source=source
    )


def _inside_a_piece(moment: Moment, pieces: int) -> bool:
    """Whether bytes that come now belong to the same moment as those before."""
    return bool((moment.expected - moment.tx) % max(1, moment.expected // pieces))


def _warps(warps: set[int]) -> str:
    if len(warps) == 1:
        return f"Warp {next(iter(warps))}"
    ordered = sorted(warps)
    return f"Warps {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def mbarrier_steps(stage: Any = 1, names: Sequence[str] | None = None, *, cta: int = 0) -> Explorer:
    """One mbarrier through two phases of a real emulated run: expect, bytes, arrivals, the phase, the waiting warps.

    names: which barriers of the stage; default: the first that the TMA completes in every tile, and the first that the
    tensor core does.
    """
    trace = stage_trace(stage)
    address = {name: a for a, name in barrier_names(stage).items()}
    if names is None:
        again = {n: b for n, b in stage_module(stage).BARRIERS.items() if str(b["phases"]) != "1"}
        names = [next(n for n, b in again.items() if b["arrives"].startswith(who)) for who in ("TMA", "tensor core")]
    stories = [story(trace, address[name], cta, pieces=2) for name in names]
    longest = max(len(s) for s in stories)
    copies, told = payments(trace, address[names[0]], cta), sum(m.kind == "bytes" and m.phase == 0 for m in stories[0])
    warps = sorted({int(e.row[4:]) for e in trace.events if e.row.startswith("warp")})
    h = 330

    def draw(which: int, at: int) -> tuple[Svg, str]:
        moments = stories[which]
        at = min(at, len(moments) - 1)
        m = moments[at]
        by_tma = any(x.kind == "bytes" for x in moments)
        s = Svg(760, h, title="An mbarrier, step by step")
        # the unit that delivers
        s.text(20, 24, "who arrives", "ts")
        unit, cls = ("TMA", "r-load") if by_tma else ("tensor core", "r-mma")
        active = m.kind == "bytes" or (m.kind == "arrive" and not by_tma)
        s.rect(20, 138, 128, 52, cls if active else f"e-{'smem' if by_tma else 'tmem'} paper", rx=6)
        s.text(84, 169, unit, "tb on" if active else "tb", anchor="middle")
        if by_tma:
            s.rect(20, 52, 128, 52, "fill-ink" if m.kind in ("arrive", "expect") else "paper", rx=6)
            s.text(84, 83, "one thread", "tb on" if m.kind in ("arrive", "expect") else "tb", anchor="middle")
        # the barrier
        bx, bw = 232, 296
        s.text(bx, 24, f"mbarrier {names[which]}", "tl")
        s.text(bx + bw, 24, "8 bytes of shared memory", "ts", anchor="end")
        s.rect(bx, 36, bw, 206, "m-smem", rx=8)
        s.text(bx + 18, 66, "phase", "ts")
        s.text(bx + 18, 94, m.phase, "th")
        s.text(bx + 100, 66, "parity", "ts")
        s.text(bx + 100, 94, m.phase & 1, "th")
        if m.kind == "phase":
            s.rect(bx + 8, 48, 150, 58, "mark", rx=6)
        s.text(bx + 18, 132, "arrivals missing", "ts")
        for i in range(m.count):
            s.circle(bx + 27 + 22 * i, 150, 8, "ring paper" if i < m.pending else "dot")
        s.text(bx + 34 + 22 * m.count, 155, f"{m.pending} of {m.count}", "tb")
        s.text(bx + 18, 188, "bytes missing (tx-count)", "ts")
        full = max((x.expected for x in moments), default=0)
        s.rect(bx + 18, 198, 180, 18, "off line", rx=3)
        if full and m.tx:
            s.rect(bx + 18, 198, 180 * m.tx / full, 18, "r-load", rx=3)
        s.text(bx + 206, 212, f"{m.tx:,}", "tb")
        # arrows of this moment
        if m.kind in ("arrive", "expect"):
            y = 78 if by_tma else 164
            s.arrow([(150, y), (bx - 4, y)], "" if by_tma else "r-mma", width=2, head=10)
            s.text((150 + bx) / 2, y - 10, "arrive" if m.kind == "arrive" else "expect_tx", "t", anchor="middle")
        if m.kind == "bytes":
            s.arrow([(150, 164), (bx - 4, 164)], "r-load", width=2, head=10)
            s.text((150 + bx) / 2, 154, "complete_tx", "ts", anchor="middle")
        # the warps
        s.text(624, 24, "who waits", "ts")
        for i, w in enumerate(warps):
            y = 40 + 52 * i
            wants = m.waiting.get(w)
            s.rect(624, y, 128, 44, "r-wait" if wants is not None else "paper e-reg", rx=6)
            if wants is not None:
                s.hatch(732, y, 20, 44)
            s.text(636, y + 18, f"warp {w}", "tb")
            s.text(
                636,
                y + 35,
                f"waits: phase {wants}" if wants is not None else "runs",
                "ts" if wants is None else "tc",
            )
            if m.kind in ("go", "phase") and wants is None and m.kind == "go":
                s.arrow([(bx + bw + 4, y + 22), (622, y + 22)], "r-softmax", width=2, head=9)
        # where we are
        x0, w0 = 20, 732
        for i, x in enumerate(moments):
            cx = x0 + w0 * (i + 0.5) / len(moments)
            cw = w0 / len(moments) - 3
            tone = {"phase": "r-none", "bytes": "r-load", "wait": "r-wait", "go": "r-softmax"}.get(x.kind, "r-none")
            s.rect(cx - cw / 2, 272, cw, 14, tone if i <= at else "off", rx=2, data_set=f"step:{i}")
            if i == at:
                s.rect(cx - cw / 2 - 2, 270, cw + 4, 18, "pick", rx=3)
            s.text(cx, 304, x.kind, "tc" if i == at else "tc ts", anchor="middle")
        where = f" (`{m.source}`)" if m.source else ""
        return s, f"**{names[which]}, step {at + 1} of {len(moments)}**, tick {m.tick:.0f}{where}. {m.text}"

    return explore(
        [
            Control("barrier", "barrier", list(names), "choice"),
            Control("step", "step", [str(i + 1) for i in range(longest)], limits=[len(x) for x in stories]),
        ],
        draw,
        name="mbarrier_steps",
        title="An mbarrier, step by step",
        caption=(
            f"A barrier counts two things: arrivals, and bytes that the TMA still owes. When both reach zero the "
            f"phase is complete, the counters start anew and the "
            "parity flips; whoever waits for that phase goes on. Nobody resets anything, so the same eight bytes "
            "serve every tile, and a warp only needs to know "
            "whether it waits for an even or an odd phase. "
            f"`{names[0]}` expects {human_bytes(max(x.expected for x in stories[0]))} a phase."
            + (f" {copies} copies pay them; the figure joins the copies into {told} steps." if copies > told else "")
        ),
        source=f"from the events of an emulated run of stage {stage_number(stage)}, CTA {cta}, two KV tiles",
        interval=1300,
    )
