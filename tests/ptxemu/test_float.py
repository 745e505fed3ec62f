"""Floating point against exact fractions, rounded by the definition of the format."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxemu.testing import run_lines

FEW = settings(max_examples=10, deadline=None)

# format -> (bits of the significand with the hidden one, smallest exponent of a normal number, largest exponent)
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}


def round_to(x: Fraction, fmt: str, mode: str) -> float:
    """An exact value -> the nearest (rn) or next (rz, rm, rp) value of the format, as a Python float. Zero stays +0."""
    precision, emin, emax = FORMATS[fmt]
    if x == 0:
        return 0.0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    quantum = Fraction(2) ** (max(exponent, emin) - precision + 1)
    steps, rest = divmod(magnitude, quantum)
    up = {
        "rn": rest > quantum / 2 or (rest == quantum / 2 and steps % 2 == 1),
        "rz": False,
        "rm": x < 0 and rest > 0,
        "rp": x > 0 and rest > 0,
    }[mode]
    result = (steps + up) * quantum
    largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** emax
    if result > largest:
        to_infinity = mode == "rn" or (mode == "rp" and x > 0) or (mode == "rm" and x < 0)
        result = math.inf if to_infinity else largest
    return float(result) if x > 0 else -float(result)


def bits32(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


SPECIAL32 = [
    0,
    1 << 31,
    1,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x80800000,
    0x3F800000,
    0xBF800000,
    0x3F800001,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x4B800000,
]
INFINITE32 = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001]
anything = st.one_of(st.sampled_from(SPECIAL32 + INFINITE32), st.integers(0, 0xFFFFFFFF))
# Numbers of like size, where sums cancel and round: exponents close together.
near = st.builds(
    lambda s, e, m: s << 31 | e << 23 | m, st.integers(0, 1), st.integers(110, 140), st.integers(0, 0x7FFFFF)
)
tiny = st.builds(lambda s, e, m: s << 31 | e << 23 | m, st.integers(0, 1), st.integers(0, 30), st.integers(0, 0x7FFFFF))
middle = st.builds(
    lambda s, e, m: s << 31 | e << 23 | m, st.integers(0, 1), st.integers(60, 70), st.integers(0, 0x7FFFFF)
)
value = st.one_of(anything, near, tiny, middle)


def column(draw, strategy=value, n=64):
    return draw(st.lists(strategy, min_size=n, max_size=n))


def flush(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def expected32(op: str, mode: str, args: list[int], ftz: bool = False) -> int:
    """The bit pattern that PTX defines for add, sub, mul, fma of float32."""
    if ftz:
        args = [flush(a) for a in args]
    x = [f32(a) for a in args]
    if op == "sub":
        x[1] = -x[1] if not math.isnan(x[1]) else x[1]
    if not all(map(math.isfinite, x)):
        with np.errstate(all="ignore"):
            r = {"mul": lambda: x[0] * x[1], "fma": lambda: x[0] * x[1] + x[2]}.get(op, lambda: x[0] + x[1])()
        return 0x7FFFFFFF if math.isnan(r) else bits32(r)
    product = Fraction(x[0]) * Fraction(x[1])
    exact = product + Fraction(x[2]) if op == "fma" else product if op == "mul" else Fraction(x[0]) + Fraction(x[1])
    if exact == 0:
        if op == "mul":
            negative = math.copysign(1, x[0]) != math.copysign(1, x[1])
        else:
            first = math.copysign(1, x[0]) * math.copysign(1, x[1]) if op == "fma" else math.copysign(1, x[0])
            second = math.copysign(1, x[2] if op == "fma" else x[1])
            negative = (first < 0 and second < 0) or (mode == "rm" and not (first > 0 and second > 0))
            if (op == "fma" and product != 0) or (op != "fma" and x[0] != 0):
                negative = mode == "rm"
        return 0x80000000 if negative else 0
    r = bits32(round_to(exact, "f32", mode))
    if r & 0x7FFFFFFF == 0:  # rounded to zero: the sign of the exact value
        r = 0x80000000 if exact < 0 else 0
    return flush(r) if ftz else r


@pytest.mark.parametrize("ftz", [False, True])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
@FEW
@given(data=st.data())
def test_arithmetic_rounds_once(op, mode, ftz, data):
    count = 3 if op == "fma" else 2
    args = [column(data.draw) for _ in range(count)]
    if op == "fma":  # make the third term cancel or tie with the product now and then
        for i in range(0, 64, 4):
            p = f32(args[0][i]) * f32(args[1][i])
            if math.isfinite(p) and abs(p) < 3e38:
                args[2][i] = bits32(-p)
    names = "abc"[:count]
    suffix = f".{mode}{'.ftz' if ftz else ''}.f32"
    out = run_lines(
        f"{op}{suffix} %d, {', '.join('%' + n for n in names)};",
        {n: np.array(c, np.uint32) for n, c in zip(names, args, strict=True)},
        {"d": np.uint32},
    )["d"]
    for i, got in enumerate(out.tolist()):
        row = [c[i] for c in args]
        assert got == expected32(op, mode, row, ftz), (op, mode, list(map(hex, row)), hex(got))


def test_fma_is_not_two_roundings_of_float64():
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 is a tie in float32; the third operand decides it, but is lost in a float64 sum.
    x = np.full(4, 1 + 2.0**-12, np.float32)
    c = np.array([2.0**-80, -(2.0**-80), 0, 2.0**-149], np.float32)
    out = run_lines("fma.rn.f32 %d, %a, %a, %c;", {"a": x, "c": c}, {"d": np.float32})["d"]
    low, high = 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-23
    assert out.tolist() == [high, low, low, high]


@pytest.mark.parametrize("mode", ["rn", "rm", "rz", "rp"])
@FEW
@given(data=st.data())
def test_packed_f32x2_is_two_f32(mode, data):
    args = [column(data.draw) for _ in range(6)]
    packs = [
        np.array(lo, np.uint64) | np.array(hi, np.uint64) << np.uint64(32)
        for lo, hi in zip(args[:3], args[3:], strict=True)
    ]
    inputs = dict(zip("abc", packs, strict=True))
    lines = f"fma.{mode}.ftz.f32x2 %f, %a, %b, %c; add.{mode}.f32x2 %s, %a, %b; mul.{mode}.f32x2 %m, %a, %b;"
    out = run_lines(lines, inputs, dict.fromkeys("fsm", np.uint64))
    for i in range(64):
        for half in (0, 1):
            a, b, c = (args[3 * half + j][i] for j in range(3))
            assert int(out["f"][i]) >> 32 * half & 0xFFFFFFFF == expected32("fma", mode, [a, b, c], True)
            assert int(out["s"][i]) >> 32 * half & 0xFFFFFFFF == expected32("add", mode, [a, b])
            assert int(out["m"][i]) >> 32 * half & 0xFFFFFFFF == expected32("mul", mode, [a, b])


def half_value(bits: int, kind: str) -> float:
    return float(np.uint16(bits).view(np.float16)) if kind == "f16" else f32(bits << 16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@FEW
@given(data=st.data())
def test_half_precision(kind, data):
    args = [column(data.draw, st.integers(0, 0xFFFF)) for _ in range(3)]
    inputs = {n: np.array(c, np.uint16) for n, c in zip("abc", args, strict=True)}
    lines = f"add.{kind} %s, %a, %b; mul.{kind} %m, %a, %b; fma.rn.{kind} %f, %a, %b, %c; sub.{kind} %t, %a, %b;"
    out = run_lines(lines, inputs, dict.fromkeys("smft", np.uint16))
    for i in range(64):
        x, y, z = (half_value(c[i], kind) for c in args)
        for name, exact in (
            ("s", lambda x, y, z: Fraction(x) + Fraction(y)),
            ("m", lambda x, y, z: Fraction(x) * Fraction(y)),
            ("f", lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z)),
            ("t", lambda x, y, z: Fraction(x) - Fraction(y)),
        ):
            got = half_value(int(out[name][i]), kind)
            if all(map(math.isfinite, (x, y, z) if name == "f" else (x, y))):
                want = round_to(exact(x, y, z), kind, "rn")
                assert got == want, (name, x, y, z, got, want)
            elif name == "s":
                want = x + y
                assert (math.isnan(got) and math.isnan(want)) or got == want
                if math.isnan(want):
                    assert int(out[name][i]) == 0x7FFF


@FEW
@given(data=st.data())
def test_f64_fma_and_directed(data):
    floats = st.floats(allow_nan=False, allow_infinity=False)
    a, b, c = (np.array(data.draw(st.lists(floats, min_size=16, max_size=16))) for _ in range(3))
    lines = "fma.rn.f64 %f, %a, %b, %c; add.rz.f64 %z, %a, %b; mul.rp.f64 %p, %a, %b; add.rm.f64 %m, %a, %b;"
    out = run_lines(lines, {"a": a, "b": b, "c": c}, dict.fromkeys("fzpm", np.float64))
    for i in range(16):
        x, y, z = Fraction(a[i]), Fraction(b[i]), Fraction(c[i])
        assert out["f"][i] == round_to(x * y + z, "f64", "rn")
        assert out["z"][i] == round_to(x + y, "f64", "rz")
        assert out["p"][i] == round_to(x * y, "f64", "rp")
        assert out["m"][i] == round_to(x + y, "f64", "rm")


def order32(bits: int) -> tuple:
    return (f32(bits), 0 if bits >> 31 else 1)


@pytest.mark.parametrize("op", ["min", "max"])
@FEW
@given(data=st.data())
def test_min_max(op, data):
    a, b, c = (column(data.draw) for _ in range(3))
    inputs = {n: np.array(x, np.uint32) for n, x in zip("abc", (a, b, c), strict=True)}
    lines = f"""{op}.f32 %p, %a, %b; {op}.NaN.f32 %n, %a, %b; {op}.f32 %t, %a, %b, %c; {op}.xorsign.abs.f32 %x, %a, %b;
                {op}.ftz.f32 %z, %a, %b; {op}.NaN.f32 %u, %a, %b, %c;"""
    out = run_lines(lines, inputs, dict.fromkeys("pntxzu", np.uint32))
    pick = max if op == "max" else min

    def ordered(values):
        numbers = [v for v in values if not math.isnan(f32(v))]
        return pick(numbers, key=order32) if numbers else 0x7FFFFFFF

    for i in range(64):
        two, three = [a[i], b[i]], [a[i], b[i], c[i]]
        assert int(out["p"][i]) == ordered(two)
        assert int(out["t"][i]) == ordered(three)
        assert int(out["n"][i]) == (0x7FFFFFFF if any(math.isnan(f32(v)) for v in two) else ordered(two))
        assert int(out["u"][i]) == (0x7FFFFFFF if any(math.isnan(f32(v)) for v in three) else ordered(three))
        assert int(out["z"][i]) == ordered([flush(v) for v in two])
        sign = (a[i] ^ b[i]) & 0x80000000
        absolute = ordered([v & 0x7FFFFFFF for v in two])
        want = absolute if math.isnan(f32(absolute)) else absolute | sign
        assert int(out["x"][i]) == want


COMPARE = {"eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y}
COMPARE |= {"gt": lambda x, y: x > y, "ge": lambda x, y: x >= y}


@FEW
@given(data=st.data())
def test_setp_float(data):
    a, b = column(data.draw), column(data.draw)
    b = [x if i % 3 else y for i, (x, y) in enumerate(zip(b, a, strict=True))]
    names = [*COMPARE, *(f"{n}u" for n in COMPARE), "num", "nan"]
    lines = "".join(f"setp.{n}.f32 %{n}, %a, %b;" for n in names)
    out = run_lines(lines, {"a": np.array(a, np.uint32), "b": np.array(b, np.uint32)}, dict.fromkeys(names, np.bool_))
    for i in range(64):
        x, y = f32(a[i]), f32(b[i])
        unordered = math.isnan(x) or math.isnan(y)
        for n, f in COMPARE.items():
            assert bool(out[n][i]) == (not unordered and f(x, y)), (n, x, y)
            assert bool(out[n + "u"][i]) == (unordered or f(x, y)), (n, x, y)
        assert bool(out["num"][i]) == (not unordered)
        assert bool(out["nan"][i]) == unordered


@FEW
@given(data=st.data())
def test_setp_integer_forms(data):
    a, b = (np.array(column(data.draw, st.integers(0, 0xFFFFFFFF)), np.uint32) for _ in range(2))
    b[::3] = a[::3]
    q = np.array(data.draw(st.lists(st.booleans(), min_size=64, max_size=64)))
    lines = """.reg .pred %x; setp.lt.s32 %s, %a, %b; setp.hi.u32 %u, %a, %b; setp.ge.and.s32 %g|%h, %a, %b, %q;
        setp.eq.xor.b32 %e, %a, %b, !%q;
               set.le.u32.u32 %i, %a, %b; set.gt.f32.s32 %f, %a, %b;"""
    outputs = {
        "s": np.bool_,
        "u": np.bool_,
        "g": np.bool_,
        "h": np.bool_,
        "e": np.bool_,
        "i": np.uint32,
        "f": np.float32,
    }
    out = run_lines(lines, {"a": a, "b": b, "q": q}, outputs)
    sa, sb = a.view(np.int32), b.view(np.int32)
    assert np.array_equal(out["s"], sa < sb)
    assert np.array_equal(out["u"], a > b)
    assert np.array_equal(out["g"], (sa >= sb) & q)
    assert np.array_equal(out["h"], ~(sa >= sb) & q)
    assert np.array_equal(out["e"], (a == b) ^ ~q)
    assert np.array_equal(out["i"], np.where(a <= b, 0xFFFFFFFF, 0))
    assert np.array_equal(out["f"], np.where(sa > sb, 1.0, 0.0))


ERRORS = {  # what the ISA allows, as a relative error, on an interval without surprises
    "ex2.approx.ftz.f32": (np.exp2, -100, 100, 2.0**-21),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, 0.001, 1000, 2.0**-22),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), 0.001, 1000, 2.0**-22),
    "sqrt.approx.f32": (np.sqrt, 0.001, 1000, 2.0**-22),
    "lg2.approx.f32": (np.log2, 3, 1000, 2.0**-22),
    "tanh.approx.f32": (np.tanh, -4, 4, 2.0**-10),
    "sin.approx.f32": (np.sin, 0.5, 2.5, 2.0**-20),
    "cos.approx.f32": (np.cos, -1, 1, 2.0**-20),
}


@pytest.mark.parametrize("opcode", ERRORS)
def test_approximations(opcode):
    function, low, high, allowed = ERRORS[opcode]
    x = np.random.default_rng(3).uniform(low, high, 256).astype(np.float32)
    got = run_lines(f"{opcode} %d, %a;", {"a": x}, {"d": np.float32})["d"].astype(np.float64)
    want = function(x.astype(np.float64))
    assert np.max(np.abs(got / want - 1)) <= allowed


def test_special_values_of_functions():
    x = np.array([-np.inf, np.inf, -0.0, 0.0, 1.0, np.nan, 1e-40], np.float32)
    lines = (
        "ex2.approx.ftz.f32 %e, %a; rcp.approx.ftz.f32 %r, %a; lg2.approx.ftz.f32 %l, %a; "
        "rsqrt.approx.ftz.f32 %q, %a; rcp.rn.f32 %n, %a;"
    )
    out = run_lines(lines, {"a": x}, dict.fromkeys("erlqn", np.float32))
    assert out["e"].tolist()[:5] == [0.0, np.inf, 1.0, 1.0, 2.0] and out["e"][6] == 1.0
    assert out["r"].tolist()[:5] == [-0.0, 0.0, -np.inf, np.inf, 1.0] and out["r"][6] == np.inf
    assert math.copysign(1, out["r"][0]) < 0
    assert out["l"].tolist()[1:5] == [np.inf, -np.inf, -np.inf, 0.0] and out["l"][6] == -np.inf
    assert out["q"].tolist()[1:5] == [0.0, -np.inf, np.inf, 1.0]
    for name in "erlqn":
        assert out[name].view(np.uint32)[5] == 0x7FFFFFFF
    assert out["l"].view(np.uint32)[0] == 0x7FFFFFFF


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@FEW
@given(data=st.data())
def test_div_and_rcp_round(mode, data):
    a, b = column(data.draw, near, 32), column(data.draw, near, 32)
    inputs = {"a": np.array(a, np.uint32), "b": np.array(b, np.uint32)}
    out = run_lines(f"div.{mode}.f32 %d, %a, %b; rcp.{mode}.f32 %r, %b;", inputs, {"d": np.float32, "r": np.float32})
    for i in range(32):
        x, y = Fraction(f32(a[i])), Fraction(f32(b[i]))
        assert float(out["d"][i]) == round_to(x / y, "f32", mode)
        assert float(out["r"][i]) == round_to(1 / y, "f32", mode)


@FEW
@given(data=st.data())
def test_signs_copysign_saturate(data):
    a, b = (np.array(column(data.draw), np.uint32) for _ in range(2))
    lines = (
        "neg.f32 %n, %a; abs.f32 %m, %a; copysign.f32 %c, %a, %b; neg.bf16x2 %h, %a; "
        "add.sat.f32 %s, %a, %b; abs.ftz.f32 %z, %a;"
    )
    out = run_lines(lines, {"a": a, "b": b}, dict.fromkeys("nmchsz", np.uint32))
    assert np.array_equal(out["n"], a ^ 0x80000000)
    assert np.array_equal(out["m"], a & 0x7FFFFFFF)
    assert np.array_equal(out["c"], (a & 0x80000000) | (b & 0x7FFFFFFF))
    assert np.array_equal(out["h"], a ^ 0x80008000)
    assert out["z"].tolist() == [flush(int(x)) & 0x7FFFFFFF for x in a]
    for i in range(64):
        total = f32(expected32("add", "rn", [int(a[i]), int(b[i])]))
        want = 0.0 if math.isnan(total) else min(max(total, 0.0), 1.0)
        assert f32(int(out["s"][i])) == want
