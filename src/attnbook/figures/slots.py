"""Who holds which place of shared memory when: the tiles of K and V through their places, from a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.still import barrier_names
from attnbook.figures.svg import Svg
from ptxemu.memory import SHARED_RESERVED
from ptxemu.trace import Trace


@dataclass
class Stay:
    """A tile's stay in a place of shared memory; times in the trace's unit.

    what: "K" or "V". tile: of 128 keys. asked: the first TMA load is issued. there: the last has arrived.
    used, done: the first MMA that reads it begins, the last ends. free: its place is given back.
    """

    place: str
    what: str
    tile: int
    asked: float
    there: float = 0.0
    used: float = 0.0
    done: float = 0.0
    free: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.what}{self.tile}"


def places_of(stage: Any) -> dict[str, tuple[int, int]]:
    """Name -> (first byte, bytes) of the places for K and V tiles, as shared-memory addresses."""
    smem = stage_module(stage).SMEM
    return {n: (o + SHARED_RESERVED, size) for n, (o, size) in smem.items() if n[0] in "KV" and size >= 1024}


def stays(trace: Trace, stage: Any, cta: int = 0) -> list[Stay]:
    """Every tile's stay in a CTA's shared memory, in the order in which they were asked for.

    ValueError for a trace without the CTA's loads.
    """
    places = places_of(stage)
    empty = {name: address for address, name in barrier_names(stage).items() if name.startswith("kv_empty")}

    def place(address: int) -> str | None:
        return next((n for n, (first, size) in places.items() if first <= address < first + size), None)

    out: list[Stay] = []
    here: dict[str, Stay] = {}
    tiles = {"k": 0, "v": 0}
    for e in sorted((e for e in trace.events if e.cta == cta), key=lambda e: e.t):
        if e.row == "tma" and e.name == "TMA load" and e.data.get("tensor") in tiles:
            name = place(e.data["offset"])
            assert name is not None  # K and V go nowhere else
            if e.kind == "end":
                here[name].there = e.t
            elif name not in here or here[name].free or here[name].what != e.data["tensor"].upper():
                here[name] = Stay(name, e.data["tensor"].upper(), tiles[e.data["tensor"]], e.t)
                tiles[e.data["tensor"]] += 1
                out.append(here[name])
        elif e.row == "tensor" and e.name == "MMA" and (name := place(e.data["b_offset"])) in here:
            if e.kind == "begin":
                here[name].used = here[name].used or e.t
            else:
                here[name].done = e.t
        elif e.row.startswith("mbar:") and e.name == "phase":
            for name, stay in here.items():
                # One kv_empty for all places, or one for each, with the place's number.
                if empty.get("kv_empty", empty.get(f"kv_empty{name[2:]}")) == e.data["barrier"] and stay.done:
                    stay.free = stay.free or e.t
    if not out:
        raise ValueError(f"cta = {cta}: the trace holds no loads of K and V; run with trace=True")
    return out


def slot_use(*stages: Any, window: tuple[float, float] = (0, 18000)) -> Svg:
    """The places for K and V of some stages, over modelled cycles: on their way, there, in use, held, free."""
    from attnbook import clock

    numbers = [stage_number(x) for x in stages or (5, 6)]
    first, last = window
    x0, w, pitch, gap, y0 = 112.0, 640.0, 40.0, 34.0, 64.0
    unit = w / (last - first)
    rows = {n: stays(clock.time(n, ranges=True).timing.trace(), n) for n in numbers}
    held = {n: sum(s.free - s.done for s in row[:-4]) / len(row[:-4]) for n, row in rows.items()}
    ahead = {n: sum(s.used - s.there for s in row[2:-4]) / len(row[2:-4]) for n, row in rows.items()}
    said = "; ".join(
        f"stage {n}: a tile is there {ahead[n]:,.0f} cycles before its first MMA, and its place is held "
        f"{held[n]:,.0f} cycles after its last"
        for n in numbers
    )
    height = y0 + sum(pitch * len(places_of(n)) + gap for n in numbers) - 12
    s = Svg(
        760,
        height,
        title="Places for K and V, and who is in them",
        name="slot_use",
        desc=said,
        caption=(
            "A place for a K or a V tile through modelled cycles. Blue: the tile is on its way. Pale blue: it is there "
            "and waits. Orange: MMAs read it. Pale orange: it is used up, and its place not yet given back. White: "
            f"free. On the average, {said}."
        ),
        source="modelled: emulated runs under the clock, one CTA on an SM of a B200",
    )
    for k, (cls, text) in enumerate(
        (("r-load", "on its way"), ("soft-load", "there"), ("r-mma", "in use"), ("soft-mma", "used up, held"))
    ):
        s.rect(8 + 130 * k, 8, 22, 14, cls, rx=2)
        s.text(36 + 130 * k, 20, text, "t")
    for tick in range(int(first), int(last) + 1, 3000):
        x = x0 + (tick - first) * unit
        s.line(x, 46, x, height - 6, "ln hair")
        s.text(x, 42, f"{tick:,}", "ts", anchor="end" if tick == last else "middle")
    y = y0
    for n in numbers:
        s.text(8, y + 8, f"stage {n}", "tl")
        y += gap - 16
        for name in places_of(n):
            s.text(8, y + 20, name if name in "KV" else f"slot {name[2:]}", "tb")
            s.line(x0, y + 28, x0 + w, y + 28, "ln hair")
            for stay in (t for t in rows[n] if t.place == name):
                spans = (
                    (stay.asked, stay.there, "r-load"),
                    (stay.there, stay.used, "soft-load"),
                    (stay.used, stay.done, "r-mma"),
                    (stay.done, stay.free or stay.done, "soft-mma"),
                )
                for a, b, cls in spans:
                    a, b = max(a, first), min(b, last)
                    if b > a:
                        s.rect(x0 + (a - first) * unit, y, max((b - a) * unit - 0.4, 0.6), 28, cls, rx=1)
                middle = (max(stay.there, first) + min(max(stay.used, stay.there), last)) / 2
                wide = (min(stay.used, last) - max(stay.there, first)) * unit
                if wide > 24:
                    s.text(x0 + (middle - first) * unit, y + 19, stay.name, "tb", anchor="middle")
                elif stay.used < last - 500:
                    s.text(x0 + (stay.used - first) * unit + 2, y + 19, stay.name, "tc on")
            y += pitch
        y += 16
    return s
