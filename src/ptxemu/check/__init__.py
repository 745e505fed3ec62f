"""The checked driver (under construction)."""

from __future__ import annotations

from typing import Any

__all__ = ["Checker", "instrument", "link"]


def __getattr__(name: str) -> Any:
    """The parts need the instruction set, which needs the machine: they are imported when first used."""
    if name == "Checker":
        from .checker import Checker

        return Checker
    if name in ("instrument", "link"):
        from . import wrappers

        return getattr(wrappers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
