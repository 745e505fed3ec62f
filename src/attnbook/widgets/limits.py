"""Movable figure: which unit limits attention, by sequence length, head dimension and chip."""

from __future__ import annotations

from collections.abc import Sequence

from attnbook.chips import B200, B300, H200, Chip
from attnbook.figures.limits import TILE, longest, unit_cycles
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore

ROLES = {"tensor core": "mma", "exp": "softmax", "shared memory": "load", "HBM": "epilogue"}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
DIMS = (64, 96, 128, 192, 256)


def unit_limits(
    *,
    chips: Sequence[Chip] = (B200, B300, H200),
    head_dims: Sequence[int] = DIMS,
    seqlens: Sequence[int] = LENGTHS,
) -> Explorer:
    """The time of each unit for one tile, beside the tensor core's; the longest decides."""
    x0, w, top = 132.0, 500.0, 64.0
    reach = 2.5

    def draw(which: int, dim: int, length: int) -> tuple[Svg, str]:
        chip, d, n = chips[which], head_dims[dim], seqlens[length]
        cycles = unit_cycles(n, d, chip=chip)
        tensor = cycles["tensor core"]
        limit = longest(cycles)
        s = Svg(760, 290, title="Which unit limits attention")
        s.text(x0, 20, f"{chip.name}, head dimension {d}, {n:,} tokens", "tl")
        s.text(x0, 40, "time of each unit, in units of the tensor core's", "ts")
        for tick in (0.5, 1.0, 1.5, 2.0, 2.5):
            x = x0 + w * tick / reach
            s.line(x, top - 8, x, top + 196, "ln ink dash" if tick == 1.0 else "ln hair")
            s.text(x, top + 214, f"{tick:g}", "ts", anchor="middle")
        for i, (unit, spent) in enumerate(cycles.items()):
            y = top + 50 * i
            s.text(x0 - 10, y + 22, unit, "tb" if unit == limit else "t", anchor="end")
            bar = w * spent / tensor / reach
            s.rect(x0, y, max(bar, 1), 34, f"r-{ROLES[unit]}", rx=2)
            if unit == limit:
                s.rect(x0 - 3, y - 3, max(bar, 1) + 6, 40, "mark", rx=4)
            s.text(x0 + bar + 12, y + 22, f"{spent:,.0f} cycles", "tb halo" if unit == limit else "t halo")
        share = tensor / cycles[limit]
        tied = [u for u in cycles if u != limit and cycles[u] > 0.995 * cycles[limit]]
        who = " and ".join([limit, *tied]) if len(tied) < 2 else ", ".join([limit, *tied[:-1]]) + f" and {tied[-1]}"
        text = (
            f"**{who}** {'need' if tied else 'needs'} most: {cycles[limit]:,.0f} cycles for a {TILE} × {TILE} tile. "
            f"The tensor core works at most {share:.0%} of the time: {share * chip.bf16_flops / 1e12:,.0f} TFLOPS. One "
            f"unit after another, it would be {tensor / sum(cycles.values()):.0%}."
        )
        return s, text

    return explore(
        [
            Control("chip", "chip", [c.name for c in chips], "choice"),
            Control("dim", "head dimension", [str(d) for d in head_dims], "choice"),
            Control("tokens", "tokens", [f"{n:,}" for n in seqlens]),
        ],
        draw,
        name="unit_limits",
        title="Which unit limits attention",
        caption=(
            "Each bar is the work of one tile divided by the rate of one unit, nothing else: no latency, no waiting. "
            "Everything is supposed to overlap, so the longest bar (outlined) is the time. P is not in shared memory, "
            "and two Q tiles share each K and V tile. HBM moves Q, K, V and O once a head. Its share falls with the "
            "number of tokens, that of the exponentials with the head dimension."
        ),
        source="modelled from published rates; of the B300 only exponentials and HBM are its own, the rest is a B200's",
        start=[0, list(head_dims).index(128) if 128 in head_dims else 0, 4 if len(seqlens) > 4 else 0],
    )
