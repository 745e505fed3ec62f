"""Named bit fields of the hardware's descriptors, for decoding, checking and drawing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Field(NamedTuple):
    """One field of a descriptor: bits hi..lo (inclusive), its value and what that value means."""

    name: str
    hi: int
    lo: int
    value: int
    meaning: str


def bits(value: int, hi: int, lo: int) -> int:
    """Bits hi..lo of value, as an unsigned integer."""
    return (value >> lo) & ((1 << (hi - lo + 1)) - 1)


def table(fields: Iterable[Field]) -> str:
    """Fields as aligned text, one a line."""
    rows = [(f"{f.hi}-{f.lo}" if f.hi != f.lo else f"{f.lo}", f.name, f"{f.value:#x}", f.meaning) for f in fields]
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join((*(row[i].ljust(widths[i]) for i in range(3)), row[3])).rstrip() for row in rows)
