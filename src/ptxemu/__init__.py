"""ptxemu: an emulator for the PTX of Hopper and Blackwell kernels, in NumPy.

run = ptxemu.launch(compiled, *args)          what cute.compile returned, on CPU tensors (needs the DSL)
run = ptxemu.run_ptx(text, block=, args=)     any PTX
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import BankConflicts, Config, Run
from .errors import (
    DeadlockError,
    EmulationError,
    IllegalInstruction,
    MemoryFault,
    PtxSyntaxError,
    RaceError,
    UnsupportedInstruction,
)
from .findings import Access, Finding
from .run import run_ptx
from .trace import Event, Trace

if TYPE_CHECKING:
    from .cutedsl import launch

__all__ = [
    "Access", "BankConflicts", "Config", "DeadlockError", "EmulationError", "Event", "Finding", "IllegalInstruction",
    "MemoryFault", "PtxSyntaxError", "RaceError", "Run", "Trace", "UnsupportedInstruction", "launch", "run_ptx",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "launch":  # the only part that needs the DSL
        from .cutedsl import launch

        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
