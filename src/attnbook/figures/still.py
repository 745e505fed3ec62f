"""The events of a run as rows of spans and marks: packed for the movable timeline, and drawn as a still picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from attnbook.figures.svg import Svg
from ptxemu.memory import SHARED_RESERVED
from ptxemu.trace import Event, Trace

ROLES: dict[str, str] = {
    "load": "load",
    "TMA load": "load",
    "TMA store": "epilogue",
    "qk": "mma",
    "pv": "mma",
    "MMA": "mma",
    "commit": "mma",
    "softmax": "softmax",
    "max": "softmax",
    "exp": "softmax",
    "rescale": "correction",
    "correction": "correction",
    "epilogue": "epilogue",
    "wait": "wait",
}
LABELS = {"tma": "TMA", "tensor": "tensor core"}


def row_order(row: str) -> tuple[int, int, str]:
    """Warps by number, then TMA, tensor core, other units, then barriers by address."""
    if row.startswith("warp"):
        return 0, int(row[4:]), row
    if row in ("tma", "tensor"):
        return 1, ("tma", "tensor").index(row), row
    if row.startswith("mbar:"):
        name = row[5:]
        return 3, int(name, 0) if name[:1].isdigit() else 0, name
    return 2, 0, row


def pair(events: Sequence[Event]) -> tuple[list[dict[str, Any]], list[Event]]:
    """Spans {row, name, from, to, depth, data} and marks, from events of one CTA in order.

    begin and end pair up as a stack for each row and name; a span that never ends lasts to the last event. depth counts
    the spans of the row that are open when it begins. ValueError for an end without a begin.
    """
    last = max((e.t for e in events), default=0.0)
    open_: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    lanes: dict[str, list[dict[str, Any] | None]] = defaultdict(list)
    spans, marks = [], []
    for e in events:
        if e.kind == "mark":
            marks.append(e)
        elif e.kind == "begin":
            row = lanes[e.row]
            depth = next((i for i, s in enumerate(row) if s is None), len(row))
            span: dict[str, Any] = {
                "row": e.row,
                "name": e.name,
                "from": e.t,
                "to": last,
                "depth": depth,
                "data": dict(e.data),
            }
            if depth == len(row):
                row.append(span)
            else:
                row[depth] = span
            open_[e.row, e.name].append(span)
            spans.append(span)
        else:
            stack = open_[e.row, e.name]
            if not stack:
                raise ValueError(f"event {e}: an end without a begin on row {e.row}")
            # Work in flight ends in the order in which it began; the ranges of a warp are nested.
            span = stack.pop(0 if e.row in LABELS else -1)
            span["to"] = e.t
            span["data"].update(e.data)
            lanes[e.row][span["depth"]] = None
    return spans, marks


def describe(data: Mapping[str, Any], names: Mapping[int, str]) -> str:
    """The data of an event in words."""
    parts = []
    for key, value in data.items():
        if value is None:
            continue
        if key == "barrier" and isinstance(value, int):
            parts.append(f"barrier {names.get(value, hex(value) if value > 15 else value)}")
        elif key in ("bytes", "nbytes"):
            parts.append(f"{value:,} bytes")
        elif isinstance(value, int) and key not in ("ptx_line", "line", "phase", "parity"):
            parts.append(f"{key.replace('_', ' ')} {value:,}")
        else:
            parts.append(f"{key.replace('_', ' ')} {value}")
    return ", ".join(parts)


def pack(
    trace: Trace, cta: int = 0, *, rows: Sequence[str] | None = None, barriers: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The events of one CTA as the compact lists that timeline.js draws.

    rows: which rows, in which order (default: all). barriers: names of mbarriers by shared-memory offset.
    """
    events = sorted((e for e in trace.events if e.cta == cta), key=lambda e: e.t)
    if not events:
        there = sorted({e.cta for e in trace.events})
        raise ValueError(f"cta = {cta} has no events; the trace holds CTAs {there[:8]}")
    barriers = dict(barriers or {})
    origin = min(e.t for e in events)
    order = sorted({e.row for e in events}, key=row_order) if rows is None else list(rows)
    spans, marks = pair([e for e in events if e.row in order])
    place = {row: i for i, row in enumerate(order)}
    names: dict[str, int] = {}
    infos: dict[str, int] = {"": 0}
    depth = {row: 1 for row in order}
    for s in spans:
        cap = 3 if s["row"] in LABELS else 4
        s["depth"] = min(s["depth"], cap - 1)
        depth[s["row"]] = max(depth[s["row"]], s["depth"] + 1)
    flat: list[float] = []
    for s in sorted(spans, key=lambda s: (s["from"], s["depth"])):
        info = infos.setdefault(describe(s["data"], barriers), len(infos))
        flat += [
            place[s["row"]],
            s["depth"],
            names.setdefault(s["name"], len(names)),
            s["from"] - origin,
            s["to"] - origin,
            info,
        ]
    points: list[float] = []
    for m in marks:
        info = infos.setdefault(describe(m.data, barriers), len(infos))
        points += [place[m.row], names.setdefault(m.name, len(names)), m.t - origin, info]

    def tidy(x: float) -> float:
        short = round(float(x), 2)
        return int(short) if short == int(short) else short

    return {
        "unit": trace.unit,
        "end": tidy(max(e.t for e in events) - origin) or 1,
        "rows": [{"label": _label(row, barriers), "depth": depth[row], "unit": row in LABELS} for row in order],
        "names": list(names),
        "roles": [ROLES.get(n, "") for n in names],
        "spans": [tidy(x) for x in flat],
        "marks": [tidy(x) for x in points],
        "infos": list(infos),
    }


def _label(row: str, barriers: Mapping[int, str]) -> str:
    if row.startswith("warp"):
        return f"warp {row[4:]}"
    if row.startswith("mbar:"):
        text = row[5:]
        return barriers.get(int(text, 0), text) if text[:1].isdigit() else text
    return LABELS.get(row, row)


UNIT_NOTE = {
    "tick": "The axis counts rounds of the emulator's fair scheduler: it shows what comes before what, and nothing "
    "of how long.",
    "cycle": "The axis counts modelled clock cycles.",
    "ns": "The axis is time.",
}
UNIT_SOURCE = {"tick": "emulated: order of events, not time", "cycle": "modelled", "ns": "measured"}


def barrier_names(stage: Any) -> dict[int, str]:
    """The stage's mbarriers by their address in shared memory, as events name them."""
    from attnbook.compile import stage_module

    module = stage_module(stage)
    return {SHARED_RESERVED + module.SMEM[name][0]: name for name in module.BARRIERS}


def barriers_of(trace: Trace) -> dict[int, str]:
    """The names of the mbarriers in a trace of one of the ladder's kernels; empty for any other kernel."""
    from attnbook.ladder import LADDER

    kernel = str(trace.meta.get("kernel", ""))
    for stage in LADDER:
        if stage.path is not None and kernel.startswith(stage.path.stem):
            return barrier_names(stage)
    return {}


def timeline_still(
    trace: Trace,
    cta: int = 0,
    *,
    rows: Sequence[str] | None = None,
    barriers: Mapping[int, str] | None = None,
    window: tuple[float, float] | None = None,
    title: str = "What every warp and unit does, in order",
    caption: str = "",
) -> Svg:
    """The same as a picture that does not move."""
    names = barriers_of(trace) if barriers is None else barriers
    s = draw_still(pack(trace, cta, rows=rows, barriers=names), title, window)
    s.caption, s.source = f"{caption} {UNIT_NOTE[trace.unit]}".strip(), UNIT_SOURCE[trace.unit]
    return s


def draw_still(data: dict[str, Any], title: str, window: tuple[float, float] | None) -> Svg:
    lane, pad, gutter, axis = 17, 7, 104, 26
    lo, hi = window or (0, data["end"])
    tops, y = [], axis
    for row in data["rows"]:
        tops.append(y)
        y += row["depth"] * lane + pad
    s = Svg(760, y + 4, title=title, name="timeline_still")
    w = 760 - gutter - 10

    def px(t: float) -> float:
        return gutter + w * (t - lo) / (hi - lo)

    pitch = next(
        p for p in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 10**5, 10**7) if w * p / (hi - lo) > 64
    )
    t = -(-lo // pitch) * pitch
    while t <= hi:
        s.line(px(t), axis - 6, px(t), y, "ln hair")
        s.text(px(t), 14, f"{t:,.0f}", "ts", anchor="middle" if px(t) < 735 else "end")
        t += pitch
    s.text(gutter - 10, 14, data["unit"], "ts", anchor="end")
    for row, top in zip(data["rows"], tops, strict=True):
        s.text(gutter - 10, top + 12, row["label"], "tb", anchor="end")
        s.line(gutter, top + row["depth"] * lane + pad / 2, 750, top + row["depth"] * lane + pad / 2, "ln hair")
    merged: dict[tuple[int, int, int], list[list[float]]] = defaultdict(list)
    spans = data["spans"]
    for i in range(0, len(spans), 6):
        row, depth, name, a, b, _ = spans[i : i + 6]
        if b < lo or a > hi:
            continue
        x0, x1 = px(max(a, lo)), max(px(min(b, hi)), px(max(a, lo)) + 1)
        runs = merged[row, depth, name]
        if runs and x0 - runs[-1][1] < 0.8 and x1 - x0 < 3:
            runs[-1][1] = max(runs[-1][1], x1)
        else:
            runs.append([x0, x1])
    for (row, depth, name), runs in merged.items():
        role, label, top = data["roles"][name], data["names"][name], tops[row] + depth * lane
        for x0, x1 in runs:
            soft = depth > 0 and role != "wait" and not data["rows"][row]["unit"]
            s.rect(x0, top, x1 - x0, lane - 2, f"soft-{role}" if soft else (f"r-{role}" if role else "r-none"))
            if role == "wait" and x1 - x0 > 5:
                s.hatch(x0, top, x1 - x0, lane - 2)
            if len(label) * 7.4 + 6 < x1 - x0:
                dark = soft or role == "wait"
                s.text(x0 + 4, top + 12, label, "tc" if dark else "tc on")
    marks = data["marks"]
    seen = set()
    for i in range(0, len(marks), 4):
        row, name, t, _ = marks[i : i + 4]
        key = (row, name, round(px(t) * 2))
        if not lo <= t <= hi or key in seen:
            continue
        seen.add(key)
        x, top, h = px(t), tops[row], data["rows"][row]["depth"] * lane - 2
        role = data["roles"][name]
        if data["names"][name] == "phase":
            s.path(f"M{x:.1f} {top}l5 {h / 2}l-5 {h / 2}l-5 {-h / 2}z", "r-none")
        else:
            s.line(x, top + 2, x, top + h - 2, f"ln r-{role}" if role else "ln")
    counts = ", ".join(row["label"] for row in data["rows"])
    s.desc = f"Rows: {counts}. {len(spans) // 6} spans and {len(marks) // 4} marks over {data['end']} {data['unit']}s."
    return s
