"""What threads do themselves: loads, stores and atomics, barriers, fences, mbarriers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ptx
from ..isa import Decode
from ..isa.memory import SCOPES, Shared, address_of, place_of
from ..memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BITS
from .clocks import FULL, G, I, S, V
from .wrap import Run, barrier_access, barriers_of, parts_of, shared_cells, size_of, wraps

U32, U64 = np.uint32, np.uint64

# ----------------------------------------------------------------------------------------------------- loads and stores


def tell(w: Any, address: np.ndarray, size: int, shared: bool, ins: ptx.Instr, what: str, write: bool, strong: bool):
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
    parts = parts_of(d)
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
    size, ins = size_of(parts), d.ins
    what = f"{d.name}.{space}" if space else d.name
    in_shared = isinstance(place, Shared)
    scope = next((p for p in parts if p in SCOPES), "gpu" if order != "volatile" else "sys")

    def run(w: Any) -> Any:
        where = address(w)
        check = w.machine.check
        if strong and write:
            check.strong.write(w, where, in_shared, atomic, releases, scope)
        if in_shared or space is not None:
            tell(w, where, size, in_shared, ins, what, write, strong)
        else:
            low = int((where if w.mask is None else where[w.mask]).min()) & WINDOW_BITS
            if low == SHARED_WINDOW:
                tell(w, (where & U64(0xFFFFFFFF)).astype(U32), size, True, ins, what, write, strong)
            elif low != LOCAL_WINDOW:
                tell(w, where, size, False, ins, what, write, strong)
        result = semantics(w)
        if strong and d.name in ("ld", "atom"):
            check.strong.read(w, where, in_shared, acquires)
        return result

    return run


@wraps("ldmatrix.sync.aligned", "stmatrix.sync.aligned")
def matrices(d: Decode, semantics: Run) -> Run:
    """Rows of 16 bytes, by the addresses of the first lanes."""
    write = d.name.startswith("st")
    count = next(int(p[1:]) for p in parts_of(d) if p in ("x1", "x2", "x4"))
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
    relaxed = "relaxed" in parts_of(d)
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
    parts = parts_of(d)
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


@wraps("mbarrier.init")
def init(d: Decode, semantics: Run) -> Run:
    find, ins = barriers_of(d, d.ops[0]), d.ins

    def run(w: Any) -> Any:
        check = w.machine.check
        for cta, warp, view, place, lanes in find(w):
            epoch = check.clocks.epoch(cta, warp, view)
            check.phases.initialised(
                place, epoch, barrier_access(w, cta, warp, view, lanes, ins, "mbarrier.init", place[1]), ins
            )
            check.phases.used.pop(place, None)
            check.object_at(place, True)
        return semantics(w)

    return run


@wraps("mbarrier.inval")
def inval(d: Decode, semantics: Run) -> Run:
    find = barriers_of(d, d.ops[0])

    def run(w: Any) -> Any:
        for _, _, _, place, _ in find(w):
            w.machine.check.phases.inits.pop(place, None)
            w.machine.check.object_at(place, False)
        return semantics(w)

    return run


def _use(
    check: Any, w: Any, cta: int, warp: int, view: int, place: tuple[int, int], lanes: np.ndarray, d: Decode
) -> None:
    """A warp uses a barrier: was it initialised before?"""
    if (cta, warp) not in check.phases.used.get(place, ()):
        known = check.clocks.know[cta, warp, view]
        access = barrier_access(w, cta, warp, view, lanes, d.ins, d.name, place[1])
        check.phases.known(place, (cta, warp), np.maximum(known[V], known[I]), access, d.ins)


@wraps("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.expect_tx", "mbarrier.complete_tx")
def arrive(d: Decode, semantics: Run) -> Run:
    """PTX ISA 8.8: an arrive is a release operation unless it is .relaxed; expect_tx alone is relaxed."""
    relaxed = "relaxed" in parts_of(d) or d.name in ("mbarrier.expect_tx", "mbarrier.complete_tx")
    operand = next(x for x in d.ops if isinstance(x, ptx.Addr))
    find = barriers_of(d, operand)

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
    relaxed = "relaxed" in parts_of(d)
    find, out = barriers_of(d, d.ops[1]), d.write(d.ops[0], "pred")
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
                access = barrier_access(w, cta, warp, view, lanes, d.ins, d.name, place[1])
                check.phases.waiting(place, (cta, warp), phase, access, d.ins)
                continue
            known = check.phases.passed(place, (cta, warp))
            if known is not None:
                at = warp - w0, (cta - c0) // step
                view = check.covered(w, at, (place, cta, warp, w.machine.mbarriers.phases[place]), passed)
                check.clocks.acquire(cta, warp, view, known, relaxed)
        return blocked

    return run
