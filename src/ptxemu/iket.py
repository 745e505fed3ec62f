"""IKET: the ranges that the author of a CuTe-DSL kernel marked, found in the PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import ptx


def marker(module: ptx.Module, mask: int) -> Callable[[Any, int, int], None]:
    """What a `pmevent.mask` does when events are collected: mark(machine, cta, warp)."""

    def mark(machine: Any, cta: int, warp: int) -> None:
        machine.emit(cta, f"warp{warp}", "mark", f"pmevent {mask:#x}")

    return mark
