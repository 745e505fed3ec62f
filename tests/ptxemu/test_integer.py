"""Integer instructions against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxemu.testing import run_lines

DTYPE = {"16": np.uint16, "32": np.uint32, "64": np.uint64}
EDGES = {
    b: [0, 1, 2, 3, (1 << b) - 1, (1 << b) - 2, 1 << b - 1, (1 << b - 1) - 1, 0x55, 0xFF00 & (1 << b) - 1]
    for b in (16, 32, 64)
}
FEW = settings(max_examples=8, deadline=None)


def words(bits, n=32):
    return st.lists(st.one_of(st.sampled_from(EDGES[bits]), st.integers(0, (1 << bits) - 1)), min_size=n, max_size=n)


def signed(x, bits):
    return x - (1 << bits) if x >> bits - 1 else x


def as_type(x, type_):
    bits = int(type_[1:])
    return signed(x, bits) if type_[0] == "s" else x


def truncated(a, b):
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def check(opcode, type_, reference, draw, result_bits=None, operands=2, third_bits=None):
    bits = int(type_[1:])
    names = "abc"[:operands]
    widths = [bits] * operands
    if third_bits:
        widths[2] = third_bits
    columns = [draw(words(w)) for w in widths]
    result_bits = result_bits or bits
    out = run_lines(
        f"{opcode} %d, {', '.join('%' + n for n in names)};",
        {n: np.array(c, DTYPE[str(w)]) for n, c, w in zip(names, columns, widths, strict=True)},
        {"d": DTYPE[str(result_bits)]},
    )["d"]
    for i, got in enumerate(out.tolist()):
        args = [as_type(c[i], f"{type_[0]}{w}") for c, w in zip(columns, widths, strict=True)]
        want = reference(*args) & (1 << result_bits) - 1
        assert got == want, (opcode, args, hex(got), hex(want))


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: truncated(a, b) if b else -1,
    "rem": lambda a, b: a - b * truncated(a, b) if b else a,
}


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", BINARY)
@FEW
@given(data=st.data())
def test_binary(name, type_, data):
    check(f"{name}.{type_}", type_, BINARY[name], data.draw)


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
@FEW
@given(data=st.data())
def test_products(type_, data):
    bits = int(type_[1:])
    check(f"mul.hi.{type_}", type_, lambda a, b: a * b >> bits, data.draw)
    check(f"mad.lo.{type_}", type_, lambda a, b, c: a * b + c, data.draw, operands=3)
    check(f"mad.hi.{type_}", type_, lambda a, b, c: (a * b >> bits) + c, data.draw, operands=3)
    if bits < 64:
        check(f"mul.wide.{type_}", type_, lambda a, b: a * b, data.draw, result_bits=2 * bits)
        check(f"mad.wide.{type_}", type_, lambda a, b, c: a * b + c, data.draw, 2 * bits, 3, third_bits=2 * bits)


@FEW
@given(data=st.data())
def test_saturating(data):
    def clip(x):
        return max(-(1 << 31), min((1 << 31) - 1, x))

    check("add.sat.s32", "s32", lambda a, b: clip(a + b), data.draw)
    check("sub.sat.s32", "s32", lambda a, b: clip(a - b), data.draw)


@pytest.mark.parametrize("bits", [16, 32, 64])
@FEW
@given(data=st.data())
def test_logic(bits, data):
    check(f"and.b{bits}", f"b{bits}", lambda a, b: a & b, data.draw)
    check(f"or.b{bits}", f"b{bits}", lambda a, b: a | b, data.draw)
    check(f"xor.b{bits}", f"b{bits}", lambda a, b: a ^ b, data.draw)
    check(f"not.b{bits}", f"b{bits}", lambda a: ~a, data.draw, operands=1)
    check(f"cnot.b{bits}", f"b{bits}", lambda a: int(a == 0), data.draw, operands=1)
    check(f"neg.s{bits}", f"s{bits}", lambda a: -a, data.draw, operands=1)
    check(f"abs.s{bits}", f"s{bits}", abs, data.draw, operands=1)


@pytest.mark.parametrize("type_", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
@FEW
@given(data=st.data())
def test_shifts_clamp(type_, data):
    bits = int(type_[1:])
    a = data.draw(words(bits))
    n = data.draw(st.lists(st.one_of(st.integers(0, 70), st.just(0xFFFFFFFF)), min_size=32, max_size=32))
    lines = f"shr.{type_} %r, %a, %n;" + (f"shl.{type_} %l, %a, %n;" if type_[0] == "b" else f"shl.b{bits} %l, %a, %n;")
    dtype = DTYPE[str(bits)]
    out = run_lines(lines, {"a": np.array(a, dtype), "n": np.array(n, np.uint32)}, {"r": dtype, "l": dtype})
    for i in range(32):
        assert int(out["r"][i]) == as_type(a[i], type_) >> min(n[i], 64) & (1 << bits) - 1
        assert int(out["l"][i]) == (a[i] << min(n[i], 64)) & (1 << bits) - 1


@pytest.mark.parametrize("amount", [0, 1, 31, 32, 33, 200])
def test_shift_by_literal(amount):
    a = np.array([1, 0x80000000, 0xDEADBEEF, 7], np.uint32)
    lines = f"shl.b32 %l, %a, {amount}; shr.u32 %u, %a, {amount}; shr.s32 %s, %a, {amount};"
    out = run_lines(lines, {"a": a}, {"l": np.uint32, "u": np.uint32, "s": np.uint32})
    for i, x in enumerate(a.tolist()):
        assert int(out["l"][i]) == (x << amount) & 0xFFFFFFFF
        assert int(out["u"][i]) == x >> amount
        assert int(out["s"][i]) == signed(x, 32) >> amount & 0xFFFFFFFF


@FEW
@given(data=st.data())
def test_funnel_shift(data):
    a, b = data.draw(words(32)), data.draw(words(32))
    n = data.draw(st.lists(st.integers(0, 70), min_size=32, max_size=32))
    inputs = {"a": np.array(a, np.uint32), "b": np.array(b, np.uint32), "n": np.array(n, np.uint32)}
    names = [f"{d}{m[0]}" for d in "lr" for m in ("clamp", "wrap")]
    lines = "".join(f"shf.{d}.{m}.b32 %{d}{m[0]}, %a, %b, %n;" for d in "lr" for m in ("clamp", "wrap"))
    out = run_lines(lines, inputs, dict.fromkeys(names, np.uint32))
    for i in range(32):
        pair = b[i] << 32 | a[i]
        for m in "cw":
            k = min(n[i], 32) if m == "c" else n[i] & 31
            assert int(out["l" + m][i]) == (pair << k) >> 32 & 0xFFFFFFFF
            assert int(out["r" + m][i]) == pair >> k & 0xFFFFFFFF


@FEW
@given(data=st.data(), table=st.integers(0, 255))
def test_lop3(data, table):
    a, b, c = (data.draw(words(32)) for _ in range(3))
    inputs = {n: np.array(x, np.uint32) for n, x in zip("abc", (a, b, c), strict=True)}
    out = run_lines(f"lop3.b32 %d, %a, %b, %c, {table};", inputs, {"d": np.uint32})["d"]
    for i in range(32):
        want = 0
        for bit in range(32):
            row = (a[i] >> bit & 1) << 2 | (b[i] >> bit & 1) << 1 | c[i] >> bit & 1
            want |= (table >> row & 1) << bit
        assert int(out[i]) == want


@pytest.mark.parametrize("bits", [32, 64])
@FEW
@given(data=st.data())
def test_bit_counts(bits, data):
    u, s = f"u{bits}", f"s{bits}"
    check(f"popc.b{bits}", u, lambda a: bin(a).count("1"), data.draw, 32, 1)
    check(f"clz.b{bits}", u, lambda a: bits - a.bit_length(), data.draw, 32, 1)
    check(f"brev.b{bits}", u, lambda a: int(f"{a:0{bits}b}"[::-1], 2), data.draw, bits, 1)
    check(f"bfind.{u}", u, lambda a: a.bit_length() - 1, data.draw, 32, 1)
    check(f"bfind.{s}", s, lambda a: (a if a >= 0 else ~a).bit_length() - 1, data.draw, 32, 1)
    check(f"bfind.shiftamt.{u}", u, lambda a: bits - a.bit_length() if a else -1, data.draw, 32, 1)


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
@FEW
@given(data=st.data())
def test_bit_fields(type_, data):
    bits = int(type_[1:])
    a, b = data.draw(words(bits)), data.draw(words(bits))
    small = st.lists(st.integers(0, 70), min_size=32, max_size=32)
    pos, n = data.draw(small), data.draw(small)
    dtype = DTYPE[str(bits)]
    out = run_lines(
        f"bfe.{type_} %e, %a, %p, %n; bfi.b{bits} %i, %a, %b, %p, %n;",
        {"a": np.array(a, dtype), "b": np.array(b, dtype), "p": np.array(pos, np.uint32), "n": np.array(n, np.uint32)},
        {"e": dtype, "i": dtype},
    )
    for i in range(32):
        x, p, k = a[i], pos[i], n[i]
        # As the ISA writes it out, bit by bit.
        top = min(p + k - 1, bits - 1)
        sign = 0 if type_[0] == "u" or k == 0 else x >> top & 1
        extract = sum((x >> p + j & 1 if j < k and p + j < bits else sign) << j for j in range(bits))
        assert int(out["e"][i]) == extract, (type_, hex(x), p, k)
        insert = b[i]
        for j in range(k):
            if p + j < bits:
                insert = insert & ~(1 << p + j) | (x >> j & 1) << p + j
        assert int(out["i"][i]) == insert


@FEW
@given(data=st.data())
def test_carries_make_wide_sums(data):
    a, b, c, d = (data.draw(words(32)) for _ in range(4))
    inputs = {n: np.array(x, np.uint32) for n, x in zip("abcd", (a, b, c, d), strict=True)}
    lines = "add.cc.u32 %s0, %a, %b; addc.u32 %s1, %c, %d; sub.cc.u32 %t0, %a, %b; subc.u32 %t1, %c, %d;"
    out = run_lines(lines, inputs, dict.fromkeys(("s0", "s1", "t0", "t1"), np.uint32))
    for i in range(32):
        x, y = c[i] << 32 | a[i], d[i] << 32 | b[i]
        assert int(out["s1"][i]) << 32 | int(out["s0"][i]) == (x + y) & (1 << 64) - 1
        assert int(out["t1"][i]) << 32 | int(out["t0"][i]) == (x - y) & (1 << 64) - 1


@FEW
@given(data=st.data())
def test_long_multiplication_with_mad_carries(data):
    a, b, c = (data.draw(words(32)) for _ in range(3))
    inputs = {n: np.array(x, np.uint32) for n, x in zip("abc", (a, b, c), strict=True)}
    lines = "mad.lo.cc.u32 %l, %a, %b, %c; madc.hi.u32 %h, %a, %b, 0;"
    out = run_lines(lines, inputs, {"l": np.uint32, "h": np.uint32})
    for i in range(32):
        assert int(out["h"][i]) << 32 | int(out["l"][i]) == a[i] * b[i] + c[i]


@FEW
@given(data=st.data())
def test_packed_and_dot_products(data):
    a, b, c = (data.draw(words(32)) for _ in range(3))
    inputs = {n: np.array(x, np.uint32) for n, x in zip("abc", (a, b, c), strict=True)}
    lines = """add.u16x2 %s, %a, %b; min.s16x2 %m, %a, %b; max.s16x2.relu %r, %a, %b; dp4a.u32.s32 %d, %a, %b, %c;
               dp2a.hi.s32.u32 %e, %a, %b, %c; sad.s32 %f, %a, %b, %c; mul24.hi.s32 %g, %a, %b;"""
    out = run_lines(lines.replace("max.s16x2.relu", "max.relu.s16x2"), inputs, dict.fromkeys("smrdefg", np.uint32))

    def halves(x):
        return [x & 0xFFFF, x >> 16]

    def join(low, high):
        return low & 0xFFFF | (high & 0xFFFF) << 16

    def byte(x, j, is_signed):
        v = x >> 8 * j & 0xFF
        return signed(v, 8) if is_signed else v

    for i in range(32):
        x, y = halves(a[i]), halves(b[i])
        sx, sy = ([signed(v, 16) for v in p] for p in (x, y))
        assert int(out["s"][i]) == join(*(p + q for p, q in zip(x, y, strict=True)))
        assert int(out["m"][i]) == join(*(min(p, q) for p, q in zip(sx, sy, strict=True)))
        assert int(out["r"][i]) == join(*(max(p, q, 0) for p, q in zip(sx, sy, strict=True)))
        dot = sum(byte(a[i], j, False) * byte(b[i], j, True) for j in range(4)) + c[i]
        assert int(out["d"][i]) == dot & 0xFFFFFFFF
        pair = sum(sx[j] * byte(b[i], 2 + j, False) for j in range(2)) + c[i]
        assert int(out["e"][i]) == pair & 0xFFFFFFFF
        p, q = signed(a[i], 32), signed(b[i], 32)
        assert int(out["f"][i]) == (abs(p - q) + c[i]) & 0xFFFFFFFF
        product = signed(a[i] & 0xFFFFFF, 24) * signed(b[i] & 0xFFFFFF, 24)
        assert int(out["g"][i]) == product >> 16 & 0xFFFFFFFF


def test_rare_ones():
    a = np.array([0b1011_0110, 0, 0xFFFFFFFF, 0x80000001], np.uint32)
    out = run_lines(
        "fns.b32 %d, %a, 0, 3; bmsk.clamp.b32 %m, 4, 8; szext.clamp.s32 %z, %a, 8;",
        {"a": a},
        dict.fromkeys("dmz", np.uint32),
    )
    assert out["d"].tolist() == [4, 0xFFFFFFFF, 2, 0xFFFFFFFF]
    assert out["m"].tolist() == [0xFF0] * 4
    assert out["z"].view(np.int32).tolist() == [0b1011_0110 - 256, 0, -1, 1]
