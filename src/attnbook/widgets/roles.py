"""Movable figure of a stage's roles and barriers: who works and who waits for what, through the moments of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.still import LABELS, barrier_names
from attnbook.figures.svg import Svg
from attnbook.figures.traces import stage_trace
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.trace import Event, Trace

WORK = {  # the ranges that are told, in words; those inside softmax are not
    "load": "asks for boxes",
    "qk": "issues Q Kᵀ",
    "pv": "issues P V",
    "softmax": "takes the softmax",
    "epilogue": "writes O",
}
GROUP = 4  # warps of a warpgroup


@dataclass
class Barrier:
    """phase: phases completed. pending, count: arrivals still missing, and at the start of a phase. tx: bytes owed."""

    phase: int = 0
    pending: int = 0
    count: int = 0
    tx: int = 0


@dataclass
class Moment:
    """What stands after everything of one tick.

    doing: role -> the range it is in, or "". waits: role -> (barrier, phase), or None. busy: unit -> work under way.
    ended: barriers whose phase ended in this tick. told: what happened, in words.
    """

    tick: int
    doing: dict[str, str]
    waits: dict[str, tuple[str, int] | None]
    busy: dict[str, int]
    barriers: dict[str, Barrier]
    ended: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def roles_of(stage: Any) -> dict[str, tuple[int, ...]]:
    """The roles of a stage, in the order load, mma, the rest; a role of several warpgroups is cut into them."""
    roles: Mapping[str, tuple[int, ...]] = stage_module(stage).ROLES
    order = [r for r in ("load", "mma") if r in roles] + [r for r in roles if r not in ("load", "mma")]
    out: dict[str, tuple[int, ...]] = {}
    for role in order:
        warps = roles[role]
        groups = [warps[i : i + GROUP] for i in range(0, len(warps), GROUP)]
        out |= {role: warps} if len(groups) == 1 else {f"{role} {i}": g for i, g in enumerate(groups)}
    return out


def moments(trace: Trace, roles: Mapping[str, Sequence[int]], names: Mapping[int, str], cta: int = 0) -> list[Moment]:
    """The story of a CTA: one Moment for each tick in which a role or a barrier changes what it does.

    roles: name -> warps; the first warp of each speaks for all. names: barriers by address.
    """
    speaker = {f"warp{warps[0]}": role for role, warps in roles.items()}
    now = Moment(0, dict.fromkeys(roles, ""), dict.fromkeys(roles), dict.fromkeys(LABELS.values(), 0), {})
    events = sorted((e for e in trace.events if e.cta == cta), key=lambda e: e.t)
    out: list[Moment] = []
    for i, e in enumerate(events):
        tick = math.floor(e.t)
        if tick != now.tick:
            now.tick, now.ended, now.told = tick, [], []
        if e.row.startswith("mbar:") and e.data["barrier"] in names:
            _barrier(now, e, names[e.data["barrier"]])
        elif e.row in LABELS and e.name in ("TMA load", "MMA"):
            now.busy[LABELS[e.row]] += 1 if e.kind == "begin" else -1
        elif e.row in speaker:
            _role(now, e, speaker[e.row], names)
        last = i + 1 == len(events) or math.floor(events[i + 1].t) != tick
        if last and now.told and now.barriers:
            barriers = {n: Barrier(**vars(b)) for n, b in now.barriers.items()}
            kept = Moment(tick, dict(now.doing), dict(now.waits), dict(now.busy), barriers, now.ended, now.told)
            out.append(kept)
    return out


def _barrier(now: Moment, e: Event, name: str) -> None:
    b = now.barriers.setdefault(name, Barrier())
    b.phase, b.pending, b.tx = int(e.data["phase"]), int(e.data["pending"]), int(e.data["tx"])
    if e.name == "init":
        b.count = b.pending
    elif e.name == "phase":
        now.ended.append(name)
        now.told.append(f"`{name}` ends its phase {b.phase - 1}")


def _role(now: Moment, e: Event, role: str, names: Mapping[int, str]) -> None:
    if e.name == "wait" and e.data.get("barrier") in names:
        waits = (names[e.data["barrier"]], int(e.data["phase"])) if e.kind == "begin" else None
        now.waits[role] = waits
        now.told.append(f"{role} waits for `{waits[0]}`, phase {waits[1]}" if waits else f"{role} goes on")
    elif e.name in WORK:
        now.doing[role] = e.name if e.kind == "begin" else ""
        if e.kind == "begin":
            now.told.append(f"{role} {WORK[e.name]}")


def handover(stage: Any = 4, *, tiles: int = 3, cta: int = 0) -> Explorer:
    """The roles of a stage and its barriers, step by step through an emulated run of a few KV tiles.

    ValueError for a stage without roles.
    """
    module, number = stage_module(stage), stage_number(stage)
    if not hasattr(module, "ROLES"):
        raise ValueError(f"stage {number} has no roles to hand over between; take stage 4 on")
    roles = roles_of(stage)
    told = moments(stage_trace(stage, seqlen=128 * tiles), roles, barrier_names(stage), cta)
    shown = list(module.BARRIERS)
    unit = {"load": "TMA", "mma": "tensor core"}
    row, lane = 34.0, 16.0
    top, bx = 34.0, 300.0
    boxes = max(row * len(shown), 66.0 * len(roles))
    strip = top + boxes + 26
    height = strip + lane * len(roles) + 8

    def tone(role: str) -> str:
        return role.split()[0]

    def at_work(m: Moment, role: str) -> bool:
        return m.waits[role] is None and bool(m.doing[role])

    def under_way(m: Moment, role: str) -> bool:
        return role in unit and m.busy[unit[role]] > 0

    def draw(at: int) -> tuple[Svg, str]:
        m = told[at]
        s = Svg(760, height, title=f"Stage {number}, hand over hand")
        s.text(8, 20, "who", "ts")
        for i, (role, warps) in enumerate(roles.items()):
            y = top + 66 * i
            waits, doing = m.waits[role], m.doing[role]
            cls = "r-wait" if waits else f"r-{tone(role)}" if doing else "panel"
            ink = " on" if doing and not waits else ""
            s.rect(8, y, 262, 58, cls, rx=6)
            if waits:
                s.hatch(226, y, 44, 58)
            s.text(20, y + 23, role, f"tl{ink}")
            count = f"warp {warps[0]}" if len(warps) == 1 else f"warps {warps[0]}–{warps[-1]}"
            if under_way(m, role):
                count = f"{unit[role]} works"
            s.text(258 if not waits else 218, y + 23, count, f"tc{ink}", anchor="end")
            says = f"waits: {waits[0]}, phase {waits[1]}" if waits else WORK.get(doing, "between two steps")
            s.text(20, y + 43, says, f"t{ink}")
        for x, head in (
            (bx, "mbarrier"),
            (bx + 88, "phase"),
            (bx + 138, "parity"),
            (bx + 190, "missing"),
            (bx + 330, "who waits"),
        ):
            s.text(x, 20, head, "ts")
        for i, name in enumerate(shown):
            y = top + row * i
            b = m.barriers.get(name, Barrier())
            s.rect(bx - 6, y, 460, row - 5, "m-smem", rx=4)
            if name in m.ended:
                s.rect(bx - 6, y, 460, row - 5, "mark", rx=4)
            s.text(bx, y + 20, name, "tb")
            s.text(bx + 100, y + 20, b.phase, "tb", anchor="middle")
            s.text(bx + 154, y + 20, b.phase & 1, "t", anchor="middle")
            for k in range(b.count):
                s.circle(bx + 198 + 15 * k, y + 15, 5, "ring paper" if k < b.pending else "dot")
            if module.BARRIERS[name]["bytes"]:
                s.text(bx + 214, y + 20, f"{b.tx:,} bytes", "ts")
            who = [r for r, w in m.waits.items() if w and w[0] == name]
            s.text(bx + 330, y + 20, ", ".join(who), "t")
        x0 = 92.0
        w = (752 - x0) / len(told)
        for i, role in enumerate(roles):
            y = strip + lane * i
            s.text(8, y + 12, role, "ts")
            for k, moment in enumerate(told):
                cls = f"r-{tone(role)}" if at_work(moment, role) else "r-wait" if moment.waits[role] else "off"
                if under_way(moment, role) and not at_work(moment, role):
                    cls = f"soft-{tone(role)}"
                s.rect(x0 + w * k, y + 1, w - 0.8, lane - 2, cls, data_set=f"step:{k}")
        s.rect(x0 + w * at - 1, strip - 3, w + 1.2, lane * len(roles) + 6, "pick", rx=2)
        return s, f"**Moment {at + 1} of {len(told)}**, tick {m.tick}: {'; '.join(m.told)}."

    return explore(
        [Control("step", "moment", [str(i + 1) for i in range(len(told))])],
        draw,
        name="handover",
        title=f"Stage {number}: who hands what to whom",
        caption=(
            f"The roles of stage {number} on the left: filled at work, hatched while they wait. Its mbarriers on the "
            "right: the phase they are in, arrivals still missing (rings), bytes still owed; a frame marks a phase "
            "that ends now. Below, all moments of the run, one row a role: filled is work, pale colour is work of its "
            f"unit while the warp waits, grey is waiting. {tiles} KV tiles; a moment is a tick in which something "
            "changes, so its width says nothing of time."
        ),
        source=f"from the events of an emulated run of stage {number}, CTA {cta}",
        interval=900,
    )
