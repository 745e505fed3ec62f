"""Who runs next: bundles of warps, their divergence and reconvergence, waiting, waking, and the report when nothing
        can move any more.

A *bundle* is a rectangle of warps (some warps of some CTAs) that stand at the same place. A warp whose lanes have
parted keeps a PC for each lane
(`Machine.lane_pc`); the fragment with the lowest PC runs first, which brings the lanes together again where their
paths meet. PTX leaves the
order of warps open; two schedules use that freedom: "fair" and "adversarial" (see config.Config).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .agents import NEVER
from .errors import DeadlockError, EmulationError, IllegalInstruction
from .program import EXITED, MAX_RUN, Block

if TYPE_CHECKING:
    from .machine import Machine, RectKey, Warps

SPIN_LIMIT = 256  # ticks in which every runnable warp only polled before that counts as a deadlock


@dataclass(slots=True)
class Wait:
    """Why warps stand still. key: what `Machine.wake` gets. retry: run the instruction again then, or go on behind it.

    timeout: a try_wait, which may give up. data: for the "wait" events. info: the state of what it waits for, for the
    deadlock report.
    """

    key: Hashable
    text: str
    retry: bool = True
    timeout: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    info: Callable[[], dict[str, Any]] | None = None


@dataclass(slots=True)
class Blocked:
    """A warp that has to wait: what a blocking instruction returns, one for each."""

    cta: int
    warp: int
    reason: Wait


class Bundle:
    """Warps that stand at the same place. `pcs`: where their lanes are (one PC unless they have parted); `held`: PCs
    that cannot go on.
    """

    __slots__ = ("divergent", "held", "number", "pcs", "polled", "queued", "running", "warps")

    numbers = itertools.count()

    def __init__(
        self, warps: Warps, pcs: tuple[int, ...], divergent: bool, held: dict[int, Wait] | None = None
    ) -> None:
        self.warps, self.pcs, self.divergent = warps, pcs, divergent
        self.number = next(Bundle.numbers)  # in order of creation: what is sorted by it repeats from run to run
        self.held: dict[int, Wait] = dict(held or {})
        self.polled = -1  # the last tick in which it looked at somebody else's state in vain
        self.queued = False
        self.running = -1  # where the block began that runs now

    @property
    def pc(self) -> int | None:
        """Where it goes on: the lowest PC that is not held."""
        for pc in self.pcs:
            if pc not in self.held:
                return pc
        return None


def rectangles(member: np.ndarray) -> list[RectKey]:
    """Cut a set of warps (bool [warp, CTA]) into rectangles: runs of warps with the same CTAs, those in arithmetic
    progressions. The same few sets come again and again.
    """
    return _rectangles(member.shape[1], member.tobytes())


@functools.lru_cache(maxsize=4096)
def _rectangles(ctas: int, cells: bytes) -> list[RectKey]:
    member = np.frombuffer(cells, np.bool_).reshape(-1, ctas)
    keys = []
    rows = np.flatnonzero(member.any(1))
    i = 0
    while i < len(rows):
        j = i + 1
        while j < len(rows) and rows[j] == rows[j - 1] + 1 and np.array_equal(member[rows[j]], member[rows[i]]):
            j += 1
        columns = np.flatnonzero(member[rows[i]]).tolist()
        k = 0
        while k < len(columns):
            step, end = 1, k + 1
            if end < len(columns):
                step = columns[end] - columns[k]
                while end < len(columns) and columns[end] - columns[end - 1] == step:
                    end += 1
                if (
                    end == k + 2 and step > 1 and end < len(columns)
                ):  # two that happen to be apart: leave the second to the next run
                    step, end = 1, k + 1
            keys.append((int(rows[i]), int(rows[j - 1]) + 1, columns[k], columns[end - 1] + 1, step))
            k = end
        i = j
    return keys


class Scheduler:
    """Runs the resident CTAs of a machine to their end."""

    def __init__(self, machine: Machine, rng: random.Random | None) -> None:
        self.machine, self.rng = machine, rng
        self.program = machine.program
        self.waiting: dict[Hashable, list[Bundle]] = {}
        self.ready: list[Bundle] = []
        self.steps = 0
        self.merges: dict[tuple, list[RectKey]] = {}
        self.gave_up_at = -1  # machine.progress when try_waits last timed out
        self.moved_at = machine.tick  # the tick of the last progress
        self.seen_progress = machine.progress
        self._begin()

    def _begin(self) -> None:
        m = self.machine
        threads = m.launch.threads
        whole = threads // 32
        if whole:
            self.put(Bundle(m.bundle((0, whole, 0, m.ctas, 1)), (0,), False))
        if threads % 32:
            last = m.bundle((whole, whole + 1, 0, m.ctas, 1))
            last.lane_pc[...] = np.where(np.arange(32) < threads % 32, 0, EXITED)
            self.put(Bundle(last, (0,), True))

    # ---- the loop

    def run(self, first: int, total: int) -> None:
        """Until every warp has exited. Progress is reported as (CTAs done in the grid, all CTAs)."""
        m = self.machine
        self.first, self.total = first, total
        while m.live.any():
            if self.ready:
                m.tick += 1
                self._round() if self.rng is None else self._gamble()
                m.agents.step()
                self._watch()
            else:
                self._stuck()
        while m.agents:  # work whose end nobody waited for
            m.agents.force_one()

    def _round(self) -> None:
        """Fair: everybody who can has one turn."""
        todo = self.merge(self.ready)
        self.ready = []
        for b in todo:
            b.queued = False
        for b in todo:
            self.turn(b, MAX_RUN)

    def _gamble(self) -> None:
        """Adversarial: somebody, perhaps only some of the bundle, for as long as chance will have it."""
        rng = self.rng
        assert rng is not None
        if rng.random() < 0.25:
            self.ready = self.merge(self.ready)
        if rng.random() < 0.02:  # a try_wait may give up at any time
            patient = [b for b in self._blocked() if any(wait.timeout for wait in b.held.values())]
            if patient:
                self.give_up(rng.choice(patient))
        b = self.ready.pop(rng.randrange(len(self.ready)))
        b.queued = False
        while b.warps.count > 1 and not b.held and rng.random() < 0.5:
            keep = np.array([rng.random() < 0.5 for _ in range(b.warps.count)]).reshape(b.warps.shape[:2])
            parts = self.part(b, keep.astype(np.int64), {0: (b.pcs, b.divergent), 1: (b.pcs, b.divergent)})
            for p in parts:
                self.put(p)
            b = self.ready.pop(rng.randrange(len(self.ready)))
            b.queued = False
        self.turn(b, rng.choice((1, 8, MAX_RUN, 8 * MAX_RUN)))

    def put(self, b: Bundle) -> None:
        """It may run."""
        if not b.queued:
            b.queued = True
            self.ready.append(b)

    def merge(self, bundles: list[Bundle]) -> list[Bundle]:
        """Join bundles that stand at the same place, so that they run as one."""
        if len(bundles) == 1:
            return bundles
        groups: dict[tuple, list[Bundle]] = {}
        for b in bundles:
            groups.setdefault((b.pcs, b.divergent, b.number if b.held else -1), []).append(b)
        out = []
        for (pcs, divergent, _), group in sorted(groups.items(), key=lambda g: g[0]):
            if len(group) == 1:
                out.append(group[0])
                continue
            keys = tuple(sorted(b.warps.key for b in group))
            found = self.merges.get(keys)
            if found is None:
                member = np.zeros((self.machine.warps_per_cta, self.machine.ctas), np.bool_)
                for w0, w1, c0, c1, step in keys:
                    member[w0:w1, c0:c1:step] = True
                found = rectangles(member)
                self.merges[keys] = found
            if len(found) >= len(group):
                out += group
                continue
            polled = min(b.polled for b in group)
            for b in group:
                b.pcs = ()
            for key in found:
                joined = Bundle(self.machine.bundle(key), pcs, divergent)
                joined.polled, joined.queued = polled, True
                out.append(joined)
        return out

    def _watch(self) -> None:
        """Notice when warps only poll for what nobody will change."""
        m = self.machine
        if m.progress != self.seen_progress or m.agents:
            self.seen_progress, self.moved_at = m.progress, m.tick
        elif m.tick - self.moved_at > SPIN_LIMIT * (1 if self.rng is None else 8 * m.live.size):
            recent = m.tick - SPIN_LIMIT // 4
            if self.ready and all(b.polled > max(self.moved_at, recent) for b in self.ready):
                self.deadlock("every warp that still runs polls in a loop")
            if not self.ready or not any(b.polled > self.moved_at for b in self.ready):
                self.moved_at = m.tick  # they compute; that is no deadlock
        if self.steps > m.config.max_steps:
            where = next((self.program.ops[b.pc].ins.where for b in self.ready if b.pc is not None), "")
            raise EmulationError(
                (
                    f"more than max_steps = {m.config.max_steps} warp instructions: an endless loop, or raise "
                    f"Config.max_steps"
                ),
                where,
            )

    # ---- a turn

    def turn(self, b: Bundle, budget: int) -> None:
        """Run one bundle until it waits, splits, exits, or its budget of instructions is used up. It is put back by
        whoever it belongs to.
        """
        m, program = self.machine, self.program
        current: Bundle | None = b
        whole = budget
        while current is not None:
            b = current
            pc = b.pc
            if pc is None:  # it was split or joined with another while it stood in the queue
                return
            if b.divergent and self.rng is not None and self.rng.random() < 0.2:  # lanes may run in any order
                pc = self.rng.choice([x for x in b.pcs if x not in b.held])
            b.running = pc
            block = program.block(pc)
            w = b.warps
            if b.divergent:
                w = w.twin
                w.mask = w.lane_pc == pc
            length = len(block)
            m.turn_base = whole - budget - pc
            m.at(pc)
            block.warps += w.count
            self.steps += length * w.count
            budget -= length
            m.polling = False
            current = self._execute(b, w, block)
            if m.polling:
                m.polling = False
                b.polled = m.tick
                budget = 0
            if current is not None and (budget <= 0 or current.pc is None):
                if current.pc is not None:
                    current.polled = b.polled
                    self.put(current)
                return

    def _execute(self, b: Bundle, w: Warps, block: Block) -> Bundle | None:
        """Run a block. Returns the bundle to go on with, or None when what is left of it is queued, waits or is
        done.
        """
        runs = block.masked if b.divergent else block.full
        run = None
        try:
            for run in runs:
                run(w)
            run = None
            last, observer = block.last, self.machine.observer
            if observer is not None:
                observer.block(w, block.start, block.end)
            if last is None:
                return self.advance(b, w, block.end)
            if last.kind == "branch":
                if observer is not None:
                    observer.block(w, block.end, block.end + 1)
                return self.branch(b, w, last, block.end)
            if last.converge and b.divergent:
                missing = self.missing(w, block.end)
                if missing.any():
                    return self.gather(b, w, block.end, missing)
            blocked = (last.masked if b.divergent else last.full)(w)
            if observer is not None:
                again = {(x.cta, x.warp) for x in blocked or () if x.reason.retry}
                for cta, warp, _ in w.each_warp():
                    if (cta, warp) not in again:
                        observer.passed(cta, warp, block.end)
            if blocked:
                return self.block(b, w, block.end, blocked)
            return self.advance(b, w, block.end + 1)
        except Exception as error:
            at = block.end
            if run is not None:
                at = (block.masked_places if b.divergent else block.full_places)[runs.index(run)]
            ins = self.program.ops[min(at, len(self.program.ops) - 1)].ins
            if isinstance(error, EmulationError):
                if error.where or isinstance(error, DeadlockError):
                    raise
                raise type(error)(error.detail, ins.where) from error
            error.add_note(f"while the emulator ran {ins.where} for warps {b.warps.key}")
            raise

    def advance(self, b: Bundle, w: Warps, pc: int) -> Bundle | None:
        """The running lanes of `b` go to `pc`."""
        if not b.divergent:
            b.pcs = (pc,)
            return b
        here = b.running
        assert w.mask is not None
        np.copyto(w.lane_pc, pc, where=w.mask)
        if pc not in b.pcs:  # they meet nobody
            b.pcs = tuple(sorted({pc, *b.pcs} - {here}))
            return b
        return self.regroup(b, [p for p in b.pcs if p != here])

    def branch(self, b: Bundle, w: Warps, op: Any, here: int) -> Bundle | None:
        """PTX ISA "bra", "ret", "exit": the target is the same for all lanes, the guard is each lane's own."""
        ins = op.ins
        if ins.guard is None:
            if op.target == EXITED and not b.divergent:
                b.pcs = ()
                self.retire(b.warps)
                return None
            if op.target == EXITED:
                assert w.mask is not None
                old = b.running
                np.copyto(w.lane_pc, EXITED, where=w.mask)
                return self.regroup(b, [p for p in b.pcs if p != old])
            return self.advance(b, w, op.target)
        taken = w.pred[ins.guard.slot]
        if w.mask is None:
            n, size = int(np.count_nonzero(taken)), taken.size
            if ins.guard_not:
                n = size - n
            if n == 0:
                b.pcs = (here + 1,)
                return b
            if n == size:
                if op.target == EXITED:
                    b.pcs = ()
                    self.retire(b.warps)
                    return None
                b.pcs = (op.target,)
                return b
        if ins.guard_not:
            taken = ~taken
        lanes = w.lane_pc
        if w.mask is None:
            lanes[...] = np.where(taken, op.target, here + 1)
            return self.regroup(b, [here + 1, op.target])
        old = b.running
        np.copyto(lanes, np.where(taken, op.target, here + 1), where=w.mask)
        return self.regroup(b, [p for p in b.pcs if p != old] + [here + 1, op.target])

    def regroup(self, b: Bundle, candidates: Iterable[int]) -> Bundle | None:
        """Lanes have moved: sort the warps of `b` by where their lanes now are. One group left: go on with it;
        several: queue them.
        """
        lanes = b.warps.lane_pc
        places = sorted(set(candidates) - {EXITED})
        code = np.zeros(b.warps.shape[:2], np.int64)
        for i, pc in enumerate(places):
            there = np.packbits(lanes == pc, axis=-1).view(np.uint32)[..., 0]  # the lanes of a warp as one number
            code += (there != 0) * (1 << 2 * i) + (there == 0xFFFFFFFF) * (1 << 2 * i + 1)
        states: dict[int, tuple[tuple[int, ...], bool]] = {}
        for c in sorted(set(code.ravel().tolist())):
            pcs = tuple(pc for i, pc in enumerate(places) if c >> 2 * i & 1)
            divergent = not any(c >> 2 * i + 1 & 1 for i in range(len(places)))
            states[c] = (pcs, divergent)
        if any(wait.key == "converge" for wait in b.held.values()):  # whoever waits for others may find them here now
            self.forget(b)
            b.held = {pc: x for pc, x in b.held.items() if x.key != "converge"}
            self.remember(b)
        if len(states) == 1:
            ((c, (pcs, divergent)),) = states.items()
            if c == 0:
                self.forget(b)
                b.pcs = ()
                self.retire(b.warps)
                return None
            b.pcs, b.divergent = pcs, divergent
            return b
        for part in self.part(b, code, states):
            self.put(part)
        return None

    def part(self, b: Bundle, code: np.ndarray, states: dict[int, tuple[tuple[int, ...], bool]]) -> list[Bundle]:
        """Split a bundle by a code for each of its warps; code 0 without PCs means exited. Waits go along."""
        m = self.machine
        self.forget(b)
        w0, w1, c0, c1, step = b.warps.key
        out = []
        for c, (pcs, divergent) in states.items():
            member = np.zeros((m.warps_per_cta, m.ctas), np.bool_)
            member[w0:w1, c0:c1:step] = code == c
            for key in rectangles(member):
                warps = m.bundle(key)
                if not pcs:
                    self.retire(warps)
                    continue
                p = Bundle(warps, pcs, divergent, {pc: x for pc, x in b.held.items() if pc in pcs})
                p.polled = b.polled
                self.remember(p)
                if p.pc is not None:
                    out.append(p)
        b.pcs = ()
        return out

    def missing(self, w: Warps, pc: int) -> np.ndarray:
        """The lanes that the instruction at `pc` needs and that are not here: all that live, or its membermask's.

        A membermask may name fewer lanes than stand here; the instruction checks that itself.
        """
        assert w.mask is not None
        needed = w.lane_pc != EXITED
        members = self.program.ops[pc].members
        if members is not None:
            needed &= ((w.u32[members] >> np.arange(32, dtype=np.uint32)) & 1) != 0
        return np.asarray(needed & ~w.mask)

    def gather(self, b: Bundle, w: Warps, pc: int, missing: np.ndarray) -> Bundle | None:
        """Hold the running lanes at `pc` until the missing ones come (or exit)."""
        self.program.block(pc).warps -= w.count  # the instruction will be counted when it runs
        if b.running != pc:  # what stood before it in the block is done: go to it, and see who is there already
            return self.advance(b, w, pc)
        code = np.asarray(missing.any(-1)).astype(np.int64)
        if not code.all():  # some of the warps are complete
            for part in self.part(b, code, {0: (b.pcs, True), 1: (b.pcs, True)}):
                self.put(part)
            return None
        ins = self.program.ops[pc].ins
        b.held[pc] = Wait("converge", f"{ins.opcode} waits for the other lanes of its warp")
        self.waiting.setdefault("converge", []).append(b)
        return b

    def block(self, b: Bundle, w: Warps, pc: int, blocked: list[Blocked]) -> Bundle | None:
        """Some warps of `b` wait at the instruction at `pc`; the others go on."""
        m = self.machine
        w0, _, c0, _, step = b.warps.key
        code = np.zeros(b.warps.shape[:2], np.int64)
        reasons: dict[Hashable, tuple[int, Wait]] = {}
        for x in blocked:
            number, _ = reasons.setdefault((x.reason.key, x.reason.retry), (len(reasons) + 1, x.reason))
            code[x.warp - w0, (x.cta - c0) // step] = number
            if m.tracing:
                m.at(pc)
                m.emit(x.cta, f"warp{x.warp}", "begin", "wait", **x.reason.data)
        start = b.running
        parts: list[Bundle] = []
        whole = len(reasons) == 1 and bool((code == 1).all())
        if whole:
            parts = [b]
        else:
            states = {c: (b.pcs, b.divergent) for c in sorted(set(code.ravel().tolist()))}
            self.forget(b)
            out = []
            key0 = b.warps.key
            for c in states:
                member = np.zeros((m.warps_per_cta, m.ctas), np.bool_)
                member[key0[0] : key0[1], key0[2] : key0[3] : key0[4]] = code == c
                for key in rectangles(member):
                    p = Bundle(m.bundle(key), b.pcs, b.divergent, b.held)
                    p.polled = b.polled
                    self.remember(p)
                    out.append((c, p))
            b.pcs = ()
            parts = [p for c, p in out if c]
            for c, p in out:
                if c == 0:
                    self._move(p, start, pc + 1)
                    onward = self.regroup(p, p.pcs) if p.divergent else p
                    if onward is not None and onward.pc is not None:
                        self.put(onward)
        by_number = dict(reasons.values())
        for p in parts:
            first = p.warps
            number = int(code[first.key[0] - w0, (first.key[2] - c0) // step])
            wait = by_number[number]
            stop = pc if wait.retry else pc + 1
            self._move(p, start, stop)
            if wait.retry:  # it will be counted when it runs again
                self.program.block(pc).warps -= p.warps.count
            p.held[stop] = wait
            self.waiting.setdefault(wait.key, []).append(p)
        return None

    def _move(self, b: Bundle, start: int, pc: int) -> None:
        """Put the running lanes of a bundle at `pc` without looking for others there."""
        if b.divergent:
            lanes = b.warps.lane_pc
            np.copyto(lanes, pc, where=lanes == start)
        b.pcs = tuple(sorted({pc, *b.pcs} - ({start} if start != pc else set())))

    def wake(self, key: Hashable) -> None:
        """What waits for `key` may go on."""
        for b in self.waiting.pop(key, ()):
            self._let_go(b, [pc for pc, wait in b.held.items() if wait.key == key])

    def give_up(self, b: Bundle) -> None:
        """The time limit of a bundle's try_waits is reached."""
        self.machine.expired.update((cta, warp) for cta, warp, _ in b.warps.each_warp())
        self.forget(b)
        self._let_go(b, [pc for pc, wait in b.held.items() if wait.timeout])
        self.remember(b)

    def _let_go(self, b: Bundle, pcs: list[int]) -> None:
        m = self.machine
        for pc in pcs:
            wait = b.held.pop(pc)
            if m.tracing:
                for cta, warp, _ in b.warps.each_warp():
                    m.emit(cta, f"warp{warp}", "end", "wait", **wait.data)
        self.put(b)

    def forget(self, b: Bundle) -> None:
        """Take a bundle out of every list of waiters."""
        for wait in b.held.values():
            waiters = self.waiting.get(wait.key)
            if waiters and b in waiters:
                waiters.remove(b)
                if not waiters:
                    del self.waiting[wait.key]

    def remember(self, b: Bundle) -> None:
        """Put a bundle into the list of waiters of everything that holds it."""
        for wait in b.held.values():
            self.waiting.setdefault(wait.key, []).append(b)

    def retire(self, warps: Warps) -> None:
        """Warps have left the kernel."""
        m = self.machine
        before = int(m.live.any(0).sum())
        m.live[warps.rect] = False
        m.progress += 1
        for cta in warps.cta.ravel().tolist():
            m.named.warp_exited(cta)
        for cluster in {cta // m.cluster_size for cta in warps.cta.ravel().tolist()}:
            m.complete_cluster_barrier(cluster)
        left = int(m.live.any(0).sum())
        if m.config.progress is not None and left < before:
            m.config.progress(self.first + m.ctas - left, self.total)

    # ---- nothing can run

    def _blocked(self) -> list[Bundle]:
        return list(dict.fromkeys(b for waiters in self.waiting.values() for b in waiters))

    def _stuck(self) -> None:
        """No bundle can run: let time pass, then use what freedom the ISA leaves, then give up."""
        m = self.machine
        if m.agents:
            due = m.agents.next_due()
            if due < NEVER:
                m.tick = max(m.tick, due)
                m.agents.step()
            else:
                m.agents.force_one()
            return
        blocked = self._blocked()
        others = [b for b in blocked if b.pc is not None]
        if others:  # lanes that stood back for a lower PC, which now waits: independent thread scheduling lets them run
            for b in others:
                self.put(b)
            return
        patient = [b for b in blocked if any(wait.timeout for wait in b.held.values())]
        if patient and self.gave_up_at != m.progress:
            self.gave_up_at = m.progress
            m.tick += 1
            for b in patient:
                self.give_up(b)
            return
        self.deadlock("no warp can run and no asynchronous unit has work left")

    def deadlock(self, why: str) -> None:
        """Raise DeadlockError with everybody who waits, and for what."""
        m = self.machine
        waiting: list[dict[str, Any]] = []
        lines: list[str] = []
        spinning = [b for b in self.ready if b.polled > self.moved_at]
        for b in self._blocked():
            for pc, wait in b.held.items():
                at = pc if wait.retry or wait.key == "converge" else pc - 1
                self._report(b, at, wait.text, wait.data, wait.info() if wait.info else {}, waiting, lines)
        for b in spinning:
            if b.pc is not None:
                self._report(b, b.pc, "polls in a loop", {}, {}, waiting, lines)
        running = sum(b.warps.count for b in self.ready) - sum(b.warps.count for b in spinning)
        tail = [f"  {running} more warps run"] if running else []
        exited = int((~m.live).sum())
        if exited:
            tail.append(f"  {exited} warps have exited")
        raise DeadlockError("\n".join([f"deadlock: {why}", *lines, *tail]), waiting)

    def _report(
        self, b: Bundle, pc: int, text: str, data: dict, info: dict, waiting: list[dict], lines: list[str]
    ) -> None:
        m = self.machine
        ins = self.program.ops[pc].ins
        source = f"{ins.source.file}:{ins.source.line}" if ins.source else None
        for cta, warp, _ in b.warps.each_warp():
            waiting.append(
                {
                    "cta": m.linear(cta),
                    "warp": warp,
                    "what": text,
                    "ptx_line": ins.line,
                    "source": source,
                    "instruction": ins.text,
                    **data,
                    **info,
                }
            )
        ctas = sorted(m.linear(c) for c in b.warps.cta.ravel().tolist())
        w0, w1 = b.warps.key[:2]
        who = f"warp {w0}" if w1 == w0 + 1 else f"warps {w0}-{w1 - 1}"
        whose = f"CTA {ctas[0]}" if len(ctas) == 1 else f"CTAs {', '.join(map(str, ctas))}"
        lines.append(f"  {whose}, {who}: {text}")
        if info:
            lines.append("    now: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in info.items()))
        lines.append(f"    at {ins.where}")


def check_members(w: Warps, members: np.ndarray, opcode: str) -> None:
    """Every active lane must be named in the membermask (PTX ISA, the .sync instructions). IllegalInstruction
    otherwise.
    """
    named = (members >> np.arange(32, dtype=np.uint32)) & 1
    bad = w.active() & (named == 0)
    if bad.any():
        t = next(t for t in w.threads() if bad[t.at])
        raise IllegalInstruction(
            f"{opcode}: lane {t.lane} of warp {t.warp} executes it, but the membermask "
            f"{int(members[t.at]):#x} leaves it out"
        )
