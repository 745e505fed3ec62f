"""What a reduction makes of an element in memory and an operand: red, atom, cp.reduce.async.bulk and the like.

PTX ISA "atom", "red", "cp.reduce.async.bulk" (9.7.9.25.4.2). Elements are bit patterns. Floating-point addition rounds
once, to nearest even; a NaN comes out canonical.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .common import NAN16, NAN32, NAN64, f64_to_16, flush32, sum_to_odd, widen16

BIT_OPERATIONS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
# operation -> types that it goes with, where the destination is global memory
TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}


def itemsize(kind: str) -> int:
    """Bytes of an element."""
    return 2 if kind in ("f16", "bf16") else int(kind[1:]) // 8


def combine(op: str, kind: str, old: NDArray[Any], x: NDArray[Any], ftz: bool = False) -> NDArray[Any]:
    """The new patterns. old, x: unsigned integers of the type's size. ftz: flush subnormal f32 inputs and results."""
    if op in BIT_OPERATIONS:
        return BIT_OPERATIONS[op](old, x)
    if op == "inc":
        return np.where(old >= x, old.dtype.type(0), old + old.dtype.type(1))
    if op == "dec":
        return np.where((old == 0) | (old > x), x, old - old.dtype.type(1))
    if kind[0] in "us":
        if op == "add":
            return old + x
        a, b = (old, x) if kind[0] == "u" else (old.view(f"i{old.itemsize}"), x.view(f"i{x.itemsize}"))
        return (np.minimum if op == "min" else np.maximum)(a, b).view(old.dtype)
    if op != "add":
        return extremum(op, kind, old, x)
    if kind in ("f16", "bf16"):
        wide = [widen16(v, kind).astype(np.float64) for v in (old, x)]
        return f64_to_16(sum_to_odd(*wide), kind)
    a, b = old.view(f"f{old.itemsize}"), x.view(f"f{x.itemsize}")
    if ftz and kind == "f32":
        a, b = flush32(a), flush32(b)
    total = a + b
    if ftz and kind == "f32":
        total = flush32(total)
    nan = old.dtype.type(NAN32 if kind == "f32" else NAN64)
    return np.where(total != total, nan, total.view(old.dtype))


def extremum(op: str, kind: str, old: NDArray[np.uint16], x: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """min or max of 16-bit floats: a NaN loses against a number, -0 is less than +0."""
    infinity = np.uint16(0x7C00 if kind == "f16" else 0x7F80)
    magnitude = np.uint16(0x7FFF)

    def key(v: NDArray[np.uint16]) -> NDArray[np.int16]:
        s = v.view(np.int16)
        return np.where(s < 0, -1 - (v & magnitude).view(np.int16), s)

    first = key(old) < key(x) if op == "min" else key(old) > key(x)
    a_nan, b_nan = (old & magnitude) > infinity, (x & magnitude) > infinity
    result = np.where(a_nan, x, np.where(b_nan | first, old, x))
    return np.where(a_nan & b_nan, np.uint16(NAN16), result)
