"""The checked driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..isa import Decode

__all__ = ["Checker", "instrument"]


class Checker:
    """Under construction."""

    def __init__(self, machine: Any) -> None:
        raise NotImplementedError("races=True is under construction")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def instrument(d: Decode, semantics: Any) -> Any:
    return semantics
