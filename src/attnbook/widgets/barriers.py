"""Movable figure of one mbarrier: arrivals, bytes, phase and waiters, step by step through a real trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from attnbook.chips import human_bytes
from attnbook.figures.budget import stage_number
from attnbook.figures.still import barrier_names
from attnbook.figures.svg import Svg
from attnbook.figures.traces import stage_trace
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.trace import Trace


@dataclass(frozen=True)
class Moment:
    """The state of a barrier after one thing has happened.

    kind: init, wait, arrive, bytes, phase or go. pending: arrivals still missing. tx: bytes still missing (expected
        and not
    yet there). phase: phases completed. waiting: warp -> the phase whose end it waits for. tick: when in the trace.
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


def story(trace: Trace, address: int, cta: int = 0, *, phases: int = 2, pieces: int = 4) -> list[Moment]:
    """What happens to the mbarrier at a shared-memory address, from its first use to the end of `phases` phases.

    Bytes that arrive one after another are told in at most `pieces` moments a phase. ValueError when the trace says
    nothing of
    the barrier, or when its bytes do not come out even at the end of a phase.
    """
    row = f"mbar:{address:#x}"
    # A copy's end is noted after the bytes it brought have ended a phase in the same round: it comes first here.
    events = sorted(
        (e for e in trace.events if e.cta == cta), key=lambda e: (e.t, not (e.row == "tma" and e.kind == "end"))
    )
    arrivals = [e for e in events if e.row == row and e.name == "arrive"]
    if not arrivals:
        raise ValueError(
            f"no arrival on barrier {address:#x} in CTA {cta}; barriers: "
            f"{sorted({e.row for e in events if e.row[:4] == 'mbar'})}"
        )
    count = arrivals[0].data["pending"] + arrivals[0].data["count"]
    now = Moment(
        events[0].t,
        "init",
        f"Initialised: a phase ends after {count} arrival{'s' if count > 1 else ''}.",
        count,
        count,
        0,
        0,
    )
    out = [now]
    loads = [e for e in events if e.row == "tma" and e.kind == "end" and e.data.get("barrier") == address]
    bytes_of = {id(e): e.data["bytes"] for e in loads}
    for e in events:
        mine = e.data.get("barrier") == address
        if e.name == "wait" and mine and e.row.startswith("warp"):
            warp = int(e.row[4:])
            waiting = dict(now.waiting)
            if e.kind == "begin":
                waiting[warp] = int(e.data["phase"])
                merged = out[-1].kind == "wait"
                who = _warps(set(waiting) - (set(out[-2].waiting) if merged and len(out) > 1 else set(now.waiting)))
                text = f"{who} must wait: phase {waiting[warp]} is not complete."
                now = replace(now, tick=e.t, kind="wait", text=text, waiting=waiting)
                out[-1:] = [now] if merged else [out[-1], now]
            else:
                waiting.pop(warp, None)
                merged = out[-1].kind == "go"
                text = "All warps have seen the phase end and go on." if not waiting else f"{_warps({warp})} goes on."
                now = replace(now, tick=e.t, kind="go", text=text, waiting=waiting)
                out[-1:] = [now] if merged else [out[-1], now]
                if now.phase >= phases and not waiting:
                    return out
        elif e.row == row and e.name == "arrive":
            tx = e.data["tx"]
            by = (
                "The tensor core arrives: all MMAs before the commit are complete."
                if not tx
                else "One thread arrives and expects "
            )
            text = by + (f"{tx:,} bytes." if tx else "")
            now = replace(now, tick=e.t, kind="arrive", text=text, pending=e.data["pending"], tx=tx, expected=tx)
            out.append(now)
        elif id(e) in bytes_of:
            left = now.tx - bytes_of[id(e)]
            if left < 0:
                raise ValueError(f"barrier {address:#x}: {-left} bytes more than expected in phase {now.phase}")
            done = now.expected - left
            merged = out[-1].kind == "bytes" and bool((now.expected - now.tx) % max(1, now.expected // pieces))
            text = f"The TMA has written {done:,} of {now.expected:,} bytes."
            now = replace(now, tick=e.t, kind="bytes", text=text, tx=left)
            out[-1:] = [now] if merged else [out[-1], now]
        elif e.row == row and e.name == "phase":
            if now.tx or now.pending:
                raise ValueError(
                    f"barrier {address:#x}: phase {now.phase} ends with {now.pending} arrivals and {now.tx} bytes "
                    f"missing"
                )
            done = now.phase
            text = (
                f"No arrival and no byte is missing: phase {done} is complete. The counters start anew, the parity "
                f"flips."
            )
            now = replace(now, tick=e.t, kind="phase", text=text, pending=count, tx=0, phase=done + 1, expected=0)
            out.append(now)
    return out


def _warps(warps: set[int]) -> str:
    if len(warps) == 1:
        return f"Warp {next(iter(warps))}"
    ordered = sorted(warps)
    return f"Warps {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def mbarrier_steps(stage: Any = 1, names: tuple[str, ...] = ("kv_full", "s_full"), *, cta: int = 0) -> Explorer:
    """One mbarrier through two phases of a real emulated run: expect, bytes, arrivals, the phase, the waiting warps."""
    trace = stage_trace(stage)
    address = {name: a for a, name in barrier_names(stage).items()}
    stories = [story(trace, address[name], cta) for name in names]
    longest = max(len(s) for s in stories)
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
        s.rect(
            20, 138, 128, 52, cls if m.kind in ("bytes", "arrive") else f"e-{'smem' if by_tma else 'tmem'} paper", rx=6
        )
        s.text(84, 169, unit, "tb on" if m.kind in ("bytes", "arrive") else "tb", anchor="middle")
        if by_tma:
            s.rect(20, 52, 128, 52, "r-none" if m.kind == "arrive" else "paper", rx=6)
            s.text(84, 83, "one thread", "tb on" if m.kind == "arrive" else "tb", anchor="middle")
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
        if m.kind == "arrive":
            y = 78 if by_tma else 164
            s.arrow([(150, y), (bx - 4, y)], "r-wait" if by_tma else "r-mma", width=2, head=10)
            s.text((150 + bx) / 2, y - 10, "arrive", "tb", anchor="middle")
            if by_tma:
                s.text((150 + bx) / 2, y + 20, "expect_tx", "ts", anchor="middle")
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
                s.hatch(722, y, 30, 44)
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
            s.text(cx, 304, LABELS[x.kind], "tc" if i == at else "tc ts", anchor="middle")
        return s, f"**{names[which]}, step {at + 1} of {len(moments)}**, tick {m.tick:.0f}. {m.text}"

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
            f"`kv_full` expects {human_bytes(max(x.expected for x in stories[0]))} a phase."
        ),
        source=f"from the events of an emulated run of stage {stage_number(stage)}, CTA {cta}, two KV tiles",
        interval=1300,
    )


LABELS = {"init": "init", "wait": "wait", "arrive": "arrive", "bytes": "bytes", "phase": "phase", "go": "go"}
