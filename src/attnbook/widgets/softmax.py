"""Movable figure of the online softmax: one row's maximum, sum and rescale factor, tile after tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnbook.figures.svg import Svg, num
from attnbook.widgets.explorer import Control, Explorer, explore

TITLES = {
    "normal": "normal",
    "rising_max": "rising maximum",
    "falling_max": "falling maximum",
    "outlier_last": "outlier at the end",
}


@dataclass(frozen=True)
class Row:
    """The online softmax of one row, in float64. All arrays have one entry a KV tile; scores are already scaled."""

    scores: NDArray[np.float64]
    maximum: NDArray[np.float64]
    factor: NDArray[np.float64]
    total: NDArray[np.float64]

    @property
    def direct(self) -> float:
        """The row sum computed at once, against the last maximum."""
        return float(np.exp(self.scores - self.scores.max()).sum())


def walk(scores: NDArray[np.float64], tile: int = 128) -> Row:
    """Running maximum, rescale factor and row sum over tiles of a row of scaled scores."""
    maximum, factor, total = [], [], []
    m, s = -np.inf, 0.0
    for part in scores.reshape(-1, tile):
        new = max(m, float(part.max()))
        f = float(np.exp(m - new)) if np.isfinite(m) else 0.0
        s = s * f + float(np.exp(part - new).sum())
        m = new
        maximum.append(m)
        factor.append(f)
        total.append(s)
    return Row(scores, np.array(maximum), np.array(factor), np.array(total))


def scores_of(family: str, seqlen: int, row: int, seed: int = 0) -> NDArray[np.float64]:
    """One row of scaled scores in float64, from the 16-bit inputs of a family of attnbook.inputs."""
    from attnbook.inputs import INPUT_FAMILIES

    q, k, _ = INPUT_FAMILIES[family](1, 1, seqlen, seed=seed)
    qr, kk = q[0, row, 0].double().numpy(), k[0, :, 0].double().numpy()
    return np.asarray(kk @ qr) * q.shape[-1] ** -0.5


def online_softmax(
    families: Sequence[str] = tuple(TITLES), *, seqlen: int = 1024, row: int = 75, tile: int = 128
) -> Explorer:
    """One query row walks over its KV tiles: what the running maximum, the rescale factor and the row sum do.

    families: names in attnbook.inputs.INPUT_FAMILIES. row: which query.
    """
    rows = [walk(scores_of(f, seqlen, row), tile) for f in families]
    tiles = seqlen // tile
    x0, w, y0, h = 104.0, 640.0, 40.0, 190.0
    tw = w / tiles

    def draw(which: int, at: int) -> tuple[Svg, str]:
        r = rows[which]
        s = Svg(760, 404, title="Online softmax")
        lo, hi = float(r.scores.min()), float(r.scores.max())
        lo, hi = lo - 0.06 * (hi - lo) - 1e-3, hi + 0.1 * (hi - lo) + 1e-3

        def py(v: float) -> float:
            return y0 + h * (hi - v) / (hi - lo)

        s.text(x0, 20, f"scores of one query row, {seqlen:,} keys in {tiles} tiles", "tl")
        s.rect(x0 + tw * at, y0 - 6, tw, 404 - y0 - 24, "here-softmax", rx=4)
        for t in range(tiles):
            part = r.scores[t * tile : (t + 1) * tile]
            d = "".join(
                f"M{num(x0 + tw * t + 5 + (tw - 10) * i / (tile - 1))} {num(py(float(v)))}h0"
                for i, v in enumerate(part)
            )
            s.path(d, "points now" if t == at else "points" if t < at else "points later")
            if t:
                s.line(x0 + tw * t, y0 - 6, x0 + tw * t, 380, "ln hair")
            s.rect(x0 + tw * t, y0 - 6, tw, 386 - y0, "touch", data_set=f"tile:{t}")
        steps: list[tuple[float, float]] = []
        for t in range(at + 1):
            y = py(float(r.maximum[t]))
            steps += [(x0 + tw * t, y), (x0 + tw * (t + 1), y)]
        s.polyline(steps, "ln r-mma", stroke_width=2)
        s.text(x0 - 10, py(float(r.maximum[at])) + 4, f"max {r.maximum[at]:.2f}", "tb r-mma", anchor="end")
        for label, y in (("maximum", 264), ("factor", 296), ("row sum", 356)):
            s.text(x0 - 10, y + 4, label, "tb", anchor="end")
        s.text(x0 - 10, 316, "old sum and O", "ts", anchor="end")
        s.text(x0 - 10, 331, "are multiplied", "ts", anchor="end")
        for t in range(at + 1):
            cx = x0 + tw * (t + 0.5)
            weight = "tb" if t == at else "t"
            s.text(cx, 268, f"{r.maximum[t]:.2f}", weight, anchor="middle")
            if t:
                s.text(
                    cx,
                    300,
                    f"{r.factor[t]:.3f}" if r.factor[t] >= 0.0005 or r.factor[t] == 0 else f"{r.factor[t]:.0e}",
                    weight,
                    anchor="middle",
                )
                bar = 44 * float(r.factor[t])
                s.rect(x0 + tw * t + 16, 310, tw - 32, 8, "off")
                s.rect(x0 + tw * t + 16, 310, (tw - 32) * bar / 44, 8, "r-correction")
            else:
                s.text(cx, 300, "none", "ts", anchor="middle")
            s.text(cx, 360, f"{r.total[t]:.2f}", weight, anchor="middle")
        for t in range(tiles):
            s.text(x0 + tw * (t + 0.5), 398, f"tile {t}", "tb" if t == at else "ts", anchor="middle")
        old = "−∞" if at == 0 else f"{r.maximum[at - 1]:.2f}"
        part_max = float(r.scores[at * tile : (at + 1) * tile].max())
        text = f"**Tile {at}**: the maximum of its 128 scores is {part_max:.2f}, the running one was {old}. "
        if at == 0:
            text += f"Nothing to rescale yet. Row sum {r.total[0]:.2f}."
        elif r.factor[at] == 1.0:
            text += "No new maximum: the factor is 1, and the plain algorithm multiplies all of O by it all the same. "
            text += f"Row sum {r.total[at - 1]:.2f} → {r.total[at]:.2f}."
        else:
            text += (
                f"New maximum: what was summed so far shrinks by exp({r.maximum[at - 1]:.2f} − {r.maximum[at]:.2f}) "
                f"= {r.factor[at]:.3g}. "
                f"Row sum {r.total[at - 1]:.2f} → {r.total[at]:.2f}."
            )
        if at == tiles - 1:
            text += f" All at once it would be {r.direct:.2f}: the same."
        return s, text

    return explore(
        [
            Control("input", "input", [TITLES.get(f, f.replace("_", " ")) for f in families], "choice"),
            Control("tile", "tile", [str(t) for t in range(tiles)]),
        ],
        draw,
        name="online_softmax",
        title="The online softmax of one row, tile by tile",
        caption=(
            "Softmax needs the row's maximum before it can start, and the row does not fit anywhere at once. So a "
            "maximum is kept that is right for the tiles "
            "seen so far; when a tile brings a larger one, the old sum and the old O are multiplied by exp(old − "
            "new). The maximum cancels in the end: the row sum is the one that "
            "a two-pass softmax gives."
        ),
        source=f"computed from the book's own 16-bit inputs, query row {row}, scale 1/√128",
        start=[families.index("rising_max") if "rising_max" in families else 0, 1],
        interval=1200,
    )
