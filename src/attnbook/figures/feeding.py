"""Figures of the chapter on feeding the tensor core."""

from __future__ import annotations

import numpy as np

from attnbook.figures.svg import Svg
from ptxemu.isa.descriptors import accumulator_lanes


def lanes_of(m: int, lane: int = 0) -> list[int]:
    """The TMEM lane of each of the m rows of an accumulator (cta_group::1, not .ws)."""
    found = accumulator_lanes(m, lane)
    return [int(lane) for lane in np.arange(128)[found]]


def accumulator_rows() -> Svg:
    """Which lanes of tensor memory the rows of an accumulator take, for M = 128 and M = 64."""
    cases = [("M = 128", 128, 0), ("M = 64, lane 0", 64, 0), ("M = 64, lane 16", 64, 16)]
    s = Svg(
        760,
        322,
        title="The rows of an accumulator in tensor memory",
        name="accumulator_rows",
        desc="; ".join(f"{name}: rows in lanes {lanes_of(m, lane)[:17]} and on" for name, m, lane in cases),
        caption=(
            "128 lanes from top to bottom, four windows of 32, one for each warp of a warpgroup. With M = 128 row i is "
            "in lane i. With M = 64 every warp gets sixteen rows, in one half of its window; a second accumulator fits "
            "into the other half. No choice of M gives a warp a row of another window: the same 32 lanes, always."
        ),
        source="lanes as the emulator places them; PTX ISA, data path layouts D and F",
    )
    y0, h = 44.0, 2.0
    for i, (name, m, lane) in enumerate(cases):
        x = 120 + 210 * i
        lanes = lanes_of(m, lane)
        s.text(x + 70, 24, name, "tb", anchor="middle")
        s.rect(x, y0, 140, 128 * h, "m-tmem")
        start = 0
        while start < len(lanes):  # runs of rows in neighbouring lanes
            end = start
            while end + 1 < len(lanes) and lanes[end + 1] == lanes[end] + 1 and (end + 1) % 32 != 0:
                end += 1
            top, height = y0 + h * lanes[start], h * (end - start + 1)
            s.rect(x + 1, top, 138, height - 1, "r-mma")
            s.text(x + 70, top + height / 2 + 5, f"rows {start}–{end}", "tb on", anchor="middle")
            start = end + 1
    for w in range(4):
        s.text(104, y0 + h * (32 * w + 16) + 5, f"warp {w}", "t", anchor="end")
        s.text(104, y0 + h * (32 * w + 16) + 22, f"lanes {32 * w}–{32 * w + 31}", "ts", anchor="end")
        if w:
            s.line(112, y0 + h * 32 * w, 690, y0 + h * 32 * w, "ln ink dash")
    return s
