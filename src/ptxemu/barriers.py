"""Barriers: mbarrier objects in shared memory, the named barriers of a CTA, the barrier of a cluster.

PTX ISA "mbarrier", "bar", "barrier.cluster". An mbarrier is the 64-bit word in shared memory, as the ISA has it
(opaque to the program):

    bits 0-19 pending arrivals | 20-39 expected arrivals | 40-61 tx-count + 2^21 | 63 parity of the current,
    incomplete phase
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import IllegalInstruction, MemoryFault

if TYPE_CHECKING:
    from .machine import Machine

COUNT_MASK = (1 << 20) - 1
TX_SHIFT, TX_BIAS, TX_MASK = 40, 1 << 21, (1 << 22) - 1
PARITY_SHIFT = 63


def pack(pending: int, expected: int, tx: int, parity: int) -> int:
    """The 64-bit word of an mbarrier."""
    return pending | expected << 20 | (tx + TX_BIAS) << TX_SHIFT | parity << PARITY_SHIFT


def unpack(word: int) -> tuple[int, int, int, int]:
    """(pending, expected, tx-count, parity) of an mbarrier's word."""
    return word & COUNT_MASK, word >> 20 & COUNT_MASK, (word >> TX_SHIFT & TX_MASK) - TX_BIAS, word >> PARITY_SHIFT


class Mbarriers:
    """Operations on mbarrier objects, by (resident CTA that owns it, byte offset)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.words = machine.shared.elements(8, 1).reshape(machine.shared.bytes.shape[0], -1)  # u64 [CTA, offset / 8]
        self.phases: dict[tuple[int, int], int] = {}  # live objects -> completed phases
        self.arrived: dict[tuple[int, int], Counter[str]] = {}  # where arrivals and bytes came from, over all phases

    def locate(self, cta: int, address: int) -> tuple[int, int]:
        """A shared-space address -> (owner, offset). IllegalInstruction when no live mbarrier is there."""
        owner, offset = self.machine.shared.locate(cta, address)
        if offset % 8:
            raise MemoryFault(f"mbarrier address {address:#x} is not a multiple of 8")
        if (owner, offset) not in self.phases:
            near = sorted(o for c, o in self.phases if c == owner)
            raise IllegalInstruction(
                f"no mbarrier at shared address {address:#x} of CTA {self.machine.cta_name(owner)}: it was not "
                f"initialised (mbarrier.init) "
                f"or was invalidated; live ones: {', '.join(map(hex, near)) or 'none'}"
            )
        return owner, offset

    def init(self, cta: int, address: int, count: int) -> None:
        owner, offset = self.machine.shared.locate(cta, address)
        if offset % 8:
            raise MemoryFault(f"mbarrier address {address:#x} is not a multiple of 8")
        if not 1 <= count <= COUNT_MASK:
            raise IllegalInstruction(f"mbarrier.init with count {count}: must be 1 to {COUNT_MASK}")
        self.words[owner, offset >> 3] = pack(count, count, 0, 0)
        self.phases[owner, offset] = 0
        self.arrived[owner, offset] = Counter()
        self.machine.progress += 1
        if self.machine.tracing:
            self.mark(owner, offset, "init", count, 0, count=count)

    def mark(self, owner: int, offset: int, name: str, pending: int, tx: int, **data: int) -> None:
        """An event of a barrier, with its state behind it: pending arrivals, tx-count, completed phases."""
        m = self.machine
        phase = self.phases[owner, offset]
        state = {"barrier": offset, "pending": pending, "tx": tx, "phase": phase, **data}
        m.emit(owner, f"mbar:{offset:#x}", "mark", name, **state, **m.place(m.now))

    def invalidate(self, cta: int, address: int) -> None:
        del self.phases[self.locate(cta, address)]

    def word(self, owner: int, offset: int) -> int:
        return int(self.words[owner, offset >> 3])

    def update(self, owner: int, offset: int, arrivals: int = 0, expect: int = 0, complete: int = 0) -> int:
        """Raise the tx-count by `expect`, then lower it by `complete` and the pending count by `arrivals`; end the
        phase when both are zero.

        Returns the word as it was. IllegalInstruction when more arrive than the phase waits for, or a count leaves
        its range.
        """
        m = self.machine
        before = self.word(owner, offset)
        pending, expected, tx, parity = unpack(before)
        pending -= arrivals
        tx += expect - complete
        if pending < 0:
            raise IllegalInstruction(
                f"mbarrier {offset:#x} of CTA {m.cta_name(owner)}: {arrivals} arrivals where only "
                f"{pending + arrivals} were pending in phase "
                f"{self.phases[owner, offset]} (tx-count {tx} bytes): the count given to mbarrier.init is {expected}"
            )
        if not -TX_BIAS // 2 < tx < TX_BIAS // 2:
            raise IllegalInstruction(
                f"mbarrier {offset:#x} of CTA {m.cta_name(owner)}: the tx-count {tx} leaves its range of ±(2^20 - 1)"
            )
        m.progress += 1
        if m.observer is not None and m.agents.current is not None:
            m.observer.signal(m.agents.current, (owner, offset), self.phases[owner, offset])
        if m.check is not None:
            m.check.barrier_changes(owner, offset, self.phases[owner, offset], arrivals, complete)
        if m.now is not None and (arrivals or complete):
            self.arrived[owner, offset][m.now.short_where] += 1
        if m.tracing:
            if expect:
                self.mark(owner, offset, "expect", pending + arrivals, tx + complete, bytes=expect)
            if complete:
                self.mark(owner, offset, "complete", pending + arrivals, tx, bytes=complete)
            if arrivals:
                self.mark(owner, offset, "arrive", pending, tx, count=arrivals)
        if pending == 0 and tx == 0 and (arrivals or complete or expect):
            self.words[owner, offset >> 3] = pack(expected, expected, 0, parity ^ 1)
            self.phases[owner, offset] += 1
            if m.check is not None:
                m.check.phase_ends(owner, offset, self.phases[owner, offset] - 1)
            if m.tracing:
                self.mark(owner, offset, "phase", expected, 0)
            m.wake(("mbar", owner, offset))
        else:
            self.words[owner, offset >> 3] = pack(pending, expected, tx, parity)
        return before

    def drop(self, owner: int, offset: int, count: int) -> None:
        """arrive_drop: lower what later phases expect (the arrival itself comes with `update`)."""
        pending, expected, tx, parity = unpack(self.word(owner, offset))
        if count > expected:
            raise IllegalInstruction(f"mbarrier {offset:#x}: arrive_drop of {count} where only {expected} are expected")
        self.words[owner, offset >> 3] = pack(pending, expected - count, tx, parity)

    def expect_more(self, owner: int, offset: int, count: int) -> None:
        """The current phase waits for so many arrivals more (cp.async.mbarrier.arrive without .noinc)."""
        pending, expected, tx, parity = unpack(self.word(owner, offset))
        if pending + count > COUNT_MASK:
            raise IllegalInstruction(f"mbarrier {offset:#x}: {pending + count} pending arrivals are more than 2^20 - 1")
        self.words[owner, offset >> 3] = pack(pending + count, expected, tx, parity)

    def describe(self, owner: int, offset: int) -> dict[str, Any]:
        """The state of a barrier, for reports."""
        pending, expected, tx, parity = unpack(self.word(owner, offset))
        phase = self.phases.get((owner, offset))
        came = ", ".join(f"{place} ({n} times)" for place, n in self.arrived.get((owner, offset), Counter()).items())
        return {
            "phase": phase,
            "parity": parity,
            "arrivals_pending": pending,
            "arrivals_expected": expected,
            "tx_bytes_pending": tx,
            "so_far_from": came or "nobody",
        }


@dataclass(slots=True)
class NamedBarrier:
    """One of the 16 barriers of a CTA. Arrivals count whole warps: 32 threads each, whatever lanes are active (PTX
    ISA "bar").
    """

    expected: int = 0  # threads; 0: nobody has come yet
    whole_cta: bool = False  # no count was given: every warp that has not exited
    arrived: int = 0
    generation: int = 0
    warps: list[int] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)  # bar.red: the predicate of each warp's active lanes


class NamedBarriers:
    """The named barriers of all resident CTAs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.barriers: dict[tuple[int, int], NamedBarrier] = {}

    def arrive(
        self, cta: int, warp: int, number: int, count: int | None, value: np.ndarray | None = None
    ) -> tuple[NamedBarrier, bool]:
        """A warp arrives. Returns the barrier and whether that completed it. count: threads, None for the whole CTA."""
        m = self.machine
        if not 0 <= number < 16:
            raise IllegalInstruction(f"barrier number {number} of CTA {m.cta_name(cta)}: must be 0 to 15")
        if count is not None and (count <= 0 or count % 32):
            raise IllegalInstruction(
                f"barrier {number} of CTA {m.cta_name(cta)} with a count of {count}: must be a positive multiple of 32"
            )
        b = self.barriers.setdefault((cta, number), NamedBarrier())
        whole = count is None
        expected = 32 * m.live_warps(cta) if count is None else count
        if b.arrived and not (whole and b.whole_cta) and expected != b.expected:
            raise IllegalInstruction(
                f"barrier {number} of CTA {m.cta_name(cta)}: warp {warp} comes with a count of {expected} "
                f"threads, warps {b.warps} wait with {b.expected}"
            )
        b.expected, b.whole_cta = expected, whole
        b.arrived += 32
        b.warps.append(warp)
        if value is not None:
            b.values.append(value)
        m.progress += 1
        if m.observer is not None:
            m.observer.named(cta, warp, number, b.generation)
        if m.check is not None:
            m.check.named_arrive(cta, warp, number)
        return b, self.complete_if_full(cta, number, b)

    def complete_if_full(self, cta: int, number: int, b: NamedBarrier) -> bool:
        if b.arrived < b.expected:
            return False
        generation = b.generation
        b.generation += 1
        b.arrived, b.expected, b.warps = 0, 0, []
        if self.machine.check is not None:
            self.machine.check.named_complete(cta, number)
        self.machine.wake(("bar", cta, number, generation))
        return True

    def warp_exited(self, cta: int) -> None:
        """A barrier over the whole CTA waits only for warps that have not exited."""
        for (owner, number), b in self.barriers.items():
            if owner == cta and b.arrived and b.whole_cta:
                b.expected = 32 * self.machine.live_warps(cta)
                self.complete_if_full(cta, number, b)

    def describe(self, cta: int, number: int) -> dict[str, Any]:
        b = self.barriers[cta, number]
        return {
            "generation": b.generation,
            "threads_arrived": b.arrived,
            "threads_expected": b.expected,
            "warps_arrived": list(b.warps),
        }


class ClusterBarrier:
    """The barrier of one cluster: arrive and wait are two instructions (PTX ISA "barrier.cluster")."""

    def __init__(self) -> None:
        self.generation = 0
        self.arrived: set[tuple[int, int]] = set()  # (cta, warp) in the current generation
        self.entered: dict[tuple[int, int], int] = {}  # generation in which a warp arrived last
