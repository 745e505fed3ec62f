"""Which way a warp went through the SASS, from what the emulator saw of it in the PTX.

The compiler moves, joins and repeats code, but it keeps the order of the instructions that others can notice: waits and
arrivals, copies, MMAs, reads and writes of tensor memory, barriers. These are the *anchors*. A warp's anchors in the
PTX run are a path through the anchors of the SASS; between two of them the warp took the shortest way that the
branches leave open. Loops without an anchor in them count as taken once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .sass import Sass

# PTX opcode (how it begins) -> kind of anchor. The longest beginning that fits decides.
PTX_KINDS = {
    "mbarrier.init": "init",
    "mbarrier.try_wait": "wait",
    "mbarrier.test_wait": "test",
    "mbarrier.arrive": "arrive",
    "mbarrier.expect_tx": "arrive",
    "cp.async.bulk.tensor": "tma",
    "cp.async.bulk.shared": "bulk",
    "cp.async.bulk.global": "bulk",
    "cp.reduce.async.bulk": "bulk",
    "cp.reduce.async.bulk.tensor": "tma store",
    "cp.async.bulk.prefetch.tensor": "prefetch",
    "tcgen05.mma": "mma",
    "tcgen05.commit": "commit",
    "tcgen05.ld": "tmem load",
    "tcgen05.st": "tmem store",
    "bar.sync": "bar",
    "bar.arrive": "bar",
    "bar.red": "bar",
    "barrier.sync": "bar",
    "barrier.arrive": "bar",
    "barrier.red": "bar",
    "barrier.cta": "bar",
    "wgmma.mma_async": "wgmma",
    "mma.sync": "mma.sync",
    "pmevent": "mark",
}

# SASS opcode (how it begins) -> kind.
SASS_KINDS = {
    "SYNCS.EXCH": "init",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT": "wait",
    "SYNCS.PHASECHK": "test",
    "SYNCS.ARRIVE": "arrive",
    "UTMALDG": "tma",
    "UTMASTG": "tma store",
    "UTMAREDG": "tma store",
    "UBLKCP": "bulk",
    "UBLKRED": "bulk",
    "UTMAPF": "prefetch",
    "UTCHMMA": "mma",
    "UTCQMMA": "mma",
    "UTCIMMA": "mma",
    "UTCOMMA": "mma",
    "UTCMXQMMA": "mma",
    "UTCBAR": "commit",
    "LDTM": "tmem load",
    "STTM": "tmem store",
    "BAR.SYNC": "bar",
    "BAR.ARV": "bar",
    "BAR.RED": "bar",
    "HGMMA": "wgmma",
    "QGMMA": "wgmma",
    "IGMMA": "wgmma",
    "HMMA": "mma.sync",
    "PMTRIG": "mark",
}


def _longest(table: dict[str, str], opcode: str) -> str | None:
    best = ""
    for beginning in table:
        if opcode.startswith(beginning) and len(beginning) > len(best):
            best = beginning
    return table.get(best)


def ptx_kind(opcode: str) -> str | None:
    """The kind of anchor that a PTX instruction is, or None."""
    kind = _longest(PTX_KINDS, opcode)
    return "tma store" if kind == "tma" and ".global.shared::cta" in opcode else kind


def sass_kind(opcode: str) -> str | None:
    """The kind of anchor that a SASS instruction is, or None."""
    return _longest(SASS_KINDS, opcode)


class NoWay(ValueError):
    """The anchors of a warp do not fit the SASS: the message names the first that does not."""


@dataclass(slots=True, frozen=True)
class Anchor:
    """An anchor of a warp's PTX run. kind: see the tables; line: of the source; optional: under a guard, so that the
    SASS may have it or not.
    """

    kind: str
    line: int | None
    optional: bool = False


@dataclass(slots=True, frozen=True)
class Way:
    """From one anchor to the next: the instructions between them and the next one itself, by index."""

    steps: tuple[int, ...]
    skipped: tuple[int, ...]  # guarded anchors passed by with their guard false


START, END = -1, -2
WIDTH = 64  # readings of a warp's way that are kept at a time


class Paths:
    """The ways between the anchors of one kernel's SASS."""

    def __init__(self, code: Sequence[Sass]) -> None:
        self.code = code
        self.index = {op.address: i for i, op in enumerate(code)}
        self.kinds = [sass_kind(op.opcode) for op in code]
        self._ways: dict[int, dict[int, Way]] = {}
        self._next: dict[tuple[int, str], list[int]] = {}

    def following(self, i: int) -> list[int]:
        """The instructions that may come after instruction i."""
        op, out = self.code[i], []
        if op.falls_through and i + 1 < len(self.code):
            out.append(i + 1)
        return out + [self.index[target] for target in op.targets]

    def ways(self, anchor: int) -> dict[int, Way]:
        """Every anchor that can be the next one after `anchor` (START: from the beginning), and END, with the
        shortest way there.
        """
        if anchor in self._ways:
            return self._ways[anchor]
        found: dict[int, Way] = {}
        begin = [0] if anchor == START else self.following(anchor)
        heap: list[tuple[int, int, int, int]] = []  # skipped anchors, length, order, instruction
        order = 0
        came: dict[int, int] = {}
        done: set[int] = set()
        for i in begin:
            heapq.heappush(heap, (0, 0, order, i))
            order += 1
            came.setdefault(i, START)
        best = {i: (0, 0) for i in begin}
        while heap:
            skips, length, _, i = heapq.heappop(heap)
            if i in done:
                continue
            done.add(i)
            if self.code[i].name == "EXIT" and END not in found:
                found[END] = self._trace(came, i)
            if self.kinds[i] is not None:
                found[i] = self._trace(came, i)
                if not self.code[i].guard:
                    continue
                skips += 1
            for j in self.following(i):
                cost = (skips, length + 1)
                if j not in done and (j not in best or cost < best[j]):
                    best[j] = cost
                    came[j] = i
                    order += 1
                    heapq.heappush(heap, (*cost, order, j))
        self._ways[anchor] = found
        return found

    def _trace(self, came: dict[int, int], end: int) -> Way:
        steps = [end]
        while (before := came[steps[-1]]) != START:
            steps.append(before)
        steps.reverse()
        return Way(tuple(steps), tuple(i for i in steps[:-1] if self.kinds[i] is not None))

    def candidates(self, anchor: int, kind: str) -> list[int]:
        """The anchors of a kind that can follow."""
        key = (anchor, kind)
        if key not in self._next:
            self._next[key] = [i for i in self.ways(anchor) if i >= 0 and self.kinds[i] == kind]
        return self._next[key]

    def match(self, anchors: Sequence[Anchor]) -> tuple[list[int], list[int | None]]:
        """The SASS instructions of a warp in the order in which it ran them (indices), and where in that list each
        anchor stands (None: an optional one that the SASS does not have at this place).

        Raises NoWay.
        """
        # For every place where the warp can stand: the best score, and how it came there: from where, by taking the
        # anchor or by skipping it.
        states: dict[int, float] = {START: 0.0}
        back: list[dict[int, tuple[int, bool]]] = []
        for n, a in enumerate(anchors):
            after: dict[int, float] = {}
            how: dict[int, tuple[int, bool]] = {}
            for at, score in states.items():
                for i in self.candidates(at, a.kind):
                    way = self._ways[at][i]
                    s = score + (self.code[i].line == a.line) - 0.1 * len(way.skipped) - 1e-5 * len(way.steps)
                    if s > after.get(i, -math.inf):
                        after[i], how[i] = s, (at, True)
                if a.optional and score - 0.5 > after.get(at, -math.inf):
                    after[at], how[at] = score - 0.5, (at, False)
            if not after:
                where = ", ".join(sorted("the start" if i == START else str(self.code[i]) for i in states))
                raise NoWay(
                    f"anchor {n} of {len(anchors)} ({a.kind}, source line {a.line}) cannot follow {where} in the SASS"
                )
            if len(after) > WIDTH:  # the hopeless ones only cost time
                keep = sorted(after, key=after.__getitem__, reverse=True)[:WIDTH]
                after = {i: after[i] for i in keep}
            back.append(how)
            states = after
        ends = {at: score for at, score in states.items() if END in self.ways(at)}
        if not ends:
            raise NoWay("no way leads from the last anchor to the end of the kernel")
        at = last = max(ends, key=ends.__getitem__)
        took: list[Way | None] = []
        for how in reversed(back):
            before, taken = how[at]
            took.append(self.ways(before)[at] if taken else None)
            at = before
        program: list[int] = []
        places: list[int | None] = []
        for taken_way in reversed(took):
            if taken_way is None:
                places.append(None)
                continue
            program += taken_way.steps
            places.append(len(program) - 1)
        program += self.ways(last)[END].steps
        return program, places
