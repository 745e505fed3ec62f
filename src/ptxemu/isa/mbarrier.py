"""mbarrier objects: PTX ISA "Parallel Synchronization and Communication Instructions: mbarrier". Their states live in
barriers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from ..barriers import PARITY_SHIFT, unpack
from ..memory import SHARED_RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS
from ..schedule import Blocked, Wait
from . import Decode, instruction

Run = Callable[[Any], "list[Blocked] | None"]
U32, U64 = np.uint32, np.uint64
NOTHING = np.zeros(0, U64)


def modifiers(d: Decode) -> None:
    """Memory order, scope and state space: all mean the same here, the address says which CTA."""
    d.mods.flag("release", "acquire", "relaxed", "acq_rel")
    d.mods.flag("cta", "cluster")
    d.mods.flag("shared", "shared::cta", "shared::cluster")
    d.mods.one_of("b64", default=None)


def barrier_address(d: Decode, operand: ptx.Operand) -> Callable[[Any], np.ndarray]:
    """Shared-space addresses (uint32) of the barrier, for every lane; generic addresses are taken out of their
    window.
    """
    view, slot, offset = d.address(operand)
    if view == "u32":
        add = U32(offset & 0xFFFFFFFF)
        return lambda w: w.u32[slot] + add

    def wide(w: Any) -> np.ndarray:
        a = w.u64[slot] + U64(offset & (1 << 64) - 1)
        window = a & U64(WINDOW_BITS)
        if ((window != 0) & (window != U64(SHARED_WINDOW))).any():
            raise d.unsupported("the barrier's generic address is not in shared memory")
        return (a & U64(0xFFFFFFFF)).astype(U32)

    return wide


@instruction("mbarrier.init")
def init(d: Decode) -> Run:
    """PTX ISA "mbarrier.init": phase 0, `count` arrivals pending."""
    modifiers(d)
    address, count = barrier_address(d, d.ops[0]), d.read(d.ops[1], "u32")

    def run(w: Any) -> None:
        w.machine.now = d.ins
        where = address(w)
        for t in w.threads():
            w.machine.mbarriers.init(t.cta, int(where[t.at]), int(w.u32[count][t.at]))

    return run


@instruction("mbarrier.inval")
def inval(d: Decode) -> Run:
    """PTX ISA "mbarrier.inval": the object is gone; its memory may be used for something else."""
    modifiers(d)
    address = barrier_address(d, d.ops[0])

    def run(w: Any) -> None:
        where = address(w)
        for t in w.threads():
            w.machine.mbarriers.invalidate(t.cta, int(where[t.at]))

    return run


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.expect_tx", "mbarrier.complete_tx")
def arrive(d: Decode) -> Run:
    """PTX ISA "mbarrier.arrive", ".arrive.expect_tx", ".arrive_drop", ".expect_tx", ".complete_tx".

    expect_tx raises the tx-count, then the arrival lowers the pending count by `count` (one if there is none). The
    result is the state before.
    """
    modifiers(d)
    arrives = d.name in ("mbarrier.arrive", "mbarrier.arrive_drop")
    drops = d.name == "mbarrier.arrive_drop"
    no_complete = d.mods.flag("noComplete")
    expects = d.mods.flag("expect_tx") if arrives else d.name == "mbarrier.expect_tx"
    completes = d.name == "mbarrier.complete_tx"
    operands = list(d.ops)
    out = None
    if not isinstance(operands[0], ptx.Addr):
        target = operands.pop(0)
        out = None if isinstance(target, ptx.Sink) else d.write(target, "u64")
    address = barrier_address(d, operands[0])
    amount = d.read(operands[1], "u32") if len(operands) > 1 else None
    if (expects or completes) and amount is None:
        raise d.unsupported("needs the number of bytes")

    def one_by_one(m: Any, place: tuple[int, int], amounts: list[int]) -> list[int]:
        """The lanes' operations in lane order; the state before each of them."""
        before = []
        for n in amounts:
            if drops:
                m.mbarriers.drop(*place, 1 if expects else n)
            arrivals = 0 if not arrives else 1 if expects else n
            before.append(m.mbarriers.update(*place, arrivals, n if expects else 0, n if completes else 0))
        return before

    def together(m: Any, place: tuple[int, int], amounts: np.ndarray, results: bool) -> np.ndarray | None:
        """The same for lanes whose order cannot be seen, in one step; None where it can be."""
        total = int(amounts.sum())
        arrivals = 0 if not arrives else len(amounts) if expects else total
        if not results:
            arrive_in_phases(m, place, arrivals, total if expects else 0, total if completes else 0, no_complete, d)
            return NOTHING
        word = m.mbarriers.word(*place)
        if expects or no_complete or arrivals > unpack(word)[0]:
            return None
        m.mbarriers.update(*place, arrivals)
        # Every arrival before a lane's own has lowered the pending count, the lowest bits of the word.
        return U64(word) - (np.cumsum(amounts, dtype=U64) - amounts)

    def run(w: Any) -> None:
        m = w.machine
        m.now = d.ins
        where = np.broadcast_to(address(w), w.shape)
        counts = None if amount is None else np.broadcast_to(w.u32[amount], w.shape)
        result = None if out is None else w.to.u64[out]
        for j, cta in enumerate(w.cta.ravel().tolist()):
            mine = where[:, j]
            active = None if w.mask is None else w.mask[:, j]
            addresses = mine.ravel() if active is None else mine[active]
            if not addresses.size:
                continue
            several = bool((addresses != addresses[0]).any())
            for a in np.unique(addresses).tolist() if several else [int(addresses[0])]:
                lanes: Any = active
                if several:
                    lanes = mine == a if active is None else (mine == a) & active
                if counts is None:
                    amounts = np.ones(int(addresses.size if not several else np.count_nonzero(lanes)), U64)
                else:
                    amounts = (counts[:, j] if lanes is None else counts[:, j][lanes]).ravel().astype(U64)
                place = m.mbarriers.locate(cta, a)
                if m.observer is not None:
                    some = np.ones(mine.shape, np.bool_) if lanes is None else lanes
                    for warp in (w.warp.ravel()[some.any(-1)]).tolist():
                        m.observer.arrive(cta, warp, place, m.mbarriers.phases[place])
                before = None if drops else together(m, place, amounts, result is not None)
                if before is None:
                    before = np.array(one_by_one(m, place, amounts.tolist()), U64)
                if result is not None:
                    tokens = before
                    if lanes is None:
                        result[:, j] = tokens.reshape(mine.shape)
                    else:
                        result[:, j][lanes] = tokens

    return run


def arrive_in_phases(
    m: Any, place: tuple[int, int], arrivals: int, expect: int, complete: int, no_complete: bool, d: Decode
) -> None:
    """Arrivals of several lanes at once may end one phase and go on in the next."""
    if not arrivals or expect or complete:
        m.mbarriers.update(*place, arrivals=arrivals, expect=expect, complete=complete)
        return
    while arrivals:
        pending, _, tx, _ = unpack(m.mbarriers.word(*place))
        step = min(arrivals, pending) if tx == 0 and pending else arrivals
        if no_complete and step == pending:
            raise d.unsupported(".noComplete, but this arrival completes the phase")
        m.mbarriers.update(*place, arrivals=step)
        arrivals -= step


@instruction("mbarrier.pending_count")
def pending_count(d: Decode) -> Run:
    """PTX ISA "mbarrier.pending_count": the pending count in a state that an arrive returned."""
    d.mods.one_of("b64", default=None)
    out, state = d.write(d.ops[0], "u32"), d.read(d.ops[1], "u64")

    def run(w: Any) -> None:
        w.to.u32[out][...] = (w.u64[state] & U64((1 << 20) - 1)).astype(U32)

    return run


def completed(d: Decode) -> tuple[int, Callable[[Any], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]]:
    """Operands of test_wait and try_wait. The function gives, for every lane: done, owner CTA, barrier offset, parity
    waited for.
    """
    parity = d.mods.flag("parity")
    modifiers(d)
    out, address = d.write(d.ops[0], "pred"), barrier_address(d, d.ops[1])
    state = d.read(d.ops[2], "u32" if parity else "u64")

    def look(w: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        m = w.machine
        where = address(w)
        want = w.u32[state] & U32(1) if parity else (w.u64[state] >> U64(PARITY_SHIFT)).astype(U32)
        if w.mask is None:  # nearly always every CTA's warps look at one barrier of its own
            offsets = where - w.shared_base
            at = int(offsets[0, 0, 0])
            if (offsets == offsets[0, 0, 0]).all() and all((cta, at) in m.mbarriers.phases for cta in w.ctas):
                parities = (m.mbarriers.words[w.ctas, at >> 3] >> U64(PARITY_SHIFT)).astype(U32)
                return parities[:, None] != want, np.broadcast_to(w.cta, w.shape), offsets, want
        mine = (where >> U32(SHARED_RANK_SHIFT)).astype(np.int64)
        owner = np.broadcast_to(w.cta - w.cta % m.cluster_size + mine, w.shape)
        offset = where & U32((1 << SHARED_RANK_SHIFT) - 1)
        # Normally the lanes of a warp share one barrier: look at one of each different pair.
        words = np.zeros(w.shape, np.uint64)
        active = w.mask
        pairs = (owner.astype(np.int64) << 32) | offset
        for pair in np.unique(pairs if active is None else pairs[active]).tolist():
            cta, at = pair >> 32, pair & 0xFFFFFFFF
            if (cta, at) not in m.mbarriers.phases:
                t = next(t for t in w.threads() if int(pairs[t.at]) == pair)
                m.mbarriers.locate(t.cta, int(where[t.at]))
            words[pairs == pair] = m.mbarriers.words[cta, at >> 3]
        done = (words >> U64(PARITY_SHIFT)).astype(U32) != want
        return done, owner, offset, want

    return out, look


@instruction("mbarrier.test_wait")
def test_wait(d: Decode) -> Run:
    """PTX ISA "mbarrier.test_wait": has the phase completed? Never waits."""
    out, look = completed(d)

    def run(w: Any) -> None:
        done, owner, offset, _ = look(w)
        w.to.pred[out][...] = done
        if not (done if w.mask is None else done | ~w.mask).all():
            w.machine.polling = True
        if w.machine.observer is not None:
            seen(w, done, owner, offset)

    return run


@instruction("mbarrier.try_wait", blocking=True)
def try_wait(d: Decode) -> Run:
    """PTX ISA "mbarrier.try_wait": test_wait that may suspend the thread until the phase completes or a time limit is
    reached.

    A warp none of whose lanes can go on is suspended until the barrier's phase ends. The time limit is reached only
    when nothing else can move
    (under the adversarial schedule also at random): then the result is false.
    """
    out, look = completed(d)
    if len(d.ops) > 3:
        d.read(d.ops[3], "u32")

    def run(w: Any) -> list[Blocked] | None:
        m = w.machine
        done, owner, offset, want = look(w)
        w.to.pred[out][...] = done
        passed = done if w.mask is None else done & w.mask
        if m.observer is not None:
            seen(w, done, owner, offset)
        if passed.any(-1).all() and (w.mask is None or passed.any()):
            return None
        blocked = []
        waits: dict[tuple[int, int, int], Wait] = {}  # the warps of a bundle mostly wait for the same
        some = np.asarray(passed.any(-1)).tolist()
        for cta, warp, at in w.each_warp():
            if some[at[0]][at[1]]:
                continue
            if (cta, warp) in m.expired:
                m.expired.discard((cta, warp))
                m.polling = True
                continue
            lane = 0 if w.mask is None else int(w.mask[at].argmax())
            where = (*at, lane)
            what = int(owner[where]), int(offset[where]), int(want[where])
            wait = waits.get(what)
            if wait is None:
                wait = waits[what] = waiting(m, *what)
            blocked.append(Blocked(cta, warp, wait))
        return blocked or None

    return run


def seen(w: Any, done: np.ndarray, owner: np.ndarray, offset: np.ndarray) -> None:
    """Tell the observer of every barrier whose phase a warp has found over."""
    m = w.machine
    for cta, warp, at in w.each_warp():
        lanes = done[at] if w.mask is None else done[at] & w.mask[at]
        for place in {(int(owner[at][i]), int(offset[at][i])) for i in np.flatnonzero(lanes)}:
            m.observer.wait(cta, warp, place, m.mbarriers.phases[place] - 1)


def waiting(m: Any, owner: int, offset: int, parity: int) -> Wait:
    """The wait for the end of the phase with that parity."""
    phase = m.mbarriers.phases[owner, offset]
    whose = f" of CTA {m.cta_name(owner)}" if m.cluster_size > 1 else ""
    return Wait(
        ("mbar", owner, offset),
        f"waits on mbarrier {offset:#x}{whose} for the end of phase {phase} (parity {parity})",
        timeout=True,
        data={"barrier": offset, "phase": phase},
        info=lambda: m.mbarriers.describe(owner, offset),
    )
