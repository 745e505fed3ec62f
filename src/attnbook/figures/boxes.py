"""The boxes in which the TMA brings a tile: how wide, how many, and what each row of one takes of L2."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attnbook.figures.svg import Svg

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
