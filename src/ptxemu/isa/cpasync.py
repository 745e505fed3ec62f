"""Asynchronous copies and stores of single threads: PTX ISA "cp.async" (non-bulk), "st.async", "red.async".

The machine does them later than they are issued (engine "cp.async" or "st.async"): sources are read and results
written then. A thread's copies belong to groups: `cp.async.commit_group` closes the open one, `wait_group` waits for
all but the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ptx
from ..machine import AsyncOp, Blocked, Wait
from . import Decode, instruction
from .memory import HINTS, SHARED, Global, _bit_patterns, address_of
from .tma import origin

Run = Callable[[Any], "list[Blocked] | None"]
U32 = np.uint32


@dataclass(slots=True)
class Copies:
    """The copies of one warp. opened: for each lane, the number of its open group (so many are committed).

    pending: copies not done yet, as (lanes that take part, group of each lane). arrivals: what
    cp.async.mbarrier.arrive owes: (the copies it waits for, what to do then).
    """

    opened: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    pending: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    arrivals: list[tuple[list[tuple[np.ndarray, np.ndarray]], Callable[[], None]]] = field(default_factory=list)

    def finish(self, copy: tuple[np.ndarray, np.ndarray]) -> None:
        self.pending = [x for x in self.pending if x is not copy]
        due = []
        for awaited, action in self.arrivals:
            awaited[:] = [x for x in awaited if x is not copy]
            if not awaited:
                due.append(action)
        self.arrivals = [x for x in self.arrivals if x[0]]
        for action in due:
            action()

    def outstanding(self, lanes: np.ndarray, allowed: int | None) -> bool:
        """Whether any of these lanes has a copy that is not done in a group older than its latest `allowed` committed
        ones; None: in any group, the open one too."""
        for took_part, group in self.pending:
            late = took_part & lanes
            if allowed is not None:
                late = late & (group < self.opened - allowed)
            if late.any():
                return True
        return False


def copies(m: Any, cta: int, warp: int) -> Copies:
    own = m.cta_state[cta].setdefault("cp.async", {})
    found = own.get(warp)
    if found is None:
        found = own[warp] = Copies()
    return found


@instruction("cp.async.ca", "cp.async.cg")
def cp_async(d: Decode) -> Run:
    """PTX ISA "cp.async": 4, 8 or 16 bytes from global to shared memory; `src-size` of them are read and the rest is
    zero, none with `ignore-src`.
    """
    d.mods.one_of("shared", "shared::cta")
    d.mods.one_of("global")
    d.mods.flag("L2::cache_hint", *HINTS)
    operands = list(d.ops)
    literal = operands[2]
    if not isinstance(literal, ptx.Imm) or literal.value not in (4, 8, 16):
        raise d.unsupported("cp-size must be the literal 4, 8 or 16")
    size = int(literal.value)
    if d.name == "cp.async.cg" and size != 16:
        raise d.unsupported(".cg copies 16 bytes")
    place = Global()
    target, source = address_of(d, operands[0], SHARED), address_of(d, operands[1], place)
    some: int | None = None
    ignore: int | None = None
    if len(operands) > 3:
        if isinstance(operands[3], ptx.Reg) and operands[3].bits == 1:
            ignore = d.read(operands[3], "pred")
        elif not (isinstance(operands[3], ptx.Reg) and operands[3].bits == 64):  # a cache policy
            some = d.read(operands[3], "u32")

    def run(w: Any) -> None:
        m = w.machine
        to = np.broadcast_to(target(w), w.shape)
        at_source = np.broadcast_to(source(w), w.shape)
        count = np.full(w.shape, size, np.int64) if some is None else np.minimum(w.u32[some].astype(np.int64), size)
        count = np.broadcast_to(count, w.shape)
        if ignore is not None:
            count = np.where(w.pred[ignore], 0, count)
        active = w.active()
        shared, to_rows = SHARED.rows(w, to, w.mask, 1, size, True)
        whole = active & (count == size)
        if whole.any():  # bounds and alignment of every lane, now
            place.rows(w, at_source, None if whole.all() else whole, 1, size, False)
        for cta, warp, at in w.each_warp():
            lanes = active[at].copy()
            own = copies(m, cta, warp)
            copy = (lanes, own.opened.copy())
            own.pending.append(copy)
            data = (to_rows[at][lanes].copy(), at_source[at][lanes].tolist(), count[at][lanes].tolist())

            def do(data: Any = data, copy: Any = copy, own: Copies = own, key: Any = ("cp.async", cta, warp)) -> None:
                rows, sources, counts = data
                values = np.zeros((len(rows), size), np.uint8)
                for i, (address, n) in enumerate(zip(sources, counts, strict=True)):
                    if n:
                        values[i, :n] = m.memory.view(address, n, what="cp.async")
                shared[rows] = values
                own.finish(copy)
                m.wake(key)

            where = origin(d, warp) if m.tracing else {}
            m.submit(AsyncOp(engine="cp.async", cta=cta, run=do, name="cp.async", ins=d.ins, data=where))

    return run


@instruction("cp.async.commit_group")
def commit_group(d: Decode) -> Run:
    """PTX ISA "cp.async.commit_group": the thread's copies since the last one become a group, even if there are
    none."""

    def run(w: Any) -> None:
        active = w.active()
        for cta, warp, at in w.each_warp():
            copies(w.machine, cta, warp).opened[active[at]] += 1

    return run


@instruction("cp.async.wait_group", "cp.async.wait_all", blocking=True)
def wait_group(d: Decode) -> Run:
    """PTX ISA "cp.async.wait_group N": until at most the thread's latest N groups are not done; "cp.async.wait_all":
    until all its copies are, committed or not.
    """
    allowed: int | None = None
    if d.name == "cp.async.wait_group":
        (literal,) = d.ops
        if not isinstance(literal, ptx.Imm):
            raise d.unsupported("the number of groups must be a literal")
        allowed = int(literal.value)

    def run(w: Any) -> list[Blocked] | None:
        active = w.active()
        blocked = []
        for cta, warp, at in w.each_warp():
            if copies(w.machine, cta, warp).outstanding(active[at], allowed):
                what = "all copies" if allowed is None else f"all but {allowed} groups"
                wait = Wait(("cp.async", cta, warp), f"waits for cp.async: {what}", data={"warp": warp})
                blocked.append(Blocked(cta, warp, wait))
        return blocked or None

    return run


@instruction("cp.async.mbarrier.arrive")
def mbarrier_arrive(d: Decode) -> Run:
    """PTX ISA "cp.async.mbarrier.arrive": arrive on an mbarrier when the thread's copies so far are done. Without
    .noinc the barrier first waits for one arrival more.
    """
    noinc = d.mods.flag("noinc")
    d.mods.flag("shared", "shared::cta")
    d.mods.one_of("b64")
    address = address_of(d, d.ops[0], SHARED)

    def run(w: Any) -> None:
        m = w.machine
        where, active = np.broadcast_to(address(w), w.shape), w.active()
        for cta, warp, at in w.each_warp():
            own = copies(m, cta, warp)
            for value in np.unique(where[at][active[at]]).tolist():
                lanes = active[at] & (where[at] == value)
                n = int(lanes.sum())
                owner, offset = m.mbarriers.locate(cta, value)
                if not noinc:
                    m.mbarriers.expect_more(owner, offset, n)

                def arrive(owner: int = owner, offset: int = offset, n: int = n) -> None:
                    m.mbarriers.update(owner, offset, arrivals=n)

                awaited = [x for x in own.pending if (x[0] & lanes).any()]
                if awaited:
                    own.arrivals.append((awaited, arrive))
                else:
                    m.now = d.ins
                    arrive()

    return run


@instruction("st.async", "red.async")
def st_async(d: Decode) -> Run:
    """PTX ISA "st.async", "red.async": write (or combine with) the shared memory of a CTA of the cluster, and pay the
    bytes to an mbarrier there.
    """
    reduces = d.name == "red.async"
    d.mods.flag("weak", "relaxed")
    d.mods.flag("cluster")
    if not d.mods.flag("shared::cluster"):
        raise d.unsupported("only the form for .shared::cluster is known")
    d.mods.one_of("mbarrier::complete_tx::bytes")
    op = d.mods.one_of("inc", "dec", "min", "max", "add", "and", "or", "xor") if reduces else ""
    count = int(d.mods.one_of("v2", "v4", default="v1")[1:])
    type_ = d.mods.one_of("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
    if reduces and (count > 1 or type_[0] == "f" or (type_[1:] == "64" and op != "add")):
        raise d.unsupported(f"there is no .{op}.{type_}")
    view, itemsize = f"u{type_[1:]}", int(type_[1:]) // 8
    size = itemsize * count
    address, barrier = address_of(d, d.ops[0], SHARED), address_of(d, d.ops[2], SHARED)
    literal = type_ if type_[0] == "f" else view
    sources = [d.read(x, literal if isinstance(x, ptx.Imm) else view) for x in d.items(d.ops[1])]
    if len(sources) != count:
        raise d.unsupported(f"{len(sources)} registers for {count} elements")
    combine = _bit_patterns(type_)

    def run(w: Any) -> None:
        m = w.machine
        to, bars = np.broadcast_to(address(w), w.shape), np.broadcast_to(barrier(w), w.shape)
        shared, rows = SHARED.rows(w, to, w.mask, itemsize, count, True)
        values = np.stack([getattr(w, view)[s] for s in sources], -1)
        active = w.active()
        for cta, warp, at in w.each_warp():
            lanes = active[at]
            which, data = rows[at][lanes], values[at][lanes]
            paid, lengths = np.unique(bars[at][lanes], return_counts=True)
            owed = [
                (m.mbarriers.locate(cta, b), size * n) for b, n in zip(paid.tolist(), lengths.tolist(), strict=True)
            ]

            def do(which: Any = which, data: Any = data, owed: Any = owed) -> None:
                if reduces:
                    for row, x in zip(which.tolist(), data[:, 0].tolist(), strict=True):
                        shared[row, 0] = combine(op, int(shared[row, 0]), x)
                else:
                    shared[which] = data
                for (owner, offset), nbytes in owed:
                    m.mbarriers.update(owner, offset, complete=nbytes)

            where = {"bytes": size * len(which), **origin(d, warp)} if m.tracing else {}
            m.submit(AsyncOp(engine="st.async", cta=cta, run=do, name=d.name, ins=d.ins, data=where))

    return run
