"""Moving data between registers and lanes: PTX ISA "Data Movement and Conversion", "Parallel Synchronization" (shfl,
vote, match, redux, elect)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from ..schedule import check_members
from . import Decode, instruction
from .common import canonical32

Run = Callable[[Any], None]
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
LANES = np.arange(32)


@instruction("mov")
def mov(d: Decode) -> Run:
    """PTX ISA "mov": copy a register, a literal, a special register or an address; pack and unpack `{a, b, ...}`."""
    type_ = d.mods.one_of(
        "pred",
        "b16",
        "u16",
        "s16",
        "b32",
        "u32",
        "s32",
        "f32",
        "b64",
        "u64",
        "s64",
        "f64",
        "f16",
        "bf16",
        "f16x2",
        "b128",
    )
    target, source = d.ops
    bits = (
        1
        if type_ == "pred"
        else 128
        if type_ == "b128"
        else 32
        if type_ == "f16x2"
        else 16
        if type_ == "bf16"
        else int(type_[1:])
    )
    if isinstance(source, ptx.Vec):
        return pack(d, bits, target, source)
    if isinstance(target, ptx.Vec):
        return unpack(d, bits, target, source)
    if isinstance(source, ptx.Special) and source.name in (
        "clock",
        "clock64",
        "clock_hi",
        "globaltimer",
        "globaltimer_lo",
        "globaltimer_hi",
    ):
        from .special import clock

        return clock(d, bits, target, source.name)
    view = {
        1: "pred",
        16: "u16",
        32: "f32" if type_ == "f32" else "u32",
        64: "f64" if type_ == "f64" else "u64",
        128: "u128",
    }[bits]
    if isinstance(source, ptx.Not):
        raise d.unsupported("mov of a negated predicate")
    a, out = d.read(source, view), d.write(target, view)
    view = {"f32": "u32", "f64": "u64"}.get(view, view)

    def run(w: Any) -> None:
        np.copyto(getattr(w.to, view)[out], getattr(w, view)[a])

    return run


def pack(d: Decode, bits: int, target: ptx.Operand, source: ptx.Vec) -> Run:
    """d = {a, b, ...}: the first element is the least significant."""
    count = len(source.items)
    part = bits // count
    if (bits, count) == (64, 2):
        a, b, out = d.read(source.items[0], "u32"), d.read(source.items[1], "u32"), d.write(target, "u64")

        def run_pair(w: Any) -> None:
            r, to = w.u32, w.to
            np.copyto(to.lo32[out], r[a])
            np.copyto(to.hi32[out], r[b])

        return run_pair
    if (bits, count) == (128, 2):
        a, b, out = d.read(source.items[0], "u64"), d.read(source.items[1], "u64"), d.write(target, "u128")

        def run_quad(w: Any) -> None:
            w.to.u128[out][..., 0] = w.u64[a]
            w.to.u128[out][..., 1] = w.u64[b]

        return run_quad
    if part not in (8, 16, 32) or bits not in (16, 32, 64, 128):
        raise d.unsupported(f"packs {count} parts of {part} bits")
    view = f"u{max(part, 16)}"
    sources, out = [d.read(x, view) for x in source.items], d.write(target, f"u{bits}")
    dtype = f"u{part // 8}"

    def run(w: Any) -> None:
        parts = np.stack([getattr(w, view)[s].astype(dtype) for s in sources], -1)
        if bits == 128:
            w.to.u128[out][...] = parts.view(U64)
        else:
            getattr(w.to, f"u{bits}")[out][...] = parts.view(f"u{bits // 8}")[..., 0]

    return run


def unpack(d: Decode, bits: int, target: ptx.Vec, source: ptx.Operand) -> Run:
    """{a, b, ...} = s; `_` leaves a part out."""
    count = len(target.items)
    part = bits // count
    wanted = [i for i, x in enumerate(target.items) if not isinstance(x, ptx.Sink)]
    if (bits, count) == (64, 2):
        a = d.read(source, "u64")
        outs = [(("lo32", "hi32")[i], d.write(target.items[i], "u32")) for i in wanted]
        if len(outs) == 1:
            ((half, only),) = outs

            def run_one(w: Any) -> None:
                np.copyto(w.to.u32[only], getattr(w, half)[a])

            return run_one
        low, high = outs[0][1], outs[1][1]

        def run_pair(w: Any) -> None:
            to = w.to.u32
            np.copyto(to[low], w.lo32[a])
            np.copyto(to[high], w.hi32[a])

        return run_pair
    if part not in (8, 16, 32, 64) or bits not in (16, 32, 64, 128):
        raise d.unsupported(f"unpacks {count} parts of {part} bits")
    view = f"u{max(part, 16)}"
    a = d.read(source, f"u{bits}")
    some = [(i, d.write(target.items[i], view)) for i in wanted]

    def run(w: Any) -> None:
        whole = np.array(getattr(w, f"u{bits}")[a])
        parts = whole.view(f"u{part // 8}") if bits == 128 else whole[..., None].view(f"u{part // 8}")
        for i, out in some:
            getattr(w.to, view)[out][...] = parts[..., i]

    return run


@instruction("selp")
def selp(d: Decode) -> Run:
    """PTX ISA "selp": a where the predicate is true, else b."""
    type_ = d.mods.one_of("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    view = "u" + type_[1:]
    literal = type_ if type_[0] == "f" else view
    a, b, p, out = (
        d.read(d.ops[1], literal),
        d.read(d.ops[2], literal),
        d.read(d.ops[3], "pred"),
        d.write(d.ops[0], view),
    )

    def run(w: Any) -> None:
        r = getattr(w, view)
        getattr(w.to, view)[out][...] = np.where(w.pred[p], r[a], r[b])

    return run


@instruction("slct")
def slct(d: Decode) -> Run:
    """PTX ISA "slct": a where c >= 0, else b (a NaN takes b)."""
    ftz = d.mods.flag("ftz")
    type_ = d.mods.one_of("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    selector = d.mods.one_of("s32", "f32")
    view = "u" + type_[1:]
    a, b, c, out = d.read(d.ops[1], view), d.read(d.ops[2], view), d.read(d.ops[3], selector), d.write(d.ops[0], view)

    def run(w: Any) -> None:
        r, s = getattr(w, view), getattr(w, selector)[c]
        if ftz:
            s = np.where(np.abs(s) < np.finfo(np.float32).tiny, np.float32(0), s)
        getattr(w.to, view)[out][...] = np.where(s >= 0, r[a], r[b])

    return run


@instruction("prmt")
def prmt(d: Decode) -> Run:
    """PTX ISA "prmt": pick four of the eight bytes of {b, a} (bit 3 of a selector: the byte's sign instead), or one
    of the fixed patterns.
    """
    d.mods.one_of("b32")
    mode = d.mods.one_of("f4e", "b4e", "rc8", "ecl", "ecr", "rc16", default=None)
    a, b, c, out = (*(d.read(x, "u32") for x in d.ops[1:]), d.write(d.ops[0], "u32"))
    patterns = {
        "f4e": [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)],
        "b4e": [(0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)],
        "rc8": [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)],
        "ecl": [(0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)],
        "ecr": [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)],
        "rc16": [(0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)],
    }
    table = np.array(patterns[mode]) if mode else None

    def run(w: Any) -> None:
        pair = w.u32[b].astype(U64) << U64(32) | w.u32[a]
        result = np.zeros(w.shape, U32)
        for i in range(4):
            if table is None:
                selector = (w.u32[c] >> U32(4 * i)) & U32(0xF)
                which, sign = selector & U32(7), (selector & U32(8)) != 0
            else:
                which, sign = table[w.u32[c] & U32(3), i], None
            byte = (pair >> (which.astype(U64) * U64(8))).astype(U32) & U32(0xFF)
            if sign is not None:
                byte = np.where(sign, np.where(byte & U32(0x80) != 0, U32(0xFF), U32(0)), byte)
            result |= byte << U32(8 * i)
        w.to.u32[out][...] = result

    return run


@instruction("shfl.sync", converge=True)
def shfl(d: Decode) -> Run:
    """PTX ISA "shfl.sync": read another lane's register; `d|p` also tells whether that lane was in range."""
    mode = d.mods.one_of("up", "down", "bfly", "idx")
    d.mods.one_of("b32")
    target = d.ops[0]
    p = d.write(target.second, "pred") if isinstance(target, ptx.Pair) else None
    target = target.first if isinstance(target, ptx.Pair) else target
    out, a = d.write(target, "u32"), d.read(d.ops[1], "u32")
    b, c, members = d.read(d.ops[2], "u32"), d.read(d.ops[3], "u32"), d.read(d.ops[4], "u32")
    d.members = members

    def run(w: Any) -> None:
        if w.mask is not None or not (w.u32[members] == 0xFFFFFFFF).all():
            check_members(w, w.u32[members], d.ins.opcode)
        by = (w.u32[b] & U32(31)).astype(np.int64)
        control = w.u32[c].astype(np.int64)
        clamp, segment = control & 31, (control >> 8) & 31
        first = LANES & segment
        limit = first | (clamp & ~segment)
        match mode:
            case "up":
                lane = LANES - by
                valid = lane >= limit
            case "down":
                lane = LANES + by
                valid = lane <= limit
            case "bfly":
                lane = LANES ^ by
                valid = lane <= limit
            case _:
                lane = first | (by & ~segment)
                valid = lane <= limit
        lane = np.where(valid, lane, LANES)
        result = np.take_along_axis(w.u32[a], lane, -1)
        w.to.u32[out][...] = result
        if p is not None:
            w.to.pred[p][...] = valid

    return run


def member_lanes(w: Any, members: np.ndarray) -> np.ndarray:
    """The lanes that take part: active and named in the membermask."""
    check_members(w, members, "the instruction")
    return w.active() & (((members >> LANES.astype(U32)) & U32(1)) != 0)


def ballot(lanes: np.ndarray) -> np.ndarray:
    """bool [.., 32] -> the 32-bit mask of each warp, [.., 1]."""
    return np.packbits(lanes, axis=-1, bitorder="little").view(U32)


@instruction("vote.sync", converge=True)
def vote(d: Decode) -> Run:
    """PTX ISA "vote.sync": .all .any .uni .ballot over the lanes of the membermask."""
    mode = d.mods.one_of("all", "any", "uni", "ballot")
    d.mods.one_of("b32" if mode == "ballot" else "pred")
    out = d.write(d.ops[0], "u32" if mode == "ballot" else "pred")
    source = d.ops[1]
    negated = isinstance(source, ptx.Not)
    a = d.read(source.operand if isinstance(source, ptx.Not) else source, "pred")
    members = d.members = d.read(d.ops[2], "u32")

    def run(w: Any) -> None:
        lanes = member_lanes(w, w.u32[members])
        value = ~w.pred[a] if negated else w.pred[a]
        yes, no = lanes & value, lanes & ~value
        match mode:
            case "ballot":
                w.to.u32[out][...] = ballot(yes)
            case "all":
                w.to.pred[out][...] = ~no.any(-1, keepdims=True)
            case "any":
                w.to.pred[out][...] = yes.any(-1, keepdims=True)
            case _:
                w.to.pred[out][...] = ~no.any(-1, keepdims=True) | ~yes.any(-1, keepdims=True)

    return run


@instruction("match.any.sync", "match.all.sync", converge=True)
def match(d: Decode) -> Run:
    """PTX ISA "match.sync": the lanes that hold the same value (.any), or whether all do (.all)."""
    every = d.name.startswith("match.all")
    view = {"b32": "u32", "b64": "u64"}[d.mods.one_of("b32", "b64")]
    target = d.ops[0]
    p = d.write(target.second, "pred") if isinstance(target, ptx.Pair) else None
    target = target.first if isinstance(target, ptx.Pair) else target
    out, a = d.write(target, "u32"), d.read(d.ops[1], view)
    members = d.members = d.read(d.ops[2], "u32")

    def run(w: Any) -> None:
        lanes, value = member_lanes(w, w.u32[members]), getattr(w, view)[a]
        same = (value[..., :, None] == value[..., None, :]) & lanes[..., None, :]
        masks = ballot(same)[..., 0]
        if every:
            all_same = masks == ballot(lanes)
            masks = np.where(all_same, masks, U32(0))
            if p is not None:
                w.to.pred[p][...] = all_same
        w.to.u32[out][...] = masks

    return run


@instruction("redux.sync", converge=True)
def redux(d: Decode) -> Run:
    """PTX ISA "redux.sync": reduce a value over the lanes of the membermask."""
    op = d.mods.one_of("add", "min", "max", "and", "or", "xor")
    absolute, nan_wins = d.mods.flag("abs"), d.mods.flag("NaN")
    type_ = d.mods.one_of("u32", "s32", "b32", "f32")
    view = "u32" if type_ == "b32" or op == "add" else type_
    out, a = d.write(d.ops[0], view), d.read(d.ops[1], view)
    members = d.members = d.read(d.ops[2], "u32")
    ufunc = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]
    if type_ == "f32" and op in ("min", "max") and not nan_wins:
        ufunc = np.fmin if op == "min" else np.fmax
    neutral: Any = {"add": 0, "or": 0, "xor": 0, "and": 0xFFFFFFFF}.get(op)
    if neutral is None:
        low, high = {"u32": (0, 0xFFFFFFFF), "s32": (-(1 << 31), (1 << 31) - 1), "f32": (-np.inf, np.inf)}[type_]
        neutral = high if op == "min" else low

    def run(w: Any) -> None:
        lanes, value = member_lanes(w, w.u32[members]), getattr(w, view)[a]
        if absolute:
            value = np.abs(value)
        if type_ == "f32":  # the identity must not hide that all values are NaN
            neutral_value = np.where(
                lanes.any(-1, keepdims=True), np.take_along_axis(value, lanes.argmax(-1)[..., None], -1), 0
            )
            r = ufunc.reduce(np.where(lanes, value, neutral_value), axis=-1, keepdims=True)
            canonical32(r)
        else:
            r = ufunc.reduce(
                np.where(lanes, value, value.dtype.type(neutral)), axis=-1, keepdims=True, dtype=value.dtype
            )
        getattr(w.to, view)[out][...] = r

    return run


@instruction("elect.sync", converge=True)
def elect(d: Decode) -> Run:
    """PTX ISA "elect.sync": one leader among the lanes of the membermask; here the lowest, as on the hardware."""
    target = d.ops[0]
    if not isinstance(target, ptx.Pair):
        raise d.unsupported("writes d|p")
    out, p = d.write(target.first, "u32"), d.write(target.second, "pred")
    members = d.members = d.read(d.ops[1], "u32")

    def run(w: Any) -> None:
        if w.mask is None and (w.u32[members] == 0xFFFFFFFF).all():
            w.to.u32[out].fill(0)
            w.to.pred[p][...] = LANES == 0
            return
        lanes = member_lanes(w, w.u32[members])
        leader = lanes.argmax(-1)[..., None]
        w.to.u32[out][...] = leader
        w.to.pred[p][...] = leader == LANES

    return run


@instruction("activemask")
def activemask(d: Decode) -> Run:
    """PTX ISA "activemask": the lanes that execute this now."""
    d.mods.one_of("b32")
    out = d.write(d.ops[0], "u32")

    def run(w: Any) -> None:
        w.to.u32[out][...] = ballot(w.active())

    return run
