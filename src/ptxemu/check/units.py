"""What threads ask asynchronous units for, and how they wait for it: copies, bulk copies, tensor memory, wgmma."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ptx
from ..isa import Decode
from ..isa.memory import address_of, place_of
from ..isa.tcgen05 import REPEATS, _window
from ..isa.tma import address_reader
from ..isa.tmem import fragment
from .clocks import FULL, SOME, E, V, X
from .records import GENERIC, TMEM, Maker
from .wrap import Run, barriers_of, each, parts_of, shared_cells, size_of, wraps

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


@wraps("cp.async.ca", "cp.async.cg")
def cp_async(d: Decode, semantics: Run) -> Run:
    """PTX ISA "cp.async": through the generic proxy, over when wait_group or an mbarrier says so."""
    target, source = address_of(d, d.ops[0], place_of("shared")), address_of(d, d.ops[1], place_of("global"))
    size = int(d.ops[2].value) if isinstance(d.ops[2], ptx.Imm) else 16
    ins = d.ins

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks = check.clocks
        components = each(w, lambda cta, warp, _: clocks.component(cta, ("cp.async", w.machine.rank(cta), warp)))
        counts = each(w, lambda cta, warp, _: check.count(("cp.async", cta, warp)))
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
    find = barriers_of(d, d.ops[0])

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
    target, find = address_of(d, d.ops[0], place_of("shared")), barriers_of(d, d.ops[2])
    size, ins = size_of(parts_of(d)), d.ins

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
    read = "read" in parts_of(d)
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
                component = check.clocks.names[cta // m.cluster_size].get((what, m.rank(cta), warp, lane))
                if component is not None:
                    check.clocks.done(cta, warp, SOME, component, count - n)
        return blocked

    return run


# ----------------------------------------------------------------------------------------------------------------- TMEM


@wraps("tcgen05.ld", "tcgen05.ld.red", "tcgen05.st")
def tmem(d: Decode, semantics: Run) -> Run:
    """PTX ISA 9.7.16.6: asynchronous; over at the warp's own tcgen05.wait::ld or ::st."""
    write, reduces = d.name.endswith("st"), d.name.endswith("red")
    name = d.name.removesuffix(".red")
    parts = parts_of(d)
    shape = next(p for p in parts if p in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"))
    repeat = next(REPEATS[p] for p in parts if p in REPEATS)
    packed = "pack::16b" in parts or "unpack::16b" in parts
    split = 0
    at_operand = 0 if write else 2 if reduces else 1
    if shape == "16x32bx2":
        split = int(d.ops[at_operand + 1].value)  # type: ignore[union-attr]
    f = fragment(shape, repeat, packed, split)
    address = view, slot, offset = d.address(d.ops[at_operand])
    results = [] if write else [*d.items(d.ops[0]), *(d.ops[1:2] if reduces else ())]
    registers = [x.slot for x in results if isinstance(x, ptx.Reg)]
    ends = f"tcgen05.wait::{'st' if write else 'ld'}"

    def run(w: Any) -> Any:
        check = w.machine.check
        clocks, records = check.clocks, check.records
        values = getattr(w, view)[slot]
        number = each(w, lambda cta, warp, _: check.count((name, cta, warp)))
        window = _window(w, address) if f.lanes == 32 and not f.packed else None
        if (
            window is not None
            and window[2] + f.columns <= 512
            and check.windows(w, window[2], f.columns, window[0], d.ins, name, number)
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


# ------------------------------------------------------------------------------------------------------------ --- wgmma


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
