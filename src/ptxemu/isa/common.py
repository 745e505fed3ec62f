"""Helpers that several families share: exact rounding, flushing, NaNs, narrow floating-point formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import Decode

NAN32, NAN16, NANBF16 = 0x7FFFFFFF, 0x7FFF, 0x7FFF
NAN64 = 0x7FFFFFFFFFFFFFFF

U32, U64, U16 = np.uint32, np.uint64, np.uint16
_EXP32, _SIGN32 = U32(0x7F800000), U32(0x80000000)
_LOW32 = np.float32(-np.inf)
_ONE64, _EVEN_TAIL = U64(1), U64(0x0FFFFFFF)


def ufunc_run(function: Callable, view: str, sources: list[int], target: int) -> Callable[[Any], None]:
    """Semantics that are one NumPy call on one typed view of registers."""
    if len(sources) == 2:
        a, b = sources

        def run2(w: Any) -> None:
            r = getattr(w, view)
            function(r[a], r[b], out=getattr(w.to, view)[target])

        return run2
    (a,) = sources

    def run1(w: Any) -> None:
        function(getattr(w, view)[a], out=getattr(w.to, view)[target])

    return run1


def simple(d: Decode, function: Callable, view: str) -> Callable[[Any], None]:
    """d = function(a[, b]) with every operand in the same view."""
    target = d.write(d.ops[0], view)
    return ufunc_run(function, view, [d.read(x, view) for x in d.ops[1:]], target)


# ---- float32


def flush32(x: np.ndarray) -> np.ndarray:
    """Subnormal numbers become zeros of the same sign (PTX ISA "Subnormal numbers", .ftz)."""
    u = x.view(U32)
    exponent = u & _EXP32
    if np.minimum.reduce(exponent, axis=None, initial=_EXP32):
        return x
    return np.where(exponent == 0, u & _SIGN32, u).view(np.float32)


def canonical32(x: np.ndarray) -> None:
    """NaN results of float32 arithmetic are the canonical NaN 0x7fffffff (PTX ISA "Floating Point Instructions")."""
    largest = np.maximum.reduce(x, axis=None, initial=_LOW32)  # a NaN, if there is one
    if largest != largest:
        x.view(U32)[x != x] = NAN32


def two_sum_error(a: np.ndarray, b: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The exact error of s = a + b in the same format (Knuth)."""
    bb = s - a
    return (a - (s - bb)) + (b - bb)


def sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in float64, rounded to odd: a later rounding to a narrower format then gives what rounding the exact sum
    would.
    """
    s = a + b
    error = two_sum_error(a, b, s)
    if not error.any():
        return s
    bits = s.view(U64)
    fix = (error != 0) & ((bits & _ONE64) == 0) & np.isfinite(s)
    if fix.any():
        away = np.signbit(error) == np.signbit(s)
        bits = np.where(fix, np.where(away, bits + _ONE64, bits - _ONE64), bits)
        s = bits.view(np.float64)
    return s


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """a * b + c of float32 with a single rounding to nearest even. out: where it goes, if not to a new array.

    The product is exact in float64. Rounding the float64 sum again to float32 goes wrong only where that sum ends in
    28 zero bits (it
    may then be a tie that the exact sum is not); those elements are done again with a sum rounded to odd.
    """
    product = a.astype(np.float64)
    product *= b
    c64 = c.astype(np.float64)
    s = product + c64
    doubtful = (s.view(U64) & _EVEN_TAIL) == 0
    if doubtful.any():
        s[doubtful] = sum_to_odd(product[doubtful], c64[doubtful])
    if out is None:
        return s.astype(np.float32)
    np.copyto(out, s, casting="same_kind")
    return out


def narrow32(v: np.ndarray, mode: str) -> np.ndarray:
    """float64 (exact, or rounded to odd) -> float32 in rounding mode rn, rz, rm or rp."""
    r = v.astype(np.float32)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    inf = np.float32(np.inf)
    if mode == "rm" or mode == "rz":
        down = (back > v) if mode == "rm" else (back > v) & (v > 0)
        if mode == "rm" and r.all():  # the next number below, as bit patterns: one less, or one more if negative
            bits = r.view(np.int32)
            return (bits + (down & (bits < 0)) - (down & (bits > 0))).view(np.float32)
        r = np.where(down, np.nextafter(r, -inf), r)
    if mode == "rp" or mode == "rz":
        up = (back < v) if mode == "rp" else (back < v) & (v < 0)
        r = np.where(up, np.nextafter(r, inf), r)
    # nextafter of the smallest subnormal loses the sign of zero, which is that of v
    return (
        np.copysign(r, v.astype(np.float32))
        if mode == "rz"
        else np.where(r == 0, np.copysign(r, v), r).astype(np.float32)
    )


def arithmetic32(op: str, mode: str, *args: np.ndarray) -> np.ndarray:
    """add, sub, mul or fma of float32 in any rounding mode, rounded once."""
    if mode == "rn":
        match op:
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] - args[1]
            case "mul":
                return args[0] * args[1]
        return fma32(*args)
    wide = [x.astype(np.float64) for x in args]
    if op == "mul":
        return narrow32(wide[0] * wide[1], mode)
    a, b = (wide[0] * wide[1], wide[2]) if op == "fma" else (wide[0], wide[1] if op == "add" else -wide[1])
    r = narrow32(sum_to_odd(a, b), mode)
    if mode == "rm" and not r.all():  # an exact zero from terms that are not both +0 is -0
        r = np.where((r == 0) & (a == -b) & ~((a == 0) & ~np.signbit(a) & ~np.signbit(b)), np.float32(-0.0), r)
    return r


def extremum32(values: np.ndarray, op: str, absolute: bool = False, nan_wins: bool = False) -> np.ndarray:
    """The smallest or largest along the first axis of float32 patterns (uint32), as patterns. A NaN loses against a
    number (nan_wins: it wins) and comes out canonical; -0 is less than +0. absolute: of the magnitudes.
    """
    u = values & U32(0x7FFFFFFF) if absolute else values
    nan = (u & U32(0x7FFFFFFF)) > _EXP32
    # As integers, sign and magnitude turned into two's complement order the numbers, with -0 below +0.
    s = u.view(np.int32)
    keys = np.where(s < 0, -1 - (u & U32(0x7FFFFFFF)).view(np.int32), s)
    loses = np.int32(0x7FFFFFFF if op == "min" else -0x80000000)
    keys = np.where(nan, loses, keys)
    best = (np.min if op == "min" else np.max)(keys, axis=0)
    r = np.where(best < 0, (-1 - best).astype(np.int32).view(U32) | _SIGN32, best.view(U32))
    lost = nan.any(0) if nan_wins else nan.all(0)
    return np.where(lost, U32(NAN32), r)


def saturate(x: np.ndarray) -> np.ndarray:
    """.sat: clamp to [0, 1], NaN to +0."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    return np.where(x > zero, np.minimum(x, one), zero)


# ---- 16-bit formats


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) -> float32, exact."""
    return (bits.astype(U32) << U32(16)).view(np.float32)


def f32_to_bf16(x: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float32 -> bfloat16 bit patterns (uint16). Modes rn, rz, rm, rp, rna. NaN becomes the canonical 0x7fff."""
    u = np.ascontiguousarray(x).view(U32)
    high = u >> U32(16)
    rest = u & U32(0xFFFF)
    negative = (u & _SIGN32) != 0
    match mode:
        case "rn":
            up = (rest > 0x8000) | ((rest == 0x8000) & ((high & U32(1)) != 0))
        case "rna":
            up = rest >= 0x8000
        case "rz":
            up = np.zeros(u.shape, np.bool_)
        case "rm":
            up = (rest != 0) & negative
        case _:
            up = (rest != 0) & ~negative
    finite = (u & _EXP32) != _EXP32
    out = (high + (up & finite)).astype(U16)
    nan = x != x
    if nan.any():
        out[nan] = NANBF16
    return out


def f64_to_16(v: np.ndarray, kind: str, mode: str = "rn") -> np.ndarray:
    """float64 (exact, or rounded to odd) -> fp16 or bf16 bit patterns, rounded once. Canonical NaN."""
    if kind == "f16" and mode == "rn":
        out = v.astype(np.float16).view(U16)
        nan = v != v
        if nan.any():
            out[nan] = NAN16
        return out
    if kind == "bf16":
        # Round to odd once more, to float32: 24 bits are at least two more than bf16's 8, subnormals included.
        r = narrow32(v, "rz")
        inexact = (r.astype(np.float64) != v) & np.isfinite(r)
        odd = np.where(inexact, r.view(U32) | U32(1), r.view(U32)).view(np.float32)
        return f32_to_bf16(odd, mode)
    r = v.astype(np.float16)
    back = r.astype(np.float64)
    inf = np.float16(np.inf)
    if mode in ("rm", "rz"):
        r = np.where((back > v) & ((mode == "rm") | (v > 0)), np.nextafter(r, -inf), r)
    if mode in ("rp", "rz"):
        r = np.where((back < v) & ((mode == "rp") | (v < 0)), np.nextafter(r, inf), r)
    r = np.where(r == 0, np.copysign(np.float16(0), v.astype(np.float16)), r)
    out = np.ascontiguousarray(r, np.float16).view(U16)
    nan = v != v
    if nan.any():
        out[nan] = NAN16
    return out


def widen16(bits: np.ndarray, kind: str) -> np.ndarray:
    """fp16 or bf16 bit patterns -> float32, exact."""
    return bf16_to_f32(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def round_integer(x: np.ndarray, mode: str) -> np.ndarray:
    """Round to an integral value: rni (ties to even), rzi, rmi, rpi."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x)
