"""Floating point: PTX ISA "Floating Point Instructions", "Half Precision Floating Point Instructions", and the packed
        forms.

Everything the ISA defines to the bit is so here: one rounding, in the mode that is asked for, canonical NaNs, .ftz.
The .approx functions are computed
in float64 and rounded, which is within the error that the ISA allows them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from .. import ptx
from . import Decode, instruction
from .common import (
    NAN32,
    NAN64,
    arithmetic32,
    canonical32,
    f64_to_16,
    flush32,
    fma32,
    saturate,
    sum_to_odd,
    widen16,
)

Run = Callable[[Any], None]
U16, U32, U64 = np.uint16, np.uint32, np.uint64
ROUNDING = ("rn", "rz", "rm", "rp")
TYPES = ("f32", "f64", "f32x2", "f16", "f16x2", "bf16", "bf16x2")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def dispatch(d: Decode) -> Run | None:
    """The floating-point form of an opcode that integers share; None if the type is an integer's."""
    type_ = next((p for p in d.mods.parts if p in TYPES), None)
    if type_ is None:
        return None
    return {
        "add": arithmetic, "sub": arithmetic, "mul": arithmetic, "mad": arithmetic, "div": divide,
        "abs": sign_bits, "neg": sign_bits, "min": extremum, "max": extremum,
    }[d.name](d)  # fmt: skip


def half_view(type_: str) -> str:
    return "u16x2" if type_.endswith("x2") else "u16"


@instruction("fma")
def arithmetic(d: Decode) -> Run:
    """PTX ISA "add", "sub", "mul", "fma" (and "mad" on .f32/.f64): .rn .rz .rm .rp, .ftz, .sat, for f32, f32x2, f64,
    f16(x2), bf16(x2).
    """
    op = "fma" if d.name in ("fma", "mad") else d.name
    mode = d.mods.one_of(*ROUNDING, default="rn")
    ftz, sat, relu = d.mods.flag("ftz"), d.mods.flag("sat"), d.mods.flag("relu")
    type_ = d.mods.one_of(*TYPES)
    mixed = d.mods.one_of("f16", "bf16", default=None) if type_ == "f32" else None  # add.f32.bf16: one narrow operand
    if type_ in ("f16", "bf16") and "f32" in d.mods.parts:
        raise d.unsupported("mixed precision in this order")
    if type_ in HALVES:
        return half_arithmetic(d, op, mode, type_, ftz, sat, relu)
    if relu:
        raise d.unsupported(".relu is for half precision only")
    if type_ == "f64":
        return double_arithmetic(d, op, mode)
    view = type_
    if mixed:
        return mixed_arithmetic(d, op, mode, mixed, sat)
    sources, out = [d.read(x, view) for x in d.ops[1:]], d.write(d.ops[0], view)
    if mode == "rn" and not ftz and not sat:
        if op == "fma":
            a, b, c = sources

            def run_fma(w: Any) -> None:
                r, target = getattr(w, view), getattr(w.to, view)[out]
                fma32(r[a], r[b], r[c], target)
                canonical32(target)

            return run_fma
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
        a, b = sources

        def run_native(w: Any) -> None:
            r, target = getattr(w, view), getattr(w.to, view)[out]
            function(r[a], r[b], target)
            canonical32(target)

        return run_native

    def run(w: Any) -> None:
        r = getattr(w, view)
        values = [r[s] for s in sources]
        if ftz:
            values = [flush32(v) for v in values]
        result = arithmetic32(op, mode, *values)
        if ftz:
            result = flush32(result)
        if sat:
            result = saturate(result)
        else:
            canonical32(result)
        getattr(w.to, view)[out][...] = result

    return run


def mixed_arithmetic(d: Decode, op: str, mode: str, narrow: str, sat: bool) -> Run:
    """PTX ISA "Mixed Precision Floating Point Instructions": add, sub: a narrow + c f32; fma: a, b narrow, c f32."""
    count = 2 if op == "fma" else 1
    if op == "mul":
        raise d.unsupported("there is no mixed-precision mul")
    sources = [d.read(x, "u16") for x in d.ops[1 : 1 + count]]
    c, out = d.read(d.ops[1 + count], "f32"), d.write(d.ops[0], "f32")

    def run(w: Any) -> None:
        result = arithmetic32(op, mode, *(widen16(w.u16[s], narrow) for s in sources), w.f32[c])
        if sat:
            result = saturate(result)
        else:
            canonical32(result)
        w.to.f32[out][...] = result

    return run


def half_arithmetic(d: Decode, op: str, mode: str, type_: str, ftz: bool, sat: bool, relu: bool) -> Run:
    """fp16 and bf16, single or packed: computed in float64 and rounded once."""
    if mode != "rn":
        raise d.unsupported(f"half precision has no .{mode}")
    kind, view = type_.removesuffix("x2"), half_view(type_)
    sources, out = [d.read(x, view) for x in d.ops[1:]], d.write(d.ops[0], view)

    def run(w: Any) -> None:
        values = [
            widen16(flush16(getattr(w, view)[s]) if ftz else getattr(w, view)[s], kind).astype(np.float64)
            for s in sources
        ]
        match op:
            case "add":
                v = sum_to_odd(values[0], values[1])
            case "sub":
                v = sum_to_odd(values[0], -values[1])
            case "mul":
                v = values[0] * values[1]
            case _:
                v = sum_to_odd(values[0] * values[1], values[2])
        if relu:
            v = np.where(v > 0, v, np.where(v != v, v, 0.0))
        if sat:
            v = saturate(v)
        result = f64_to_16(v, kind)
        getattr(w.to, view)[out][...] = flush16(result) if ftz else result

    return run


def flush16(bits: np.ndarray) -> np.ndarray:
    """Subnormal fp16 to zero of the same sign."""
    return np.where(bits & U16(0x7C00) == 0, bits & U16(0x8000), bits)


def double_arithmetic(d: Decode, op: str, mode: str) -> Run:
    """float64. Directed rounding and fma are worked out exactly, element by element."""
    sources, out = [d.read(x, "f64") for x in d.ops[1:]], d.write(d.ops[0], "f64")

    def exact(*args: float) -> float:
        if not all(np.isfinite(args)):
            a, b = args[0], args[1]
            return {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "fma": lambda: a * b + args[2]}[
                op
            ]()
        x, y = Fraction(args[0]), Fraction(args[1])
        total = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + (Fraction(args[2]) if op == "fma" else 0)}[op]
        if total == 0:
            zeros = (
                args[0] * args[1] + args[2]
                if op == "fma"
                else {"add": args[0] + args[1], "sub": args[0] - args[1], "mul": args[0] * args[1]}[op]
            )
            return (
                -0.0
                if mode == "rm" and zeros == 0 and op != "mul" and not _all_positive_zero(op, args)
                else zeros
                if zeros == 0
                else 0.0
            )
        return round_fraction(total, mode)

    def run(w: Any) -> None:
        values = [w.f64[s] for s in sources]
        if mode == "rn" and op != "fma":
            result = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](*values)
        else:
            flat = zip(*(v.ravel().tolist() for v in values), strict=True)
            result = np.array([exact(*x) for x in flat]).reshape(w.shape)
        result[result != result] = np.uint64(NAN64).view(np.float64)
        w.to.f64[out][...] = result

    return run


def _all_positive_zero(op: str, args: tuple[float, ...]) -> bool:
    terms = (args[0] * args[1], args[2]) if op == "fma" else (args[0], -args[1] if op == "sub" else args[1])
    return all(t == 0 and not np.signbit(t) for t in terms)


def round_fraction(x: Fraction, mode: str) -> float:
    """An exact, non-zero value -> float64 in a rounding mode."""
    try:
        r = x.numerator / x.denominator  # true division of integers rounds once, to nearest even
    except OverflowError:
        r = np.inf if x > 0 else -np.inf
    if mode == "rn" or (np.isfinite(r) and Fraction(r) == x):
        return r if r != 0 else (0.0 if x > 0 else -0.0)
    below = r < x if np.isfinite(r) else r < 0
    toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    wants_up = toward == np.inf or (mode == "rz" and x < 0)
    if wants_up and below:
        return float(np.nextafter(r, np.inf))
    if not wants_up and not below:
        return float(np.nextafter(r, -np.inf))
    return r


def divide(d: Decode) -> Run:
    """PTX ISA "div": .rn is IEEE; .approx and .full may err by 2 ulp and are rounded correctly here."""
    mode = d.mods.one_of(*ROUNDING, "approx", "full")
    ftz, type_ = d.mods.flag("ftz"), d.mods.one_of("f32", "f64")
    if mode in ("rz", "rm", "rp"):
        return _directed(d, type_, mode, ftz, lambda a, b: a / b, lambda a, b: Fraction(a) / Fraction(b))
    a, b, out = d.read(d.ops[1], type_), d.read(d.ops[2], type_), d.write(d.ops[0], type_)
    nan = U32(NAN32).view(np.float32) if type_ == "f32" else U64(NAN64).view(np.float64)

    def run(w: Any) -> None:
        x, y = getattr(w, type_)[a], getattr(w, type_)[b]
        if ftz:
            x, y = flush32(x), flush32(y)
        r = x / y
        if ftz:
            r = flush32(r)
        getattr(w.to, type_)[out][...] = np.where(r != r, nan, r)

    return run


def _directed(d: Decode, type_: str, mode: str, ftz: bool, native: Callable, exact: Callable) -> Run:
    """A function in a directed rounding mode, element by element with exact fractions."""
    sources, out = [d.read(x, type_) for x in d.ops[1:]], d.write(d.ops[0], type_)
    dtype = np.float32 if type_ == "f32" else np.float64

    def one(*args: float) -> float:
        try:
            nearest = native(*map(dtype, args))
        except ZeroDivisionError:
            return np.nan
        overflow = np.isinf(nearest) and all(np.isfinite(args)) and args[-1] != 0
        if (nearest == 0 and args[0] == 0) or (not np.isfinite(nearest) and not overflow):
            return float(nearest)
        target = exact(*args)
        if np.isfinite(nearest):
            back = Fraction(float(nearest))
            if back == target:
                return float(nearest)
            below = back < target
        else:
            below = nearest < 0
        up = mode == "rp" or (mode == "rz" and target < 0)
        if up and below:
            return float(np.nextafter(nearest, dtype(np.inf)))
        if not up and not below:
            return float(np.nextafter(nearest, dtype(-np.inf)))
        return float(nearest)

    def run(w: Any) -> None:
        values = [getattr(w, type_)[s] for s in sources]
        if ftz:
            values = [flush32(v) for v in values]
        flat = zip(*(v.ravel().tolist() for v in values), strict=True)
        r = np.array([one(*x) for x in flat]).reshape(w.shape).astype(dtype)
        if ftz:
            r = flush32(r)
        if type_ == "f32":
            canonical32(r)
        getattr(w.to, type_)[out][...] = r

    return run


def sign_bits(d: Decode) -> Run:
    """PTX ISA "abs", "neg" of floating point: only the sign bit changes (and .ftz flushes)."""
    ftz, type_ = d.mods.flag("ftz"), d.mods.one_of("f32", "f64", *HALVES)
    bits, pattern = {"f32": (32, 1 << 31), "f64": (64, 1 << 63)}.get(
        type_, (32, 0x80008000) if type_.endswith("x2") else (16, 0x8000)
    )
    view, sign = f"u{bits}", np.array(pattern, f"u{bits // 8}")
    a, out = d.read(d.ops[1], view), d.write(d.ops[0], view)
    negate = d.name == "neg"
    if ftz and type_ not in ("f32", "f16", "f16x2"):
        raise d.unsupported(f".ftz does not go with .{type_}")

    def run(w: Any) -> None:
        x = getattr(w, view)[a]
        if ftz and type_ == "f32":
            x = flush32(w.f32[a]).view(U32)
        elif ftz:
            x = flush16(np.ascontiguousarray(x).view(U16)).view(x.dtype)
        (
            np.bitwise_xor(x, sign, getattr(w.to, view)[out])
            if negate
            else np.bitwise_and(x, ~sign, getattr(w.to, view)[out])
        )

    return run


def extremum(d: Decode) -> Run:
    """PTX ISA "min", "max": a NaN loses against a number (.NaN: it wins), -0 < +0, .xorsign.abs, three operands for
    f32.
    """
    ftz, nan_wins = d.mods.flag("ftz"), d.mods.flag("NaN")
    xorsign, absolute = d.mods.flag("xorsign"), d.mods.flag("abs")
    type_ = d.mods.one_of(*TYPES)
    if type_ == "f32x2":
        raise d.unsupported("min and max have no packed f32 form")
    kind = type_.removesuffix("x2")
    bits = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16}[kind]
    view = half_view(type_) if bits == 16 else f"u{bits}"
    sources, out = [d.read(x, view) for x in d.ops[1:]], d.write(d.ops[0], view)
    if len(sources) not in (2, 3) or (len(sources) == 3 and type_ != "f32"):
        raise d.unsupported("takes two operands, or three of .f32")
    unsigned, signed = np.dtype(f"u{bits // 8}").type, np.dtype(f"i{bits // 8}").type
    magnitude = unsigned((1 << bits - 1) - 1)
    infinity = unsigned({"f32": 0x7F800000, "f64": 0x7FF0000000000000, "f16": 0x7C00, "bf16": 0x7F80}[kind])
    larger = d.name == "max"
    if type_ == "f32" and not (ftz or nan_wins or xorsign or absolute):
        return _plain_extremum(d, sources, out, np.fmax if larger else np.fmin, larger)

    def run(w: Any) -> None:
        values = []
        for s in sources:
            x = getattr(w, view)[s]
            if ftz:
                x = flush32(x.view(np.float32)).view(U32) if kind == "f32" else flush16(x)
            values.append(x)
        sign = unsigned(0)
        if xorsign:
            for x in values:
                sign = sign ^ (x & ~magnitude)
        if absolute or xorsign:
            values = [x & magnitude for x in values]
        result = values[0]
        for x in values[1:]:
            # As integers, sign and magnitude turned into two's complement order the numbers, with -0 below +0.
            keys = [
                np.where(v.view(signed) < 0, -1 - (v & magnitude).view(signed), v.view(signed)) for v in (result, x)
            ]
            first = keys[0] > keys[1] if larger else keys[0] < keys[1]
            nan0, nan1 = (result & magnitude) > infinity, (x & magnitude) > infinity
            both = (nan0 | nan1) if nan_wins else (nan0 & nan1)
            result = np.where(both, magnitude, np.where(nan0, x, np.where(nan1 | first, result, x)))
        if xorsign:
            result = np.where((result & magnitude) > infinity, result, result | sign)
        getattr(w.to, view)[out][...] = result

    return run


def _plain_extremum(d: Decode, sources: list[int], out: int, function: Callable, larger: bool) -> Run:
    """The common case, f32 without modifiers."""

    def run(w: Any) -> None:
        values = [w.f32[s] for s in sources]
        result = function(values[0], values[1])
        for x in values[2:]:
            function(result, x, result)
        if not np.minimum.reduce(np.abs(result), axis=None) > 0:  # zeros and NaNs need a closer look
            result = values[0]
            for x in values[1:]:
                r = function(result, x)
                both = (r == 0) & (result == 0) & (x == 0)  # which zero it is depends on the signs
                u, v = result.view(U32), x.view(U32)
                np.copyto(r.view(U32), u & v if larger else u | v, where=both)
                result = r
            canonical32(result)
        w.to.f32[out][...] = result

    return run


# ---------------------------------------------------------------------------------------------- transcendental and the
# like


def _ex2(x: np.ndarray) -> np.ndarray:
    return np.exp2(x)


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": _ex2,
    "tanh": np.tanh,
}


@instruction("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def function(d: Decode) -> Run:
    """PTX ISA "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh" (.approx, and .rn of rcp and sqrt)."""
    mode = d.mods.one_of("approx", *ROUNDING)
    ftz = d.mods.flag("ftz")
    type_ = d.mods.one_of(*TYPES)
    f = _FUNCTIONS[d.name]
    if mode in ("rz", "rm", "rp") or (mode == "rn" and d.name not in ("rcp", "sqrt")):
        if d.name != "rcp":
            raise d.unsupported(f".{mode} is not supported")
        return _directed(d, type_, mode, ftz, lambda a: a.dtype.type(1) / a, lambda a: 1 / Fraction(a))
    if type_ == "f64":
        a, out = d.read(d.ops[1], "f64"), d.write(d.ops[0], "f64")

        def run64(w: Any) -> None:
            r = f(w.f64[a])
            w.to.f64[out][...] = np.where(r != r, U64(NAN64).view(np.float64), r)

        return run64
    if type_ in HALVES:
        kind, view = type_.removesuffix("x2"), half_view(type_)
        a, out = d.read(d.ops[1], view), d.write(d.ops[0], view)

        def run16(w: Any) -> None:
            x = widen16(getattr(w, view)[a], kind)
            if ftz:
                x = flush32(x)
            v = f(x.astype(np.float64))
            getattr(w.to, view)[out][...] = f64_to_16(v, kind)

        return run16
    if type_ != "f32":
        raise d.unsupported(f"has no .{type_}")
    a, out = d.read(d.ops[1], "f32"), d.write(d.ops[0], "f32")

    def run(w: Any) -> None:
        x = w.f32[a]
        if ftz:
            x = flush32(x)
        r = f(x.astype(np.float64)).astype(np.float32)
        if ftz:
            r = flush32(r)
        canonical32(r)
        w.to.f32[out][...] = r

    return run


@instruction("copysign")
def copysign(d: Decode) -> Run:
    """PTX ISA "copysign": the sign of a, the magnitude of b."""
    type_ = d.mods.one_of("f32", "f64")
    view, magnitude = ("u32", U32(0x7FFFFFFF)) if type_ == "f32" else ("u64", U64((1 << 63) - 1))
    a, b, out = d.read(d.ops[1], view), d.read(d.ops[2], view), d.write(d.ops[0], view)

    def run(w: Any) -> None:
        r = getattr(w, view)
        getattr(w.to, view)[out][...] = (r[a] & ~magnitude) | (r[b] & magnitude)

    return run


@instruction("testp")
def test_property(d: Decode) -> Run:
    """PTX ISA "testp": finite, infinite, number, notanumber, normal, subnormal."""
    what = d.mods.one_of("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    type_ = d.mods.one_of("f32", "f64")
    a, out = d.read(d.ops[1], type_), d.write(d.ops[0], "pred")

    def run(w: Any) -> None:
        x = getattr(w, type_)[a]
        tiny = np.abs(x) < np.finfo(x.dtype).tiny
        w.to.pred[out][...] = {
            "finite": np.isfinite(x),
            "infinite": np.isinf(x),
            "number": x == x,
            "notanumber": x != x,
            "normal": np.isfinite(x) & ~tiny,
            "subnormal": tiny & (x != 0),
        }[what]

    return run


@instruction("setp")
def setp(d: Decode) -> Run:
    """PTX ISA "setp": compare; the unordered forms (equ, neu, ltu, ...) are true for a NaN, num and nan ask for one.
    Two results, and a third
    operand combined by and, or, xor, as the ISA has it."""
    compare = comparison(d)
    combine = d.mods.one_of("and", "or", "xor", default=None)
    evaluate = compare(d.ops[1], d.ops[2])
    target = d.ops[0]
    first = second = None
    if isinstance(target, ptx.Pair):
        first, second = d.write(target.first, "pred"), d.write(target.second, "pred")
    else:
        first = d.write(target, "pred")
    if combine is None:
        if second is None:

            def run_one(w: Any) -> None:
                w.to.pred[first][...] = evaluate(w)

            return run_one

        def run_two(w: Any) -> None:
            r = evaluate(w)
            w.to.pred[first][...] = r
            w.to.pred[second][...] = ~r

        return run_two
    third = d.ops[3]
    negated = isinstance(third, ptx.Not)
    c = d.read(third.operand if isinstance(third, ptx.Not) else third, "pred")
    function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combine]

    def run(w: Any) -> None:
        r = evaluate(w)
        q = ~w.pred[c] if negated else w.pred[c].copy()
        w.to.pred[first][...] = function(r, q)
        if second is not None:
            w.to.pred[second][...] = function(~r, q)

    return run


@instruction("set")
def set_(d: Decode) -> Run:
    """PTX ISA "set": like setp, but the result is all ones or zero (integers) or 1.0 or 0.0."""
    compare = comparison(d, results=("u32", "s32", "f32", "f16", "bf16", "f16x2", "bf16x2"))
    combine = d.mods.one_of("and", "or", "xor", default=None)
    result_type = next(p for p in d.mods.parts if p in (*TYPES, "u32", "s32"))
    if result_type not in ("u32", "s32", "f32"):
        raise d.unsupported(f"the result type .{result_type} is not supported")
    evaluate, out = compare(d.ops[1], d.ops[2]), d.write(d.ops[0], "u32")
    c = d.read(d.ops[3], "pred") if combine else None
    one = U32(0x3F800000) if result_type == "f32" else U32(0xFFFFFFFF)
    function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, None: None}[combine]

    def run(w: Any) -> None:
        r = evaluate(w)
        if function is not None:
            r = function(r, w.pred[c])
        w.to.u32[out][...] = np.where(r, one, U32(0))

    return run


_INTEGER_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_INTEGER_COMPARE |= {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def comparison(
    d: Decode, results: tuple[str, ...] = ()
) -> Callable[[ptx.Operand, ptx.Operand], Callable[[Any], np.ndarray]]:
    """The comparison that an instruction's modifiers name: a function of two operands that gives a function of the
    bundle.
    """
    names = [*_INTEGER_COMPARE, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
    op = d.mods.one_of(*names)
    ftz = d.mods.flag("ftz")
    if results:
        d.mods.one_of(*results)
    type_ = d.mods.one_of("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64", "f16", "bf16")
    is_float = type_ in ("f32", "f64", "f16", "bf16")

    def build(x: ptx.Operand, y: ptx.Operand) -> Callable[[Any], np.ndarray]:
        if not is_float:
            view = "u" + type_[1:] if type_[0] == "b" else type_
            a, b, function = d.read(x, view), d.read(y, view), _INTEGER_COMPARE.get(op)
            if function is None:
                raise d.unsupported(f".{op} does not go with .{type_}")

            def integers(w: Any) -> np.ndarray:
                r = getattr(w, view)
                return function(r[a], r[b])

            return integers
        view = "u16" if type_ in ("f16", "bf16") else type_
        a, b = d.read(x, view), d.read(y, view)

        def values(w: Any) -> tuple[np.ndarray, np.ndarray]:
            u, v = getattr(w, view)[a], getattr(w, view)[b]
            if view == "u16":
                u, v = widen16(u, type_), widen16(v, type_)
            return (flush32(u), flush32(v)) if ftz and u.dtype == np.float32 else (u, v)

        if op in ("num", "nan"):

            def is_number(w: Any) -> np.ndarray:
                u, v = values(w)
                number = (u == u) & (v == v)
                return number if op == "num" else ~number

            return is_number
        # Unordered comparisons are the negation of the opposite ordered one; `ne` is false for a NaN, unlike NumPy's.
        opposite = {
            "equ": np.not_equal,
            "neu": np.equal,
            "ltu": np.greater_equal,
            "leu": np.greater,
            "gtu": np.less_equal,
            "geu": np.less,
        }
        if op in opposite:

            def unordered(w: Any) -> np.ndarray:
                u, v = values(w)
                if op == "equ":
                    return (u == v) | (u != u) | (v != v)
                return ~opposite[op](u, v)

            return unordered
        ordered = {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.get(op)

        def run(w: Any) -> np.ndarray:
            u, v = values(w)
            if op == "ne":
                return (u != v) & (u == u) & (v == v)
            return ordered(u, v)  # type: ignore[misc]

        if op != "ne" and ordered is None:
            raise d.unsupported(f".{op} does not go with .{type_}")
        return run

    return build
