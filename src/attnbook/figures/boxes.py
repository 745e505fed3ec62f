"""The boxes in which the TMA brings a tile: how wide, how many, and what each row of one takes of L2."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attnbook.figures.svg import Svg
from ptxemu.clock.chips import RECORD

SECTOR = 32  # bytes: what L2 serves at least (CUDA Programming Guide, device memory accesses)


@dataclass(frozen=True)
class Boxes:
    """How one tile of a tensor arrives. width: bytes of a box's row; rows: rows of a box; count: boxes of a tile."""

    tensor: str
    width: int
    rows: int
    count: int


@lru_cache(maxsize=32)
def captured_boxes(stage: Any) -> dict[str, Boxes]:
    """The boxes of each tensor's first tile, from the TMA loads that the compiled kernel made in an emulated run."""
    import attnbook

    run = attnbook.run(stage, seqlen=256, trace=True, device="emulator")
    assert run.trace is not None  # asked for
    loads = [
        e.data for e in run.trace.events if e.row == "tma" and e.kind == "begin" and e.cta == 0 and "box" in e.data
    ]
    found = {}
    for tensor in ("q", "k", "v"):
        mine = [d for d in loads if d["tensor"] == tensor]
        tiles = Counter((d["coords"][1] // 128) for d in mine)
        width, rows = mine[0]["box"][0] * 2, mine[0]["box"][1]
        found[tensor] = Boxes(tensor, width, rows, tiles[min(tiles)])
    return found


def tma_boxes(*stages: Any) -> Svg:
    """Stages side by side: one 128 x 128 tile in global memory, cut into the boxes that bring it."""
    from attnbook.ladder import LADDER

    rungs = [LADDER[x] for x in stages]
    boxes = [captured_boxes(rung.slug)["k"] for rung in rungs]
    text = "; ".join(
        f"stage {rung.number}: {b.count} boxes of {b.rows} rows by {b.width} bytes"
        for rung, b in zip(rungs, boxes, strict=True)
    )
    s = Svg(
        760,
        262,
        title="The boxes of one K tile",
        name="tma_boxes",
        desc=f"A K tile of 128 rows by 256 bytes, {text}.",
        caption=(
            "One K tile, 128 rows of 256 bytes, as it lies in global memory; the rows are far apart there. "
            f"{text[0].upper()}{text[1:]}. L2 serves sectors of {SECTOR} bytes: a row of a 16-byte box uses half "
            "of one, and the other half is asked for by another box."
        ),
        source="emulated: the TMA loads that the compiled kernels make",
    )
    pitch = 760 / len(rungs)
    for i, (rung, b) in enumerate(zip(rungs, boxes, strict=True)):
        x0, y0, w, h = pitch * i + 8, 46.0, pitch - 40, 150.0
        s.text(x0, 20, f"stage {rung.number}: {b.count} boxes", "tl")
        for j in range(b.count):
            bx, bw = x0 + w * j / b.count, w / b.count
            s.rect(bx, y0, bw, h, "m-smem" if j else "r-load")
        s.text(x0, y0 - 8, "0", "ts")
        s.text(x0 + w, y0 - 8, "256 B", "ts", anchor="end")
        s.text(x0, y0 + h + 20, f"a row of a box: {b.width} bytes", "tb")
        sectors = max(1, b.width // SECTOR)
        used = b.width / (sectors * SECTOR)
        s.text(x0, y0 + h + 38, f"{sectors} sector{'s' if sectors > 1 else ''} of {SECTOR} bytes, {used:.0%} used", "t")
    return s


ROWS = 128  # of the boxes that were measured
SPANS = ((16, ""), (32, ""), (64, ""), (128, ", swizzled"))  # bytes of a row, as the record names it


@dataclass(frozen=True)
class BoxCost:
    """What boxes of 128 rows cost the TMA of one SM. width: bytes of a row.

    one, eight: cycles from asking for so many boxes until all have arrived. boxes: of a K tile and a V tile together.
    """

    width: int
    boxes: int
    one: float
    eight: float

    @property
    def step(self) -> float:
        """Cycles of one more box: what is left when the latency, which one box and eight both have, is taken out."""
        return (self.eight - self.one) / 7


def box_costs() -> tuple[list[BoxCost], str]:
    """The TMA's cost by the width of a box's row, as recorded on a GPU, and that GPU's name."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    found = record["found"]
    costs = []
    for width, how in SPANS:
        name = f"tma, {ROWS} rows of {width} bytes{how}: "
        eight = 8 * found[name + "each of 8, 1 SMs"]
        costs.append(BoxCost(width, 2 * 128 * 256 // (ROWS * width), found[name + "latency"], eight))
    return costs, str(record["machine"])


def box_cost() -> Svg:
    """What loading one KV tile costs the TMA, by the width of a box's row."""
    costs, machine = box_costs()
    first, last = costs[0], costs[-1]
    pitch = 46
    s = Svg(
        760,
        48 + pitch * len(costs),
        title="The TMA's time for one K tile and one V tile, by the width of a box",
        name="box_cost",
        desc="; ".join(
            f"{c.boxes} boxes with rows of {c.width} bytes: {c.boxes * c.step:,.0f} cycles, {c.step:.0f} each"
            for c in costs
        ),
        caption=(
            f"64 KiB, K and V of 128 keys, in boxes of {ROWS} rows from L2, on one SM while the others rest. One more "
            f"box costs {first.step:.0f} cycles with rows of 16 bytes, and of 32, and of 64: one cycle a row. With "
            f"128 bytes it costs {last.step:.0f}. The TMA works through rows, not bytes, so narrow boxes multiply its "
            f"time. Measured on an {machine.removeprefix('NVIDIA ')}, a Hopper GPU; for a B200 we know of no such "
            "figure."
        ),
        source=f"measured: {machine}, tests/gpu/record_clock.py, eight boxes less one, over seven",
    )
    x0, w, top = 172.0, 500.0, max(c.boxes * c.step for c in costs)
    for tick in range(0, int(top) + 1, 1000):
        x = x0 + w * tick / top
        s.line(x, 34, x, 42 + pitch * len(costs), "ln hair")
        s.text(x, 24, f"{tick:,}", "ts", anchor="middle")
    s.text(8, 24, "cycles", "ts")
    for i, c in enumerate(costs):
        y = 44 + pitch * i
        s.text(8, y + 15, f"rows of {c.width} bytes", "tb")
        s.text(8, y + 32, f"{c.boxes} boxes a KV tile", "ts")
        bw = w * c.boxes * c.step / top
        s.rect(x0, y + 4, bw, 26, "r-load", rx=2)
        inside = bw > 150
        label = f"{c.boxes} × {c.step:.0f} = {c.boxes * c.step:,.0f}"
        s.text(x0 + 8 if inside else x0 + bw + 8, y + 22, label, "tb on" if inside else "tb")
    return s
