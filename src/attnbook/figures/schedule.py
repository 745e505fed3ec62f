"""The order of a stage's products on the tensor core, and what it leaves idle when a softmax takes so long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbook.chips import B200
from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.still import pair
from attnbook.figures.traces import stage_trace
from ptxemu.trace import Trace


@dataclass(frozen=True)
class Product:
    """One product of two 128 x 128 tiles, eight MMAs. what: "QK" or "PV". q: the Q tile. tile: the KV tile.

    line: of the PTX, of its first MMA. place: the name of the K or V tile's place in shared memory.
    """

    what: str
    q: int
    tile: int
    place: str

    @property
    def text(self) -> str:
        """As the figures write it: Q0 Kᵀ or P0 V."""
        return f"Q{self.q} Kᵀ" if self.what == "QK" else f"P{self.q} V"


def products(stage: Any, tiles: int = 4) -> tuple[Product, ...]:
    """The products of CTA 0 in the order in which the tensor core took them, from an emulated run of a few KV tiles.

    ValueError for a stage whose CTA has not all of its Q tiles' columns in TMEM under the names S and O.
    """
    return _products(stage_number(stage), tiles)


@cache
def _products(number: int, tiles: int) -> tuple[Product, ...]:
    module = stage_module(number)
    columns = {first: name for name, (first, _) in module.TMEM.items()}
    places = {offset + 1024: name for name, (offset, _) in module.SMEM.items()}  # dynamic shared memory begins there
    seen: dict[tuple[str, int], int] = {}
    out = []
    for e in stage_trace(number, seqlen=128 * tiles).events:
        if e.cta or e.row != "tensor" or e.name != "MMA" or e.kind != "begin" or e.data["b_offset"] not in places:
            continue  # the later steps of a product begin within its tile
        name = columns[e.data["column"]]
        what, q = ("QK" if name[0] == "S" else "PV"), int(name[1:] or 0)
        tile = seen.get((what, q), 0)
        seen[what, q] = tile + 1
        out.append(Product(what, q, tile, places[e.data["b_offset"]]))
    return tuple(out)


@dataclass(frozen=True)
class Span:
    """A stretch of a lane, in cycles. product: None for a softmax."""

    lane: str
    start: float
    end: float
    q: int
    tile: int
    product: Product | None = None


def product_cycles() -> float:
    """Cycles of one product at the tensor core's peak: 2 * 128^3 FLOP."""
    return 2 * 128**3 / B200.value("mma_flops_per_clk")


def onwards(stage: Any, tiles: int) -> list[Product]:
    """The order of products() for as many tiles as you like: what repeats in it, repeated. The end is left out.

    ValueError for a stage whose order does not repeat from one KV tile to the next.
    """
    seen = products(stage)
    length = 2 * len({p.q for p in seen})
    block = seen[length : 2 * length]

    def later(p: Product, by: int) -> Product:
        return Product(p.what, p.q, p.tile + by, p.place)

    again = seen[2 * length : 3 * length]
    if [(p.what, p.q, p.tile) for p in again] != [(p.what, p.q, p.tile + 1) for p in block]:
        raise ValueError(f"stage {stage_number(stage)}: its products come in another order from tile to tile")
    return [*seen[:length], *(later(p, by) for by in range(tiles - 1) for p in block)]


def plan(stage: Any, softmax: float, tiles: int = 4) -> list[Span]:
    """The stage's products in their own order, each as early as its operands allow.

    A softmax begins when its Q Kᵀ ends and takes `softmax` cycles; P V begins when its softmax has ended. Loads and
    latencies take no time, and two softmaxes do not slow each other down.
    """
    each, now = product_cycles(), 0.0
    ready: dict[tuple[int, int], float] = {}
    out = []
    for p in onwards(stage, tiles):
        start = max(now, ready[p.q, p.tile]) if p.what == "PV" else now
        now = start + each
        out.append(Span("tensor core", start, now, p.q, p.tile, p))
        if p.what == "QK":
            ready[p.q, p.tile] = now + softmax
            out.append(Span(f"softmax {p.q}", now, now + softmax, p.q, p.tile))
    return out


def steady(stage: Any, softmax: float) -> tuple[float, float]:
    """Cycles from one KV tile to the next once the pipeline runs, and the tensor core's share of them."""
    short, long = ([s for s in plan(stage, softmax, n) if s.product] for n in (6, 10))
    period = (long[-1].end - short[-1].end) / 4
    count = (len(long) - len(short)) / 4
    return period, count * product_cycles() / period


def range_lengths(trace: Trace, name: str, row: str = "warp0", cta: int = 0) -> list[float]:
    """How long each range of that name lasted on one row of a trace, in the trace's unit, first to last."""
    events = sorted((e for e in trace.events if e.cta == cta and e.row == row), key=lambda e: e.t)
    return [s["to"] - s["from"] for s in pair(events)[0] if s["name"] == name]
