"""The semantics of instructions, wrapped: the checker hears of every access and every edge.

`instrument` is called for each instruction of a checked program when it is decoded, before guards and divergence are
dealt with, so that a wrapper sees the bundle as the semantics do: `w.mask` are the lanes that take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ptx
from ..isa import Decode
from ..isa.memory import SCOPES, Shared, address_of, place_of
from ..isa.tcgen05 import REPEATS, _window
from ..isa.tma import address_reader
from ..isa.tmem import fragment
from ..memory import LOCAL_WINDOW, SHARED_RANK_SHIFT, SHARED_RESERVED, SHARED_WINDOW, WINDOW_BITS
from .clocks import FULL, SOME, E, G, I, S, V, X
from .records import GENERIC, TMEM, Maker

if TYPE_CHECKING:
    from ..program import Program

Run = Callable[[Any], Any]
Wrap = Callable[[Decode, Run], Run]
U32, U64 = np.uint32, np.uint64

WRAPPERS: dict[str, Wrap] = {}


def wraps(*names: str) -> Callable[[Wrap], Wrap]:
    """Register the wrapper of these instructions (by the name of their family)."""

    def register(wrap: Wrap) -> Wrap:
        for name in names:
            WRAPPERS[name] = wrap
        return wrap

    return register


def instrument(d: Decode, semantics: Any) -> Any:
    """The semantics with what the checker has to be told; as they are for what touches no memory."""
    wrap = WRAPPERS.get(d.name)
    return semantics if wrap is None or not callable(semantics) else wrap(d, semantics)


# ----------------------------------------------------------------------------------------------------- loads and stores


def _parts(d: Decode) -> list[str]:
    return d.ins.opcode.split(".")


def _size(parts: list[str]) -> int:
    """Bytes of an access, from its type and vector length."""
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
    kind = parts[-1]
    if kind.endswith("x2"):
        return 4 * count
    if kind in ("f16", "bf16"):
        return 2 * count
    return int(kind[1:]) // 8 * count


def shared_cells(check: Any, w: Any, address: np.ndarray, size: int) -> np.ndarray | None:
    """Flat cells of an access to shared memory, (warps, CTAs, 32, k); None for the system's part of it."""
    m, g = check.machine, check.granule
    address = np.broadcast_to(address, w.shape).astype(np.int64)
    offset = address & (1 << SHARED_RANK_SHIFT) - 1
    some = offset if w.mask is None else offset[w.mask]
    if not some.size or int(some.min()) < SHARED_RESERVED or int(some.max()) + size > m.shared.size:
        return None  # the system's part, or a fault that the instruction itself reports
    rank = address >> SHARED_RANK_SHIFT
    if int((rank if w.mask is None else rank[w.mask]).max()) >= m.cluster_size:
        return None
    owner = w.cta - w.cta % m.cluster_size + rank
    first = owner * check.row + offset // g
    if w.mask is not None:
        first = np.where(w.mask, first, 0)
    return np.asarray(first[..., None] + np.arange(-(-size // g)))


def _tell(w: Any, address: np.ndarray, size: int, shared: bool, ins: ptx.Instr, what: str, write: bool, strong: bool):
    """Tell the checker of an access of a bundle."""
    check = w.machine.check
    if shared:
        cells = shared_cells(check, w, address, size)
        if cells is not None:
            check.generic(w, check.shared, cells, ins, what, write, strong)
    else:
        check.globals.generic(w, np.broadcast_to(address, w.shape), size, ins, what, write, strong)


@wraps("ld", "ldu", "st", "atom", "red")
def memory(d: Decode, semantics: Run) -> Run:
    """Accesses through the generic proxy; strong ones synchronise too (PTX ISA 8.4, 8.8)."""
    parts = _parts(d)
    space = next((p for p in parts[1:] if p.split("::")[0] in ("global", "shared", "local", "param", "const")), None)
    if space is not None and space.split("::")[0] in ("local", "param", "const"):
        return semantics
    write = d.name not in ("ld", "ldu")
    order = next((p for p in parts if p in ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")), "weak")
    atomic = d.name in ("atom", "red")
    strong = atomic or order != "weak"
    releases, acquires = order in ("release", "acq_rel"), order in ("acquire", "acq_rel")
    operand = d.ops[1] if d.name in ("ld", "ldu", "atom") else d.ops[0]
    place = place_of(space)
    address = address_of(d, operand, place)
    size, ins = _size(parts), d.ins
    what = f"{d.name}.{space}" if space else d.name
    in_shared = isinstance(place, Shared)
    scope = next((p for p in parts if p in SCOPES), "gpu" if order != "volatile" else "sys")

    def run(w: Any) -> Any:
        where = address(w)
        check = w.machine.check
        if strong and write:
            check.strong.write(w, where, in_shared, atomic, releases, scope)
        if in_shared or space is not None:
            _tell(w, where, size, in_shared, ins, what, write, strong)
        else:
            low = int((where if w.mask is None else where[w.mask]).min()) & WINDOW_BITS
            if low == SHARED_WINDOW:
                _tell(w, (where & U64(0xFFFFFFFF)).astype(U32), size, True, ins, what, write, strong)
            elif low != LOCAL_WINDOW:
                _tell(w, where, size, False, ins, what, write, strong)
        result = semantics(w)
        if strong and d.name in ("ld", "atom"):
            check.strong.read(w, where, in_shared, acquires)
        return result

    return run


@wraps("ldmatrix.sync.aligned", "stmatrix.sync.aligned")
def matrices(d: Decode, semantics: Run) -> Run:
    """Rows of 16 bytes, by the addresses of the first lanes."""
    write = d.name.startswith("st")
    count = next(int(p[1:]) for p in _parts(d) if p in ("x1", "x2", "x4"))
    address = address_of(d, d.ops[0 if write else 1], place_of("shared"))
    ins, what = d.ins, d.name.split(".")[0]

    def run(w: Any) -> Any:
        check = w.machine.check
        cells = shared_cells(check, w, address(w), 16)
        if cells is not None:
            cells = np.where(np.arange(32)[:, None] < 8 * count, cells, cells[..., :1, :])
            check.generic(w, check.shared, cells, ins, what, write)
        return semantics(w)

    return run


# ------------------------------------------------------------------------------------------------------------- barriers


@wraps(
    "bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "bar.cta.arrive", "barrier.arrive",
    "barrier.cta.arrive", "bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red",
)  # fmt: skip
def named(d: Decode, semantics: Run) -> Run:
    waits = not d.name.endswith("arrive")

    def run(w: Any) -> Any:
        w.machine.check.bar_waits = waits
        return semantics(w)

    return run


@wraps("bar.warp.sync")
def warp_sync(d: Decode, semantics: Run) -> Run:
    """PTX ISA "bar.warp.sync": orders memory accesses among the lanes of its membermask."""

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, at in w.each_warp():
            if check.view_of(w, at) == FULL:
                check.clocks.join_lanes(cta, warp)
        return semantics(w)

    return run


@wraps("barrier.cluster.arrive", "barrier.cluster.wait")
def cluster(d: Decode, semantics: Run) -> Run:
    relaxed = "relaxed" in _parts(d)
    if d.name.endswith("arrive"):

        def arrive(w: Any) -> Any:
            for cta, warp, _ in w.each_warp():
                w.machine.check.cluster_arrive(cta, warp, relaxed)
            return semantics(w)

        return arrive

    def wait(w: Any) -> Any:
        blocked = semantics(w)
        again = {(x.cta, x.warp) for x in blocked or ()}
        for cta, warp, _ in w.each_warp():
            if (cta, warp) not in again:
                w.machine.check.cluster_wait(cta, warp, relaxed)
        return blocked

    return wait


@wraps("membar", "fence")
def fence(d: Decode, semantics: Run) -> Run:
    """PTX ISA "membar", "fence": .proxy.async orders the async proxy behind what came before; .mbarrier_init is a
    release for mbarrier.init; the others make releases and acquires of relaxed accesses.
    """
    parts = _parts(d)
    rows: tuple[int, ...] = ()
    if any(p.startswith("async") for p in parts):
        spaces = [p for p in parts if p.startswith("async") or p.startswith("shared")]
        only_global, only_shared = "global" in parts, any(p.startswith("shared") for p in spaces)
        only_shared = only_shared or any("shared" in p for p in parts)
        rows = (G,) if only_global else (S,) if only_shared else (S, G)
    proxy, init = "proxy" in parts, "mbarrier_init" in parts

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, at in w.each_warp():
            view = check.covered(w, at, (d.ins.pc, cta, warp))
            if rows:
                check.clocks.proxy_fence(cta, warp, view, rows)
            elif init:
                check.clocks.init_fence(cta, warp, view)
            elif not proxy:
                check.strong.fence(cta, warp, view)
        return semantics(w)

    return run


# ------------------------------------------------------------------------------------------------------------ mbarriers


def _barriers(
    d: Decode, operand: ptx.Operand
) -> Callable[[Any], list[tuple[int, int, int, tuple[int, int], np.ndarray]]]:
    """A function: bundle -> (CTA, warp, view, (owner, offset), every lane) for every barrier that a warp uses."""
    from ..isa.mbarrier import barrier_address

    address = barrier_address(d, operand)

    def find(w: Any) -> list[tuple[int, int, int, tuple[int, int], np.ndarray]]:
        m = w.machine
        where = np.broadcast_to(address(w), w.shape)
        found = []
        for cta, warp, at in w.each_warp():
            mine = where[at] if w.mask is None else where[at][w.mask[at]]
            several = np.unique(mine).tolist() if (mine != mine[0]).any() else [int(mine[0])]
            view = m.check.view_of(w, at) if len(several) == 1 else SOME
            for a in several:
                rank, offset = a >> SHARED_RANK_SHIFT, a & (1 << SHARED_RANK_SHIFT) - 1
                lanes = where[at] == a if w.mask is None else (where[at] == a) & w.mask[at]
                found.append((cta, warp, view, (cta - cta % m.cluster_size + rank, offset), lanes))
        return found

    return find


def _access(w: Any, cta: int, warp: int, view: int, lanes: np.ndarray, ins: ptx.Instr, what: str, offset: int) -> Any:
    from ..findings import Access

    lane = int(lanes.argmax()) if view == SOME else None
    source = str(ins.source) if ins.source else None
    return Access(what, w.machine.linear(cta), warp, lane, ins.line, source, "mbarrier", (offset, offset + 8), True,
                  "generic")  # fmt: skip


@wraps("mbarrier.init")
def init(d: Decode, semantics: Run) -> Run:
    find, ins = _barriers(d, d.ops[0]), d.ins

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, view, place, lanes in find(w):
            epoch = check.clocks.epoch(cta, warp, view)
            check.phases.initialised(
                place, epoch, _access(w, cta, warp, view, lanes, ins, "mbarrier.init", place[1]), ins
            )
            check.phases.used.pop(place, None)
        return semantics(w)

    return run


def _use(
    check: Any, w: Any, cta: int, warp: int, view: int, place: tuple[int, int], lanes: np.ndarray, d: Decode
) -> None:
    """A warp uses a barrier: was it initialised before?"""
    if (cta, warp) not in check.phases.used.get(place, ()):
        known = check.clocks.know[cta, warp, view]
        access = _access(w, cta, warp, view, lanes, d.ins, d.name, place[1])
        check.phases.known(place, (cta, warp), np.maximum(known[V], known[I]), access, d.ins)


@wraps("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.expect_tx", "mbarrier.complete_tx")
def arrive(d: Decode, semantics: Run) -> Run:
    """PTX ISA 8.8: an arrive is a release operation unless it is .relaxed; expect_tx alone is relaxed."""
    relaxed = "relaxed" in _parts(d) or d.name in ("mbarrier.expect_tx", "mbarrier.complete_tx")
    operand = next(x for x in d.ops if isinstance(x, ptx.Addr))
    find = _barriers(d, operand)

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, view, place, lanes in find(w):
            if place in w.machine.mbarriers.phases:
                _use(check, w, cta, warp, view, place, lanes, d)
                at = warp - w.key[0], (cta - w.key[2]) // w.key[4]
                view = check.covered(w, at, (d.ins.pc, cta, warp, place), lanes)
                check.clocks.release(cta, warp, view, check.phases.table(*place), relaxed)
        return semantics(w)

    return run


@wraps("mbarrier.test_wait", "mbarrier.try_wait")
def wait(d: Decode, semantics: Run) -> Run:
    """PTX ISA 8.8: a successful test_wait or try_wait is an acquire operation unless it is .relaxed."""
    relaxed = "relaxed" in _parts(d)
    find, out = _barriers(d, d.ops[1]), d.write(d.ops[0], "pred")
    d.writes.pop()  # the semantics have said so already

    def run(w: Any) -> Any:
        check = w.machine.check
        blocked = semantics(w)
        done = w.to.pred[out]
        w0, _, c0, _, step = w.key
        for cta, warp, view, place, lanes in find(w):
            _use(check, w, cta, warp, view, place, lanes, d)
            passed = done[warp - w0, (cta - c0) // step] & lanes
            if not passed.any():
                phase = w.machine.mbarriers.phases[place]
                access = _access(w, cta, warp, view, lanes, d.ins, d.name, place[1])
                check.phases.waiting(place, (cta, warp), phase, access, d.ins)
                continue
            known = check.phases.passed(place, (cta, warp))
            if known is not None:
                at = warp - w0, (cta - c0) // step
                view = check.covered(w, at, (place, cta, warp, w.machine.mbarriers.phases[place]), passed)
                check.clocks.acquire(cta, warp, view, known, relaxed)
        return blocked

    return run


# --------------------------------------------------------------------------------------------------- asynchronous units


@wraps("cp.async.bulk.tensor", "cp.async.bulk", "tcgen05.mma", "tcgen05.commit", "tcgen05.cp", "tcgen05.shift",
       "cp.reduce.async.bulk", "cp.reduce.async.bulk.tensor", "tcgen05.mma.ws", "tcgen05.mma.sp")  # fmt: skip
def issue(d: Decode, semantics: Run) -> Run:
    """Instructions that ask a unit for work: `Edges.submitted` hears of the work itself."""

    def run(w: Any) -> Any:
        check = w.machine.check
        check.bundle, check.twins = w, {}
        try:
            return semantics(w)
        finally:
            check.bundle = None

    return run


def _each(w: Any, value: Callable[[int, int, tuple[int, int]], int]) -> np.ndarray:
    """A number for each warp of a bundle, (warps, CTAs)."""
    found = np.zeros(w.shape[:2], np.int32)
    for cta, warp, at in w.each_warp():
        found[at] = value(cta, warp, at)
    return found


@wraps("cp.async.ca", "cp.async.cg")
def cp_async(d: Decode, semantics: Run) -> Run:
    """PTX ISA "cp.async": through the generic proxy, over when wait_group or an mbarrier says so."""
    target, source = address_of(d, d.ops[0], place_of("shared")), address_of(d, d.ops[1], place_of("global"))
    size = int(d.ops[2].value) if isinstance(d.ops[2], ptx.Imm) else 16
    ins = d.ins

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks = check.clocks
        components = _each(w, lambda cta, warp, _: clocks.component(cta, ("cp.async", w.machine.rank(cta), warp)))
        counts = _each(w, lambda cta, warp, _: check.count(("cp.async", cta, warp)))
        later = components, counts, "cp.async.wait_group"
        cells = shared_cells(check, w, target(w), size)
        if cells is not None:
            check.generic(w, check.shared, cells, ins, "cp.async", True, later=later)
        check.globals.generic(w, np.broadcast_to(source(w), w.shape), size, ins, "cp.async", False, False, later)
        return semantics(w)

    return run


@wraps("cp.async.commit_group")
def cp_async_commit(d: Decode, semantics: Run) -> Run:
    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, _ in w.each_warp():
            check.copies.setdefault((cta, warp), []).append(check.counts.get(("cp.async", cta, warp), 0))
        return semantics(w)

    return run


@wraps("cp.async.wait_group", "cp.async.wait_all")
def cp_async_wait(d: Decode, semantics: Run) -> Run:
    """All copies of the thread, or all but its latest N groups, are done."""
    n = int(d.ops[0].value) if d.ops and isinstance(d.ops[0], ptx.Imm) else None

    def run(w: Any) -> Any:
        check = w.machine.check
        blocked = semantics(w)
        again = {(x.cta, x.warp) for x in blocked or ()}
        for cta, warp, at in w.each_warp():
            groups = check.copies.get((cta, warp), [])
            if (cta, warp) in again or (n is not None and len(groups) <= n):
                continue
            done = check.counts.get(("cp.async", cta, warp), 0) if n is None else groups[len(groups) - n - 1]
            component = check.clocks.component(cta, ("cp.async", w.machine.rank(cta), warp))
            check.clocks.done(cta, warp, check.covered(w, at, (d.ins.pc, cta, warp)), component, done)
        return blocked

    return run


@wraps("cp.async.mbarrier.arrive")
def cp_async_arrive(d: Decode, semantics: Run) -> Run:
    """PTX ISA 8.9.1.1: ordered behind the thread's earlier cp.async only."""
    find = _barriers(d, d.ops[0])

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, _, place, _ in find(w):
            component = check.clocks.component(cta, ("cp.async", w.machine.rank(cta), warp))
            table, n = check.phases.table(*place), check.counts.get(("cp.async", cta, warp), 0)
            for row in (V, X, E):
                table[row, component] = max(int(table[row, component]), n)
        return semantics(w)

    return run


@wraps("st.async", "red.async")
def st_async(d: Decode, semantics: Run) -> Run:
    """PTX ISA "st.async", "red.async": over when the phase of the mbarrier that they pay to is."""
    target, find = address_of(d, d.ops[0], place_of("shared")), _barriers(d, d.ops[2])
    size, ins = _size(_parts(d)), d.ins

    def run(w: Any) -> Any:
        check, m = w.machine.check, w.machine
        where = target(w)
        parts: dict[tuple[int, int], np.ndarray] = {}  # lanes that pay to the same barrier
        for cta, warp, _, place, lanes in find(w):
            at = warp - w.key[0], (cta - w.key[2]) // w.key[4]
            parts.setdefault(place, np.zeros(w.shape, np.bool_))[at] = lanes
        twin = w.twin
        saved = twin.mask
        for (owner, offset), mask in parts.items():
            component = check.clocks.component(owner, ("mbarrier", m.rank(owner), offset))
            phase = m.mbarriers.phases.get((owner, offset), 0)
            twin.mask = mask
            cells = shared_cells(check, twin, where, size)
            if cells is not None:
                filled = np.full(w.shape[:2], component), np.full(w.shape[:2], phase + 1), "a wait on its mbarrier"
                barrier = owner, offset, phase
                check.generic(
                    twin, check.shared, cells, ins, d.name, True, d.name == "red.async", None, filled, barrier
                )
        twin.mask = saved
        return semantics(w)

    return run


@wraps("cp.async.bulk.commit_group")
def commit_group(d: Decode, semantics: Run) -> Run:
    def run(w: Any) -> Any:
        for t in w.threads():
            w.machine.check.count(("groups", t.cta, t.warp, t.lane))
        return semantics(w)

    return run


@wraps("cp.async.bulk.wait_group")
def wait_group(d: Decode, semantics: Run) -> Run:
    """PTX ISA 9.7.9.27.2.2: all but the latest N groups of the thread are done (.read: have read their sources)."""
    read = "read" in _parts(d)
    limit = d.ops[0]
    n = int(limit.value) if isinstance(limit, ptx.Imm) else 0

    def run(w: Any) -> Any:
        check, m = w.machine.check, w.machine
        blocked = semantics(w)
        again = {(x.cta, x.warp) for x in blocked or ()}
        groups = [(k[1:], c) for k, c in check.counts.items() if k[0] == "groups"]
        for (cta, warp, lane), count in groups:
            i, j = warp - w.key[0], (cta - w.key[2]) // w.key[4]
            if not (0 <= i < w.shape[0] and 0 <= j < w.shape[1] and cta == w.key[2] + j * w.key[4]):
                continue
            if (cta, warp) in again or (w.mask is not None and not w.mask[i, j, lane]) or count <= n:
                continue
            for what in ("bulk read",) if read else ("bulk read", "bulk written"):
                component = check.clocks.component(cta, (what, m.rank(cta), warp, lane))
                check.clocks.done(cta, warp, SOME, component, count - n)
        return blocked

    return run


# ----------------------------------------------------------------------------------------------------------------- TMEM


@wraps("tcgen05.ld", "tcgen05.st")
def tmem(d: Decode, semantics: Run) -> Run:
    """PTX ISA 9.7.16.6: asynchronous; over at the warp's own tcgen05.wait::ld or ::st."""
    write = d.name.endswith("st")
    parts = _parts(d)
    shape = next(p for p in parts if p in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"))
    repeat = next(REPEATS[p] for p in parts if p in REPEATS)
    packed = "pack::16b" in parts or "unpack::16b" in parts
    split = 0
    if shape == "16x32bx2":
        split = int(d.ops[1 if write else 2].value)  # type: ignore[union-attr]
    f = fragment(shape, repeat, packed, split)
    address = view, slot, offset = d.address(d.ops[0 if write else 1])
    registers = [] if write else [x.slot for x in d.items(d.ops[0]) if isinstance(x, ptx.Reg)]
    ends = f"tcgen05.wait::{'st' if write else 'ld'}"

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks, records = check.clocks, check.records
        values = getattr(w, view)[slot]
        number = _each(w, lambda cta, warp, _: check.count((d.name, cta, warp)))
        window = _window(w, address) if f.lanes == 32 and not f.packed else None
        if (
            window is not None
            and window[2] + f.columns <= 512
            and check.windows(w, window[2], f.columns, window[0], d.ins, d.name, number)
        ):
            for cta, warp, at in w.each_warp() if registers else ():
                check.pending_load(cta, warp, int(number[at]), registers)
            return semantics(w)
        for cta, warp, at in w.each_warp():
            where = int(values[at][0]) + offset
            lane, column = where >> 16 & 0xFFFF, where & 0xFFFF
            lane = min(lane, 112)
            key = cta, slice(lane // 16, (lane + f.lanes + 15) // 16), slice(column, min(column + f.columns, 512))
            n = int(number[at])
            clocks.version[cta, warp] += 1
            component = clocks.of_warp(cta, warp) + clocks.fixed * (2 if write else 3)
            maker = Maker(0, d.ins, d.name, [(cta, warp, None)], write, ends=ends)
            record = records.add(maker, 1, TMEM, cta // clocks.cluster_size)
            records.epochs(record, component, n, *clocks.epoch(cta, warp, FULL))
            check.access(check.tensor_memory(), key, record, clocks.know[cta, warp, FULL], write)
            if registers:
                check.pending_load(cta, warp, n, registers)
        return semantics(w)

    return run


@wraps("tcgen05.wait::ld", "tcgen05.wait::st")
def tmem_wait(d: Decode, semantics: Run) -> Run:
    which = d.name[-2:]

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks = check.clocks
        for cta, warp, _ in w.each_warp():
            component = clocks.of_warp(cta, warp) + clocks.fixed * (2 if which == "st" else 3)
            check.tmem_done(cta, warp, component, check.counts.get((f"tcgen05.{which}", cta, warp), 0))
            if which == "ld":
                check.loads_done(cta, warp)
        return semantics(w)

    return run


@wraps("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def tcgen05_fence(d: Decode, semantics: Run) -> Run:
    before = "before_thread_sync" in d.ins.opcode

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, at in w.each_warp():
            view = check.covered(w, at, (d.ins.pc, cta, warp))
            (check.clocks.before_sync if before else check.clocks.after_sync)(cta, warp, view)
        return semantics(w)

    return run


@wraps("tcgen05.dealloc")
def dealloc(d: Decode, semantics: Run) -> Run:
    """Whoever gets the columns next may write to them: everything that used them must be over."""
    address, columns = d.read(d.ops[0], "u32"), d.read(d.ops[1], "u32")

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks, records = check.clocks, check.records
        for cta, warp, at in w.each_warp():
            column, n = int(w.u32[address][at][0]) & 0xFFFF, int(w.u32[columns][at][0])
            key = cta, slice(0, 8), slice(column, column + n)
            maker = Maker(0, d.ins, d.name, [(cta, warp, None)], True)
            record = records.add(maker, 1, GENERIC, cta // clocks.cluster_size)  # synchronous: any order will do
            epoch = clocks.epoch(cta, warp, FULL)
            records.epochs(record, *epoch, *epoch)
            check.access(check.tensor_memory(), key, record, clocks.know[cta, warp, FULL], True)
            check.tensor_memory().clear(key)
        return semantics(w)

    return run


@wraps("tcgen05.alloc")
def alloc(d: Decode, semantics: Run) -> Run:
    """Writes the address to shared memory, in order with other accesses of the warp (PTX ISA 9.7.16.6.1)."""
    to = address_reader(d, d.ops[0], shared=True)

    def run(w: Any) -> Any:
        check = w.machine.check
        where = np.zeros(w.shape, np.int64)
        for _, _, at in w.each_warp():
            where[at] = to(w, (*at, 0))
        cells = shared_cells(check, w, where, 4)
        if cells is not None:
            check.generic(w, check.shared, cells, d.ins, d.name, True)
        return semantics(w)

    return run


# ------------------------------------------------------------------------------------------------------------ registers


@wraps("wgmma.mma_async.sync.aligned")
def product(d: Decode, semantics: Run) -> Run:
    """PTX ISA 9.7.15 "wgmma.mma_async": asynchronous, in the async proxy; what the four warps know decides. Registers
    of the accumulator, and of A, must not be touched before wgmma.wait_group.
    """
    results = tuple(x.slot for x in d.items(d.ops[0]) if isinstance(x, ptx.Reg))
    sources = (
        tuple(x.slot for x in d.items(d.ops[1]) if isinstance(x, ptx.Reg)) if isinstance(d.ops[1], ptx.Vec) else ()
    )

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, _ in w.each_warp():
            check.product_issued(cta, warp, results, sources, d.ins)
        return semantics(w)

    return run


@wraps("wgmma.commit_group.sync.aligned")
def product_commit(d: Decode, semantics: Run) -> Run:
    def run(w: Any) -> Any:
        for cta, warp, _ in w.each_warp():
            w.machine.check.products_committed(cta, warp)
        return semantics(w)

    return run


@wraps("wgmma.wait_group.sync.aligned")
def product_wait(d: Decode, semantics: Run) -> Run:
    """All but the latest N groups of the warp are done."""
    limit = d.ops[0]
    n = int(limit.value) if isinstance(limit, ptx.Imm) else 0

    def run(w: Any) -> Any:
        blocked = semantics(w)
        again = {(x.cta, x.warp) for x in blocked or ()}
        for cta, warp, _ in w.each_warp():
            if (cta, warp) not in again:
                w.machine.check.products_done(cta, warp, n)
        return blocked

    return run


# ----------------------------------------------------------------------------------------------------------- registers


def registers_in(operands: Iterable[ptx.Operand]) -> set[tuple[int, int]]:
    """(bits, slot) of every register in these operands."""
    found: set[tuple[int, int]] = set()
    for x in operands:
        match x:
            case ptx.Reg():
                found.add((x.bits, x.slot))
            case ptx.Not():
                found.add((x.operand.bits, x.operand.slot))
            case ptx.Vec() | ptx.Group():
                found |= registers_in(x.items)
            case ptx.Pair():
                found |= registers_in((x.first, x.second))
            case ptx.Addr():
                found |= registers_in((x.base, *x.more))
    return found


def link(program: Program) -> None:
    """When all is decoded: instructions that touch registers of a tcgen05.ld or a wgmma tell the checker so."""
    loaded: set[tuple[int, int]] = set()
    multiplied: set[tuple[int, int]] = set()
    for op in program.ops:
        if op.ins.opcode.startswith("tcgen05.ld"):
            loaded |= registers_in(op.ins.operands[:1])
        elif op.ins.opcode.startswith("wgmma.mma_async"):
            multiplied |= registers_in(op.ins.operands[:2])
    for op in program.ops:
        opcode = op.ins.opcode
        if loaded and not opcode.startswith("tcgen05.ld"):
            first = 0 if opcode.startswith(NO_RESULT) else 1
            mine = tuple(slot for bits, slot in registers_in(op.ins.operands[first:]) & loaded if bits == 32)
            if mine:
                op.full, op.masked = _reads(op.full, mine), _reads(op.masked, mine)
        if multiplied and not opcode.startswith("wgmma"):
            first = 0 if opcode.startswith(NO_RESULT) else 1
            reads, all_of_them = registers_in(op.ins.operands[first:]), registers_in(op.ins.operands)
            touched = tuple((slot, (bits, slot) in reads) for bits, slot in all_of_them & multiplied if bits == 32)
            if touched:
                op.full = _touches(op.full, touched, op.ins)
                op.masked = _touches(op.masked, touched, op.ins)


NO_RESULT = ("st", "red", "tcgen05", "mbarrier", "cp", "bar", "wgmma")  # their first operand is none


def _reads(semantics: Run, registers: tuple[int, ...]) -> Run:
    def run(w: Any) -> Any:
        check = w.machine.check
        if check.held:
            check.registers_read(w, registers)
        return semantics(w)

    return run


def _touches(semantics: Run, registers: tuple[tuple[int, bool], ...], ins: ptx.Instr) -> Run:
    def run(w: Any) -> Any:
        check = w.machine.check
        if check.under_way:
            check.registers_touched(w, registers, ins)
        return semantics(w)

    return run
