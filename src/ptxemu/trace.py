"""Events: one format for every source of them (the emulator now; a clock model or a GPU's recorder later)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class Event:
    """Something that happened in one CTA.

    t: when, in the trace's unit. cta: linear index in the grid. row: "warp0", or a unit: "tma", "tensor",
    "mbar:<offset>".
    kind: "begin" and "end" pair up as a stack for each (cta, row, name); "mark" is a point.
    name: an IKET range of the kernel's author, or "TMA load", "MMA", "wait", "arrive", "phase" ... data: what belongs
    to it.
    """

    t: float
    cta: int
    row: str
    kind: Literal["begin", "end", "mark"]
    name: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """Events with their unit: "tick" (order only: one round of the fair scheduler), "cycle" or "ns"."""

    unit: str
    events: list[Event]
    meta: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        events = [[e.t, e.cta, e.row, e.kind, e.name, e.data] for e in self.events]
        return json.dumps({"unit": self.unit, "meta": self.meta, "events": events}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Trace:
        raw = json.loads(text)
        return cls(raw["unit"], [Event(*e) for e in raw["events"]], raw["meta"])
