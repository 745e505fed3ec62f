"""cvt against exact fractions and against NumPy's own conversions."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxemu.testing import run_lines

FEW = settings(max_examples=10, deadline=None)
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127)}


def f32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def half(bits, kind):
    return float(np.uint16(bits).view(np.float16)) if kind == "f16" else f32(int(bits) << 16)


def nearest(x: float, kind: str, mode: str) -> float:
    """The value of a narrow format that an exact value rounds to, found by looking at its neighbours."""
    precision, emin, emax = FORMATS[kind]
    exact = Fraction(x)
    if exact == 0:
        return x
    e = max(math.frexp(x)[1] - 1, emin)
    quantum = Fraction(2) ** (e - precision + 1)
    below = exact // quantum * quantum
    above = below if below == exact else below + quantum
    if mode == "rz":
        result = below if x > 0 else above
    else:
        low, high = exact - below, above - exact
        result = below if low < high or (low == high and (below / quantum) % 2 == 0) else above
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** emax
    if abs(result) > largest:
        return math.copysign(math.inf if mode == "rn" else float(largest), x)
    return math.copysign(float(result), x)


def compose(sign, exponent, mantissa):
    return sign << 31 | exponent << 23 | mantissa


words = st.lists(
    st.one_of(
        st.integers(0, 0xFFFFFFFF),
        st.sampled_from(
            [
                0,
                0x80000000,
                0x3F808000,
                0x3F818000,
                0x7F7FFFFF,
                0x477FF000,
                0x477FEFFF,
                0x33000000,
                0x33000001,
                0x7F800000,
                0xFF800000,
            ]
        ),
        st.builds(compose, st.integers(0, 1), st.integers(95, 145), st.integers(0, 0x7FFFFF)),
        st.builds(compose, st.integers(0, 1), st.integers(95, 145), st.integers(0, 0x7FF).map(lambda m: m << 12)),
    ),
    min_size=64,
    max_size=64,
)


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@FEW
@given(a=words, b=words)
def test_to_half(kind, mode, a, b):
    lines = (
        f"cvt.{mode}.{kind}x2.f32 %p, %a, %b; cvt.{mode}.{kind}.f32 %s, %a; cvt.{mode}.relu.{kind}x2.f32 %r, %a, %b;"
    )
    out = run_lines(
        lines,
        {"a": np.array(a, np.uint32), "b": np.array(b, np.uint32)},
        {"p": np.uint32, "s": np.uint16, "r": np.uint32},
    )
    for i in range(64):
        for source, bits in (
            (b[i], int(out["p"][i]) & 0xFFFF),
            (a[i], int(out["p"][i]) >> 16),
            (a[i], int(out["s"][i])),
        ):
            x = f32(source)
            if math.isnan(x):
                assert bits == 0x7FFF
            else:
                want = x if math.isinf(x) else nearest(x, kind, mode)
                got = half(bits, kind)
                assert got == want and math.copysign(1, got) == math.copysign(1, want), (x, got, want)
        low = f32(b[i])
        relu = half(int(out["r"][i]) & 0xFFFF, kind)
        if math.isnan(low):
            assert math.isnan(relu)
        else:
            assert relu == max(low if math.isinf(low) else nearest(low, kind, mode), 0.0)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_from_half_is_exact(kind):
    every = np.arange(0, 0x10000, 67, dtype=np.uint16)[:960]
    out = run_lines(f"cvt.f32.{kind} %d, %a;", {"a": every}, {"d": np.float32})["d"]
    for bits, got in zip(every.tolist(), out.tolist(), strict=True):
        want = half(bits, kind)
        assert got == want or (math.isnan(got) and math.isnan(want))


@FEW
@given(a=words)
def test_to_integers(a):
    names = {f"{m}{t}": (m, t) for m in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32", "s64", "u64", "s16", "u8")}
    lines = "".join(f"cvt.{m}.{t}.f32 %{n}, %a;" for n, (m, t) in names.items())
    dtypes = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "s16": np.int16, "u8": np.uint16}
    out = run_lines(lines, {"a": np.array(a, np.uint32)}, {n: dtypes[t] for n, (_, t) in names.items()})
    rounders = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for i in range(64):
        x = f32(a[i])
        for n, (m, t) in names.items():
            bits = int(t[1:])
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)
            if math.isnan(x):
                want = 0 if bits < 64 else (1 << 63 if t == "u64" else -(1 << 63))
            elif math.isinf(x):
                want = high if x > 0 else low
            else:
                want = min(max(rounders[m](x), low), high)
            assert int(out[n][i]) == want, (n, x)


@FEW
@given(a=st.lists(st.integers(0, (1 << 64) - 1), min_size=64, max_size=64))
def test_between_integers(a):
    a = np.array(a, np.uint64)
    lines = """cvt.u32.u64 %lo, %a; cvt.s64.s32 %se, %lo; cvt.u64.u32 %ze, %lo; cvt.s32.s8 %b, %lo; cvt.u32.u16 %h, %lo;
               cvt.sat.s16.s64 %c, %a; cvt.sat.u8.s32 %d, %lo;"""
    outputs = {
        "lo": np.uint32,
        "se": np.int64,
        "ze": np.uint64,
        "b": np.int32,
        "h": np.uint32,
        "c": np.int16,
        "d": np.uint16,
    }
    out = run_lines(lines, {"a": a}, outputs)
    lo = a.astype(np.uint32)
    assert np.array_equal(out["lo"], lo)
    assert np.array_equal(out["se"], lo.view(np.int32).astype(np.int64))
    assert np.array_equal(out["ze"], lo.astype(np.uint64))
    assert np.array_equal(out["b"], lo.astype(np.uint8).view(np.int8).astype(np.int32))
    assert np.array_equal(out["h"], lo & 0xFFFF)
    assert np.array_equal(out["c"], np.clip(a.view(np.int64), -32768, 32767).astype(np.int16))
    assert np.array_equal(out["d"], np.clip(lo.view(np.int32), 0, 255).astype(np.uint16))


@FEW
@given(a=st.lists(st.integers(0, (1 << 64) - 1), min_size=64, max_size=64))
def test_from_integers(a):
    a = np.array(a, np.uint64)
    lines = (
        ".reg .b32 %w; cvt.u32.u64 %w, %a; cvt.rn.f32.s32 %s, %w; cvt.rn.f32.u32 %u, %w; "
        "cvt.rz.f32.u32 %z, %w; cvt.rn.f32.u64 %l, %a; cvt.rn.f64.s64 %d, %a; cvt.rn.f16.s64 %h, %a; "
        "cvt.rn.bf16.u64 %b, %a;"
    )
    outputs = {
        "s": np.float32,
        "u": np.float32,
        "z": np.float32,
        "l": np.float32,
        "d": np.float64,
        "h": np.uint16,
        "b": np.uint16,
    }
    out = run_lines(lines, {"a": a}, outputs)
    w = a.astype(np.uint32)
    assert np.array_equal(out["s"], w.view(np.int32).astype(np.float32))
    assert np.array_equal(out["u"], w.astype(np.float32))
    assert np.array_equal(out["l"], a.astype(np.float32))
    assert np.array_equal(out["d"], a.view(np.int64).astype(np.float64))
    for i in range(64):
        z = int(w[i])
        shift = max(z.bit_length() - 24, 0)
        assert float(out["z"][i]) == z >> shift << shift
        signed = int(a.view(np.int64)[i])
        assert half(out["h"][i], "f16") == (0 if signed == 0 else nearest_int(signed, "f16"))
        assert half(out["b"][i], "bf16") == (0 if not int(a[i]) else nearest_int(int(a[i]), "bf16"))


def nearest_int(n: int, kind: str) -> float:
    precision, _, emax = FORMATS[kind]
    quantum = 1 << max(abs(n).bit_length() - precision, 0)
    q, r = divmod(abs(n), quantum)
    q += r * 2 > quantum or (r * 2 == quantum and q % 2)
    result = q * quantum
    return math.copysign(math.inf if result >= 1 << emax + 1 else float(result), n)


def test_f64_and_integral():
    x = np.array([1.5, 2.5, -0.5, 1e300, 1 + 2.0**-30, 2.0**-140, -3.7, np.nan])
    lines = (
        "cvt.rn.f32.f64 %n, %a; cvt.rp.f32.f64 %p, %a; cvt.f64.f32 %b, %n; cvt.rni.f32.f32 %i, %n; "
        "cvt.sat.f32.f32 %s, %n;"
    )
    out = run_lines(
        lines, {"a": x}, {"n": np.float32, "p": np.float32, "b": np.float64, "i": np.float32, "s": np.float32}
    )
    with np.errstate(over="ignore"):
        n = x.astype(np.float32)
    assert np.array_equal(out["n"], n, equal_nan=True)
    assert float(out["p"][4]) == float(np.nextafter(np.float32(1), np.float32(2)))
    assert np.array_equal(out["b"], n.astype(np.float64), equal_nan=True)
    assert np.array_equal(out["i"], np.rint(n), equal_nan=True)
    assert out["s"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, float(n[5]), 0.0, 0.0]


def minifloat(bits, exponent_bits, mantissa_bits, bias, kind):
    sign = -1 if bits >> (exponent_bits + mantissa_bits) & 1 else 1
    e, m = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    if kind == "e4m3" and e == 15 and m == 7:
        return math.nan
    if kind == "e5m2" and e == 31:
        return math.nan if m else sign * math.inf
    return sign * (
        m * 2.0 ** (1 - bias - mantissa_bits) if e == 0 else (1 + m / (1 << mantissa_bits)) * 2.0 ** (e - bias)
    )


@pytest.mark.parametrize("kind, form", [("e4m3", (4, 3, 7)), ("e5m2", (5, 2, 15))])
def test_fp8(kind, form):
    every = np.arange(256, dtype=np.uint16)
    pairs = every | (255 - every) << 8
    out = run_lines(f"cvt.rn.f16x2.{kind}x2 %d, %a;", {"a": pairs}, {"d": np.uint32})["d"]
    values = [minifloat(i, *form, kind) for i in range(256)]
    for i in range(256):
        for bits, want in ((int(out[i]) & 0xFFFF, values[i]), (int(out[i]) >> 16, values[255 - i])):
            got = half(bits, "f16")
            assert got == want or (math.isnan(got) and math.isnan(want))
    x = np.concatenate(
        [np.random.default_rng(0).normal(0, 30, 200), [0.0, -0.0, 1e6, -1e6, np.nan, 2.0**-9, 2.0**-10, 3 * 2.0**-11]]
    ).astype(np.float32)
    out = run_lines(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", {"a": x, "b": -x}, {"d": np.uint16})["d"]
    finite = sorted({v for v in values if math.isfinite(v)})
    for i, got in enumerate(out.tolist()):
        for bits, y in ((got >> 8, float(x[i])), (got & 0xFF, -float(x[i]))):
            v = minifloat(bits, *form, kind)
            if math.isnan(y):
                assert math.isnan(v)
            else:
                closest = min(abs(f - y) for f in finite)
                assert abs(v - y) == closest and math.copysign(1, v) == math.copysign(1, y)


def test_tf32():
    a = np.array([0x3F801000, 0x3F800FFF, 0x3F803000, 0x7F7FFFFF, 0x7F800000], np.uint32)
    out = run_lines(
        "cvt.rna.tf32.f32 %n, %a; cvt.rn.tf32.f32 %e, %a; cvt.rz.tf32.f32 %z, %a;",
        {"a": a},
        dict.fromkeys("nez", np.uint32),
    )
    assert out["n"].tolist() == [0x3F802000, 0x3F800000, 0x3F804000, 0x7F800000, 0x7F800000]
    assert out["e"].tolist() == [0x3F800000, 0x3F800000, 0x3F804000, 0x7F800000, 0x7F800000]
    assert out["z"].tolist() == [0x3F800000, 0x3F800000, 0x3F802000, 0x7F7FE000, 0x7F800000]
