"""Allocation of tensor memory: tcgen05.alloc, .dealloc and .relinquish_alloc_permit.

PTX ISA 9.7.16.1.2 "Tensor Memory Allocation", 9.7.16.7. With .cta_group::2 one warp of each CTA of the pair executes
them, and the same columns are allocated in both tensor memories.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..errors import IllegalInstruction
from ..machine import Blocked, Machine, Wait, Warps
from . import Decode, instruction
from .ctapair import Arrival, aligned, group_of, together, use_group
from .descriptors import split_tmem_address
from .tma import address_reader
from .tmem import TmemState


def tmem_state(m: Machine, cta: int) -> TmemState:
    """The tensor memory of a resident CTA."""
    state = m.cta_state[cta]
    found = state.get("tmem")
    if found is None:
        found = state["tmem"] = TmemState()
        state.setdefault("at exit", []).append(lambda: _all_freed(m, cta, found))
    return found


def _all_freed(m: Machine, cta: int, state: TmemState) -> None:
    """When the CTA has exited: all of its tensor memory must have been given back (PTX ISA 9.7.16.1.2)."""
    if state.allocations:
        raise IllegalInstruction(
            f"CTA {m.cta_name(cta)} has exited with TMEM {state.describe()} still allocated: every tcgen05.alloc"
            " needs its tcgen05.dealloc before the kernel ends"
        )


Run = Callable[[Warps], "list[Blocked] | None"]


def _mark(m: Machine, d: Decode, cta: int, warp: int, name: str, column: int, columns: int) -> None:
    if m.tracing:
        m.emit(cta, "tensor", "mark", name, column=column, columns=columns, warp=warp, ptx_line=d.ins.line)


@instruction("tcgen05.alloc", blocking=True, converge=True)
def alloc(d: Decode) -> Run:
    """PTX ISA 9.7.16.7.1 tcgen05.alloc: columns for this CTA (or the pair), the address written to shared memory. Waits
    while there is no room.
    """
    group = group_of(d)
    aligned(d)
    d.mods.flag("shared::cta")
    d.mods.one_of("b32")
    to = address_reader(d, d.ops[0], shared=True)
    columns = d.read(d.ops[1], "u32")

    def give(m: Machine, cta: int, warp: int, address: int, first: int, n: int) -> None:
        owner, offset = m.shared.locate(cta, address)
        m.shared.view(owner, offset, 4, np.uint32)[0] = first
        m.progress += 1
        _mark(m, d, cta, warp, "TMEM alloc", first, n)

    def wait_for_room(m: Machine, cta: int, n: int) -> Wait:
        text = f"tcgen05.alloc of {n} columns; allocated are {tmem_state(m, cta).describe()}"
        return Wait(key=("tmem", cta), text=text, retry=True)

    def for_one(m: Machine, cta: int, warp: int, n: int, address: int) -> Blocked | None:
        first = tmem_state(m, cta).allocate(n)
        if first is None:
            return Blocked(cta=cta, warp=warp, reason=wait_for_room(m, cta, n))
        give(m, cta, warp, address, first, n)
        return None

    def for_two(m: Machine, a: Arrival, b: Arrival) -> Wait | None:
        (n, _), (other, _) = a.what, b.what
        if n != other:
            raise IllegalInstruction(
                f"tcgen05.alloc of a CTA pair: CTA {m.cta_name(a.cta)} asks for {n} columns, its peer for {other}"
            )
        first = tmem_state(m, a.cta).allocate(n)
        if first is None:
            return wait_for_room(m, a.cta, n)
        same = tmem_state(m, b.cta).allocate(n)
        assert same == first, "the CTAs of a pair allocate together only, so that both have the same columns"
        for one in (a, b):
            give(m, one.cta, one.warp, one.what[1], first, n)
        return None

    def run(w: Warps) -> list[Blocked] | None:
        m = w.machine
        blocked, pairs = [], []
        for cta, warp, at in w.each_warp():
            use_group(m, cta, group, d)
            n, address = int(w.u32[columns][at][0]), to(w, (*at, 0))
            if group == 2:
                pairs.append(Arrival(cta, warp, (n, address)))
            elif waits := for_one(m, cta, warp, n, address):
                blocked.append(waits)
        if pairs:
            return together(m, d, pairs, partial(for_two, m), lambda what: f"tcgen05.alloc of {what[0]} columns")
        return blocked or None

    return run


@instruction("tcgen05.dealloc", blocking=True, converge=True)
def dealloc(d: Decode) -> Run:
    """PTX ISA 9.7.16.7.1 tcgen05.dealloc: gives an allocation back. With .cta_group::2 both CTAs of the pair do."""
    group = group_of(d)
    aligned(d)
    d.mods.one_of("b32")
    address, columns = d.read(d.ops[0], "u32"), d.read(d.ops[1], "u32")

    def free(m: Machine, cta: int, warp: int, column: int, n: int) -> None:
        tmem_state(m, cta).free(column, n)
        m.progress += 1
        m.wake(("tmem", cta))
        _mark(m, d, cta, warp, "TMEM dealloc", column, n)

    def for_two(m: Machine, a: Arrival, b: Arrival) -> None:
        if a.what != b.what:
            raise IllegalInstruction(
                f"tcgen05.dealloc of a CTA pair: CTA {m.cta_name(a.cta)} frees {a.what[1]} columns at {a.what[0]}, its"
                f" peer {b.what[1]} at {b.what[0]}"
            )
        for one in (a, b):
            free(m, one.cta, one.warp, *one.what)

    def run(w: Warps) -> list[Blocked] | None:
        m = w.machine
        pairs = []
        for cta, warp, at in w.each_warp():
            use_group(m, cta, group, d)
            lane, column = split_tmem_address(int(w.u32[address][at][0]))
            n = int(w.u32[columns][at][0])
            if lane:
                raise IllegalInstruction(f"tcgen05.dealloc at lane {lane}: must be the address that tcgen05.alloc gave")
            if group == 2:
                pairs.append(Arrival(cta, warp, (column, n)))
            else:
                free(m, cta, warp, column, n)
        return together(m, d, pairs, partial(for_two, m), lambda what: f"tcgen05.dealloc of {what[1]} columns")

    return run


@instruction("tcgen05.relinquish_alloc_permit", blocking=True, converge=True)
def relinquish(d: Decode) -> Run:
    """PTX ISA 9.7.16.7.1 tcgen05.relinquish_alloc_permit: this CTA (or the pair) allocates no more."""
    group = group_of(d)
    aligned(d)

    def for_two(m: Machine, a: Arrival, b: Arrival) -> None:
        for one in (a, b):
            tmem_state(m, one.cta).permit = False

    def run(w: Warps) -> list[Blocked] | None:
        m = w.machine
        pairs = []
        for cta, warp, _ in w.each_warp():
            use_group(m, cta, group, d)
            if group == 2:
                pairs.append(Arrival(cta, warp, None))
            else:
                tmem_state(m, cta).permit = False
        return together(m, d, pairs, partial(for_two, m), lambda _: d.name)

    return run
