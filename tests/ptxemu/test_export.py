"""Traces for other viewers: what goes out can be read back, and nests as viewers want it."""

import json
from collections import defaultdict

import pytest

from ptxemu.export import from_chrome, to_chrome, to_perfetto
from ptxemu.trace import Event, Trace

EVENTS = [
    Event(0, 0, "warp0", "begin", "softmax"),
    Event(1, 0, "tma", "begin", "TMA load", {"bytes": 16384}),
    Event(2, 0, "tma", "begin", "TMA load", {"bytes": 16384, "source": "kernel.py:7"}),
    Event(3, 0, "warp0", "begin", "wait", {"barrier": 64, "phase": 0}),
    Event(4, 0, "warp0", "end", "softmax"),  # a wait reaches past the end of its range
    Event(5, 0, "warp0", "end", "wait"),
    Event(6, 0, "tma", "end", "TMA load"),
    Event(6.5, 0, "mbar:0x40", "mark", "phase", {"phase": 1}),
    Event(7, 0, "tma", "end", "TMA load"),
    Event(8, 1, "warp0", "mark", "done"),
]


@pytest.mark.parametrize("unit", ["tick", "cycle", "ns"])
def test_chrome_reads_back(unit):
    trace = Trace(unit, EVENTS, {"chip": "B200"})
    back = from_chrome(to_chrome(trace))
    assert (back.unit, back.meta) == (unit, {"chip": "B200"})
    assert [(e.cta, e.row, e.kind, e.name, e.data) for e in back.events] == [
        (e.cta, e.row, e.kind, e.name, e.data) for e in EVENTS
    ]
    assert [e.t for e in back.events] == pytest.approx([e.t for e in EVENTS])


def test_what_is_on_one_track_nests():
    stacks = defaultdict(list)
    for e in json.loads(to_chrome(Trace("cycle", EVENTS)))["traceEvents"]:
        stack = stacks[e["pid"], e.get("tid")]
        if e["ph"] == "B":
            stack.append(e["name"])
        elif e["ph"] == "E":
            assert stack.pop() == e["name"]
    assert not any(stacks.values())


def test_another_json_is_refused():
    with pytest.raises(ValueError, match="no trace that to_chrome wrote"):
        from_chrome("[]")


def fields(data):
    """The fields of a protobuf message: (number, value)."""

    def varint(at):
        n = shift = 0
        while True:
            n |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                return n, at

    at, out = 0, []
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        elif key & 7 == 1:
            value, at = data[at : at + 8], at + 8
        else:
            size, at = varint(at)
            value, at = data[at : at + size], at + size
        out.append((key >> 3, value))
    return out


def test_perfetto_packets_say_the_same():
    names, events = {}, []
    for number, packet in fields(to_perfetto(Trace("cycle", EVENTS))):
        assert number == 1
        body = dict(fields(packet))
        if 60 in body:
            track = dict(fields(body[60]))
            names[track[1]] = (track[2].decode(), track.get(5))
        else:
            event = dict(fields(body[11]))
            events.append((body[8], event[9], event[11], event.get(23, b"").decode()))
    assert [(t, kind) for t, kind, _, _ in events] == [
        (round(e.t), {"begin": 1, "end": 2, "mark": 3}[e.kind]) for e in EVENTS
    ]
    rows = [names[track][0].partition(" (")[0] for _, _, track, _ in events]
    assert rows == [e.row for e in EVENTS]
    assert {names[names[track][1]][0] for _, _, track, _ in events} == {"CTA 0", "CTA 1"}
    assert events[1][3] == "TMA load" and events[1][2] != events[2][2]  # two at a time stand on two tracks
