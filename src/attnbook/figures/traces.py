"""Small emulated runs that figures are drawn from; each is run once in a process and kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbook.figures.budget import stage_number
from ptxemu.isa.descriptors import (
    InstructionDescriptor,
    SmemDescriptor,
    decode_instruction_descriptor,
    decode_smem_descriptor,
)
from ptxemu.trace import Event, Trace


@cache
def _run(number: int, seqlen: int, heads: int) -> Any:
    from attnbook.run import run

    return run(number, batch=1, heads=heads, seqlen=seqlen, trace=True)


def stage_run(stage: Any = 1, *, seqlen: int = 256, heads: int = 1) -> Any:
    """The Result of a small traced run of a stage: one batch, normal inputs, seed 0."""
    return _run(stage_number(stage), seqlen, heads)


def stage_trace(stage: Any = 1, *, seqlen: int = 256, heads: int = 1) -> Trace:
    """The trace of a small run of a stage."""
    trace = stage_run(stage, seqlen=seqlen, heads=heads).trace
    if trace is None or not trace.events:
        raise ValueError(
            f"the run of stage {stage_number(stage)} left no events: it must run on the emulator with trace=True"
        )
    return trace


@dataclass(frozen=True)
class CapturedMma:
    """One tcgen05.mma as the compiled kernel issued it.

    a: SmemDescriptor, or (lane, column) of A in TMEM. b: SmemDescriptor. idesc: InstructionDescriptor. column: of D
        in TMEM.
    """

    a: SmemDescriptor | tuple[int, int]
    b: SmemDescriptor
    idesc: InstructionDescriptor
    column: int
    accumulate: bool


def _captured(event: Event) -> CapturedMma:
    d = event.data
    a = decode_smem_descriptor(d["a_descriptor"]) if d["a"] == "shared" else (0, d["a_column"])
    b, i = decode_smem_descriptor(d["b_descriptor"]), decode_instruction_descriptor(d["idesc"])
    return CapturedMma(a, b, i, d["column"], d["accumulate"])


def captured_mmas(stage: Any = 1) -> list[CapturedMma]:
    """The MMAs of the first CTA of a small run, in the order in which the tensor core did them."""
    events = stage_trace(stage).events
    return [_captured(e) for e in events if e.cta == 0 and e.row == "tensor" and e.kind == "begin" and e.name == "MMA"]


def captured_mma(stage: Any = 1, number: int = 0) -> CapturedMma:
    """One MMA of the stage by its number; the first is step 1 of Q Kᵀ."""
    return captured_mmas(stage)[number]
