"""What the clock needs of a run: each warp's way, and who signalled whom.

A `Recorder` is an observer of the emulator. What it writes down does not depend on time: the anchors of each warp in
program order (see path.py), what each asynchronous operation carried, and for every phase of every mbarrier who
contributed to it and who waited for its end. The clock replays that under its own time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import iket, ptx
from ..observe import Observer, Place
from .path import Anchor, ptx_kind

if TYPE_CHECKING:
    from ..agents import AsyncOp
    from ..machine import Machine, Warps

Phase = tuple[Place, int]  # of an mbarrier


@dataclass(slots=True, eq=False)
class Work:
    """An asynchronous operation: engine, name and data as in its trace event; the phases it arrives in or pays for."""

    engine: str
    name: str
    cta: int
    data: dict[str, Any]
    signals: list[Phase] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """An anchor that a warp passed. phase: waited for (None: passed at once, -1 included); signals: phases that it
    arrives in; work: what it asks a unit for; barrier: (number, generation) of a named barrier; text: the PTX opcode;
    mark: "begin", "end" or "mark" of an IKET range and its name.
    """

    anchor: Anchor
    pc: int
    text: str
    phase: Phase | None = None
    signals: list[Phase] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    barrier: tuple[int, int] | None = None
    mark: tuple[str, str] | None = None


class Recorder(Observer):
    """Writes a run down. After it: `steps` of each (resident CTA, warp), `contributors` of each phase.

    Give it to `Config(observer=..., trace=True)`: the trace's data say what a copy or an MMA carried. ctas: those to
    write down, by their number in the launch (None: all). Whoever signals or waits across them must be among them.
    """

    def __init__(self, ctas: Container[int] | None = None) -> None:
        self.ctas = ctas
        self.steps: dict[tuple[int, int], list[Step]] = defaultdict(list)
        self.contributors: dict[Phase, int] = defaultdict(int)  # how many arrivals and payments end the phase
        self.instructions = 0
        self.programs: dict[int, Any] = {}  # what timing.programs made of it, by the SASS
        self.cluster_size = 1
        self.kernel = ""
        self._waits: dict[tuple[int, int], list[Phase]] = defaultdict(list)
        self._arrivals: dict[tuple[int, int], list[Phase]] = defaultdict(list)
        self._work: dict[tuple[int, int], list[tuple[int, Work]]] = defaultdict(list)
        self._named: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._ops: dict[int, tuple[AsyncOp, Work]] = {}
        self._ranges: dict[tuple[int, int], list[str]] = defaultdict(list)
        self._anchors: dict[tuple[int, int], list[tuple[int, Anchor, str]]] = {}

    def start(self, machine: Machine) -> None:
        if self.steps:
            raise ValueError(
                "the recorder has seen one wave of CTAs already; record a grid whose CTAs are all resident at once"
            )
        super().start(machine)
        if not machine.tracing:
            raise ValueError("record with Config(trace=True): the sizes of copies and MMAs come from the trace")
        self.ops = machine.program.ops
        self.cluster_size = machine.cluster_size
        self.kernel = machine.launch.run.kernel
        self._declared, self._range_end = iket.declarations(machine.program.module)

    def _found(self, start: int, end: int) -> list[tuple[int, Anchor, str]]:
        """The anchors among the instructions [start, end)."""
        found = self._anchors.get((start, end))
        if found is None:
            found = []
            for pc in range(start, end):
                ins = self.ops[pc].ins
                kind = ptx_kind(ins.opcode)
                if kind is not None:
                    line = ins.source.line if ins.source else None
                    found.append((pc, Anchor(kind, line, ins.guard is not None), ins.opcode))
            self._anchors[start, end] = found
        return found

    def block(self, w: Warps, start: int, end: int) -> None:
        self.instructions += (end - start) * w.count
        found = self._found(start, end)
        if found:
            for cta, warp, _ in w.each_warp():
                if self.ctas is not None and cta not in self.ctas:
                    continue
                for pc, anchor, text in found:
                    self._add(cta, warp, pc, anchor, text)

    def passed(self, cta: int, warp: int, pc: int) -> None:
        self.instructions += 1
        if self.ctas is not None and cta not in self.ctas:
            return
        for at, anchor, text in self._found(pc, pc + 1):
            self._add(cta, warp, at, anchor, text)

    def _add(self, cta: int, warp: int, pc: int, anchor: Anchor, text: str) -> None:
        """Join an anchor with what was noted while it was executed."""
        key = (cta, warp)
        step = Step(anchor, pc, text)
        match anchor.kind:
            case "wait" | "test":
                noted = self._waits.pop(key, [])
                if noted:
                    place, phase = noted[-1]
                    step.phase = (place, phase) if phase >= 0 else None
            case "arrive":
                step.signals = self._arrivals.pop(key, [])
            case "bar":
                if noted_bar := self._named.get(key):
                    step.barrier = noted_bar.pop(0)
            case "mark":
                step.mark = self._mark(pc, key)
            case "tma" | "tma store" | "bulk" | "mma" | "commit" | "wgmma" | "prefetch":
                mine = self._work.get(key, [])
                step.work = _once([work for at, work in mine if at == pc])
                self._work[key] = [(at, work) for at, work in mine if at != pc]
        if (
            anchor.optional
            and not (step.phase or step.signals or step.work or step.barrier)
            and anchor.kind
            in (
                "arrive",
                "tma",
                "bulk",
                "mma",
                "commit",
            )
        ):
            return  # its guard was false
        self.steps[key].append(step)

    def _mark(self, pc: int, key: tuple[int, int]) -> tuple[str, str] | None:
        """What an IKET mark says: a range begins, the innermost ends, or a point."""
        (number,) = self.ops[pc].ins.operands
        if not isinstance(number, ptx.Imm):
            return None
        value, open_ranges = int(number.value), self._ranges[key]
        if value == self._range_end:
            return ("end", open_ranges.pop()) if open_ranges else None
        event = self._declared.get(value)
        if event is None:
            return None
        if event.opens_range:
            open_ranges.append(event.name)
        return ("begin" if event.opens_range else "mark"), event.name

    def arrive(self, cta: int, warp: int, place: Place, phase: int) -> None:
        self._arrivals[cta, warp].append((place, phase))
        self.contributors[place, phase] += 1

    def wait(self, cta: int, warp: int, place: Place, phase: int) -> None:
        self._waits[cta, warp].append((place, phase))

    def named(self, cta: int, warp: int, number: int, generation: int) -> None:
        self._named[cta, warp].append((number, generation))

    def submit(self, op: AsyncOp) -> None:
        if self.machine.agents.current is not None:
            return  # the second half of an operation that a unit itself asks for
        work = Work(op.engine, op.name, op.cta, op.data)
        self._ops[id(op)] = (op, work)
        if op.ins is not None and "warp" in op.data:
            self._work[op.cta, op.data["warp"]].append((op.ins.pc, work))

    def signal(self, op: AsyncOp, place: Place, phase: int) -> None:
        held = self._ops.get(id(op))
        if held is not None:
            held[1].signals.append((place, phase))
            self.contributors[place, phase] += 1

    def finish(self, op: AsyncOp) -> None:
        self._ops.pop(id(op), None)


def _once(work: list[Work]) -> list[Work]:
    """Lanes that ask for the very same copy out of shared memory: the SASS instruction is the warp's, and runs once."""
    kept: list[Work] = []
    for w in work:
        if w.signals or "store" not in w.name or all(w.data != k.data for k in kept):
            kept.append(w)
    return kept
