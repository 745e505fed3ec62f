"""Control flow: PTX ISA "Control Flow Instructions", "Miscellaneous Instructions" (trap, brkpt)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ptx
from ..errors import IllegalInstruction
from ..program import EXITED, Goto
from . import Decode, instruction


@instruction("bra")
def bra(d: Decode) -> Goto:
    """PTX ISA "bra". The machine applies the guard; .uni promises that all lanes go the same way and changes
    nothing.
    """
    d.mods.flag("uni")
    (label,) = d.ops
    assert isinstance(label, ptx.Label)
    return Goto(label.pc)


@instruction("ret", "exit")
def leave(d: Decode) -> Goto:
    """PTX ISA "ret" from an entry, "exit"."""
    d.mods.flag("uni")
    return Goto(EXITED)


@instruction("trap")
def trap(d: Decode) -> Callable[[Any], None]:
    """PTX ISA "trap"."""

    def run(w: Any) -> None:
        t = next(w.threads())
        raise IllegalInstruction(f"trap in CTA {w.machine.cta_name(t.cta)}, warp {t.warp}, lane {t.lane}")

    return run


@instruction("brkpt")
def breakpoint_(d: Decode) -> Callable[[Any], None]:
    """PTX ISA "brkpt": nobody is here to look."""
    return lambda w: None
