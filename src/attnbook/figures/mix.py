"""What a run executed: its instructions by the unit that does them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from attnbook.figures.svg import Svg

# (unit, role or memory class, prefixes of PTX opcodes), in the order of the figure; the first that fits counts.
PIPES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("tensor core, issue", "r-mma", ("tcgen05.mma", "tcgen05.commit", "tcgen05.cp")),
    ("TMA, issue", "r-load", ("cp.async.bulk", "cp.reduce.async.bulk", "prefetch.tensormap")),
    ("TMEM load, store", "m-tmem", ("tcgen05.ld", "tcgen05.st")),
    ("special functions", "r-softmax", ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")),
    ("fp32 arithmetic", "r-softmax", ("fma", "add.f", "add.r", "mul.f", "mul.r", "sub.f", "sub.r", "max.f", "max.NaN.f",
                                      "min.f", "neg.f", "abs.f")),
    ("conversion, packing", "m-reg", ("cvt", "mov", "prmt", "pack")),
    ("shared memory", "m-smem", ("ld.shared", "st.shared", "ldmatrix", "stmatrix", "red.shared", "atom.shared")),
    ("global memory", "m-hbm", ("ld.global", "st.global", "ld.param", "red.global", "atom.global", "ld.const")),
    ("barriers, fences, waits", "r-wait", ("mbarrier", "bar", "fence", "tcgen05.wait", "tcgen05.fence", "membar",
                                           "nanosleep", "elect", "griddepcontrol", "setmaxnreg")),
    ("integer, control", "off line", ("",)),
)  # fmt: skip


def pipe_of(opcode: str) -> str:
    """The unit of PIPES that does an instruction, by the PTX opcode."""
    for name, _, prefixes in PIPES:
        if opcode.startswith(prefixes):
            return name
    raise AssertionError("the last row takes everything")


def by_pipe(instructions: Mapping[str, int]) -> dict[str, Counter[str]]:
    """Opcode counts by unit, every unit of PIPES in order."""
    out: dict[str, Counter[str]] = {name: Counter() for name, _, _ in PIPES}
    for opcode, n in instructions.items():
        out[pipe_of(opcode)][opcode] += n
    return out


def instruction_mix(run: Any) -> Svg:
    """Bars of executed warp instructions by unit.

    Args:
        run: a ptxemu.Run, or an attnbook Result that holds one.
    """
    run = getattr(run, "run", run)
    groups = by_pipe(run.instructions)
    total = sum(run.instructions.values())
    ctas = 1
    for n in run.grid:
        ctas *= n
    rows = [(name, cls, groups[name]) for name, cls, _ in PIPES if groups[name]]
    s = Svg(
        760,
        56 + 40 * len(rows),
        title="Executed instructions by unit",
        name="instruction_mix",
        desc="; ".join(f"{name}: {sum(c.values()):,}" for name, _, c in rows),
        caption=(
            f"{total:,} warp instructions of {ctas} CTA{'s' if ctas > 1 else ''}, counted while they were emulated, "
            f"by the unit that does the work. The few "
            "instructions at the top move and multiply everything; the many below feed them. Counts of PTX, not "
            "time: one MMA keeps "
            "its unit busy for 64 clocks, an integer addition for one."
        ),
        source="counted in an emulated run",
    )
    x0, w = 186, 330
    top = max(sum(c.values()) for _, _, c in rows)
    s.text(x0, 22, "warp instructions", "ts")
    s.text(750, 22, "the most frequent", "ts", anchor="end")
    for i, (name, cls, counts) in enumerate(rows):
        y = 38 + 40 * i
        n = sum(counts.values())
        s.text(x0 - 12, y + 16, name, "tb", anchor="end")
        s.rect(x0, y, max(1.5, w * n / top), 22, cls, rx=2)
        if "wait" in cls:
            s.hatch(x0, y, max(1.5, w * n / top), 22)
        s.text(x0 + max(1.5, w * n / top) + 8, y + 16, f"{n:,}", "t halo")
        best = max(counts, key=lambda k: counts[k])
        short = best if len(best) < 27 else best[:25] + "…"
        s.text(750, y + 16, short, "tm halo", anchor="end")
    return s
