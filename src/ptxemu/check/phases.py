"""mbarriers: what their phases pass on, and how they are misused.

PTX ISA 9.7.13.15 "mbarrier"; 8.8 (arrive is a release, test_wait and try_wait are acquires, unless .relaxed). Arrivals
are read-modify-writes of one word, so that whoever sees the end of a phase knows of all arrivals up to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..barriers import unpack
from ..findings import Access, Finding
from .clocks import E, Table, V, X

if TYPE_CHECKING:
    from .. import ptx

Place = tuple[int, int]  # (resident CTA that owns it, byte offset)


class Phases:
    """All mbarriers of the resident CTAs."""

    def __init__(self, check: Any) -> None:
        self.check = check
        self.tables: dict[Place, Table] = {}
        self.over: dict[Place, dict[int, Table]] = {}  # what the end of a phase tells
        self.inits: dict[Place, tuple[int, int, Access, ptx.Instr]] = {}  # epoch and place of mbarrier.init
        self.used: dict[Place, dict[tuple[int, int], tuple[Access, ptx.Instr]]] = {}
        self.waits: dict[Place, dict[tuple[int, int], tuple[int, Access, ptx.Instr]]] = {}  # who waits, for which phase

    def table(self, owner: int, offset: int) -> Table:
        """What arrivals so far have told."""
        found = self.check.clocks.fit(self.tables.get((owner, offset), self.check.clocks.table()))
        self.tables[owner, offset] = found
        return found

    def ends(self, owner: int, offset: int, phase: int, component: int | None) -> None:
        """A phase is over. component: of the operations that report to this barrier."""
        table = self.table(owner, offset)
        if component is not None:
            for row in (V, X, E):
                table[row, component] = phase + 1
        over = self.over.setdefault((owner, offset), {})
        over[phase] = table.copy()
        over.pop(phase - 8, None)
        for who, (wanted, access, ins) in list(self.waits.get((owner, offset), {}).items()):
            if wanted < phase:  # it still waits for the one before, whose parity is now the one to come
                del self.waits[owner, offset][who]
                self._lap(owner, offset, phase, access, ins)

    def waiting(self, place: Place, who: tuple[int, int], phase: int, access: Access, ins: ptx.Instr) -> None:
        """A warp has looked, and the phase is not over."""
        self.waits.setdefault(place, {}).setdefault(who, (phase, access, ins))

    def passed(self, place: Place, who: tuple[int, int]) -> Table | None:
        """A warp has seen the latest phase that is over: what that tells."""
        self.waits.get(place, {}).pop(who, None)
        phase = self.check.machine.mbarriers.phases[place] - 1
        return self.over.get(place, {}).get(phase)

    def _lap(self, owner: int, offset: int, phase: int, access: Access, ins: ptx.Instr) -> None:
        m = self.check.machine
        now = m.now
        by = f" (ended by {now.short_where})" if now is not None else ""
        self.check.say(
            Finding(
                "lap",
                f"{access} waits for the end of phase {phase - 1} of the mbarrier at {offset:#x} of CTA"
                f" {m.linear(owner)}, and phase {phase} is over too{by}: the parity is the same as before, so that it"
                " may wait for ever. Whoever ends a phase must know that every waiter has seen the one before",
                None,
                access,
                "a wait of the waiter between two phases",
            ),
            ins,
        )

    # ---- rules

    def initialised(self, place: Place, epoch: tuple[int, int], access: Access, ins: ptx.Instr) -> None:
        """mbarrier.init, before it takes effect."""
        m = self.check.machine
        if place in m.mbarriers.phases and place in self.inits:
            old = self.inits[place][2]
            pending, expected, tx, _ = unpack(m.mbarriers.word(*place))
            state = f"phase {m.mbarriers.phases[place]}, {pending} of {expected} arrivals and {tx} bytes pending"
            self.check.say(
                Finding(
                    "barrier",
                    f"{access} initialises the mbarrier at {place[1]:#x} again ({state}), without an mbarrier.inval"
                    f" since {old}",
                    old,
                    access,
                    "mbarrier.inval",
                ),
                ins,
            )
        self.inits[place] = (*epoch, access, ins)
        self.tables.pop(place, None)
        self.over.pop(place, None)

    def known(self, place: Place, who: tuple[int, int], ordered: np.ndarray, access: Access, ins: ptx.Instr) -> None:
        """A warp uses the object; ordered: what it knows, with mbarrier_init fences (a row)."""
        used = self.used.setdefault(place, {})
        if who in used:
            return
        used[who] = access, ins
        found = self.inits.get(place)
        if found is None:
            return
        component, clock, init, _ = found
        if component < len(ordered) and ordered[component] < clock:
            self.check.say(
                Finding(
                    "barrier",
                    f"{access} uses the mbarrier at {place[1]:#x} of CTA {self.check.machine.linear(place[0])}, and"
                    f" nothing orders it behind {init}: it needs a bar.sync (in a cluster: fence.mbarrier_init and a"
                    " cluster barrier) between them",
                    init,
                    access,
                    "a barrier between mbarrier.init and use",
                ),
                ins,
            )

    def finish(self) -> None:
        """At the end of the kernel nothing may be pending that somebody has begun."""
        m = self.check.machine
        for (owner, offset), phase in m.mbarriers.phases.items():
            pending, expected, tx, _ = unpack(m.mbarriers.word(owner, offset))
            if pending == expected and not tx:
                continue
            found = self.inits.get((owner, offset))
            state = []
            if pending != expected:
                state.append(f"{pending} of {expected} arrivals")
            if tx:
                state.append(f"{tx} bytes" if tx > 0 else f"{-tx} bytes that nobody expected")
            users = m.mbarriers.describe(owner, offset)["so_far_from"]
            self.check.say(
                Finding(
                    "pending",
                    f"the kernel has ended with {' and '.join(state)} pending in phase {phase} of the mbarrier at"
                    f" {offset:#x} of CTA {m.linear(owner)}; arrivals and bytes came from {users}",
                    None,
                    found[2] if found else None,
                    "bytes" if tx else "arrivals",
                    strict=tx >= 0,
                ),
                found[3] if found else None,
            )
