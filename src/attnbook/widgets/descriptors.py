"""Movable figure of the descriptors: what the compiled kernel tells the tensor core, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg
from attnbook.figures.traces import CapturedMma, captured_mmas
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.isa.bits import Field
from ptxemu.isa.descriptors import SmemDescriptor

NAMES = {  # shorter than the ISA's, for the drawing
    "leading dimension byte offset": "leading byte offset (LBO)",
    "stride dimension byte offset": "stride byte offset (SBO)",
}


def _slots(fields: Sequence[Field]) -> dict[int, int]:
    """Bit -> colour slot, or -1 for constants and reserved bits; neighbouring fields differ."""
    out, slot = {}, 0
    for f in sorted(fields, key=lambda f: f.lo):
        quiet = f.name.startswith(("reserved", "fixed", "sparsity", "saturate", "maximum", "negate"))
        for bit in range(f.lo, f.hi + 1):
            out[bit] = -1 if quiet else slot
        slot = (slot + (not quiet)) % 8
    return out


def descriptor_bits(stage: Any = 1) -> Explorer:
    """The 64-bit shared-memory descriptors and the 32-bit instruction descriptor of the stage's MMAs, bit by bit."""
    mmas = captured_mmas(stage)
    steps = 8
    groups: dict[str, list[CapturedMma]] = {"S = Q Kᵀ": mmas[:steps], "O += P V": mmas[steps : 2 * steps]}
    operands = {"S = Q Kᵀ": ("Q", "K"), "O += P V": ("P", "V")}
    kinds = ["A", "B", "instruction"]
    x0, cw, top = 10, 22.5, 52

    def draw(which: int, kind: int, step: int) -> tuple[Svg, str]:
        name = list(groups)[which]
        series = groups[name]
        s = Svg(760, 408, title="Descriptor bits")
        item: Any = [series[step].a, series[step].b, series[step].idesc][kind]
        start: Any = [series[0].a, series[0].b, series[0].idesc][kind]
        if not hasattr(item, "fields"):
            s.text(x0, 20, f"A comes from TMEM, column {item[1]}", "tl")
            return s, f"**{name}, step {step + 1}**: A has no descriptor, it lies in TMEM at column {item[1]}."
        wide = 64 if isinstance(item, SmemDescriptor) else 32
        slots = _slots(item.fields)
        what = f"{operands[name][kind]}, operand {kinds[kind]}" if kind < 2 else "the instruction"
        s.text(x0, 20, f"{wide}-bit descriptor of {what}", "tl")
        s.text(x0 + 32 * cw, 20, f"{item.value:#0{wide // 4 + 2}x}", "tm", anchor="end")
        rows = wide // 32
        for r in range(rows):
            y = top + 58 * r
            for c in range(32):
                bit = wide - 1 - 32 * r - c
                x = x0 + cw * c
                slot = slots.get(bit, -1)
                value = item.value >> bit & 1
                s.rect(x, y, cw, 28, f"cell s{slot}" if slot >= 0 else "cell off")
                s.text(x + cw / 2, y + 19, value, "tm" if value else "tm dim", anchor="middle")
                if value != (start.value >> bit & 1):
                    s.rect(x + 1, y + 1, cw - 2, 26, "pick")
            for f in item.fields:
                hi, lo = min(f.hi, wide - 1 - 32 * r), max(f.lo, wide - 32 - 32 * r)
                if hi >= lo:
                    xa, xb = x0 + cw * (wide - 1 - 32 * r - hi), x0 + cw * (wide - 32 * r - lo)
                    s.line(xa + 2, y + 32, xb - 2, y + 32, "ln ink thin")
                    s.text(xa, y - 5, hi, "tc ts")
                    if xb - xa > 100 and all(other.hi != lo - 1 for other in item.fields):
                        s.text(xb, y - 5, lo, "tc ts", anchor="end")
        y = top + 58 * rows + 14
        shown = [f for f in sorted(item.fields, key=lambda f: f.lo) if slots.get(f.lo, -1) >= 0]
        rest = wide - sum(f.hi - f.lo + 1 for f in shown)  # constants, fields not used here, reserved bits
        s.text(x0, y, "bits", "ts")
        s.text(x0 + 84, y, "field", "ts")
        s.text(x0 + 330, y, "value", "ts")
        s.text(x0 + 430, y, "meaning", "ts")
        for i, f in enumerate(shown):
            yy = y + 12 + 27 * i
            s.rect(x0, yy, 68, 21, f"cell s{slots.get(f.lo, -1)}")
            s.text(x0 + 34, yy + 15, f"{f.hi}–{f.lo}" if f.hi != f.lo else f.lo, "tc", anchor="middle")
            s.text(x0 + 84, yy + 15, NAMES.get(f.name, f.name), "t")
            s.text(x0 + 330, yy + 15, f"{f.value:#x}", "tm")
            s.text(x0 + 430, yy + 15, f.meaning, "tb")
        if rest:
            yy = y + 12 + 27 * len(shown)
            s.text(
                x0 + 84,
                yy + 15,
                f"the other {rest} bits are constant, reserved or not used here",
                "ts",
            )
        if kind < 2:
            moved = item.start - start.start
            step_text = (
                f"**{name}, step {step + 1} of {steps}.** The descriptor of {what} starts at {item.start:#x}"
                + (
                    f", {moved:,} bytes behind step 1; nothing else has changed."
                    if step
                    else ": 16-byte units, so the field holds a sixteenth of it."
                )
            )
        else:
            step_text = (
                f"**{name}, step {step + 1} of {steps}.** The instruction descriptor says {item.m} × {item.n}, "
                f"{item.a} times {item.b} into {item.d}; it is the same in every step."
            )
        return s, step_text

    return explore(
        [
            Control("mma", "MMA", list(groups), "choice"),
            Control("which", "descriptor", kinds, "choice"),
            Control("step", "step", [f"{i + 1} of {steps}" for i in range(steps)]),
        ],
        draw,
        name="descriptor_bits",
        title="The descriptors of an MMA, bit by bit",
        caption=(
            "An MMA takes no pointers: 64 bits say where an operand lies in shared memory and how, 32 bits say "
            "shapes and types. These are the "
            "values that the compiled kernel passed when it ran. From step to step only the start address moves; "
            "outlined bits differ from step 1."
        ),
        source=f"captured from an emulated run of stage {stage_number(stage)}; decoded as PTX ISA, tcgen05 descriptors",
    )
