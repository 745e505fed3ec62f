"""Integer arithmetic, logic and shifts: PTX ISA "Integer Arithmetic Instructions", "Extended-Precision", "Logic and
Shift Instructions"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from . import Decode, instruction
from .common import simple, ufunc_run

U32, U64, S32 = np.uint32, np.uint64, np.int32
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
Run = Callable[[Any], None]


def unsigned(type_: str) -> str:
    """The unsigned view of a type: two's complement wraps the same."""
    return "u" + type_[1:]


def _floats(d: Decode) -> Run | None:
    """add, sub, mul, ... are one opcode for integers and floating point: hand over to the family that the type
    names.
    """
    from . import float as floats

    return floats.dispatch(d)


def _carry(d: Decode) -> int:
    """The condition code register CC.CF, one for each thread."""
    return d.program.hidden(1, "CC.CF")


@instruction("add", "sub", "addc", "subc")
def add(d: Decode) -> Run:
    """PTX ISA "add", "sub" (also .sat.s32, .u16x2, .s16x2), "add.cc", "addc", "sub.cc", "subc"."""
    subtract, use_carry = d.name.startswith("sub"), d.name.endswith("c")
    if not use_carry:
        handed = _floats(d)
        if handed is not None:
            return handed
    sat, set_carry = d.mods.flag("sat"), d.mods.flag("cc")
    packed = d.mods.one_of("u16x2", "s16x2", default=None)
    function = np.subtract if subtract else np.add
    if packed:
        return simple(d, function, "u16x2")
    type_ = d.mods.one_of(*INTEGERS)
    view = unsigned(type_)
    if sat:
        if type_ != "s32":
            raise d.unsupported(".sat is for .s32 only")
        a, b, out = d.read(d.ops[1], "s32"), d.read(d.ops[2], "s32"), d.write(d.ops[0], "s32")

        def run_sat(w: Any) -> None:
            wide = function(w.s32[a].astype(np.int64), w.s32[b].astype(np.int64))
            w.to.s32[out][...] = np.clip(wide, -(1 << 31), (1 << 31) - 1)

        return run_sat
    if not set_carry and not use_carry:
        return simple(d, function, view)
    a, b, out, flag = d.read(d.ops[1], view), d.read(d.ops[2], view), d.write(d.ops[0], view), _carry(d)
    if set_carry:
        d.writes.append((1, flag))
    dtype = np.uint32 if view == "u32" else np.uint64

    def run(w: Any) -> None:
        x, y = getattr(w, view)[a].copy(), getattr(w, view)[b].copy()
        carry = w.pred[flag].astype(dtype) if use_carry else dtype(0)
        if subtract:
            partial = x - y
            result = partial - carry
            overflow = (x < y) | (partial < carry)
        else:
            partial = x + y
            result = partial + carry
            overflow = (partial < x) | (result < partial)
        getattr(w.to, view)[out][...] = result
        if set_carry:
            w.to.pred[flag][...] = overflow

    return run


def product(type_: str, part: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The low, high or whole product of two integers."""
    bits, signed = int(type_[1:]), type_[0] == "s"
    if part == "lo":
        return np.multiply
    wider = np.dtype(f"{'i' if signed else 'u'}{min(bits // 4, 8)}")
    if bits < 64:

        def narrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            whole = x.astype(wider) * y
            return whole if part == "wide" else whole >> wider.type(bits)

        return narrow

    def high64(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = x.view(U64), y.view(U64)
        mask, shift = U64(0xFFFFFFFF), U64(32)
        a0, a1, b0, b1 = a & mask, a >> shift, b & mask, b >> shift
        middle = a1 * b0 + (a0 * b0 >> shift)
        other = a0 * b1 + (middle & mask)
        high = a1 * b1 + (middle >> shift) + (other >> shift)
        if signed:
            high = high - np.where(x < 0, b, U64(0)) - np.where(y < 0, a, U64(0))
        return high.view(x.dtype)

    if part == "wide":
        raise ValueError("there is no mul.wide of 64 bits")
    return high64


@instruction("mul", "mad", "madc")
def mul(d: Decode) -> Run:
    """PTX ISA "mul", "mad" (.lo .hi .wide), "mad.cc", "madc"."""
    handed = _floats(d) if d.name != "madc" else None
    if handed is not None:
        return handed
    part = d.mods.one_of("lo", "hi", "wide")
    sat, set_carry, use_carry = d.mods.flag("sat"), d.mods.flag("cc"), d.name == "madc"
    type_ = d.mods.one_of(*INTEGERS)
    a, b = d.read(d.ops[1], type_), d.read(d.ops[2], type_)
    result_type = f"{type_[0]}{2 * int(type_[1:])}" if part == "wide" else type_
    multiply = product(type_, part)
    if d.name == "mul":
        out = d.write(d.ops[0], result_type)
        if part == "lo":
            return ufunc_run(np.multiply, unsigned(type_), [a, b], out)

        def run_mul(w: Any) -> None:
            source = getattr(w, type_)
            getattr(w.to, result_type)[out][...] = multiply(source[a], source[b])

        return run_mul
    wrap = unsigned(result_type)
    c, out = d.read(d.ops[3], result_type), d.write(d.ops[0], result_type)
    if sat:
        if type_ != "s32" or part != "hi":
            raise d.unsupported(".sat is for .hi.s32 only")

        def run_sat(w: Any) -> None:
            total = multiply(w.s32[a], w.s32[b]) + w.s32[c].astype(np.int64)
            w.to.s32[out][...] = np.clip(total, -(1 << 31), (1 << 31) - 1)

        return run_sat
    if not set_carry and not use_carry:

        def run_mad(w: Any) -> None:
            source = getattr(w, type_)
            whole = multiply(source[a], source[b])
            np.add(
                whole.astype(getattr(w, result_type)[c].dtype, copy=False).view(getattr(w, wrap)[c].dtype),
                getattr(w, wrap)[c],
                getattr(w.to, wrap)[out],
            )

        return run_mad
    flag = _carry(d)
    if set_carry:
        d.writes.append((1, flag))

    def run(w: Any) -> None:
        source = getattr(w, type_)
        addend = getattr(w, wrap)[c].copy()
        whole = multiply(source[a], source[b]).astype(getattr(w, result_type)[c].dtype, copy=False).view(addend.dtype)
        carry = w.pred[flag].astype(addend.dtype) if use_carry else addend.dtype.type(0)
        partial = whole + addend
        result = partial + carry
        getattr(w.to, wrap)[out][...] = result
        if set_carry:
            w.to.pred[flag][...] = (partial < whole) | (result < partial)

    return run


@instruction("mul24", "mad24")
def mul24(d: Decode) -> Run:
    """PTX ISA "mul24", "mad24": 24-bit factors, the low or high 32 bits of the 48-bit product."""
    part, type_ = d.mods.one_of("lo", "hi"), d.mods.one_of("u32", "s32")
    a, b, out = d.read(d.ops[1], type_), d.read(d.ops[2], type_), d.write(d.ops[0], "u32")
    c = d.read(d.ops[3], "u32") if d.name == "mad24" else None
    shift = 0 if part == "lo" else 16

    def low24(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.int64) & 0xFFFFFF
        return np.where(x & 0x800000, x - 0x1000000, x) if type_ == "s32" else x

    def run(w: Any) -> None:
        r = ((low24(getattr(w, type_)[a]) * low24(getattr(w, type_)[b])) >> shift).astype(U32)
        w.to.u32[out][...] = r if c is None else r + w.u32[c]

    return run


@instruction("div", "rem")
def div(d: Decode) -> Run:
    """PTX ISA "div", "rem" of integers: truncated; dividing by zero is unspecified (here as on the hardware: all
    ones; rem: the dividend).
    """
    if d.name == "div":
        handed = _floats(d)
        if handed is not None:
            return handed
    type_ = d.mods.one_of(*INTEGERS)
    a, b, out = d.read(d.ops[1], type_), d.read(d.ops[2], type_), d.write(d.ops[0], type_)
    quotient = d.name == "div"

    def run(w: Any) -> None:
        x, y = getattr(w, type_)[a], getattr(w, type_)[b]
        zero = y == 0
        if type_[0] == "u":
            safe = np.where(zero, y.dtype.type(1), y)
            q = x // safe
        else:
            safe = np.where(zero | (y == -1), y.dtype.type(1), y)
            q = x // safe
            q = q + ((q < 0) & (q * safe != x))
            q = np.where(y == -1, -x, q)
        r = np.where(zero, ~y.dtype.type(0), q) if quotient else np.where(zero, x, x - q * y)
        getattr(w.to, type_)[out][...] = r

    return run


@instruction("abs", "neg", "min", "max")
def unary(d: Decode) -> Run:
    """PTX ISA "abs", "neg", "min", "max" of integers (min, max also .relu, .u16x2, .s16x2)."""
    handed = _floats(d)
    if handed is not None:
        return handed
    relu = d.mods.flag("relu")
    packed = d.mods.one_of("u16x2", "s16x2", default=None)
    if d.name == "neg":
        return simple(d, np.negative, unsigned(d.mods.one_of("s16", "s32", "s64")))
    if d.name == "abs":
        return simple(d, np.abs, d.mods.one_of("s16", "s32", "s64"))
    function = np.minimum if d.name == "min" else np.maximum
    if packed:
        dtype = np.uint16 if packed == "u16x2" else np.int16
        a, b, out = d.read(d.ops[1], "u16x2"), d.read(d.ops[2], "u16x2"), d.write(d.ops[0], "u16x2")

        def run_packed(w: Any) -> None:
            r = function(w.u16x2[a].view(dtype), w.u16x2[b].view(dtype))
            w.to.u16x2[out][...] = (np.maximum(r, 0) if relu else r).view(np.uint16)

        return run_packed
    type_ = d.mods.one_of(*INTEGERS)
    if relu:
        a, b, out = d.read(d.ops[1], type_), d.read(d.ops[2], type_), d.write(d.ops[0], type_)

        def run_relu(w: Any) -> None:
            getattr(w.to, type_)[out][...] = np.maximum(function(getattr(w, type_)[a], getattr(w, type_)[b]), 0)

        return run_relu
    return simple(d, function, type_)


@instruction("and", "or", "xor", "not")
def logic(d: Decode) -> Run:
    """PTX ISA "and", "or", "xor", "not"."""
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}[d.name]
    type_ = d.mods.one_of("pred", *BITS)
    return simple(d, function, "pred" if type_ == "pred" else unsigned(type_))


@instruction("cnot")
def cnot(d: Decode) -> Run:
    """PTX ISA "cnot": 1 where the operand is 0, else 0."""
    view = unsigned(d.mods.one_of(*BITS))
    return simple(d, lambda x, out: np.equal(x, 0, out=out, casting="unsafe"), view)


@instruction("lop3")
def lop3(d: Decode) -> Run:
    """PTX ISA "lop3": any logic function of three inputs, by its truth table."""
    combine = d.mods.one_of("or", "and", default=None)
    d.mods.one_of("b32")
    ops = list(d.ops)
    pair = ops[0]
    p_out = q = None
    if combine:
        if not isinstance(pair, ptx.Pair):
            raise d.unsupported("the form with a predicate writes d|p")
        ops[0], p_out = pair.first, d.write(pair.second, "pred")
        q = d.read(ops[5], "pred")
    a, b, c, out = d.read(ops[1], "u32"), d.read(ops[2], "u32"), d.read(ops[3], "u32"), d.write(ops[0], "u32")
    if not isinstance(ops[4], ptx.Imm):
        raise d.unsupported("the truth table must be a literal")
    table = int(ops[4].value)

    def run(w: Any) -> None:
        x, y, z = w.u32[a], w.u32[b], w.u32[c]
        r = np.zeros_like(x)
        for row in range(8):
            if table >> row & 1:
                r |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
        w.to.u32[out][...] = r
        if p_out is not None:
            w.to.pred[p_out][...] = ((r != 0) | w.pred[q]) if combine == "or" else ((r != 0) & w.pred[q])

    return run


@instruction("shl", "shr")
def shift(d: Decode) -> Run:
    """PTX ISA "shl", "shr": amounts of the width or more give zero, or the sign for an arithmetic shift."""
    type_ = d.mods.one_of(*BITS, *INTEGERS)
    bits = int(type_[1:])
    view = f"s{bits}" if type_[0] == "s" and d.name == "shr" else f"u{bits}"
    a, amount, out = d.read(d.ops[1], view), d.read(d.ops[2], "u32"), d.write(d.ops[0], view)
    dtype = np.dtype(f"{'i' if view[0] == 's' else 'u'}{bits // 8}").type
    function = np.left_shift if d.name == "shl" else np.right_shift
    if isinstance(d.ops[2], ptx.Imm):
        n = int(d.ops[2].value) & 0xFFFFFFFF
        if n >= bits and view[0] == "u":
            return lambda w: getattr(w.to, view)[out].fill(0)
        by = dtype(min(n, bits - 1))

        def run_literal(w: Any) -> None:
            function(getattr(w, view)[a], by, getattr(w.to, view)[out])

        return run_literal

    def run(w: Any) -> None:
        n = w.u32[amount]
        r = function(getattr(w, view)[a], np.minimum(n, bits - 1).astype(dtype))
        if view[0] == "u":
            r = np.where(n >= bits, dtype(0), r)
        getattr(w.to, view)[out][...] = r

    return run


@instruction("shf")
def funnel_shift(d: Decode) -> Run:
    """PTX ISA "shf": shift the pair {b, a}; .clamp limits the amount to 32, .wrap takes it modulo 32."""
    left = d.mods.one_of("l", "r") == "l"
    clamp = d.mods.one_of("clamp", "wrap") == "clamp"
    d.mods.one_of("b32")
    a, b, c, out = (*(d.read(x, "u32") for x in d.ops[1:]), d.write(d.ops[0], "u32"))

    def run(w: Any) -> None:
        n = w.u32[c]
        n = (np.minimum(n, U32(32)) if clamp else n & U32(31)).astype(U64)
        pair = w.u32[b].astype(U64) << U64(32) | w.u32[a]
        w.to.u32[out][...] = ((pair << n) >> U64(32) if left else pair >> n).astype(U32)

    return run


@instruction("popc", "clz", "brev", "bfind")
def count_bits(d: Decode) -> Run:
    """PTX ISA "popc", "clz", "brev", "bfind"."""
    amount = d.mods.flag("shiftamt") if d.name == "bfind" else False
    type_ = d.mods.one_of("b32", "b64", "u32", "u64", "s32", "s64")
    view, bits = unsigned(type_), int(type_[1:])
    a = d.read(d.ops[1], view)
    result = view if d.name == "brev" else "u32"
    out = d.write(d.ops[0], result)

    def top(x: np.ndarray) -> np.ndarray:
        """The position of the highest set bit, -1 for zero."""
        x = x.astype(U64)
        position = np.full(x.shape, -1, np.int64)
        for step in (32, 16, 8, 4, 2, 1):
            big = x >> U64(step) != 0
            position = np.where(big, position + step, position)
            x = np.where(big, x >> U64(step), x)
        return position + (x != 0)

    def run(w: Any) -> None:
        x = getattr(w, view)[a]
        match d.name:
            case "popc":
                r = np.bitwise_count(x)
            case "clz":
                r = bits - 1 - top(x)
            case "brev":
                order = np.unpackbits(np.ascontiguousarray(x)[..., None].view(np.uint8), axis=-1, bitorder="little")
                r = np.packbits(order[..., ::-1], axis=-1, bitorder="little").view(x.dtype)[..., 0]
            case _:
                y = x
                if type_[0] == "s":
                    y = np.where(x >> x.dtype.type(bits - 1) != 0, ~x, x)
                r = top(y)
                if amount:
                    r = np.where(r < 0, r, bits - 1 - r)
        getattr(w.to, result)[out][...] = r.astype(getattr(w, result)[out].dtype)

    return run


@instruction("fns")
def find_nth(d: Decode) -> Run:
    """PTX ISA "fns": the position of the n-th set bit from a base, up or down; 0xffffffff if there is none."""
    d.mods.one_of("b32")
    mask, base, offset, out = (
        d.read(d.ops[1], "u32"),
        d.read(d.ops[2], "u32"),
        d.read(d.ops[3], "s32"),
        d.write(d.ops[0], "u32"),
    )

    def one(bits: int, start: int, n: int) -> int:
        if n == 0:
            return start if bits >> start & 1 else 0xFFFFFFFF
        places = range(start, 32) if n > 0 else range(start, -1, -1)
        found = [p for p in places if bits >> p & 1]
        return found[abs(n) - 1] if len(found) >= abs(n) else 0xFFFFFFFF

    def run(w: Any) -> None:
        values = zip(w.u32[mask].flat, w.u32[base].flat, w.s32[offset].flat, strict=True)
        r = [one(int(m), int(b) & 31, int(n)) for m, b, n in values]
        w.to.u32[out][...] = np.array(r, U32).reshape(w.shape)

    return run


@instruction("bfe")
def bit_field_extract(d: Decode) -> Run:
    """PTX ISA "bfe": `len` bits from `pos` on; for signed types the field's top bit is extended."""
    type_ = d.mods.one_of("u32", "s32", "u64", "s64")
    bits, view = int(type_[1:]), unsigned(type_)
    a, pos, length, out = (
        d.read(d.ops[1], view),
        d.read(d.ops[2], "u32"),
        d.read(d.ops[3], "u32"),
        d.write(d.ops[0], view),
    )

    def run(w: Any) -> None:
        x = getattr(w, view)[a].astype(U64)
        if type_ == "s32":
            x = w.s32[a].astype(np.int64).view(U64)
        elif type_ == "u32":
            x = x & U64(0xFFFFFFFF)
        p, n = (w.u32[pos] & U32(0xFF)).astype(np.int64), (w.u32[length] & U32(0xFF)).astype(np.int64)
        top = np.minimum(p + n - 1, bits - 1)
        sign = (x >> np.maximum(top, 0).astype(U64)) & U64(1) if type_[0] == "s" else np.zeros_like(x)
        sign = np.where(n == 0, U64(0), sign)
        field = np.where(p >= bits, U64(0), x >> np.minimum(p, 63).astype(U64))
        width = np.where(p >= bits, 0, np.minimum(n, bits - p))
        keep = np.where(width >= 64, ~U64(0), (U64(1) << np.minimum(width, 63).astype(U64)) - U64(1))
        r = np.where(sign != 0, field | ~keep, field & keep)
        getattr(w.to, view)[out][...] = r.astype(getattr(w, view)[a].dtype)

    return run


@instruction("bfi")
def bit_field_insert(d: Decode) -> Run:
    """PTX ISA "bfi": put the low `len` bits of a into b at `pos`."""
    view = unsigned(d.mods.one_of("b32", "b64"))
    bits = int(view[1:])
    a, b, pos, length, out = (
        d.read(d.ops[1], view),
        d.read(d.ops[2], view),
        d.read(d.ops[3], "u32"),
        d.read(d.ops[4], "u32"),
        d.write(d.ops[0], view),
    )

    def run(w: Any) -> None:
        p, n = (w.u32[pos] & U32(0xFF)).astype(U64), (w.u32[length] & U32(0xFF)).astype(U64)
        ones = np.where(n >= 64, ~U64(0), (U64(1) << np.minimum(n, U64(63))) - U64(1))
        mask = np.where(p >= bits, U64(0), ones << np.minimum(p, U64(63)))
        x = np.where(p >= bits, U64(0), getattr(w, view)[a].astype(U64) << np.minimum(p, U64(63)))
        r = (x & mask) | (getattr(w, view)[b].astype(U64) & ~mask)
        getattr(w.to, view)[out][...] = r.astype(getattr(w, view)[a].dtype)

    return run


@instruction("bmsk")
def bit_mask(d: Decode) -> Run:
    """PTX ISA "bmsk": `b` ones from position `a` on."""
    clamp = d.mods.one_of("clamp", "wrap") == "clamp"
    d.mods.one_of("b32")
    a, b, out = d.read(d.ops[1], "u32"), d.read(d.ops[2], "u32"), d.write(d.ops[0], "u32")

    def run(w: Any) -> None:
        p, n = w.u32[a].astype(U64), w.u32[b].astype(U64)
        if clamp:
            p, n = np.minimum(p, U64(32)), np.minimum(n, U64(32))
        else:
            p, n = p & U64(31), n & U64(31)
        w.to.u32[out][...] = (((U64(1) << n) - U64(1)) << p).astype(U32)

    return run


@instruction("szext")
def sign_or_zero_extend(d: Decode) -> Run:
    """PTX ISA "szext": extend the low `b` bits of a."""
    clamp = d.mods.one_of("clamp", "wrap") == "clamp"
    type_ = d.mods.one_of("u32", "s32")
    a, b, out = d.read(d.ops[1], "u32"), d.read(d.ops[2], "u32"), d.write(d.ops[0], "u32")

    def run(w: Any) -> None:
        n = w.u32[b].astype(np.int64)
        n = np.minimum(n, 32) if clamp else n & 31
        x = w.u32[a].astype(np.int64) & ((1 << n) - 1)
        if type_ == "s32":
            x = np.where((n > 0) & ((x >> np.maximum(n - 1, 0)) & 1 != 0), x - (1 << n), x)
        w.to.u32[out][...] = x.astype(U32)

    return run


@instruction("sad")
def sum_of_absolute_differences(d: Decode) -> Run:
    """PTX ISA "sad": c + |a - b|."""
    type_ = d.mods.one_of(*INTEGERS)
    a, b, c, out = (*(d.read(x, type_) for x in d.ops[1:]), d.write(d.ops[0], type_))

    def run(w: Any) -> None:
        r = getattr(w, type_)
        getattr(w.to, type_)[out][...] = r[c] + np.where(r[a] < r[b], r[b] - r[a], r[a] - r[b])

    return run


@instruction("dp4a", "dp2a")
def dot_product(d: Decode) -> Run:
    """PTX ISA "dp4a", "dp2a": dot product of bytes (dp2a: two 16-bit by two 8-bit), added to c."""
    high = d.mods.one_of("lo", "hi") == "hi" if d.name == "dp2a" else False
    types = [p for p in d.mods.parts if p in ("u32", "s32")]
    if len(types) != 2:
        raise d.unsupported("needs two types, .u32 or .s32")
    d.mods.flag("u32", "s32")
    a, b, c, out = (*(d.read(x, "u32") for x in d.ops[1:]), d.write(d.ops[0], "u32"))

    def pieces(x: np.ndarray, type_: str, bits: int) -> np.ndarray:
        kind = f"{'i' if type_ == 's32' else 'u'}{bits // 8}"
        return np.ascontiguousarray(x)[..., None].view(kind).astype(np.int64)

    def run(w: Any) -> None:
        y = pieces(w.u32[b], types[1], 8)
        if d.name == "dp4a":
            x = pieces(w.u32[a], types[0], 8)
        else:
            x, y = pieces(w.u32[a], types[0], 16), y[..., 2:] if high else y[..., :2]
        w.to.u32[out][...] = ((x * y).sum(-1) + w.u32[c]).astype(U32)

    return run
