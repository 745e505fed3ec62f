"""Movable figures of the tensor core's order of work: how long the softmax takes, and what stands between."""

from __future__ import annotations

from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.schedule import plan, product_cycles, products, steady
from attnbook.figures.svg import Svg
from attnbook.ladder import LADDER
from attnbook.widgets.explorer import Control, Explorer, explore

TIMES = tuple(range(256, 5121, 256))  # cycles of a softmax
START = 1024  # what the exponentials alone take


def softmax_lanes(*stages: Any) -> Explorer:
    """Schedules of the same work in two or three orders: slide how long a softmax takes, see the tensor core idle."""
    numbers = [stage_number(x) for x in stages or (4, 5)]
    names = [f"stage {n}, {LADDER[n].title[0].lower()}{LADDER[n].title[1:]}" for n in numbers]
    shown = 16384.0  # cycles across the picture
    x0, w, pitch, y0 = 104.0, 648.0, 52.0, 50.0
    unit = w / shown
    lanes = ["tensor core", "softmax 0", "softmax 1"]

    def draw(which: int, at: int) -> tuple[Svg, str]:
        softmax = TIMES[at]
        period, share = steady(numbers[which], softmax)
        s = Svg(760, y0 + pitch * 3 + 22, title="The tensor core and two softmaxes")
        s.text(8, 20, f"a softmax takes {softmax:,} cycles, a product {product_cycles():,.0f}", "tl")
        s.text(752, 20, f"tensor core at work: {share:.0%}", "tl", anchor="end")
        for tick in range(0, int(shown) + 1, 2048):
            x = x0 + tick * unit
            anchor = "end" if tick == shown else "middle"
            s.line(x, y0 - 8, x, y0 + pitch * 3 - 12, "ln hair")
            s.text(x, y0 + pitch * 3 + 6, f"{tick:,}", "ts", anchor=anchor)
        spans = [p for p in plan(numbers[which], softmax, 40) if p.start < shown]
        here = {p.lane for p in spans}
        for i, lane in enumerate(lanes):
            y = y0 + pitch * i
            s.text(8, y + 22, lane, "tb" if lane in here else "ts")
            if lane not in here:
                s.text(x0 + 8, y + 22, "this stage has one Q tile", "ts")
        for p in spans:
            y = y0 + pitch * lanes.index(p.lane)
            width = (min(p.end, shown) - p.start) * unit
            role = "mma" if p.product else "softmax"
            solid = p.q == 0
            s.rect(x0 + p.start * unit, y, max(width - 0.6, 0.6), 34, f"r-{role}" if solid else f"soft-{role}", rx=2)
            ink = " on" if solid else ""
            if p.product and width > 16:
                middle = x0 + p.start * unit + width / 2
                s.text(middle, y + 15, "QK" if p.product.what == "QK" else "PV", f"tc{ink}", anchor="middle")
                s.text(middle, y + 29, p.tile, f"tc{ink}", anchor="middle")
            elif not p.product and width > 30:
                s.text(x0 + p.start * unit + width / 2, y + 22, p.tile, f"tb{ink}", anchor="middle")
        q_tiles = 2 if "softmax 1" in here else 1
        return s, (
            f"**{names[which]}**: {period:,.0f} cycles from one KV tile to the next, for {128 * q_tiles} queries. "
            f"That is {period / q_tiles:,.0f} for 128 queries and 128 keys. The tensor core works {share:.0%} and "
            f"waits {1 - share:.0%} of the time."
        )

    return explore(
        [
            Control("order", "order", [f"stage {n}" for n in numbers], "choice"),
            Control("softmax", "softmax", [f"{t:,}" for t in TIMES]),
        ],
        draw,
        name="softmax_lanes",
        title="What the tensor core does while a softmax runs",
        caption=(
            "Each stage's products in the order in which an emulated run issued them, each as early as its operands "
            "allow. The number in a bar is its KV tile; filled bars belong to Q tile 0, outlined ones to Q tile 1. "
            f"A product takes {product_cycles():,.0f} cycles, which is the tensor core's peak. How long the softmax "
            f"takes is yours to choose: {START:,} are its exponentials alone. Loads and latencies cost nothing here, "
            "and two softmaxes do not slow each other down."
        ),
        source="modelled; the order of the products is emulated",
        start=[len(numbers) - 1, TIMES.index(START)],
        interval=500,
    )


def mma_order(*stages: Any) -> Explorer:
    """The products of two stages in the order of the tensor core, one under the other: choose one, see what follows."""
    numbers = [stage_number(x) for x in stages or (6, 7)]
    tiles = 4
    rows = [products(n, tiles) for n in numbers]
    count = max(len(r) for r in rows)
    chosen = [(p.q, p.tile) for p in rows[0] if p.what == "QK"]
    x0, w, pitch, y0 = 76.0, 676.0, 92.0, 46.0
    cell = w / count

    def draw(at: int) -> tuple[Svg, str]:
        q, tile = chosen[at]
        s = Svg(760, y0 + pitch * len(rows) - 8, title="Products in the order of the tensor core")
        s.text(8, 20, "the tensor core's products, first to last", "tl")
        told = []
        for i, (n, row) in enumerate(zip(numbers, rows, strict=True)):
            y = y0 + pitch * i
            s.text(8, y + 28, f"stage {n}", "tb")
            first, last = (
                next(k for k, p in enumerate(row) if (p.what, p.q, p.tile) == (what, q, tile)) for what in ("QK", "PV")
            )
            for k, p in enumerate(row):
                x = x0 + cell * k
                ink = " on" if p.q == 0 else ""
                part = {"data_set": f"product:{chosen.index((p.q, p.tile))}"}
                s.rect(x + 1, y, cell - 2, 46, "r-mma" if p.q == 0 else "soft-mma", rx=3, **part)
                s.text(x + cell / 2, y + 20, p.what, f"tb{ink} through", anchor="middle")
                s.text(x + cell / 2, y + 37, p.tile, f"t{ink} through", anchor="middle")
            for k in (first, last):
                s.rect(x0 + cell * k - 0.5, y - 2, cell + 1, 50, "pick", rx=4)
            a, b = x0 + cell * (first + 1), x0 + cell * last
            s.rect(a + 1, y + 52, b - a - 2, 6, "r-softmax", rx=2)
            between = last - first - 1
            label = f"{between} product{'s' if between != 1 else ''}, {between * product_cycles():,.0f} cycles"
            far = (a + b) / 2 > 640
            s.text(752 if far else (a + b) / 2, y + 74, label, "ts", anchor="end" if far else "middle")
            told.append(f"in stage {n} {between}")
        return s, (
            f"**Q{q} Kᵀ of tile {tile}** leaves scores, and P{q} V needs their softmax. Products that stand between "
            f"the two: {', '.join(told)}."
        )

    return explore(
        [Control("product", "QK", [f"{q}, {tile}" for q, tile in chosen])],
        draw,
        name="mma_order",
        title="The order of the tensor core's work",
        caption=(
            f"Every product of a CTA over {tiles} KV tiles, in the order of issue. QK is S = Q Kᵀ, PV is O += P V; "
            "the number below is the KV tile; filled for Q tile 0, outlined for Q tile 1. Choose a QK by Q tile "
            "and KV tile: the frame to its right is the PV that needs its softmax, and the green line is what the "
            "tensor core has to do meanwhile."
        ),
        source=f"from the MMAs of emulated runs of stages {' and '.join(str(n) for n in numbers)}",
        start=[2],
        interval=900,
    )
