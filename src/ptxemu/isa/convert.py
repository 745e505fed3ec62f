"""Conversions: PTX ISA "cvt", "cvt.pack"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from . import Decode, instruction
from .common import NAN32, NAN64, f64_to_16, flush32, narrow32, round_integer, widen16

Run = Callable[[Any], None]
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64", "tf32")
PACKED = ("f16x2", "bf16x2", "e4m3x2", "e5m2x2", "e2m1x2", "ue8m0x2")
ROUNDING = ("rn", "rz", "rm", "rp", "rna")
TO_INTEGRAL = ("rni", "rzi", "rmi", "rpi")


@instruction("cvt")
def cvt(d: Decode) -> Run:
    """PTX ISA "cvt": between integers and floating-point formats, one value or packed pairs; .sat, .relu, .satfinite,
    .ftz.
    """
    mode = d.mods.one_of(*ROUNDING, *TO_INTEGRAL, default=None)
    ftz, sat, relu = d.mods.flag("ftz"), d.mods.flag("sat"), d.mods.flag("relu")
    finite = d.mods.flag("satfinite")
    kinds = (*INTEGERS, *FLOATS, *PACKED)
    target, source = d.mods.one_of(*kinds), d.mods.one_of(*kinds)
    if target in PACKED:
        if source == "f32":
            return pack_pair(d, target, mode or "rn", relu, finite)
        if target in ("f16x2", "bf16x2"):
            return unpack_pair(d, target, source, relu)
        if source in ("f16x2", "bf16x2"):
            return narrow_pair(d, target, source, relu)
        raise d.unsupported(f"from .{source} to .{target}")
    if target == "tf32":
        return to_tf32(d, mode or "rna", relu, finite)
    if target in INTEGERS and source in INTEGERS:
        return integer_to_integer(d, target, source, sat)
    if source in INTEGERS:
        return integer_to_float(d, target, source, mode or "rn", sat)
    if target in INTEGERS:
        return float_to_integer(d, target, source, mode or "rzi", ftz)
    return float_to_float(d, target, source, mode, ftz, sat, relu, finite)


def read_integer(d: Decode, operand: ptx.Operand, kind: str) -> Callable[[Any], np.ndarray]:
    """The operand's low bits as that integer type; the register may be wider."""
    bits = int(kind[1:])
    width = operand.bits if isinstance(operand, ptx.Reg) else max(bits, 16)
    if width < bits:
        raise d.unsupported(f"a register of {width} bits is read as .{kind}")
    view = f"u{width}"
    slot = d.read(operand, view)
    narrow, dtype = np.dtype(f"u{bits // 8}"), np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")
    return lambda w: getattr(w, view)[slot].astype(narrow, copy=False).view(dtype)


def write_integer(d: Decode, operand: ptx.Operand, kind: str) -> Callable[[Any, np.ndarray], None]:
    """Write an integer of that type; a wider register gets it sign- or zero-extended."""
    bits = int(kind[1:])
    width = operand.bits if isinstance(operand, ptx.Reg) else max(bits, 16)
    if width < bits:
        raise d.unsupported(f"a register of {width} bits takes a .{kind}")
    view = f"u{width}"
    slot = d.write(operand, view)
    own = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")
    wide = np.dtype(f"{own.kind}{width // 8}")

    def write(w: Any, value: np.ndarray) -> None:
        getattr(w.to, view)[slot][...] = value.astype(own, copy=False).astype(wide, copy=False).view(f"u{width // 8}")

    return write


def read_float(d: Decode, operand: ptx.Operand, kind: str) -> Callable[[Any], np.ndarray]:
    """The operand as float32 (from fp16 and bf16, exact) or float64."""
    if kind in ("f16", "bf16"):
        slot = d.read(operand, "u16")
        return lambda w: widen16(w.u16[slot], kind)
    slot = d.read(operand, kind)
    return lambda w: getattr(w, kind)[slot]


def integer_to_integer(d: Decode, target: str, source: str, sat: bool) -> Run:
    read, write = read_integer(d, d.ops[1], source), write_integer(d, d.ops[0], target)
    if not sat:
        return lambda w: write(w, read(w))
    low, high = integer_range(target)

    def run(w: Any) -> None:
        x = read(w)
        info = np.iinfo(x.dtype)
        write(w, np.clip(x, max(low, info.min), min(high, info.max)))

    return run


def integer_range(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def integer_to_float(d: Decode, target: str, source: str, mode: str, sat: bool) -> Run:
    read = read_integer(d, d.ops[1], source)
    if sat:
        raise d.unsupported(".sat of an integer to floating point")
    if mode not in ("rn", "rz", "rm", "rp"):
        raise d.unsupported(f".{mode} of an integer")
    if target == "f64" or (mode != "rn" and int(source[1:]) == 64):
        if mode != "rn" and int(source[1:]) == 64:
            raise d.unsupported(f".{mode} of a 64-bit integer")
        out64 = d.write(d.ops[0], "f64")
        return lambda w: np.copyto(w.to.f64[out64], read(w), casting="unsafe")
    if target == "f32":
        out = d.write(d.ops[0], "f32")
        if mode == "rn":
            return lambda w: np.copyto(w.to.f32[out], read(w), casting="unsafe")
        return lambda w: np.copyto(w.to.f32[out], narrow32(read(w).astype(np.float64), mode))
    out16 = d.write(d.ops[0], "u16")

    def run(w: Any) -> None:
        x = read(w)
        v = x.astype(np.float64)
        if int(source[1:]) == 64:  # keep what float64 drops as an odd last bit, so that one rounding decides
            v = odd_from_int64(x)
        w.to.u16[out16][...] = f64_to_16(v, target, mode)

    return run


def odd_from_int64(x: np.ndarray) -> np.ndarray:
    """64-bit integers -> float64, rounded to odd."""
    shift = U64(11)
    magnitude = np.where(x < 0, -x, x).astype(U64) if x.dtype.kind == "i" else x
    big = magnitude >> U64(53) != 0
    kept = np.where(big, ((magnitude >> shift) | U64(1) * (magnitude & U64(2047) != 0)) << shift, magnitude)
    v = kept.astype(np.float64)
    return np.where(x < 0, -v, v) if x.dtype.kind == "i" else v


def float_to_integer(d: Decode, target: str, source: str, mode: str, ftz: bool) -> Run:
    """Out of range saturates; NaN gives 0, or 1 << (width - 1) where a 64-bit type is involved (PTX ISA "cvt")."""
    mode = {"rn": "rni", "rz": "rzi", "rm": "rmi", "rp": "rpi"}.get(mode, mode)
    if mode not in TO_INTEGRAL:
        raise d.unsupported(f".{mode} to an integer")
    read, write = read_float(d, d.ops[1], source), write_integer(d, d.ops[0], target)
    low, high = integer_range(target)
    bits = int(target[1:])
    nan = 0 if bits != 64 and source != "f64" else 1 << bits - 1
    dtype = np.dtype(f"{'i' if target[0] == 's' else 'u'}{bits // 8}")
    nan_value = np.array(nan & (1 << bits) - 1, f"u{bits // 8}").view(dtype)

    def run(w: Any) -> None:
        x = read(w)
        if ftz and x.dtype == np.float32:
            x = flush32(x)
        r = round_integer(x.astype(np.float64), mode)
        inside = (r >= low) & (r < float(high + 1))
        safe = np.where(inside, r, 0.0).astype(dtype)
        result = np.where(inside, safe, np.where(r > 0, dtype.type(high), dtype.type(low)))
        write(w, np.where(r != r, nan_value, result))

    return run


def float_to_float(
    d: Decode, target: str, source: str, mode: str | None, ftz: bool, sat: bool, relu: bool, finite: bool
) -> Run:
    """Widening is exact; narrowing rounds once; the same type with .rni and so on rounds to an integral value."""
    read = read_float(d, d.ops[1], source)
    if finite:
        raise d.unsupported(".satfinite of one value")
    integral = mode if mode in TO_INTEGRAL else None
    rounding = mode if mode in ("rn", "rz", "rm", "rp") else "rn"
    view = "u16" if target in ("f16", "bf16") else target
    out = d.write(d.ops[0], view)

    def run(w: Any) -> None:
        x = read(w)
        if ftz and x.dtype == np.float32:
            x = flush32(x)
        if integral:
            x = round_integer(x, integral)
        if sat:
            x = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
        if relu:
            x = np.where(x > 0, x, np.where(x != x, x, x.dtype.type(0)))
        if target == "f64":
            r = x.astype(np.float64)
            r[r != r] = U64(NAN64).view(np.float64)
            w.to.f64[out][...] = r
        elif target == "f32":
            f = narrow32(x, rounding) if x.dtype == np.float64 else np.array(x, np.float32)
            if ftz:
                f = np.array(flush32(f))
            f.view(U32)[f != f] = NAN32
            w.to.f32[out][...] = f
        else:
            w.to.u16[out][...] = f64_to_16(x.astype(np.float64), target, rounding)

    return run


def to_tf32(d: Decode, mode: str, relu: bool, finite: bool) -> Run:
    """float32 with 10 bits of mantissa; the low 13 bits become zero. Modes rna, rn, rz."""
    if mode not in ("rna", "rn", "rz"):
        raise d.unsupported(f".{mode} to .tf32")
    a, out = d.read(d.ops[1], "f32"), d.write(d.ops[0], "u32")

    def run(w: Any) -> None:
        x = w.f32[a]
        if relu:
            x = np.where(x > 0, x, np.where(x != x, x, np.float32(0)))
        u = np.ascontiguousarray(x).view(U32)
        low, even = u & U32(0x1FFF), u & U32(0x2000)
        up = {"rna": low >= 0x1000, "rn": (low > 0x1000) | ((low == 0x1000) & (even != 0)), "rz": low > 0x1FFF}[mode]
        special = (u & U32(0x7F800000)) == 0x7F800000
        r = (u & ~U32(0x1FFF)) + np.where(up & ~special, U32(0x2000), U32(0))
        if finite:
            r = np.where((r & U32(0x7FFFFFFF)) == 0x7F800000, (r & U32(0x80000000)) | U32(0x7F7FE000), r)
        w.to.u32[out][...] = np.where(x != x, U32(NAN32), r)

    return run


def pack_pair(d: Decode, target: str, mode: str, relu: bool, finite: bool) -> Run:
    """cvt.rn.bf16x2.f32 d, a, b and its like: a goes to the upper half."""
    if len(d.ops) != 3:
        raise d.unsupported("takes two .f32 operands")
    kind = target.removesuffix("x2")
    half = kind in ("f16", "bf16")
    a, b = d.read(d.ops[1], "f32"), d.read(d.ops[2], "f32")
    if half and mode not in ("rn", "rz"):
        raise d.unsupported(f".{mode} to .{target}")
    out = d.write(d.ops[0], "u16x2" if half else "u16")

    def clamp(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        if relu:
            x = np.where(x > 0, x, np.where(x != x, x, 0.0))
        if finite:
            largest = 65504.0 if kind == "f16" else float(2**127 * (2 - 2**-7))
            x = np.where(x != x, x, np.clip(x, -largest, largest))
        return x

    def run(w: Any) -> None:
        if half:
            to = w.to.u16x2[out]
            to[..., 0] = f64_to_16(clamp(w.f32[b]), kind, mode)
            to[..., 1] = f64_to_16(clamp(w.f32[a]), kind, mode)
        else:
            high, low = (to_minifloat(w.f32[s].astype(np.float64), kind, mode, relu) for s in (a, b))
            bits = 4 if kind == "e2m1" else 8
            w.to.u16[out][...] = high.astype(U16) << U16(bits) | low

    def run_bf16(w: Any) -> None:  # by far the most common form
        to = w.to.u16x2[out]
        for half_index, slot in ((0, b), (1, a)):
            u = w.f32[slot].view(U32)
            r = u >> U32(16)
            r &= U32(1)
            r += u
            r += U32(0x7FFF)
            exponent = u & U32(0x7F800000)
            if np.maximum.reduce(exponent, axis=None) == 0x7F800000:
                special = exponent == 0x7F800000
                r = np.where(special, u, r)
                r = np.where(special & ((u & U32(0x007FFFFF)) != 0), U32(0x7FFF0000), r)
            np.copyto(to[..., half_index], r.view(U16)[..., 1::2])

    return run_bf16 if kind == "bf16" and mode == "rn" and not relu and not finite else run


# format -> (exponent bits, mantissa bits, bias, largest finite value)
MINIFLOATS = {
    "e4m3": (4, 3, 7, 448.0),
    "e5m2": (5, 2, 15, 57344.0),
    "e2m1": (2, 1, 1, 6.0),
    "ue8m0": (8, 0, 127, 2.0**127),
}


def to_minifloat(x: np.ndarray, kind: str, mode: str, relu: bool) -> np.ndarray:
    """float64 -> the bit pattern of an 8-bit or 4-bit format, saturating to the largest finite value (.satfinite)."""
    exponent_bits, mantissa_bits, bias, largest = MINIFLOATS[kind]
    if relu:
        x = np.where(x > 0, x, np.where(x != x, x, 0.0))
    if kind == "ue8m0":  # an exponent alone: rz or rp
        magnitude = np.abs(x)
        _, e = np.frexp(magnitude)
        exact = magnitude == np.ldexp(1.0, e - 1)
        e = e - 1 + (0 if mode == "rz" else (~exact).astype(np.int64))
        return np.where(x != x, 0xFF, np.clip(e + bias, 0, 254)).astype(U8)
    magnitude = np.minimum(np.abs(x), largest)
    _, e = np.frexp(np.where(magnitude > 0, magnitude, 1.0))
    e = np.maximum(e - 1, 1 - bias)
    step = np.ldexp(1.0, e - mantissa_bits)
    q = np.minimum(np.rint(magnitude / step) * step, largest)
    _, e = np.frexp(np.where(q > 0, q, 1.0))
    e = np.maximum(e - 1, 1 - bias)
    whole = np.where(q != q, 0, q / np.ldexp(1.0, e - mantissa_bits)).astype(np.int64)
    normal = whole >= 1 << mantissa_bits
    pattern = np.where(normal, ((e + bias) << mantissa_bits) | (whole & (1 << mantissa_bits) - 1), whole)
    sign = np.signbit(x).astype(np.int64) << (exponent_bits + mantissa_bits)
    nan = 0x7F if kind != "e2m1" else 0x7
    return np.where(x != x, nan, pattern | sign).astype(U8)


def from_minifloat(bits: np.ndarray, kind: str) -> np.ndarray:
    """8-bit or 4-bit patterns -> float64, exact."""
    exponent_bits, mantissa_bits, bias, _ = MINIFLOATS[kind]
    b = bits.astype(np.int64)
    if kind == "ue8m0":
        return np.where(b == 0xFF, np.nan, np.ldexp(1.0, b - bias))
    e = (b >> mantissa_bits) & (1 << exponent_bits) - 1
    m = b & (1 << mantissa_bits) - 1
    value = np.where(
        e == 0,
        np.ldexp(m.astype(np.float64), 1 - bias - mantissa_bits),
        np.ldexp(1.0 + m / (1 << mantissa_bits), e - bias),
    )
    if kind == "e4m3":
        value = np.where((e == 15) & (m == 7), np.nan, value)
    if kind == "e5m2":
        value = np.where(e == 31, np.where(m == 0, np.inf, np.nan), value)
    return np.where(b >> (exponent_bits + mantissa_bits) & 1 != 0, -value, value)


def unpack_pair(d: Decode, target: str, source: str, relu: bool) -> Run:
    """cvt.rn.f16x2.e4m3x2 and its like."""
    kind = source.removesuffix("x2")
    if kind not in MINIFLOATS:
        raise d.unsupported(f"from .{source} to .{target}")
    operand = d.ops[1]
    width = operand.bits if isinstance(operand, ptx.Reg) else 16
    a, out = d.read(operand, f"u{width}"), d.write(d.ops[0], "u16x2")
    bits = 4 if kind == "e2m1" else 8

    def run(w: Any) -> None:
        x = getattr(w, f"u{width}")[a].astype(np.int64)
        for half in (0, 1):
            v = from_minifloat((x >> bits * half) & (1 << bits) - 1, kind)
            if relu:
                v = np.where(v > 0, v, np.where(v != v, v, 0.0))
            w.to.u16x2[out][..., half] = f64_to_16(v, target.removesuffix("x2"))

    return run


def narrow_pair(d: Decode, target: str, source: str, relu: bool) -> Run:
    """cvt.rn.satfinite.e4m3x2.f16x2 and its like."""
    kind = target.removesuffix("x2")
    a, out = d.read(d.ops[1], "u16x2"), d.write(d.ops[0], "u16")

    def run(w: Any) -> None:
        x = widen16(np.ascontiguousarray(w.u16x2[a]), source.removesuffix("x2")).astype(np.float64)
        r = to_minifloat(x, kind, "rn", relu).astype(U16)
        w.to.u16[out][...] = r[..., 0] | r[..., 1] << U16(4 if kind == "e2m1" else 8)

    return run


@instruction("cvt.pack")
def cvt_pack(d: Decode) -> Run:
    """PTX ISA "cvt.pack": two integers saturated and packed, a in the upper half; smaller ones move c along."""
    d.mods.flag("sat")
    target, source = d.mods.one_of("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"), d.mods.one_of("s32")
    bits = int(target[1:])
    third = d.mods.one_of("b32", default=None)
    a, b, out = d.read(d.ops[1], source), d.read(d.ops[2], source), d.write(d.ops[0], "u32")
    c = d.read(d.ops[3], "u32") if third else None
    low, high = integer_range(target)

    def run(w: Any) -> None:
        x, y = (np.clip(w.s32[s], low, high).astype(U32) & U32((1 << bits) - 1) for s in (a, b))
        pair = x << U32(bits) | y
        w.to.u32[out][...] = pair if c is None else pair | w.u32[c] << U32(2 * bits)

    return run
