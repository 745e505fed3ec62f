"""The throughput ladder as published: what each idea brought, in percent of FlashAttention-4 in the same run."""

from __future__ import annotations

from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg


def ladder_plot(mark: Any = None) -> Svg:
    """Every stage of the ladder with its published share of FlashAttention-4's throughput.

    Args:
        mark: the stage to point at (number, slug or Stage), or None.
    """
    from attnbook.ladder import LADDER

    stages = list(LADDER)
    here = None if mark is None else stage_number(mark)
    pitch, y0 = 23, 52
    x0, w = 214, 400
    have = [st for st in stages if st.published]
    first, last = have[0], have[-1]
    length = sorted(first.published)[1]
    spread = max(abs(v - st.published[length]) for st in have for v in st.published.values())
    s = Svg(
        760,
        y0 + pitch * len(stages) + 30,
        title="The ladder: published throughput of each stage",
        name="ladder_plot",
        desc=(
            f"Percent of FlashAttention-4 at sequence length {length:,}: "
            + "; ".join(f"{st.number} {st.title} {st.published[length]:g}" for st in have)
            + ". Later stages have no published figure."
        ),
        caption=(
            f"Each rung adds one idea. Published shares of FlashAttention-4's throughput climb from "
            f"{first.published[length]:g} to {last.published[length]:g} percent (head dim 128, dense, sequence length "
            f"{length:,}; 4K and 16K lie within {spread:.1f} points). They were measured on a B200 with CUDA kernels "
            f"of the "
            "same ideas; this book's own kernels have not been measured there. "
            + (
                f"In bold: the {count} of {len(stages)} whose kernel this edition has."
                if (count := sum(st.implemented for st in stages))
                else ""
            )
        ),
        source="published: b200-attention, medians of same-run ratios",
    )
    for tick in (0, 25, 50, 75, 100):
        x = x0 + w * tick / 100
        s.line(x, y0 - 14, x, y0 + pitch * len(stages) - 4, "ln" if tick == 100 else "ln hair")
        s.text(x, y0 - 22, f"{tick}", "ts", anchor="middle")
    s.text(x0 + w, y0 - 38, "FlashAttention-4 = 100", "tb", anchor="end")
    s.text(x0, y0 - 38, "percent, published", "ts")
    s.text(756, y0 - 22, "gain", "ts", anchor="end")
    before = 0.0
    for i, st in enumerate(stages):
        y = y0 + pitch * i
        on = st.number == here
        if on:
            s.rect(2, y - 4, 756, pitch - 1, "here", rx=4)
        weight = "tb" if st.implemented else "t"
        s.text(30, y + 11, st.number, "ts", anchor="end")
        s.text(40, y + 11, st.title, weight)
        if not st.published:
            s.text(x0 + 6, y + 11, "no published figure", "ts")
            continue
        at = st.published[length]
        s.line(x0, y + 7, x0 + w * at / 100, y + 7, "ln hair")
        s.circle(x0 + w * at / 100, y + 7, 5, "r-mma" if on else "dot")
        s.text(x0 + w + 16, y + 11, f"{at:.1f}", "tb" if on else "t")
        s.text(756, y + 11, f"+{at - before:.1f}" if i else "", "ts", anchor="end")
        before = at
    return s
