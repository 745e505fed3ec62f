"""What one tile moves through shared memory, stage by stage, and what of it is P."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnbook.chips import human_bytes
from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg


@dataclass(frozen=True)
class Trip:
    """Bytes of one operand that one Q tile and one KV tile move through shared memory. way: "in" or "out"."""

    name: str
    way: str
    role: str
    bytes: int


def shared_trips(stage: Any = 1) -> list[Trip]:
    """Every write to and read from shared memory for 128 queries and 128 keys. Q is there already."""
    from attnbook.compile import stage_module
    from attnbook.ladder import LADDER

    module, features = stage_module(stage), LADDER[stage_number(stage)].features
    m, n, d = module.TILE_M, module.TILE_N, module.HEAD_DIM
    trips = [
        Trip("K", "in", "load", 2 * n * d),
        Trip("V", "in", "load", 2 * n * d),
        Trip("Q", "out", "mma", 2 * m * d),
        Trip("K", "out", "mma", 2 * n * d),
        Trip("V", "out", "mma", 2 * n * d),
    ]
    if "p_in_smem" in features:
        trips += [Trip("P", "in", "softmax", 2 * m * n), Trip("P", "out", "mma", 2 * m * n)]
    return trips


def shared_traffic(*stages: Any) -> Svg:
    """Stages one under the other: the bytes of one tile through shared memory, what enters and what is read."""
    stages = stages or (1,)
    numbers = [stage_number(x) for x in stages]
    rows = [shared_trips(x) for x in stages]
    totals = [sum(t.bytes for t in row) for row in rows]
    mine = [sum(t.bytes for t in row if t.name == "P") for row in rows]
    says = [
        f"stage {n}: {human_bytes(total)}" + (f", {human_bytes(p)} of it P" if p else "")
        for n, total, p in zip(numbers, totals, mine, strict=True)
    ]
    text = "; ".join(says)
    pitch, y0 = 74, 52
    s = Svg(
        760,
        y0 + pitch * len(rows) + 4,
        title="One tile's traffic through shared memory",
        name="shared_traffic",
        desc=f"{text}. " + "; ".join(f"{t.name} {t.way} {human_bytes(t.bytes)}" for t in rows[0]) + ".",
        caption=(
            "What 128 queries and 128 keys move through shared memory. On the left what enters it: K and V by TMA, and "
            "where there is one, the softmax threads' stores of P. On the right what the tensor core reads of it. "
            + f"{text[0].upper()}{text[1:]}"
            + (f". P makes {mine[0] / totals[0]:.0%} of the first, and is used once and at once." if mine[0] else ".")
        ),
        source="modelled: bytes of the tiles, each moved once",
    )
    x0, w, gap = 86.0, 560.0, 18.0
    unit = (w - gap) / max(totals)
    entering = max(sum(t.bytes for t in row if t.way == "in") for row in rows)
    s.text(x0, 20, "written", "tl")
    s.text(x0 + entering * unit + gap, 20, "read by the tensor core", "tl")
    for i, (number, row, total) in enumerate(zip(numbers, rows, totals, strict=True)):
        y = y0 + pitch * i
        s.text(8, y + 27, f"stage {number}", "tb")
        for way, start in (("in", x0), ("out", x0 + entering * unit + gap)):
            x = start
            for t in (t for t in row if t.way == way):
                tw = t.bytes * unit
                s.rect(x + 0.5, y, tw - 1, 42, f"r-{t.role}", rx=2)
                if t.name == "P":
                    s.rect(x - 1, y - 2, tw + 2, 46, "pick", rx=3)
                s.text(x + tw / 2, y + 19, t.name, "tb on", anchor="middle")
                s.text(x + tw / 2, y + 35, human_bytes(t.bytes), "tc on", anchor="middle")
                x += tw
        s.text(752, y + 27, human_bytes(total), "tb", anchor="end")
    return s
