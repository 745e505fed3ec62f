"""IKET: the ranges that the author of a CuTe-DSL kernel marked, found in the PTX.

With the compile option "iket" each mark stores a time stamp with an event number, and perhaps a payload, to a
doorbell in the system's part of
shared memory, and then executes `pmevent.mask number`. Tables in the module's `__iket_*` variables tell what the
numbers mean. All
fields are little-endian 32-bit words:

    __iket_meta_info:          word 2 bits of an event number, word 3 the number that ends the innermost range, word 4
    the doorbell's offset
    __iket_evt_decl_*_attrs:   word 1 number, word 3 payload type (0: none), word 4 whether it opens a range, word 6
    length of the name, then the name
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import ptx

_PAYLOADS: dict[int, Any] = {5: np.int32}
DOORBELL_BYTES = 16  # time stamp and event number, then the payload


@dataclass(slots=True, frozen=True)
class Declared:
    """An event that the module declares."""

    name: str
    opens_range: bool
    payload: int


def doorbell(module: ptx.Module) -> int | None:
    """The offset in shared memory that marks store to; None if the module has no marks."""
    meta = module.variables.get("__iket_meta_info")
    return int(np.frombuffer(meta.init, np.uint32)[4]) if meta is not None and meta.init else None


def declarations(module: ptx.Module) -> tuple[dict[int, Declared], int | None]:
    """The declared events by number, and the number that ends a range."""
    found: dict[int, Declared] = {}
    for name, v in module.variables.items():
        if name.startswith("__iket_evt_decl_") and v.init:
            words = np.frombuffer(v.init[:28], np.uint32).tolist()
            text = v.init[28 : 28 + words[6]].decode(errors="replace")
            found[words[1]] = Declared(text, words[4] == 1, words[3])
    meta = module.variables.get("__iket_meta_info")
    end = int(np.frombuffer(meta.init, np.uint32)[3]) if meta is not None and meta.init else None
    return found, end


def marker(module: ptx.Module, number: int) -> Callable[[Any, int, int], None]:
    """What a `pmevent.mask` does when events are collected: mark(machine, cta, warp)."""
    declared, end = declarations(module)

    def stack(machine: Any, cta: int, warp: int) -> list[str]:
        return machine.cta_state[cta].setdefault("iket", {}).setdefault(warp, [])

    def close(machine: Any, cta: int, warp: int) -> None:
        names = stack(machine, cta, warp)
        if names:
            machine.emit(cta, f"warp{warp}", "end", names.pop())

    def other(machine: Any, cta: int, warp: int) -> None:
        machine.emit(cta, f"warp{warp}", "mark", f"pmevent {number:#x}")

    if number == end:
        return close
    event = declared.get(number)
    if event is None:
        return other

    def mark(machine: Any, cta: int, warp: int) -> None:
        data = {}
        if event.payload:
            raw = machine.doorbells[warp, cta, 4:8]
            data["payload"] = int(raw.view(_PAYLOADS.get(event.payload, np.uint32))[0])
        if event.opens_range:
            stack(machine, cta, warp).append(event.name)
        machine.emit(cta, f"warp{warp}", "begin" if event.opens_range else "mark", event.name, **data)

    return mark
