"""Which unit limits attention: the cycles that each needs, by sequence length, head dimension and chip.

All of it is work divided by rate. The rates stand in attnbook.chips.
"""

from __future__ import annotations

from attnbook.chips import B200, B300, H200, Chip
from attnbook.figures.svg import Svg

UNITS = ("tensor core", "exp", "shared memory", "HBM")
TILE = 128  # queries and keys of a tile


def unit_cycles(seqlen: float, head_dim: int = 128, *, chip: Chip = B200, q_tiles: int = 2) -> dict[str, float]:
    """Cycles of one SM that a tile of 128 queries x 128 keys keeps each unit busy, dense bf16 forward.

    Args:
        seqlen: queries and keys of a head. head_dim: of q, k and v.
        q_tiles: how many Q tiles share a K and a V tile once the TMA has brought them.
    Tensor core: two products of 2·128·128·d FLOP. Exp: one for each score. Shared memory: the operands that the tensor
    core reads, with P elsewhere (tensor memory on Blackwell, registers on Hopper), and the TMA's writes of K and V. A
    Hopper multiplication is 64 rows high, so two of them read the same K or V (PTX ISA, wgmma). HBM: Q, K, V and O
    cross it once a head, all SMs at work, spread over the head's tiles.
    """
    m = n = TILE
    half_products = 2 if chip.arch == "sm_90a" else 1
    element = 2
    operands = m * head_dim + 2 * half_products * n * head_dim
    tiles = (seqlen / m) * (seqlen / n)
    return {
        "tensor core": 4 * m * n * head_dim / chip.mma_flops_per_clk,
        "exp": m * n / chip.mufu_per_clk,
        "shared memory": element * (operands + 2 * n * head_dim / q_tiles) / chip.smem_bytes_per_clk,
        "HBM": 4 * seqlen * head_dim * element / tiles / chip.hbm_bytes_per_clk_sm,
    }


def longest(cycles: dict[str, float]) -> str:
    """The unit that needs most; of several that need the same, the first."""
    return max(cycles, key=lambda unit: cycles[unit])


def exp_ceiling(head_dim: int, chip: Chip = B200) -> float:
    """FLOP/s of attention if exponentials alone limit it: 4·d FLOP stand beside each of them."""
    return chip.mufu_per_clk * chip.sms * chip.clock_hz * 4 * head_dim


def exp_roof(chips: tuple[Chip, ...] = (B200, B300, H200)) -> Svg:
    """A roofline whose slope is the exponential: what head dimension lets the tensor cores run at full rate."""
    s = Svg(
        760,
        366,
        title="A roofline made of exponentials",
        name="exp_roof",
        desc="; ".join(
            f"{c.name}: roof {c.bf16_flops / 1e12:,.0f} TFLOPS, reached at head dimension "
            f"{c.mma_flops_per_clk / c.mufu_per_clk / 4:.0f}"
            for c in chips
        ),
        caption=(
            "A score costs one exponential and 4·d floating-point operations of the tensor core (two products, a "
            "multiplication and an addition each). So the head dimension d decides which of the two must wait for the "
            "other. Left of its bend a chip computes exponentials and its tensor cores have time; a B200 bends at "
            "128, the head dimension of most models, with both at full rate and nothing to spare. A B300 takes twice "
            "as many exponentials a clock; an H200 has the same exponentials and half the tensor core."
        ),
        source="modelled from published rates",
    )
    x0, y0, w, h = 66.0, 306.0, 560.0, 256.0
    top, right = 2600e12, 272

    def px(d: float) -> float:
        return x0 + w * d / right

    def py(flops: float) -> float:
        return y0 - h * flops / top

    for tick in (0, 500, 1000, 1500, 2000, 2500):
        s.line(x0, py(tick * 1e12), x0 + w, py(tick * 1e12), "ln hair")
        s.text(x0 - 8, py(tick * 1e12) + 4, f"{tick:,}", "ts", anchor="end")
    for d in (64, 96, 128, 192, 256):
        s.line(px(d), y0, px(d), y0 - h, "ln hair")
        s.text(px(d), y0 + 20, d, "ts", anchor="middle")
    s.text(8, 20, "TFLOPS, at most", "ts")
    s.text(x0 + w, y0 + 44, "head dimension", "ts", anchor="end")
    styles = ("ln ink", "ln r-softmax dash", "ln r-load")
    for chip, style in zip(chips, styles, strict=False):
        bend = chip.mma_flops_per_clk / chip.mufu_per_clk / 4
        peak = chip.bf16_flops
        s.polyline([(px(0), py(0)), (px(bend), py(peak)), (px(right), py(peak))], style, stroke_width=2.4)
        s.circle(px(bend), py(peak), 4.5, "paper ring")
    s.text(x0 + w + 12, py(B200.bf16_flops) + 5, "B200, B300", "tb")
    s.text(x0 + w + 12, py(H200.bf16_flops) + 5, "H200", "tb r-load")
    s.text(px(40) - 8, py(exp_ceiling(40, B300)) - 6, "B300", "tb halo r-softmax", anchor="end")
    s.text(px(96) + 10, py(exp_ceiling(96)) + 16, "B200", "tb halo")
    return s
