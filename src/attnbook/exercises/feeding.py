"""Exercises of the chapter "Feeding the tensor core"."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add


def _grade_step(answer: Any) -> str:
    from attnbook.figures.traces import captured_mmas
    from ptxemu.isa.descriptors import SmemDescriptor

    first, fifth = (captured_mmas(3)[i].a for i in (0, 4))
    assert isinstance(first, SmemDescriptor) and isinstance(fifth, SmemDescriptor)
    truth = fifth.start - first.start
    if int(answer) == 128:
        raise Wrong("128 bytes further is the next row of the same panel. Where does column 64 stand?")
    if int(answer) != truth:
        raise Wrong(f"Not {answer}. A panel holds 64 columns of all 128 rows; column 64 opens the next panel.")
    return f"Right: the compiled kernel passes {first.start:#x} first and {fifth.start:#x} in its fifth multiplication."


add(Exercise("feeding-step", _grade_step, solution=lambda: 16384, wrong=lambda: 128))


def _grade_instruction(answer: Any) -> str:
    from attnbook.onemma import instruction
    from ptxemu import IllegalInstruction
    from ptxemu.isa.descriptors import decode_instruction_descriptor

    truth = instruction(64, b_major=1)
    if int(answer) == truth:
        return f"Right: {truth:#010x}."
    try:
        found = decode_instruction_descriptor(int(answer))
    except IllegalInstruction as error:
        raise Wrong(f"The tensor core would refuse it: {error}") from None
    majors = ("K", "MN")
    raise Wrong(
        f"{int(answer):#010x} says {found.m} x {found.n}, {found.a} times {found.b} into {found.d}, A "
        f"{majors[found.a_major]}-major and B {majors[found.b_major]}-major."
    )


add(Exercise("feeding-instruction", _grade_instruction, solution=lambda: 0x08110490, wrong=lambda: 0x08100490))

_BUGGY_PANEL = '''\
def operand(step):
    """A for step 0 or 1: 128 rows x 32 columns of bf16, as one TMA box with the 64-byte swizzle has laid them."""
    from attnbook.onemma import Operand
    from ptxemu.isa import swizzle

    bytes_of_a_row = 64
    return Operand(start=32 * step, lbo=16, sbo=bytes_of_a_row, swizzle=swizzle.SWIZZLE_64B)
'''


def _grade_panel(answer: Any) -> str:
    import numpy as np

    from attnbook import onemma
    from ptxemu import EmulationError
    from ptxemu.isa import swizzle as sw
    from ptxemu.isa import tmabox

    scope: dict[str, Any] = {}
    image = np.zeros(onemma.IMAGE, np.uint8)
    a = np.concatenate([onemma.integers(128, seed) for seed in (0, 1)], axis=1)
    tmabox.put(image, 0, onemma.to_bf16(a).reshape(-1).view(np.uint8), 64, sw.SWIZZLE_64B)
    b = onemma.Operand(32768, 256, 128)
    values = onemma.integers(16, 2)
    onemma.place(image, b, values)
    try:
        exec(str(answer), scope)
        for step in (0, 1):
            found = scope["operand"](step)
            got = onemma.multiply(image, found.descriptor, b.descriptor, onemma.instruction(16), n=16)
            right = np.isclose(got, a[:, 16 * step : 16 * step + 16] @ values.T).all(axis=1)
            if not right.all():
                row = int(np.argmin(right))
                raise Wrong(
                    f"Step {step}: row {row} is the first wrong one, {int(right.sum())} of 128 are right. Which offset "
                    "leads from one group of eight rows to the next, and how long is a group?"
                )
    except Wrong:
        raise
    except EmulationError as error:
        raise Wrong(f"The emulator stops: {str(error).splitlines()[0]}") from None
    except Exception as error:
        raise Wrong(f"It does not run: {type(error).__name__}: {error}") from None
    return "Right: eight rows of 64 bytes, so the next group begins 512 bytes on."


add(
    Exercise(
        "feeding-bug",
        _grade_panel,
        solution=lambda: _BUGGY_PANEL.replace("sbo=bytes", "sbo=8 * bytes"),
        wrong=lambda: _BUGGY_PANEL.replace("SWIZZLE_64B", "SWIZZLE_128B"),
        text=_BUGGY_PANEL,
    )
)
