"""The machine: one SM and its memories, what they hold and move, and the time one tile costs each unit."""

from __future__ import annotations

import math

from attnbook.chips import B200, Chip, human_bytes
from attnbook.figures.svg import Svg


def sm_map(chip: Chip = B200) -> Svg:
    """One SM: four sub-partitions, TMEM, tensor core, shared memory, TMA, and the L2 and HBM behind them."""
    v = chip.value
    quarter_regs = human_bytes(v("reg_bytes") / v("schedulers"))
    s = Svg(
        760,
        590,
        title=f"One SM of a {chip.name} and the memories it works with",
        name="sm_map",
        desc=(
            f"Four sub-partitions, each with a warp scheduler and {quarter_regs} of registers, stand above the four "
            f"32-lane quarters "
            f"of TMEM ({human_bytes(v('tmem_bytes'))}). The tensor core writes TMEM and reads its operands from "
            f"shared memory "
            f"({human_bytes(v('smem_bytes'))}). The TMA engine fills shared memory from L2 "
            f"({human_bytes(v('l2_bytes'), binary=False)}), which stands in front of HBM "
            f"({human_bytes(v('hbm_bytes'), binary=False)})."
        ),
        caption=(
            f"One of the {v('sms'):.0f} SMs of a {chip.name}. A kernel author moves data by hand between five "
            f"memories: the TMA brings tiles "
            "into shared memory, the tensor core reads them there and writes TMEM, and threads reach TMEM only "
            "through registers, out of which O goes to HBM. "
            "Warp w of a warpgroup sees the 32 lanes under sub-partition w mod 4 and no others."
        ),
        source="documented and published figures: attnbook.chips names the source of each",
    )
    x0, cw, gap = 82, 160, 8
    xs = [x0 + i * (cw + gap) for i in range(4)]
    right = xs[3] + cw
    s.text(8, 20, f"One SM, of {v('sms'):.0f}", "tl")
    s.text(752, 20, f"{chip.name}, {v('clock_hz') / 1e9:.2f} GHz", "ts", anchor="end")
    s.rect(8, 32, 744, 402, "panel", rx=10)
    # sub-partitions
    for i, x in enumerate(xs):
        s.rect(x, 46, cw, 128, "paper", rx=6)
        s.text(x + 10, 65, f"sub-partition {i}", "tb")
        s.text(x + 10, 83, "issues 1 warp instr./clk", "ts")
        s.text(x + 10, 100, f"{v('fma_per_clk') / 4:.0f} FMA, {v('mufu_per_clk') / 4:.0f} ex2 each clk", "ts")
        s.rect(x + 8, 112, cw - 16, 52, "m-reg", rx=4)
        s.text(x + cw / 2, 134, "registers", "tb", anchor="middle")
        s.text(x + cw / 2, 152, quarter_regs, "t", anchor="middle")
        # registers <-> TMEM
        s.arrow([(x + cw / 2 - 8, 164), (x + cw / 2 - 8, 216)], "r-softmax")
        s.arrow([(x + cw / 2 + 8, 216), (x + cw / 2 + 8, 164)], "r-softmax")
        s.rect(x, 216, cw, 46, "m-tmem", rx=4)
        lanes = int(v("tmem_lanes")) // 4
        s.text(x + cw / 2, 235, f"TMEM, lanes {i * lanes}–{(i + 1) * lanes - 1}", "tb", anchor="middle")
        s.text(x + cw / 2, 253, f"{v('tmem_columns'):.0f} columns of 4 bytes", "ts", anchor="middle")
        # TMEM <-> tensor core: it reaches every lane
        s.arrow([(x + cw / 2 - 8, 298), (x + cw / 2 - 8, 262)], "r-mma")
        s.arrow([(x + cw / 2 + 8, 262), (x + cw / 2 + 8, 298)], "r-mma")
    s.text(xs[0] + cw / 2 + 18, 199, "tcgen05.ld / st", "ts")
    s.text(xs[1] + cw / 2 + 18, 199, f"TMEM in all: {human_bytes(v('tmem_bytes'))}", "ts")
    # tensor core
    s.rect(xs[0], 298, right - xs[0], 34, "r-mma", rx=4)
    s.text(
        (xs[0] + right) / 2,
        320,
        f"tensor core: {v('mma_flops_per_clk'):,.0f} FLOP/clk (bf16)",
        "tb on",
        anchor="middle",
    )
    s.text(xs[0] + cw / 2 + 18, 284, "D = A·B + D", "ts")
    # shared memory and TMA
    s.rect(xs[0], 366, 3 * cw + 2 * gap, 54, "m-smem", rx=4)
    s.text(xs[0] + 12, 388, "shared memory", "tb")
    s.text(
        xs[0] + 12,
        407,
        f"{human_bytes(v('smem_bytes'))}, {v('smem_banks'):.0f} banks, {v('smem_bytes_per_clk'):.0f} B/clk",
        "t",
    )
    s.arrow([(xs[1] + cw / 2, 366), (xs[1] + cw / 2, 332)], "r-mma")
    s.text(xs[1] + cw / 2 + 10, 353, "operands A, B", "ts")
    s.rect(xs[3], 366, cw, 54, "r-load", rx=4)
    s.text(xs[3] + cw / 2, 388, "TMA", "tb on", anchor="middle")
    s.text(xs[3] + cw / 2, 407, "boxes of a tensor", "t on", anchor="middle")
    s.arrow([(xs[3], 393), (xs[2] + cw + 1, 393)], "r-load", head=9)
    # registers <-> shared memory, beside everything else
    s.arrow([(xs[0] + 8, 146), (58, 146), (58, 393), (xs[0], 393)], "r-softmax")
    s.arrow([(58, 200), (58, 146), (xs[0] + 8, 146)], "r-softmax")
    s.vertical(49, 276, "ld / st.shared", "ts")
    # the way out: registers, L2, HBM
    s.line(xs[0] + 8, 130, 30, 130, "ln r-epilogue", stroke_width=1.6)
    s.arrow([(30, 130), (30, 466)], "r-epilogue")
    s.vertical(21, 276, "O: st.global", "ts")
    s.arrow([(30, 510), (30, 546)], "r-epilogue")
    # L2 and HBM
    s.arrow([(xs[3] + cw / 2, 466), (xs[3] + cw / 2, 420)], "r-load")
    s.text(xs[3] + cw / 2 - 10, 455, "cp.async.bulk.tensor", "ts", anchor="end")
    s.rect(8, 466, 744, 44, "m-l2", rx=6)
    s.text(24, 493, "L2", "tb")
    s.text(56, 493, f"{human_bytes(v('l2_bytes'), binary=False)}, shared by all SMs", "t")
    s.arrow([(xs[3] + cw / 2, 546), (xs[3] + cw / 2, 510)], "r-load")
    s.text(
        xs[3] + cw / 2 - 10,
        533,
        f"{human_bytes(v('hbm_bytes_per_s'), binary=False)}/s = {chip.hbm_bytes_per_clk_sm:.1f} B/clk for each SM",
        "ts",
        anchor="end",
    )
    s.rect(8, 546, 744, 40, "m-hbm", rx=6)
    s.text(24, 571, "HBM", "tb")
    s.text(66, 571, f"{human_bytes(v('hbm_bytes'), binary=False)}: Q, K, V and O live here", "t")
    return s


def memory_ladder(chip: Chip = B200) -> Svg:
    """Capacity and bandwidth of each memory as one SM sees them, on logarithmic bars."""
    v = chip.value
    n = v("sms")
    fma = f"what {v('fma_per_clk'):.0f} FMA/clk need"
    rows: list[tuple[str, str, float, str, float | None, str, bool]] = [
        ("reg", "registers", v("reg_bytes"), human_bytes(v("reg_bytes")), v("reg_bytes_per_clk"), fma, True),
        ("tmem", "TMEM", v("tmem_bytes"), human_bytes(v("tmem_bytes")), v("tmem_bytes_per_clk"), "a guess", True),
        ("smem", "shared memory", v("smem_bytes"), human_bytes(v("smem_bytes")), v("smem_bytes_per_clk"), "", False),
        (
            "l2",
            "L2, a share",
            v("l2_bytes") / n,
            f"{human_bytes(v('l2_bytes') / n, binary=False)} of {human_bytes(v('l2_bytes'), binary=False)}",
            None,
            "no published figure used",
            False,
        ),
        (
            "hbm",
            "HBM, a share",
            v("hbm_bytes") / n,
            f"{human_bytes(v('hbm_bytes') / n, binary=False)} of {human_bytes(v('hbm_bytes'), binary=False)}",
            chip.hbm_bytes_per_clk_sm,
            "",
            False,
        ),
    ]
    s = Svg(
        760,
        318,
        title=f"What one SM of a {chip.name} can hold and move in each memory",
        name="memory_ladder",
        desc="; ".join(
            f"{label}: {cap}, " + (f"{bw:,.1f} bytes a clock{f' ({note})' if guess else ''}" if bw else note)
            for _, label, _, cap, bw, note, guess in rows
        ),
        caption=(
            f"HBM gives each SM {chip.hbm_bytes_per_clk_sm:.1f} bytes a clock, shared memory "
            f"{v('smem_bytes_per_clk'):.0f}: every byte that comes from HBM must be used again and again before it is "
            "worth its trip. Inside the SM three memories of about the same size, a quarter of a megabyte each, stand "
            "side by side; they differ in who may use them. Both scales are logarithmic. Hatched bars are no "
            f"bandwidths that anybody has published: the registers' is what {v('fma_per_clk'):.0f} multiply-adds a "
            "clock need, TMEM's a working guess."
        ),
        source="documented, published, derived and (hatched) assumed figures: see attnbook.chips",
    )
    xl, xc, wc, xb, wb = 8, 140, 262, 470, 280
    s.text(xc, 20, "capacity for one SM", "tb")
    s.text(xb, 20, "bytes each clock for one SM", "tb")

    def scale(value: float, lo: float, hi: float, width: float) -> float:
        return width * (math.log10(value) - math.log10(lo)) / (math.log10(hi) - math.log10(lo))

    clo, chi, blo, bhi = 32 * 1024, 4e9, 8, 4096
    for tick, label in (
        (64 * 1024, "64 KiB"),
        (1024**2, "1 MiB"),
        (16 * 1024**2, "16 MiB"),
        (256 * 1024**2, "256 MiB"),
    ):
        x = xc + scale(tick, clo, chi, wc)
        s.line(x, 34, x, 276, "ln hair")
        s.text(x, 294, label, "ts", anchor="middle")
    for tick in (16, 64, 256, 1024):
        x = xb + scale(tick, blo, bhi, wb)
        s.line(x, 34, x, 276, "ln hair")
        s.text(x, 294, f"{tick:,}", "ts", anchor="middle")
    for i, (key, label, cap, cap_text, bw, note, guess) in enumerate(rows):
        y = 42 + i * 48
        s.text(xl, y + 20, label, "tb")
        s.rect(xc, y, scale(cap, clo, chi, wc), 14, f"m-{key}", rx=2)
        s.text(xc, y + 32, cap_text, "ts")
        if bw:
            w = scale(bw, blo, bhi, wb)
            s.rect(xb, y, w, 14, f"m-{key}", rx=2)
            if guess:
                s.hatch(xb, y, w, 14, f"ln m-{key}")
            s.text(
                xb,
                y + 32,
                (f"{bw:,.0f}" if bw >= 100 else f"{bw:.1f}") + " B/clk" + (f": {note}" if guess else ""),
                "ts",
            )
        else:
            s.text(xb, y + 12, note, "ts")
    s.text(xc, 313, "log scale", "ts")
    s.text(xb, 313, "log scale", "ts")
    return s
