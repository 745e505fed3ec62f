"""Clocks, performance events, hints: PTX ISA "Special Registers" (%clock, %globaltimer), "pmevent", "nanosleep",
"setmaxnreg"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from ..iket import marker
from . import Decode, instruction

Run = Callable[[Any], None]


def clock(d: Decode, bits: int, target: ptx.Operand, name: str) -> Run:
    """%clock, %clock64, %globaltimer: the tick of the scheduler. It never runs backwards, and says nothing of
    cycles.
    """
    view = f"u{bits}"
    out = d.write(target, view)
    shift = 32 if name.endswith("_hi") else 0

    def run(w: Any) -> None:
        w.machine.polling = True  # who reads the clock in a loop waits for time to pass
        w.machine.progress += 1
        getattr(w.to, view)[out][...] = (w.machine.tick >> shift) & (1 << bits) - 1

    return run


@instruction("nanosleep")
def nanosleep(d: Decode) -> Run:
    """PTX ISA "nanosleep": the warp gives up its turn."""
    d.mods.one_of("u32")
    d.read(d.ops[0], "u32")

    def run(w: Any) -> None:
        w.machine.polling = True

    return run


@instruction("setmaxnreg.inc.sync.aligned", "setmaxnreg.dec.sync.aligned", converge=True)
def setmaxnreg(d: Decode) -> Run:
    """PTX ISA "setmaxnreg": registers of the emulator are never short; the count must be a multiple of 8 from 24 to
    256.
    """
    d.mods.one_of("u32")
    (count,) = d.ops
    if not isinstance(count, ptx.Imm) or not 24 <= count.value <= 256 or int(count.value) % 8:
        raise d.unsupported("the count must be a literal multiple of 8 from 24 to 256")
    return lambda w: None


@instruction("pmevent")
def pmevent(d: Decode) -> Run:
    """PTX ISA "pmevent": trigger performance monitor events. IKET marks of CuTe-DSL come as these; see iket.py."""
    mask = d.mods.flag("mask")
    (number,) = d.ops
    if not isinstance(number, ptx.Imm):
        raise d.unsupported("the event must be a literal")
    value = int(number.value)
    mark = marker(d.program.module, value if mask else 1 << value)

    def run(w: Any) -> None:
        if w.machine.tracing:
            w.machine.at(d.ins.pc)
            for cta, warp, _ in w.each_warp():
                mark(w.machine, cta, warp)

    return run


@instruction("prefetch", "prefetchu", "discard", "applypriority", "createpolicy")
def cache_hint(d: Decode) -> Run:
    """PTX ISA "prefetch", "prefetchu", "discard", "applypriority", "createpolicy": hints to caches that the emulator
    does not have.
    """
    d.mods.flag(
        "global",
        "local",
        "const",
        "param",
        "tensormap",
        "L1",
        "L2",
        "L2::evict_normal",
        "L2::evict_last",
        "L2::128B",
        "b64",
    )
    d.mods.flag("fractional", "range", "L2::evict_first", "L2::evict_unchanged")
    d.mods.starting("L2::")
    if d.name == "createpolicy":
        out = d.write(d.ops[0], "u64")
        return lambda w: w.to.u64[out].fill(np.uint64(0))
    return lambda w: None
