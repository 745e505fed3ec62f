"""CTA pairs: what the instructions of tcgen05 with .cta_group::2 work on, and what both CTAs of a pair do together.

PTX ISA 9.7.16.5 "Issue Granularity", 9.7.16.5.1 "CTA Pair". Two CTAs of a cluster whose ranks differ in the last bit
only are a pair. MMAs and commits are issued by one thread of either CTA; allocation, deallocation and giving up the
right to allocate by one warp of each: here the first of the two always waits for the second, which the ISA allows, so
that a kernel that hangs under some timing hangs under every one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import IllegalInstruction
from ..machine import Blocked, Machine, Wait
from . import Decode


def group_of(d: Decode) -> int:
    """1 or 2: how many CTAs the instruction's .cta_group names."""
    return int(d.mods.one_of("cta_group::1", "cta_group::2")[-1])


def aligned(d: Decode) -> None:
    """Takes the mandatory modifiers .sync.aligned."""
    d.mods.one_of("sync")
    d.mods.one_of("aligned")


def pair_of(m: Machine, cta: int, d: Decode) -> tuple[int, int]:
    """The pair that a resident CTA belongs to, the even one first. IllegalInstruction: it has no peer, or the peer has
    exited.
    """
    rank = m.rank(cta)
    if rank ^ 1 >= m.cluster_size:
        raise IllegalInstruction(
            f"{d.ins.opcode}: CTA {m.cta_name(cta)} has no peer: its rank is {rank} in a cluster of {m.cluster_size};"
            " launch with an even cluster size"
        )
    peer = m.peer(cta, rank ^ 1)
    if not m.live[:, peer].any():
        raise IllegalInstruction(
            f"{d.ins.opcode}: the peer CTA {m.cta_name(peer)} has exited; it must stay until the pair's last"
            " instruction (a cluster barrier at the end)"
        )
    return min(cta, peer), max(cta, peer)


def use_group(m: Machine, cta: int, group: int, d: Decode) -> None:
    """All tcgen05 instructions of a kernel have the same .cta_group (PTX ISA 9.7.16.7.1); checked for each CTA."""
    before = m.cta_state[cta].setdefault("cta_group", group)
    if before != group:
        raise IllegalInstruction(
            f"{d.ins.opcode}: this CTA has used .cta_group::{before} before; all tcgen05 instructions of a kernel must"
            " name the same .cta_group"
        )


@dataclass(slots=True, eq=False)
class Arrival:
    """A warp that has come to an instruction of the pair; what: its operands; served: the instruction is done."""

    cta: int
    warp: int
    what: Any
    served: bool = False


def together(
    m: Machine,
    d: Decode,
    arrivals: list[Arrival],
    both: Callable[[Arrival, Arrival], Wait | None],
    text: Callable[[Any], str],
) -> list[Blocked] | None:
    """These warps come to an instruction that one warp of each CTA of a pair executes: the first waits, the second runs
    `both`(first, second) and sets it free. `both` may refuse for now: the Wait that it returns blocks the second, which
    then tries again. text(operands): what the first waits for, in a report. Returns the warps that have to wait.
    """
    blocked: list[tuple[Arrival, Wait]] = []
    for me in arrivals:
        even, odd = pair_of(m, me.cta, d)
        waiting: list[Arrival] = m.cta_state[even].setdefault(f"waiting at {d.name}", [])
        other = next((a for a in waiting if a.cta != me.cta), None)
        if other is None:
            waiting.append(me)
            peer = m.cta_name(odd if me.cta == even else even)
            words = f"{text(me.what)}: a warp of the peer CTA {peer} has to execute it too"
            blocked.append((me, Wait(key=("cta pair", d.name, me.cta, me.warp), text=words, retry=False)))
            continue
        refused = both(other, me)
        if refused is not None:
            blocked.append((me, refused))
            continue
        waiting.remove(other)
        other.served = True
        m.progress += 1
        m.wake(("cta pair", d.name, other.cta, other.warp))
    # A warp whose peer came in the same bundle need not wait.
    return [Blocked(cta=a.cta, warp=a.warp, reason=reason) for a, reason in blocked if not a.served] or None
