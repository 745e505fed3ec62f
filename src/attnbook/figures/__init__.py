"""The book's figures: every one is drawn from a layout, a compiled kernel, an emulated run or a fact with its source.

    from attnbook import figures
    figures.sm_map()

Each function returns a picture that a notebook shows (see attnbook.figures.svg); the movable ones are in
attnbook.widgets.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "sm_map": "machine",
    "memory_ladder": "machine",
    "mma_operands": "stages",
    "tile_budget": "budget",
    "serial_budget": "budget",
    "serial_ceiling": "budget",
    "predicted_and_published": "budget",
    "roofline": "budget",
    "ladder_plot": "published",
    "dataflow": "stages",
    "smem_map": "stages",
    "tmem_map": "stages",
    "grid_map": "stages",
    "listing": "listings",
    "code": "listings",
    "diff": "listings",
    "instruction_mix": "mix",
    "timeline_still": "still",
    "shared_traffic": "traffic",
    "exp_order": "order",
    "tma_boxes": "boxes",
    "captured_boxes": "boxes",
    "box_cost": "boxes",
    "barrier_graph": "waits",
    "slot_use": "slots",
    "exp_roof": "limits",
    "layout_composition": "cute_layouts",
    "layout_divide": "cute_layouts",
    "layout_tv": "cute_layouts",
    "accumulator_rows": "feeding",
    "operand_offset": "layouts",
    "captured_mma": "traces",
    "captured_mmas": "traces",
    "chip_table": "clock",
    "clock_ladder": "clock",
    "clock_sensitivity": "clock",
    "sass_way": "clock",
    "clock_judged": "clock",
    "Svg": "svg",
    "Html": "svg",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"attnbook.figures has no {name!r}; there are {', '.join(sorted(_WHERE))}")
    return getattr(import_module(f"attnbook.figures.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
