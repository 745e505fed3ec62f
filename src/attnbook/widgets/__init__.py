"""Movable figures and panels; each carries its whole state into the page and needs no server.

from attnbook import widgets
widgets.tma_box()
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "tma_box": "shared_memory",
    "canonical_layout": "shared_memory",
    "bank_conflicts": "shared_memory",
    "tmem_windows": "tmem",
    "mbarrier_steps": "barriers",
    "tmem_overlay": "overlay",
    "handover": "roles",
    "softmax_lanes": "lanes",
    "mma_order": "lanes",
    "ring_steps": "ring",
    "tail_mask": "tail",
    "descriptor_bits": "descriptors",
    "online_softmax": "softmax",
    "unit_limits": "limits",
    "p_rounding": "rounding",
    "lazy_rescale": "rounding",
    "layout_explorer": "cute_layouts",
    "swizzle_bits": "cute_layouts",
    "operand_chunks": "operand",
    "pipeline_steps": "pipeline",
    "timeline": "events",
    "run_panel": "panel",
    "explore": "explorer",
    "Control": "explorer",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"attnbook.widgets has no {name!r}; there are {', '.join(sorted(_WHERE))}")
    return getattr(import_module(f"attnbook.widgets.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
