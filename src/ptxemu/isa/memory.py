"""Loads, stores, atomics and addresses: PTX ISA "ld", "st", "atom", "red", "cvta", "mapa", "isspacep", "cp.async"
(non-bulk)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from ..errors import EmulationError, MemoryFault
from ..iket import DOORBELL_BYTES
from ..memory import LOCAL_WINDOW, SHARED_RANK_SHIFT, SHARED_RESERVED, SHARED_WINDOW, WINDOW_BITS
from . import Decode, instruction
from .common import f64_to_16, sum_to_odd, widen16

Run = Callable[[Any], None]
U16, U32, U64 = np.uint16, np.uint32, np.uint64

SPACES = (
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
    "const",
)
TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128")
HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B",
)  # fmt: skip
SCOPES = ("cta", "cluster", "gpu", "sys")


# ------------------------------------------------------------------------------------------------------- addresses to
# places


class Place:
    """One kind of memory as rows of `width` bytes: which row an address means, and the array of rows."""

    def rows(
        self, w: Any, address: np.ndarray, mask: np.ndarray | None, itemsize: int, count: int, write: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """(array [row, count] of unsigned integers, row index for each lane). Raises MemoryFault for any active lane
        that is outside or misaligned.
        """
        raise NotImplementedError


def fault(
    w: Any, mask: np.ndarray | None, bad: np.ndarray, address: np.ndarray, why: Callable[[int, int], str]
) -> MemoryFault:
    """A MemoryFault that names the first offending lane; why(address, resident CTA) says what is wrong."""
    bad = bad if mask is None else bad & mask
    t = next(t for t in w.threads() if bad[t.at])
    value = int(address[t.at])
    return MemoryFault(f"{why(value, t.cta)}; CTA {w.machine.cta_name(t.cta)}, warp {t.warp}, lane {t.lane}")


def extent(address: np.ndarray, mask: np.ndarray | None) -> tuple[int, int, int]:
    """Lowest and highest address of the active lanes, and all address bits that any of them has."""
    some = address.ravel() if mask is None else address[mask]
    return int(some.min()), int(some.max()), int(np.bitwise_or.reduce(some))


def check_aligned(w: Any, address: np.ndarray, mask: np.ndarray | None, bits: int, size: int) -> None:
    if bits & (size - 1):
        bad = (address & address.dtype.type(size - 1)) != 0
        raise fault(
            w, mask, bad, address, lambda a, _: f"address {a:#x} is not a multiple of {size}, the size of the access"
        )


class Global(Place):
    """Global memory (and constants and parameters, which are allocations too)."""

    def __init__(self) -> None:
        self.last: Any = None  # the allocation of the last access: most instructions always use the same one

    def rows(
        self, w: Any, address: np.ndarray, mask: np.ndarray | None, itemsize: int, count: int, write: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        size = itemsize * count
        low, high, bits = extent(address, mask)
        check_aligned(w, address, mask, bits, size)
        memory = w.machine.memory
        a = self.last
        if a is None or low < a.address or high + size > a.end or a not in memory.allocations:
            a = self._find(w, memory, address, mask, low, high, size)
        if write and not a.writable:
            raise MemoryFault(f"store to {a.name}, which is read-only; address {low:#x}")
        array, base = a.elements(itemsize, count)
        if mask is not None:
            address = np.where(mask, address, U64(low))
        return array, (address - U64(base)) >> U64(size.bit_length() - 1)

    def _find(
        self, w: Any, memory: Any, address: np.ndarray, mask: np.ndarray | None, low: int, high: int, size: int
    ) -> Any:
        for a in memory.allocations:
            if a.address <= low and high + size <= a.end:
                self.last = a
                return a
        # More than one allocation, or a fault. Name the lane if there is one outside of all.
        inside = np.zeros(address.shape, np.bool_)
        for a in memory.allocations:
            inside |= (address >= U64(a.address)) & (address + U64(size) <= U64(a.end))
        outside = ~inside if mask is None else ~inside & mask
        if outside.any():

            def why(value: int, _: int) -> str:
                return (
                    f"global address {value:#x} ({size} bytes) lies in no buffer of this launch; "
                    f"{memory.nearest(value)}"
                )

            raise fault(w, mask, ~inside, address, why)
        raise SeveralPlaces


class SeveralPlaces(Exception):
    """The lanes of an access touch several allocations or spaces: it has to be done in parts."""


class Shared(Place):
    """Shared memory of the own CTA or, by the rank in the address, of another CTA of the cluster."""

    def rows(
        self, w: Any, address: np.ndarray, mask: np.ndarray | None, itemsize: int, count: int, write: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        size = itemsize * count
        shared = w.machine.shared
        offset = address.astype(U32, copy=False) - w.shared_base
        low, high, bits = extent(offset, mask)
        check_aligned(w, address, mask, bits, size)
        row = shared.bytes.shape[1]
        if low >= SHARED_RESERVED and high + size <= shared.size:
            place = offset + w.shared_row
        else:
            bell = w.machine.doorbell
            if bell is not None and write and bell <= low and high + size <= bell + DOORBELL_BYTES:
                bells = w.machine.doorbells
                own = (w.warp * bells.shape[1] + w.cta) * DOORBELL_BYTES + (offset.astype(np.int64) - bell)
                if mask is not None:
                    own = np.where(mask, own, 0)
                return bells.reshape(-1, size).view(f"u{itemsize}"), own >> (size.bit_length() - 1)
            rank, inside = (
                address.astype(np.int64) >> SHARED_RANK_SHIFT,
                address.astype(np.int64) & (1 << SHARED_RANK_SHIFT) - 1,
            )
            bad = (
                (rank >= w.machine.cluster_size)
                | (rank < 0)
                | (inside < SHARED_RESERVED)
                | (inside + size > shared.size)
            )
            if (bad if mask is None else bad & mask).any():
                raise fault(w, mask, bad, address, lambda v, _: shared.outside(v))
            place = inside + (w.cta - w.cta % w.machine.cluster_size + rank) * row
        if mask is not None:
            place = np.where(mask, place, SHARED_RESERVED + w.shared_row)
        return shared.elements(itemsize, count), place >> (size.bit_length() - 1)


class Local(Place):
    """Local memory: each thread has its own."""

    def rows(
        self, w: Any, address: np.ndarray, mask: np.ndarray | None, itemsize: int, count: int, write: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        size = itemsize * count
        local = w.machine.local
        per_thread = local.shape[-1]
        _, high, bits = extent(address, mask)
        check_aligned(w, address, mask, bits, size)
        if high + size > per_thread:
            bad = address.astype(U64) + U64(size) > per_thread
            raise fault(
                w,
                mask,
                bad,
                address,
                lambda v, _: f"local address {v:#x} is outside of the {per_thread} bytes of a thread",
            )
        thread = (w.warp * local.shape[1] + w.cta) * 32 + np.arange(32)
        place = address.astype(np.int64) + thread * per_thread
        if mask is not None:
            place = np.where(mask, place, thread * per_thread)
        return local.reshape(-1, size).view(f"u{itemsize}"), place >> (size.bit_length() - 1)


SHARED, LOCAL = Shared(), Local()


class Generic(Place):
    """Generic addresses: windows for shared and local memory, everything else is global."""

    def __init__(self) -> None:
        self.globals = Global()

    def rows(
        self, w: Any, address: np.ndarray, mask: np.ndarray | None, itemsize: int, count: int, write: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        low, high, _ = extent(address, mask)
        if low & WINDOW_BITS != high & WINDOW_BITS:
            raise SeveralPlaces
        window = low & WINDOW_BITS
        if window == 0:
            return self.globals.rows(w, address, mask, itemsize, count, write)
        place: Place = SHARED if window == SHARED_WINDOW else LOCAL
        return place.rows(w, (address & U64(0xFFFFFFFF)).astype(U32), mask, itemsize, count, write)


def place_of(space: str | None) -> Place:
    if space is None:
        return Generic()
    if space.startswith("shared"):
        return SHARED
    if space == "local":
        return LOCAL
    return Global()


def parts(
    w: Any, place: Place, address: np.ndarray, itemsize: int, count: int, write: bool
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The slow way for lanes that touch several places: (array, rows, lanes) for each lane's own place."""
    found = []
    active = w.active()
    for t in w.threads():
        only = np.zeros_like(active)
        only[t.at] = True
        array, rows = place.rows(w, address, only, itemsize, count, write)
        found.append((array, rows, only))
    return found


# ------------------------------------------------------------------------------------------------------------ bank
# conflicts


def wavefronts(offsets: bytes, size: int) -> int:
    """How many wavefronts a warp's shared access takes: lanes in groups of 128 bytes, each group as often as its
    busiest bank has different words.

    offsets: 32 little-endian int64 byte offsets; lanes with a negative one below -2^40 take no part.
    """
    addresses = np.frombuffer(offsets, np.int64)
    lanes = max(1, min(32, 128 // size))
    total = 0
    for start in range(0, 32, lanes):
        group = addresses[start : start + lanes]
        group = group[group > -(1 << 40)]
        if not group.size:
            continue
        words = np.unique((group[:, None] + np.arange(0, max(size, 4), 4)) >> 2)
        total += int(np.bincount(words & 31).max())
    return total


_PATTERNS: dict[tuple[bytes, int], int] = {}


def count_conflicts(w: Any, d: Decode, address: np.ndarray, size: int) -> None:
    """Add this access to the run's bank conflict counters. The count depends only on the lanes' distances, which
    repeat: they are looked up.
    """
    if w.machine.doorbell is not None and int(address.flat[0]) & 0xFFFFFF < SHARED_RESERVED:
        return  # an IKET mark, which the kernel does not have when it is not profiled
    stats = w.machine.bank_conflicts(d.ins)
    relative = address.astype(np.int64)
    # Rotating all banks changes nothing, so that only distances count (and where in a word the first lane begins).
    relative = relative - (relative[..., :1] & -4) if w.mask is None else np.where(w.mask, relative, -(1 << 50))
    relative = np.broadcast_to(relative, w.shape).reshape(-1, 32)
    ideal = max(1, size * 32 // 128)
    if w.mask is None and relative.shape[0] > 1 and (relative == relative[0]).all():
        rows, times = relative[:1], relative.shape[0]
    else:
        rows, times = relative, 1
    for row in rows:
        if w.mask is not None and not (row > -(1 << 40)).any():
            continue
        key = (row.tobytes(), size)
        n = _PATTERNS.get(key)
        if n is None:
            if len(_PATTERNS) > 20000:
                _PATTERNS.clear()
            n = _PATTERNS[key] = wavefronts(*key)
        active = 32 if w.mask is None else int((row > -(1 << 40)).sum())
        stats.accesses += times
        stats.wavefronts += n * times
        stats.ideal += max(1, min(ideal, -(-active * size // 128))) * times


# --------------------------------------------------------------------------------------------------------------- ld
# and st


def address_of(d: Decode, operand: ptx.Operand, place: Place) -> Callable[[Any], np.ndarray]:
    """base + offset, as uint64 (global, generic) or uint32 (shared, local)."""
    view, slot, offset = d.address(operand)
    narrow = isinstance(place, Shared | Local)
    if view == "u64":
        mask64 = (1 << 64) - 1
        add = U64(offset & mask64)

        def wide(w: Any) -> np.ndarray:
            return w.u64[slot] + add if offset else w.u64[slot]

        return (lambda w: (wide(w)).astype(U32)) if narrow else wide
    add32 = U32(offset & 0xFFFFFFFF)
    if narrow:
        return lambda w: w.u32[slot] + add32 if offset else w.u32[slot]
    return lambda w: (w.u32[slot] + add32).astype(U64)


def access_modifiers(d: Decode) -> tuple[str | None, bool, str, int]:
    """(state space, does it look for other threads' writes, type, elements)."""
    order = d.mods.one_of("weak", "relaxed", "acquire", "release", "volatile", "mmio", default="weak")
    if order == "mmio":
        d.mods.flag("relaxed")
    d.mods.flag(*SCOPES)
    space = d.mods.one_of(*SPACES, default=None)
    d.mods.flag(*HINTS)
    d.mods.flag("L2::cache_hint")
    count = int((d.mods.one_of("v2", "v4", "v8", default="v1"))[1:])
    type_ = d.mods.one_of(*TYPES)
    return space, order != "weak", type_, count


def register_view(d: Decode, operand: ptx.Operand, bits: int) -> str:
    """ld and st take registers wider than the type (PTX ISA "Operand Size Exceeding Instruction-Type Size")."""
    if isinstance(operand, ptx.Reg):
        if operand.bits < bits:
            raise d.unsupported(f"{operand.name} is narrower than {bits} bits")
        return f"u{operand.bits}"
    return f"u{max(bits, 16)}"


@instruction("ld", "ldu")
def ld(d: Decode) -> Run:
    """PTX ISA "ld", "ld.global.nc", "ldu": load one, two, four or eight elements; sub-word types are extended to the
    register.
    """
    space, polls, type_, count = access_modifiers(d)
    place = place_of(space)
    address = address_of(d, d.ops[1], place)
    bits = int(type_[1:])
    shared = isinstance(place, Shared)
    if bits == 128:
        out128 = d.write(d.ops[0], "u128")

        def run128(w: Any) -> None:
            for array, rows, lanes in places(w, place, address(w), 8, 2, False):
                values = array[rows]
                w.to.u128[out128][lanes if lanes is not None else ...] = values if lanes is None else values[lanes]

        return run128
    targets = d.items(d.ops[0])
    if len(targets) != count:
        raise d.unsupported(f"{len(targets)} registers for {count} elements")
    views = [register_view(d, x, bits) for x in targets]
    outs = [(v, d.write(x, v)) for x, v in zip(targets, views, strict=True)]
    itemsize = bits // 8
    signed = type_[0] == "s"
    # A parameter's address is a constant: the same bytes for every thread, whatever runs.

    def convert(values: np.ndarray, view: str) -> np.ndarray:
        if signed and int(view[1:]) > bits:
            return values.view(f"i{itemsize}").astype(f"i{int(view[1:]) // 8}").view(f"u{int(view[1:]) // 8}")
        return values

    def run(w: Any) -> None:
        where = address(w)
        if polls:
            w.machine.polling = True
        if shared and w.machine.config.bank_conflicts:
            count_conflicts(w, d, where, itemsize * count)
        try:
            array, rows = place.rows(w, where, w.mask, itemsize, count, False)
        except SeveralPlaces:
            for array, rows, only in parts(w, place, where, itemsize, count, False):
                values = array[rows]
                for i, (view, out) in enumerate(outs):
                    np.copyto(getattr(w.to, view)[out], convert(values[..., i], view), where=only)
            return
        values = array.take(rows, 0)
        for i, (view, out) in enumerate(outs):
            getattr(w.to, view)[out][...] = convert(values[..., i], view)

    return run


def places(
    w: Any, place: Place, address: np.ndarray, itemsize: int, count: int, write: bool
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """[(array, rows, lanes)]: one entry with the mask as it is, or one for each lane when they touch several places."""
    try:
        array, rows = place.rows(w, address, w.mask, itemsize, count, write)
    except SeveralPlaces:
        return list(parts(w, place, address, itemsize, count, write))
    return [(array, rows, w.mask)]


@instruction("st")
def st(d: Decode) -> Run:
    """PTX ISA "st": store one, two, four or eight elements. Where lanes hit the same bytes, the highest lane wins
    (any one may).
    """
    space, _, type_, count = access_modifiers(d)
    place = place_of(space)
    address = address_of(d, d.ops[0], place)
    bits = int(type_[1:])
    shared = isinstance(place, Shared)
    if bits == 128:
        a128 = d.read(d.ops[1], "u128")

        def run128(w: Any) -> None:
            w.machine.progress += 1
            for array, rows, lanes in places(w, place, address(w), 8, 2, True):
                values = w.u128[a128]
                if lanes is None:
                    array[rows] = values
                else:
                    array[rows[lanes]] = values[lanes]

        return run128
    sources = d.items(d.ops[1])
    if len(sources) != count:
        raise d.unsupported(f"{len(sources)} registers for {count} elements")
    literal = type_ if type_ in ("f32", "f64") else None
    views = [register_view(d, x, bits) for x in sources]
    slots = [
        (v, d.read(x, literal if literal and isinstance(x, ptx.Imm) else v))
        for x, v in zip(sources, views, strict=True)
    ]
    itemsize = bits // 8
    dtype = np.dtype(f"u{itemsize}")

    def run(w: Any) -> None:
        m = w.machine
        m.progress += 1
        where = address(w)
        if shared and m.config.bank_conflicts:
            count_conflicts(w, d, where, itemsize * count)
        values = np.empty((*w.shape, count), dtype)
        for i, (view, slot) in enumerate(slots):
            values[..., i] = getattr(w, view)[slot]
        for array, rows, lanes in places(w, place, where, itemsize, count, True):
            if lanes is None:
                array[rows] = values
            else:
                array[rows[lanes]] = values[lanes]

    return run


# -----------------------------------------------------------------------------------------------------------------
# atomics


def _bit_patterns(kind: str) -> Callable[[str, int, int], int]:
    """An atomic operation on bit patterns of a type, in Python integers: f(op, old, operand) -> new."""
    bits = 32 if kind in ("f16x2", "bf16x2") else 16 if kind in ("f16", "bf16") else int(kind[1:])
    mask = (1 << bits) - 1

    def signed(x: int) -> int:
        return x - (1 << bits) if kind[0] == "s" and x >> bits - 1 else x

    def half(op: str, old: int, x: int) -> int:
        base = kind.removesuffix("x2")
        a, b = (np.array([v & 0xFFFF, v >> 16], U16) for v in (old, x))
        fa, fb = widen16(a, base).astype(np.float64), widen16(b, base).astype(np.float64)
        r = f64_to_16(sum_to_odd(fa, fb), base) if op == "add" else np.where((fa < fb) == (op == "min"), a, b)
        return int(r[0]) | (int(r[1]) << 16 if bits == 32 else 0)

    def run(op: str, old: int, x: int) -> int:
        match op:
            case "and":
                return old & x
            case "or":
                return old | x
            case "xor":
                return old ^ x
            case "exch":
                return x
            case "inc":
                return 0 if old >= x else old + 1
            case "dec":
                return x if old == 0 or old > x else old - 1
        if kind in ("f16", "bf16", "f16x2", "bf16x2"):
            return half(op, old, x)
        if kind[0] == "f":
            if op != "add":
                raise EmulationError(f"atomic .{op} of .{kind}")
            pair = np.array([old, x], f"u{bits // 8}")
            total = pair.view(f"f{bits // 8}").sum(keepdims=True)
            return int(total.view(pair.dtype)[0]) if total[0] == total[0] else mask >> 1
        if op == "add":
            return (old + x) & mask
        return (min if op == "min" else max)(signed(old), signed(x)) & mask

    return run


@instruction("atom", "red")
def atomic(d: Decode) -> Run:
    """PTX ISA "atom", "red" (scalar and vector): the lanes one after another, lowest first."""
    d.mods.flag("relaxed", "acquire", "release", "acq_rel")
    d.mods.flag(*SCOPES)
    space = d.mods.one_of(*SPACES, default=None)
    op = d.mods.one_of("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")
    d.mods.flag("noftz", "rn")
    d.mods.flag("L2::cache_hint")
    count = int(d.mods.one_of("v2", "v4", "v8", default="v1")[1:])
    type_ = d.mods.one_of(
        "b16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "f16", "bf16", "f16x2", "bf16x2", "b128"
    )
    if type_ == "b128":
        raise d.unsupported("128-bit atomics are not supported")
    bits = 32 if type_.endswith("x2") else 16 if type_ in ("f16", "bf16") else int(type_[1:])
    view, itemsize = f"u{bits}", bits // 8
    returns = d.name == "atom"
    first = 1 if returns else 0
    place = place_of(space)
    address = address_of(d, d.ops[first], place)
    literal = type_ if type_ in ("f32", "f64") else view
    operands = [
        [d.read(x, literal) for x in d.items(operand)]
        for operand in d.ops[first + 1 : first + (3 if op == "cas" else 2)]
    ]
    outs = [d.write(x, view) for x in d.items(d.ops[0])] if returns else []
    function = _bit_patterns(type_)

    def run(w: Any) -> None:
        m = w.machine
        m.polling = m.polling or op in ("cas", "exch")
        for array, rows, lanes in places(w, place, address(w), itemsize, count, True):
            for t in w.threads():
                if lanes is not None and not lanes[t.at]:
                    continue
                row = rows[t.at]
                for i in range(count):
                    old = int(array[row, i])
                    x = int(getattr(w, view)[operands[0][i]][t.at])
                    new = (
                        (int(getattr(w, view)[operands[1][i]][t.at]) if old == x else old)
                        if op == "cas"
                        else function(op, old, x)
                    )
                    if new != old:
                        array[row, i] = new
                        m.progress += 1
                    if outs:
                        getattr(w.to, view)[outs[i]][t.at] = old

    return run


# ----------------------------------------------------------------------------------------------------------------
# addresses


@instruction("cvta")
def cvta(d: Decode) -> Run:
    """PTX ISA "cvta": between generic addresses and those of a state space. Global, constant and parameter addresses
    are generic ones already.
    """
    to = d.mods.flag("to")
    space = d.mods.one_of(*SPACES)
    view = d.mods.one_of("u32", "u64")
    if view == "u32":
        raise d.unsupported("32-bit generic addresses")
    a, out = d.read(d.ops[1], "u64"), d.write(d.ops[0], "u64")
    window = U64(SHARED_WINDOW if space.startswith("shared") else LOCAL_WINDOW if space == "local" else 0)

    def run(w: Any) -> None:
        (np.subtract if to else np.add)(w.u64[a], window, w.to.u64[out])

    return run


@instruction("isspacep")
def isspacep(d: Decode) -> Run:
    """PTX ISA "isspacep": does a generic address lie in a state space's window?"""
    space = d.mods.one_of(*SPACES)
    a, out = d.read(d.ops[1], "u64"), d.write(d.ops[0], "pred")
    want = SHARED_WINDOW if space.startswith("shared") else LOCAL_WINDOW if space == "local" else 0

    def run(w: Any) -> None:
        x = w.u64[a]
        r = (x & U64(WINDOW_BITS)) == U64(want)
        if space in ("shared", "shared::cta"):
            rank = (x & U64(0xFFFFFFFF)) >> U64(SHARED_RANK_SHIFT)
            r = r & (rank == (w.cta % w.machine.cluster_size).astype(U64))
        if space in ("const", "param", "param::entry"):
            inside = np.zeros(w.shape, np.bool_)
            for name, start in w.machine.launch.addresses.items():
                allocation = w.machine.memory.find(start) if start > 1 << 16 else None
                if allocation is not None and not allocation.writable and name:
                    inside |= (x >= U64(allocation.address)) & (x < U64(allocation.end))
            r = r & inside
        w.to.pred[out][...] = r

    return run


@instruction("mapa")
def mapa(d: Decode) -> Run:
    """PTX ISA "mapa": the address of the same variable in another CTA of the cluster."""
    space = d.mods.one_of("shared::cluster", default=None)
    view = d.mods.one_of("u32", "u64")
    a, rank, out = d.read(d.ops[1], view), d.read(d.ops[2], "u32"), d.write(d.ops[0], view)
    dtype = U32 if view == "u32" else U64
    if space is None and view == "u32":
        raise d.unsupported("32-bit generic addresses")

    def run(w: Any) -> None:
        x = getattr(w, view)[a]
        keep = x & ~dtype(0xFF << SHARED_RANK_SHIFT)
        getattr(w.to, view)[out][...] = keep | w.u32[rank].astype(dtype) << dtype(SHARED_RANK_SHIFT)

    return run


@instruction("getctarank")
def getctarank(d: Decode) -> Run:
    """PTX ISA "getctarank": the rank of the CTA that a shared::cluster address belongs to."""
    d.mods.one_of("shared::cluster", default=None)
    view = d.mods.one_of("u32", "u64")
    a, out = d.read(d.ops[1], view), d.write(d.ops[0], "u32")

    def run(w: Any) -> None:
        w.to.u32[out][...] = (getattr(w, view)[a].astype(U64) >> U64(SHARED_RANK_SHIFT)).astype(U32) & U32(0xFF)

    return run
