"""The replay: a recorded run, warp by warp through its SASS, under a chip's rates and latencies.

Four sub-partitions issue at most one instruction a cycle each, in the order in which warps are ready. A warp issues in
order: after the stall count of the instruction before, when its scoreboards allow and the pipe is free. Copies and MMAs
go to the TMA and the tensor core, which work in order, at their rates, and pay for shared memory's bandwidth. An
mbarrier's phase ends when the last of its recorded contributors has come.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..trace import Event, Trace
from .chips import Chip
from .path import Anchor, Paths
from .record import Phase, Recorder, Step, Work
from .sass import Sass

FOREVER = float("inf")
_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
AT_BARRIER = -2  # in place of a scoreboard: a warp sleeps at a named barrier

FMA = {"FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2"}
PACKED = {"FADD2", "FMUL2", "FFMA2"}
MUFU = {"MUFU"}
CONVERT = {"F2FP", "F2F", "I2F", "F2I", "I2FP", "F2IP"}
FREE = {"NOP"}
LOADS = {"LDG": "ldg_latency", "LD": "ldg_latency", "LDS": "lds_latency", "LDSM": "lds_latency", "ATOMS": "lds_latency",
         "LDL": "lds_latency", "ATOMG": "ldg_latency"}  # fmt: skip


@dataclass(slots=True)
class Issue:
    """What an instruction needs: pipe of the sub-partition (None: only an issue slot), cycles it holds it, cycles until
    its scoreboard is free; tag: what a warp is said to wait for that waits for that.
    """

    pipe: str | None
    busy: float
    latency: float
    tag: str = "other"


def issue_cost(op: Sass, chip: Chip) -> Issue:
    """The cost of a SASS instruction by its opcode."""
    name = op.name
    if name in FREE:
        return Issue(None, 0, 0)
    if name in MUFU:
        return Issue("mufu", chip.of("mufu"), chip.of("mufu_latency"), "mufu")
    if name in FMA:
        return Issue("fma", chip.of("fma"), 0)
    if name in PACKED:
        return Issue("fma", chip.of("packed"), 0)
    if name.startswith("IMAD"):
        return Issue("fma", chip.of("imad"), 0)
    if name in CONVERT:
        return Issue("alu", chip.of("convert"), 0)
    if name in LOADS:
        return Issue("memory", 1, chip.of(LOADS[name]), "memory")
    if name in ("STS", "STG", "ST", "STSM", "STL", "RED", "REDG"):
        return Issue("memory", 1, chip.of("read_latency"), "memory")
    if name == "LDTM":
        return Issue("tmem", 0, chip.of("tmem_latency"), "tmem")
    if name == "STTM":
        return Issue("tmem", 0, chip.of("tmem_latency"), "tmem")
    if name == "FENCE":
        return Issue(None, 0, chip.of("fence_latency"), "fence")
    if name == "SYNCS":
        return Issue(None, 0, chip.of("try_wait_latency"))
    if name == "SHFL":
        return Issue("memory", chip.of("shuffle"), chip.of("shuffle_latency"), "memory")
    if name in ("S2R", "S2UR", "CS2R", "R2UR", "VOTE", "VOTEU", "ELECT", "REDUX", "LDC", "LDCU", "ULDC"):
        return Issue(None, 0, chip.of("special_latency"))
    if name.startswith("U"):
        return Issue("uniform", chip.of("uniform"), chip.of("uniform_latency"))
    if name in ("BRA", "EXIT", "BSSY", "BSYNC", "WARPSYNC", "CALL", "RET", "NANOSLEEP", "DEPBAR", "BAR", "PMTRIG",
                "MEMBAR", "ERRBAR", "CCTL", "YIELD", "BREAK", "BPT", "UTCBAR", "PLOP3"):  # fmt: skip
        return Issue(None, 0, chip.of("special_latency"))
    return Issue("alu", chip.of("alu"), chip.of("special_latency"))


@dataclass(slots=True)
class Interval:
    """A unit at work, or a warp in a wait: [begin, end) in cycles."""

    cta: int
    row: str
    name: str
    begin: float
    end: float
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Timing:
    """A replayed run of one CTA (or of the CTAs of one SM).

    cycles: from the first instruction to the last. intervals: what the units and the warps did when; marks: the
    kernel's own ranges, as (when, CTA, row, "begin" or "end", name). busy: cycles at
    work of each unit ("tensor", "tma", and of the sub-partitions "mufu", "fma", "alu", "issue": the mean of the four).
    stalls: of each warp, cycles by reason. phases: when each phase of an mbarrier ended.
    """

    chip: Chip
    cycles: float
    intervals: list[Interval]
    marks: list[tuple[float, int, str, str, str]]
    busy: dict[str, float]
    stalls: dict[tuple[int, int], dict[str, float]]
    phases: dict[Phase, float]
    issued: int
    kernel: str = ""

    def trace(self) -> Trace:
        """The events in cycles, in the format of every other source."""
        events = [Event(t, cta, row, kind, name) for t, cta, row, kind, name in self.marks]  # type: ignore[arg-type]
        for i in self.intervals:
            events.append(Event(i.begin, i.cta, i.row, "begin", i.name, i.data))
            events.append(Event(i.end, i.cta, i.row, "end", i.name, i.data))
        for ((cta, offset), phase), when in self.phases.items():
            data = {"barrier": offset, "phase": phase + 1}
            events.append(Event(when, cta, f"mbar:{offset:#x}", "mark", "phase", data))
        events.sort(key=lambda e: e.t)
        return Trace("cycle", events, {"kernel": self.kernel, "chip": self.chip.name, "cycles": self.cycles})

    def utilisation(self) -> dict[str, float]:
        """The share of the time that each unit is at work."""
        return {unit: busy / self.cycles for unit, busy in self.busy.items()}


class _Sm:
    """The units of an SM: until when each is taken."""

    __slots__ = ("arriving", "pipes", "port", "quarter", "tensor", "tma")

    def __init__(self) -> None:
        self.port = [0.0] * 4
        self.pipes: list[dict[str, float]] = [defaultdict(float) for _ in range(4)]
        self.tensor = self.tma = 0.0
        self.quarter = [0.0] * 4  # the tensor cores of the sub-partitions, where MMAs are theirs (Hopper)
        self.arriving: deque[tuple[float, float, float]] = deque()  # copies: from, to, bytes a cycle

    @property
    def end(self) -> float:
        return max(self.tensor, self.tma, *self.quarter, *(t for pipes in self.pipes for t in pipes.values()), 0.0)

    def copied(self, begin: float, end: float) -> float:
        """Bytes that copies bring in a stretch of time; what ended before it is forgotten."""
        while self.arriving and self.arriving[0][1] <= begin:
            self.arriving.popleft()
        return sum(max(0.0, min(end, b) - max(begin, a)) * rate for a, b, rate in self.arriving)


class _Warp:
    __slots__ = (
        "boards", "cta", "groups", "issued_at", "last_tmem", "number", "part", "pending", "pos", "program", "ready",
        "stalls", "steps", "tags", "waits_on",
    )  # fmt: skip

    def __init__(self, cta: int, number: int, program: list[int], steps: dict[int, Step]) -> None:
        self.cta, self.number, self.program, self.steps = cta, number, program, steps
        self.part = number % 4
        self.pos = 0
        self.boards = [0.0] * 6
        self.pending = [0] * 6  # results on the way whose time nobody knows yet
        self.tags = [""] * 6  # what set them
        self.ready = self.issued_at = 0.0
        self.stalls: dict[str, float] = defaultdict(float)
        self.waits_on: int | None = None  # the scoreboard that keeps it asleep
        self.last_tmem = 0.0
        self.groups: list[float] = []  # ends of the committed groups of MMAs (Hopper)


def programs(recorder: Recorder, code: Sequence[Sass]) -> dict[tuple[int, int], tuple[list[int], dict[int, Step]]]:
    """For each recorded warp: the indices of its SASS instructions in order, and the step of each anchor by its
    position there. Raises path.NoWay where the SASS does not fit the run.
    """
    held = recorder.programs.get(id(code))
    if held is not None and held[0] is code:
        return held[1]
    paths = Paths(code)
    known: dict[tuple[Anchor, ...], tuple[list[int], list[int | None]]] = {}
    out = {}
    for key, steps in recorder.steps.items():
        anchors = tuple(step.anchor for step in steps)
        if anchors not in known:
            known[anchors] = paths.match(anchors)
        program, places = known[anchors]
        out[key] = program, {at: step for at, step in zip(places, steps, strict=True) if at is not None}
    recorder.programs[id(code)] = code, out
    return out


class Replay:
    """One replay. The CTAs of a cluster stand on SMs of their own; all else that was recorded shares one SM."""

    def __init__(
        self,
        recorder: Recorder,
        code: Sequence[Sass],
        chip: Chip,
        *,
        ctas: Container[int] | None = None,
        keep: bool = True,
    ) -> None:
        self.chip, self.code, self.recorder = chip, code, recorder
        self.costs = [issue_cost(op, chip) for op in code]
        self.keep = keep  # intervals
        self.warps = {
            (cta, number): _Warp(cta, number, program, steps)
            for (cta, number), (program, steps) in programs(recorder, code).items()
            if ctas is None or cta in ctas
        }
        self.missing = dict(recorder.contributors)
        self.phase_time: dict[Phase, float] = {}
        self.sleepers: dict[Any, list[tuple[_Warp, int]]] = defaultdict(list)  # phase or barrier -> (warp, scoreboard)
        self.asleep: dict[tuple[int, int], tuple[float, Phase]] = {}  # since when a warp waits, and for what
        self.bars: dict[tuple[int, int, int], int] = defaultdict(int)
        for (cta, _), steps in recorder.steps.items():
            for step in steps:
                if step.barrier is not None:
                    self.bars[cta, *step.barrier] += 1
        self.bar_size = dict(self.bars)
        self.intervals: list[Interval] = []
        self.marks: list[tuple[float, int, str, str, str]] = []
        self.busy: dict[str, float] = defaultdict(float)
        self.sms = [_Sm() for _ in range(recorder.cluster_size)]
        self.heap: list[tuple[float, int, Any, Any]] = []
        self.order = 0
        self.issued = 0
        self.end = 0.0

    def sm(self, cta: int) -> _Sm:
        """The SM on which a CTA stands."""
        return self.sms[cta % len(self.sms)]

    def push(self, when: float, what: Any, arg: Any = None) -> None:
        self.order += 1
        heapq.heappush(self.heap, (when, self.order, what, arg))

    def run(self) -> Timing:
        """To the end. Raises RuntimeError when warps are left that wait for what never comes."""
        for w in self.warps.values():
            self.push(0.0, w)
        while self.heap:
            when, _, what, arg = heapq.heappop(self.heap)
            if isinstance(what, _Warp):
                self.advance(what, when)
            else:
                what(when, arg)
        left = [w for w in self.warps.values() if w.pos < len(w.program)]
        if left:
            where = "; ".join(f"warp {w.number} of CTA {w.cta} before {self.code[w.program[w.pos]]}" for w in left)
            raise RuntimeError(f"the replay stands still: {where}")
        # A unit may be at work when the last warp has gone.
        self.end = max(self.end, max(sm.end for sm in self.sms))
        busy = {unit: cycles / len(self.sms) for unit, cycles in self.busy.items()}
        busy["issue"] = self.issued / len(self.sms)
        for unit in ("issue", "mufu", "fma", "alu", "uniform", "memory", "tmem"):
            busy[unit] = busy.get(unit, 0.0) / 4
        stalls = {key: dict(w.stalls) for key, w in self.warps.items()}
        return Timing(
            self.chip,
            self.end,
            self.intervals,
            self.marks,
            busy,
            stalls,
            self.phase_time,
            self.issued,
            self.recorder.kernel,
        )

    # ---- warps

    def advance(self, w: _Warp, now: float) -> None:
        """Let a warp issue for as long as it is the first of all."""
        code, costs, program, boards = self.code, self.costs, w.program, w.boards
        part, port = w.part, self.sm(w.cta).port
        pipes = self.sm(w.cta).pipes[part]
        while True:
            if w.pos >= len(program):
                self.end = max(self.end, now)
                return
            i = program[w.pos]
            op, cost = code[i], costs[i]
            ready, held = w.ready, -1
            for board in op.waits:
                if w.pending[board]:
                    w.waits_on = board  # asleep until somebody knows when
                    return
                if boards[board] > ready:
                    ready, held = boards[board], board
            at = max(now, ready, port[part])
            if cost.pipe is not None and pipes[cost.pipe] > at:
                at = pipes[cost.pipe]
            if self.heap and at > self.heap[0][0]:
                self.push(at, w)
                return
            # It issues.
            if at > w.issued_at:
                stalls = w.stalls
                stalls["dependency"] += w.ready - w.issued_at
                if held >= 0:
                    stalls[w.tags[held]] += ready - w.ready
                if at > ready:
                    busy = cost.pipe is not None and port[part] < at
                    stalls[f"{cost.pipe} busy" if busy else "not selected"] += at - ready
            port[part] = at + 1
            self.issued += 1
            if cost.pipe is not None and cost.busy:
                pipes[cost.pipe] = at + cost.busy
                self.busy[cost.pipe] += cost.busy
            done, tag, group_end = at + cost.latency, cost.tag, 0.0
            step = w.steps.get(w.pos)
            if step is not None:
                done, tag = self.perform(w, step, op, at, done, tag)
            elif op.name == "FENCE" and op.opcode.endswith(".T"):
                done = max(done, w.last_tmem + cost.latency)
            elif op.name == "WARPGROUP" and "DEPBAR" in op.opcode:
                group_end = self.groups_done(w, op)
            for which in (op.sets, op.frees):
                if which is not None:
                    w.tags[which] = tag
                    if done == FOREVER:
                        w.pending[which] += 1
                    else:
                        boards[which] = max(boards[which], done)
            w.pos += 1
            w.issued_at = at + 1
            w.ready = now = at + max(1, op.stall)
            if group_end > w.ready:  # everything behind it waits for the products
                w.stalls["wgmma"] += group_end - w.ready
                w.ready = w.issued_at = now = group_end
            if w.waits_on == AT_BARRIER:
                return

    def perform(self, w: _Warp, step: Step, op: Sass, at: float, done: float, tag: str) -> tuple[float, str]:
        """What an anchor does beyond issuing. Returns when its scoreboard is free (FOREVER: not known yet), and what a
        warp waits for that waits for it.
        """
        chip, kind = self.chip, step.anchor.kind
        if kind in ("wait", "test"):
            if step.phase is None:
                return done, tag
            ended = self.phase_time.get(step.phase)
            if ended is not None:
                return max(done, ended + chip.of("wake_latency")), "mbarrier"
            board = op.sets
            self.asleep[w.cta, w.number] = (at, step.phase)
            self.sleepers[step.phase].append((w, -1 if board is None else board))
            return FOREVER, "mbarrier"
        if kind == "arrive":
            for phase in step.signals:
                self.push(at + chip.of("arrive_latency"), self.contribute, phase)
            return done, tag
        if kind == "bar":
            if step.barrier is None:
                return done, tag
            key = (w.cta, *step.barrier)
            self.bars[key] -= 1
            waits = "ARV" not in op.opcode
            if waits:
                w.waits_on = AT_BARRIER
                self.sleepers[key].append((w, AT_BARRIER))
            if not self.bars[key]:
                warps = self.bar_size[key]
                self.push(at + chip.of("bar_latency") + warps * chip.of("bar_warp"), self.bar_full, key)
            return done, tag
        if kind in ("tmem load", "tmem store"):
            size = tmem_bytes(step.text)
            rate = chip.of("tmem_load_bytes" if kind == "tmem load" else "tmem_store_bytes")
            pipes = self.sm(w.cta).pipes[w.part]
            begin = max(at, pipes["tmem"])
            pipes["tmem"] = begin + size / rate
            self.busy["tmem"] += size / rate
            done = pipes["tmem"] + chip.of("tmem_latency")
            w.last_tmem = max(w.last_tmem, done)
            return done, "tmem"
        if kind == "wgmma":
            self.multiply_in_registers(w, op, at)
            return done, tag
        if step.mark is not None and self.keep:
            self.marks.append((at, w.cta, f"warp{w.number}", *step.mark))
        for work in step.work:
            if work.engine == "tma":
                self.copy(work, at)
            elif work.name == "commit":
                self.push(max(at, self.sm(work.cta).tensor + chip.of("mma_latency")), self.signal, work)
            elif work.engine == "tensor":
                self.multiply(work, at)
        return done, tag

    # ---- units

    def copy(self, work: Work, at: float) -> None:
        """A TMA copy: rows of at most 128 bytes, one after another; the bytes at the rate of the road to L2."""
        chip, size = self.chip, int(work.data.get("bytes", 0))
        box = work.data.get("box")
        rows = 1
        if box:
            elements = 1
            for extent in box:
                elements *= extent
            rows = max(1, elements // box[0]) * max(1, -(-size * box[0] // elements // 128))
        sm = self.sm(work.cta)
        begin = max(at + chip.of("tma_issue"), sm.tma)
        rate = max(chip.of("tma_row"), chip.of("l2_row"))
        length = max(rows * rate, size / min(chip.of("tma_bytes"), chip.of("l2_bytes")))
        sm.tma = begin + length
        self.busy["tma"] += length
        sm.arriving.append((begin, begin + length, size / length))
        self.busy["shared"] += size / chip.of("shared_bytes")
        done = begin + length + chip.of("tma_latency")
        self.note("tma", work.name, begin, done, work.data, work.cta)
        self.push(done, self.signal, work)

    def multiply(self, work: Work, at: float) -> None:
        """An MMA: at the tensor core's rate, or at shared memory's where its operands take longer to read."""
        chip, d = self.chip, work.data
        share = int(d.get("cta_group", 1))  # of a pair, each CTA does half of the rows and holds half of B
        flops = 2 * d["m"] * d["n"] * d["k"] / share
        size = (2 * d["n"] * d["k"] + (2 * d["m"] * d["k"] if d.get("a") == "shared" else 0)) / share
        first = work.cta - work.cta % share
        sms = [self.sm(first + n) for n in range(share)]
        begin = max(at + chip.of("mma_issue"), max(sm.tensor for sm in sms))
        length = flops / chip.of("mma_flops")
        # What the TMA writes meanwhile goes through the same banks.
        meanwhile = max(sm.copied(begin, begin + length) for sm in sms)
        end = begin + max(length, (size + meanwhile) / chip.of("shared_bytes"))
        for n, sm in enumerate(sms):
            sm.tensor = end
            self.busy["tensor"] += length
            self.busy["shared"] += size / chip.of("shared_bytes")
            self.note("tensor", work.name, begin, end, d, first + n)

    def multiply_in_registers(self, w: _Warp, op: Sass, at: float) -> None:
        """A Hopper MMA of a warpgroup: each warp's quarter goes to the tensor core of its sub-partition, in order. What
        lies in shared memory, B and perhaps A, is read once for all four.
        """
        shape = _SHAPE.search(op.opcode)
        if shape is None:
            raise ValueError(f"no shape in {op}")
        m, n, k = map(int, shape.groups())
        sm = self.sm(w.cta)
        bytes_each = 32 // k if k else 2  # an operand is 32 bytes deep, whatever its type (PTX ISA, wgmma shapes)
        size = n * k * bytes_each + (m * k * bytes_each if op.operands.count("gdesc") == 2 else 0)
        begin = max(at + self.chip.of("mma_issue"), sm.quarter[w.part])
        length = 2 * m * n * k * bytes_each / 2 / self.chip.of("mma_flops")
        end = begin + max(length, (size + sm.copied(begin, begin + length)) / self.chip.of("shared_bytes"))
        sm.quarter[w.part] = end
        self.busy["tensor"] += length / 4
        self.busy["shared"] += size / self.chip.of("shared_bytes") / 4
        if "gsb0" in op.operands:
            w.groups.append(end + self.chip.of("mma_latency"))
        if w.part == 0:
            self.note("tensor", "MMA", begin, end, {"m": m, "n": n, "k": k, "warp": w.number}, w.cta)

    def groups_done(self, w: _Warp, op: Sass) -> float:
        """When at most so many of the warp's latest groups of MMAs are not done as a WARPGROUP.DEPBAR says."""
        left = int(op.operands.rpartition("0x")[2] or "0", 16)
        return w.groups[-left - 1] if len(w.groups) > left else 0.0

    def note(self, row: str, name: str, begin: float, end: float, data: dict[str, Any], cta: int) -> None:
        if self.keep:
            self.intervals.append(Interval(cta, row, name, begin, end, data))

    # ---- barriers

    def signal(self, when: float, work: Work) -> None:
        for phase in work.signals:
            self.contribute(when, phase)

    def contribute(self, when: float, phase: Phase) -> None:
        self.missing[phase] -= 1
        if self.missing[phase] == 0:
            self.phase_time[phase] = when
            for w, board in self.sleepers.pop(phase, ()):
                self.wake(w, board, when + self.chip.of("wake_latency"))

    def bar_full(self, when: float, key: tuple[int, int, int]) -> None:
        for w, _ in self.sleepers.pop(key, ()):
            w.stalls["barrier"] += max(0.0, when - w.ready)
            w.ready = w.issued_at = max(w.ready, when)
            self.wake(w, AT_BARRIER, when)

    def wake(self, w: _Warp, board: int, when: float) -> None:
        """A result is known to come at `when`."""
        if board >= 0:
            w.pending[board] -= 1
            w.boards[board] = max(w.boards[board], when)
        waited = self.asleep.pop((w.cta, w.number), None)
        if waited is not None:
            since, ((_, offset), phase) = waited
            self.note(f"warp{w.number}", "wait", since, when, {"barrier": offset, "phase": phase}, w.cta)
        if w.waits_on == board:
            w.waits_on = None
            self.push(when, w)


def tmem_bytes(opcode: str) -> int:
    """Bytes that a tcgen05.ld or .st moves for one warp, from its shape and count (PTX ISA 9.7.16.8)."""
    cells = {"32x32b": 32, "16x64b": 32, "16x128b": 64, "16x256b": 128, "16x32bx2": 32}
    shape = next((cells[part] for part in opcode.split(".") if part in cells), 32)
    count = next((int(part[1:]) for part in opcode.split(".") if part[0] == "x" and part[1:].isdigit()), 1)
    return 4 * shape * count


def replay(
    recorder: Recorder, code: Sequence[Sass], chip: Chip, *, ctas: Container[int] | None = None, keep: bool = True
) -> Timing:
    """Time a recorded run on a chip. ctas: only those (None: all recorded). keep: note what units and waits did when.

    Raises path.NoWay where the SASS is not of the program that ran.
    """
    return Replay(recorder, code, chip, ctas=ctas, keep=keep).run()
