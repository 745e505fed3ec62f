"""Movable figures of the chapter on online softmax: what rounding P costs, and when a lazy rescale fires."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnbook.figures.rounding import (
    P_TYPES,
    SUMS,
    VALUES,
    cost,
    family_scores,
    lazy_walk,
    unit_roundoff,
    warp_share,
)
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore

TITLES = {
    "normal": "normal",
    "rising_max": "rising maximum",
    "just_under": "grows by 7.9",
    "just_over": "grows by 8.1",
}


def p_rounding(seqlens: Sequence[int] = (128, 512, 2048, 8192)) -> Explorer:
    """The error of the output when P is rounded to one of four types, by V and by what the row sum adds."""
    x0, w, top, pitch = 96.0, 540.0, 58.0, 44.0
    low, high = -26.0, 2.0  # log2 of the error

    def px(error: float) -> float:
        return x0 + w * (min(max(math.log2(max(error, 1e-12)), low), high) - low) / (high - low)

    def draw(values: int, sums: int, length: int) -> tuple[Svg, str]:
        n = seqlens[length]
        found = {kind: cost(kind, VALUES[values], SUMS[sums], n) for kind in P_TYPES}
        s = Svg(760, 282, title="What rounding P costs")
        s.text(x0, 20, "error of the output, relative to its length (log scale)", "tl")
        s.text(8, top - 14, "P in", "ts")
        for power in range(-24, 1, 4):
            x = px(2.0**power)
            s.line(x, top - 8, x, top + 4 * pitch, "ln hair")
            s.text(x, top + 4 * pitch + 18, f"2^{power}" if power else "1", "ts", anchor="middle")
        for i, (kind, c) in enumerate(found.items()):
            y = top + pitch * i
            s.text(x0 - 10, y + 19, kind, "tb", anchor="end")
            s.rect(x0, y, max(px(c.of_output) - x0, 1), 28, "r-softmax", rx=2)
            s.text(px(c.of_output) + 8, y + 19, f"{c.of_output:.1e}" if c.of_output > 1e-13 else "0", "t halo")
        out = found["bf16"].output
        if out > 1e-13:
            s.line(px(out), top - 8, px(out), top + 4 * pitch, "ln accent")
            s.text(px(out) + 6, top + 4 * pitch + 36, "rounding O itself to bf16", "ts accent", anchor="middle")
        else:
            s.text(x0, top + 4 * pitch + 36, "O is exact in bf16 here: rounding it costs nothing", "ts accent")
        bf16 = found["bf16"]
        text = (
            f"{n:,} keys, V {VALUES[values]}, row sum of {SUMS[sums]}: with P in bf16 the output is off by "
            f"{bf16.of_output:.1e} of its own length. Against the values that went in (**Σ p·|v|**) it is "
            f"{bf16.of_values:.1e}; one rounding to bf16 is at most {unit_roundoff(P_TYPES['bf16']):.1e}."
        )
        return s, text

    return explore(
        [
            Control("values", "V", VALUES, "choice"),
            Control("sums", "row sum of", SUMS, "choice"),
            Control("keys", "keys", [f"{n:,}" for n in seqlens]),
        ],
        draw,
        name="p_rounding",
        title="What rounding P to 16 bits costs the output",
        caption=(
            "Standard normal scores, everything but the rounding in FP64; the mean over 16 rows. With random values "
            "the errors of P average out as the values themselves do, and P in bf16 costs what rounding O to bf16 "
            "costs. Values chosen against us, +1 where P was rounded up and -1 where it was rounded down, let every "
            "error count, while the output cancels to almost nothing. Even then the error is below one rounding of P."
        ),
        source="computed with the types of PyTorch",
        interval=1200,
    )


def lazy_rescale(
    families: Sequence[str] = tuple(TITLES), thresholds: Sequence[int] = (0, 1, 2, 4, 6, 8, 10, 12), *, row: int = 75
) -> Explorer:
    """One row's maximum and the maximum that its P is taken against, for several thresholds of a lazy rescale."""
    x0, w, y0, h = 70.0, 674.0, 46.0, 176.0
    scores = {f: family_scores(f) for f in families}
    tiles = scores[families[0]].shape[1] // 128
    tw = w / tiles

    def draw(which: int, at: int) -> tuple[Svg, str]:
        family, threshold = families[which], thresholds[at]
        walk = lazy_walk(scores[family][row], threshold)
        exact = lazy_walk(scores[family][row], 0)
        s = Svg(760, 314, title="A lazy rescale")
        lo, hi = float(min(walk.tile_max.min(), walk.reference.min())), float(exact.reference.max())
        lo, hi = lo - 0.12 * (hi - lo) - 0.5, hi + 0.12 * (hi - lo) + 0.5

        def py(v: float) -> float:
            return y0 + h * (hi - v) / (hi - lo)

        s.text(x0, 20, "one query row, scores in log2 units, tile after tile", "tl")
        for name, kept, cls in (
            ("true", exact.reference, "ln ink dash"),
            ("kept", walk.reference, "ln r-softmax"),
        ):
            points: list[tuple[float, float]] = []
            for t in range(tiles):
                points += [(x0 + tw * t, py(float(kept[t]))), (x0 + tw * (t + 1), py(float(kept[t])))]
            s.polyline(points, cls)
            s.text(x0 - 8, py(float(kept[0])) + (16 if name == "kept" else -6), name, "ts", anchor="end")
        for t in range(tiles):
            s.line(x0 + tw * t, y0, x0 + tw * t, y0 + h + 54, "ln hair")
            s.circle(x0 + tw * (t + 0.5), py(float(walk.tile_max[t])), 4, "r-softmax")
            s.text(x0 + tw * (t + 0.5), y0 + h + 84, f"tile {t}", "ts", anchor="middle")
            mark = "rescale" if walk.fires[t] else "first" if t == 0 else "none"
            s.text(
                x0 + tw * (t + 0.5),
                y0 + h + 36,
                mark,
                "tb r-correction" if walk.fires[t] else "ts",
                anchor="middle",
            )
        share = warp_share(scores[family][:128], threshold)
        fired = int(walk.fires.sum())
        text = (
            f"**Threshold {threshold}**: this row rescales {fired} time{'' if fired == 1 else 's'}, and its largest P "
            f"is {walk.largest:.3g}. A warp (32 rows) rescales in {share:.0%} of the tiles after the first: one "
            "row is enough."
        )
        return s, text

    return explore(
        [
            Control("input", "input", [TITLES.get(f, f) for f in families], "choice"),
            Control("threshold", "threshold", [str(t) for t in thresholds]),
        ],
        draw,
        name="lazy_rescale",
        title="A lazy rescale: the maximum that is kept",
        caption=(
            "Dots: the maximum of each tile. Dashed: the running maximum. Solid: the one that P is taken against, "
            "which follows only when it has fallen behind by the threshold or more. P may then exceed 1, up to two to "
            "the threshold, and the result is the same: numerator and denominator carry the same factor."
        ),
        source="computed from the book's own 16-bit inputs, query row 75 and the first 128 rows",
        start=[0, 0],
        interval=1200,
    )
