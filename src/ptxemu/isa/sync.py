"""Barriers of threads and fences: PTX ISA "bar", "barrier", "bar.warp.sync", "barrier.cluster", "membar", "fence",
"griddepcontrol"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import ptx
from ..barriers import ClusterBarrier
from ..errors import IllegalInstruction
from ..schedule import Blocked, Wait, check_members
from . import Decode, instruction

Run = Callable[[Any], "list[Blocked] | None"]


def _uniform(w: Any, slot: int | None, at: tuple[int, int]) -> int | None:
    """An operand that all active lanes of a warp share: the value of the first one."""
    if slot is None:
        return None
    lane = 0 if w.mask is None else int(w.mask[at].argmax())
    return int(w.u32[slot][(*at, lane)])


def _wait(m: Any, cta: int, number: int, generation: int, retry: bool) -> Wait:
    return Wait(
        ("bar", cta, number, generation),
        f"waits at barrier {number} for the other warps",
        retry=retry,
        data={"barrier": number, "phase": generation},
        info=lambda: m.named.describe(cta, number),
    )


@instruction(
    "bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync",
    "bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive",
    blocking=True, converge=True,
)  # fmt: skip
def bar(d: Decode) -> Run:
    """PTX ISA "bar{.cta}.sync", ".arrive" and the same of "barrier": named barriers; number and count may come from
    registers.
    """
    d.mods.flag("aligned")
    waits = d.name.endswith("sync")
    number, count = d.read(d.ops[0], "u32"), d.read(d.ops[1], "u32") if len(d.ops) > 1 else None
    if not waits and count is None:
        raise d.unsupported("arrive needs a count")

    def run(w: Any) -> list[Blocked] | None:
        m = w.machine
        blocked: dict[tuple[int, int], Blocked] = {}
        for cta, warp, at in w.each_warp():
            n = _uniform(w, number, at)
            assert n is not None
            b, complete = m.named.arrive(cta, warp, n, _uniform(w, count, at))
            if complete:  # whoever of this very bundle came before goes on at once
                key = ("bar", cta, n, b.generation - 1)
                blocked = {who: x for who, x in blocked.items() if x.reason.key != key}
            elif waits:
                blocked[cta, warp] = Blocked(cta, warp, _wait(m, cta, n, b.generation, False))
        return list(blocked.values()) or None

    return run


@instruction("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", blocking=True, converge=True)
def bar_red(d: Decode) -> Run:
    """PTX ISA "bar.red": a barrier that also counts, ands or ors a predicate over all threads."""
    op = d.mods.one_of("popc", "and", "or")
    d.mods.flag("aligned")
    d.mods.one_of("u32" if op == "popc" else "pred")
    view = "u32" if op == "popc" else "pred"
    out, number = d.write(d.ops[0], view), d.read(d.ops[1], "u32")
    count = d.read(d.ops[2], "u32") if len(d.ops) > 3 else None
    source = d.ops[-1]
    negated = isinstance(source, ptx.Not)
    p = d.read(source.operand if isinstance(source, ptx.Not) else source, "pred")

    def run(w: Any) -> list[Blocked] | None:
        m = w.machine
        blocked: list[Blocked] = []
        for cta, warp, at in w.each_warp():
            n = _uniform(w, number, at)
            assert n is not None
            entered = m.cta_state[cta].setdefault("bar.red", {})
            results = m.cta_state[cta].setdefault("bar.red results", {})
            if warp not in entered:
                lanes = w.active()[at]
                value = (w.pred[p][at] ^ negated)[lanes]
                b, complete = m.named.arrive(cta, warp, n, _uniform(w, count, at), value)
                entered[warp] = (n, b.generation - complete)
                if complete:
                    results[n, b.generation - 1] = np.concatenate(b.values)
                    b.values = []
                    blocked = [x for x in blocked if x.reason.key != ("bar", cta, n, b.generation - 1)]
            n, generation = entered[warp]
            if (n, generation) not in results:
                blocked.append(Blocked(cta, warp, _wait(m, cta, n, generation, True)))
        for cta, warp, at in w.each_warp():
            entered, results = m.cta_state[cta]["bar.red"], m.cta_state[cta]["bar.red results"]
            if warp in entered and entered[warp] in results:
                values = results[entered.pop(warp)]
                getattr(w.to, view)[out][at] = {"popc": values.sum, "and": values.all, "or": values.any}[op]()
        return blocked or None

    return run


@instruction("bar.warp.sync", converge=True)
def bar_warp_sync(d: Decode) -> Run:
    """PTX ISA "bar.warp.sync": the lanes of the membermask come together; the machine has done that before it gets
    here.
    """
    members = d.members = d.read(d.ops[0], "u32")

    def run(w: Any) -> None:
        check_members(w, w.u32[members], d.ins.opcode)

    return run


@instruction("barrier.cluster.arrive", converge=True)
def cluster_arrive(d: Decode) -> Run:
    """PTX ISA "barrier.cluster.arrive": this warp has come; it does not wait."""
    d.mods.flag("release", "relaxed")
    d.mods.flag("aligned")

    def run(w: Any) -> None:
        m = w.machine
        for cta, warp, _ in w.each_warp():
            cluster = cta // m.cluster_size
            b: ClusterBarrier = m.cluster_barriers[cluster]
            if (cta, warp) in b.arrived:
                raise IllegalInstruction(
                    f"warp {warp} of CTA {m.cta_name(cta)} arrives at the cluster barrier twice without a wait between"
                )
            b.arrived.add((cta, warp))
            b.entered[cta, warp] = b.generation
            m.progress += 1
            m.complete_cluster_barrier(cluster)

    return run


def describe_cluster(b: ClusterBarrier) -> dict[str, Any]:
    """The state of a cluster's barrier, for reports."""
    return {"generation": b.generation, "warps_arrived": sorted(b.arrived)}


@instruction("barrier.cluster.wait", blocking=True, converge=True)
def cluster_wait(d: Decode) -> Run:
    """PTX ISA "barrier.cluster.wait": until all threads of the cluster have arrived."""
    d.mods.flag("acquire", "relaxed")
    d.mods.flag("aligned")

    def run(w: Any) -> list[Blocked] | None:
        m = w.machine
        blocked = []
        for cta, warp, _ in w.each_warp():
            cluster = cta // m.cluster_size
            b: ClusterBarrier = m.cluster_barriers[cluster]
            if (cta, warp) not in b.entered:
                raise IllegalInstruction(
                    f"warp {warp} of CTA {m.cta_name(cta)} waits at the cluster barrier, but never arrived at it"
                )
            generation = b.entered[cta, warp]
            if generation == b.generation:
                data = {"barrier": "cluster", "phase": generation}
                reason = Wait(
                    ("cluster", cluster, generation),
                    "waits at the barrier of the cluster",
                    data=data,
                    info=partial(describe_cluster, b),
                )
                blocked.append(Blocked(cta, warp, reason))
        return blocked or None

    return run


@instruction("membar", "fence")
def fence(d: Decode) -> Run:
    """PTX ISA "membar", "fence", "fence.proxy", "fence.mbarrier_init": under this driver memory is sequentially
    consistent, so they order nothing.
    """
    d.mods.flag(
        "cta",
        "cluster",
        "gpu",
        "gl",
        "sys",
        "sc",
        "acq_rel",
        "acquire",
        "release",
        "sync_restrict::shared::cta",
        "sync_restrict::shared::cluster",
    )
    d.mods.flag(
        "proxy",
        "mbarrier_init",
        "alias",
        "async",
        "async::generic",
        "tensormap::generic",
        "async.global",
        "async.shared::cta",
    )
    d.mods.flag("global", "shared", "shared::cta", "shared::cluster", "thread", "proxy::async", "proxy::alias")
    for operand in d.ops:
        if isinstance(operand, ptx.Addr):
            d.address(operand)
    return lambda w: None


@instruction("griddepcontrol.launch_dependents", "griddepcontrol.wait")
def griddepcontrol(d: Decode) -> Run:
    """PTX ISA "griddepcontrol": grids run one after another here, so a dependent grid's wait is already over."""
    return lambda w: None
