"""Traces for other people's viewers: Chrome's JSON and Perfetto's protobuf, both opened by ui.perfetto.dev.

A process is a CTA, a thread or track is a row. One unit of the trace (tick, cycle) stands for one microsecond in
Chrome's JSON and for one nanosecond in Perfetto's format; a trace in nanoseconds keeps its own.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .trace import Event, Trace


def _rows(trace: Trace) -> dict[tuple[int, str], int]:
    """Every (CTA, row) that has an event, numbered from 1 in order of first appearance."""
    numbers: dict[tuple[int, str], int] = {}
    for e in trace.events:
        numbers.setdefault((e.cta, e.row), len(numbers) + 1)
    return numbers


def _tracks(trace: Trace) -> Iterator[tuple[Event, int]]:
    """Events with the lane of their row: work that overlaps on a row goes to lanes of its own, as viewers want nesting.

    Rows of warps nest already, but for waits that reach past the end of a range.
    """
    open_: dict[tuple[int, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    where: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for e in trace.events:
        lanes = open_[e.cta, e.row]
        if e.kind == "begin":
            lane = 1 if e.row.startswith("warp") and e.name == "wait" else 0
            while not e.row.startswith("warp") and lanes[lane]:
                lane += 1
            lanes[lane].append(e.name)
            where[e.cta, e.row, e.name].append(lane)
            yield e, lane
        elif e.kind == "end":
            stack = where[e.cta, e.row, e.name]
            lane = stack.pop(-1 if e.row.startswith("warp") else 0)
            lanes[lane].remove(e.name)
            yield e, lane
        else:
            yield e, 0


def to_chrome(trace: Trace) -> str:
    """The trace as Chrome's trace events (JSON object format): B, E and i events, and names for CTAs and rows."""
    rows = _rows(trace)
    scale = 1e-3 if trace.unit == "ns" else 1.0
    out: list[dict[str, Any]] = []
    named: set[tuple[int, int]] = set()
    for e, lane in _tracks(trace):
        thread = rows[e.cta, e.row] * 8 + lane
        if (e.cta, thread) not in named:
            named.add((e.cta, thread))
            name = e.row if not lane else f"{e.row} ({'waits' if e.row.startswith('warp') else lane + 1})"
            out.append({"ph": "M", "name": "thread_name", "pid": e.cta, "tid": thread, "args": {"name": name}})
            out.append({"ph": "M", "name": "process_name", "pid": e.cta, "args": {"name": f"CTA {e.cta}"}})
        row = {"pid": e.cta, "tid": thread, "ts": e.t * scale, "name": e.name}
        match e.kind:
            case "begin":
                out.append({**row, "ph": "B", "args": e.data})
            case "end":
                out.append({**row, "ph": "E"})
            case _:
                out.append({**row, "ph": "i", "s": "t", "args": e.data})
    meta = {**trace.meta, "unit": trace.unit}
    return json.dumps({"traceEvents": out, "displayTimeUnit": "ns", "otherData": meta}, separators=(",", ":"))


def from_chrome(text: str) -> Trace:
    """A trace that `to_chrome` wrote. Raises ValueError for a JSON that is no such trace."""
    raw = json.loads(text)
    if not isinstance(raw, dict) or "traceEvents" not in raw or "unit" not in raw.get("otherData", {}):
        raise ValueError("this is no trace that to_chrome wrote: it has no traceEvents with a unit")
    meta = dict(raw["otherData"])
    unit = meta.pop("unit")
    scale = 1e3 if unit == "ns" else 1.0
    kinds: dict[str, Any] = {"B": "begin", "E": "end", "i": "mark"}
    names = {
        (e["pid"], e["tid"]): e["args"]["name"].partition(" (")[0]
        for e in raw["traceEvents"]
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    events = [
        Event(e["ts"] * scale, e["pid"], names[e["pid"], e["tid"]], kinds[e["ph"]], e["name"], e.get("args", {}))
        for e in raw["traceEvents"]
        if e["ph"] in kinds
    ]
    return Trace(unit, events, meta)


# ---- protobuf, as much of it as a track event needs (perfetto/trace/track_event; protobuf encoding)


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _number(field: int, n: int) -> bytes:
    return _varint(field << 3) + _varint(n)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _annotation(name: str, value: Any) -> bytes:
    """DebugAnnotation: name (10), and an integer (4), a double (5) or a string (6)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        body = _bytes(6, str(value).encode())
    elif isinstance(value, int):
        body = _number(4, value & (1 << 64) - 1)
    else:
        body = _varint(5 << 3 | 1) + struct.pack("<d", value)
    return _bytes(4, _bytes(10, name.encode()) + body)


PACKET, TIMESTAMP, SEQUENCE, TRACK_EVENT, DESCRIPTOR = 1, 8, 10, 11, 60
TYPES = {"begin": 1, "end": 2, "mark": 3}


def to_perfetto(trace: Trace) -> bytes:
    """The trace in Perfetto's format (.pftrace): a track for each CTA, beneath it one for each row."""
    rows = _rows(trace)
    out = bytearray()
    known: set[int] = set()

    def packet(body: bytes) -> None:
        out.extend(_bytes(PACKET, body + _number(SEQUENCE, 1)))

    def describe(uuid: int, name: str, parent: int | None) -> None:
        if uuid not in known:
            known.add(uuid)
            body = _number(1, uuid) + _bytes(2, name.encode())
            packet(_bytes(DESCRIPTOR, body + (_number(5, parent) if parent is not None else b"")))

    for e, lane in _tracks(trace):
        cta, track = 1 + e.cta, (rows[e.cta, e.row] * 8 + lane) << 24
        describe(cta, f"CTA {e.cta}", None)
        describe(track, e.row if not lane else f"{e.row} ({lane + 1})", cta)
        body = _number(9, TYPES[e.kind]) + _number(11, track)
        if e.kind != "end":
            body += _bytes(23, e.name.encode()) + b"".join(_annotation(k, v) for k, v in e.data.items())
        packet(_number(TIMESTAMP, max(0, round(e.t))) + _bytes(TRACK_EVENT, body))
    return bytes(out)
