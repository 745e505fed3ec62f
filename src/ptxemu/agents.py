"""Asynchronous units: TMA, the tensor core, bulk copies. They do their work later than the instruction that asked for
        it.

PTX ISA "Asynchronous operations", "async proxy". An operation reads its sources and writes its results when it
*runs*. Operations of one queue
run in order (the MMAs of a CTA or CTA pair); all others in any order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import ptx
from .errors import EmulationError

if TYPE_CHECKING:
    from .machine import Machine

# Ticks from the head of the queue to completion under the fair schedule: an order of magnitude, not a model of time.
LATENCY = {"tma": 8, "tensor": 1}
DEFAULT_LATENCY = 4
NEVER = 1 << 62  # the adversarial schedule's "as late as allowed"


@dataclass(slots=True, eq=False)
class AsyncOp:
    """Work for a unit. engine: "tma", "tensor", ...; cta: the resident CTA that asked; run: does the work; queue:
    operations of the same
    (engine, queue) run in order, None: on its own; name and data: for events and deadlock reports; ins: the
    instruction that asked. note: the checked driver's.
    """

    engine: str
    cta: int
    run: Callable[[], Any]
    name: str = ""
    ins: ptx.Instr | None = None
    queue: Hashable | None = None
    data: dict[str, Any] = field(default_factory=dict)
    done: Callable[[], Any] | None = None
    warp: int = -1  # the thread that asked, where a single one did
    lane: int = -1
    due: int = -1
    begun: bool = False
    note: Any = None


class Agents:
    """All units of the resident CTAs."""

    def __init__(self, machine: Machine, rng: random.Random | None) -> None:
        self.machine = machine
        self.rng = rng  # None: the fair schedule
        self.queues: dict[Hashable, deque[AsyncOp]] = {}
        self.pace: dict[tuple[str, int], str] = {}  # of each unit, under the adversarial schedule
        self.current: AsyncOp | None = None  # the operation that is being done now

    def __bool__(self) -> bool:
        return bool(self.queues)

    @property
    def in_step(self) -> bool:
        """Whether operations asked for together are done together: so it is under the fair schedule."""
        return self.rng is None

    def pending(self) -> list[AsyncOp]:
        return [op for queue in self.queues.values() for op in queue]

    def submit(self, op: AsyncOp) -> None:
        key = (op.engine, op.queue) if op.queue is not None else op
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = deque()
        queue.append(op)
        self.machine.progress += 1
        if self.machine.observer is not None:
            self.machine.observer.submit(op)
        if self.machine.check is not None:
            self.machine.check.submitted(op)
        if len(queue) == 1:
            self._start(op)

    def _start(self, op: AsyncOp) -> None:
        m = self.machine
        op.begun = True
        if self.rng is None:
            op.due = m.tick + LATENCY.get(op.engine, DEFAULT_LATENCY)
        else:
            op.due = m.tick + self._delay(op)
        if m.tracing:
            m.emit(op.cta, op.engine, "begin", op.name, **op.data)

    def _delay(self, op: AsyncOp) -> int:
        """How long an operation takes under the adversarial schedule. A unit keeps its pace for a while: at once, as
        late as allowed, or anything; independent draws for each operation would hardly ever let it run far ahead."""
        assert self.rng is not None
        unit = (op.engine, op.cta)
        if unit not in self.pace or self.rng.random() < 0.05:
            self.pace[unit] = self.rng.choice(("at once", "at once", "late", "any", "any"))
        pace = self.pace[unit]
        if pace == "any":
            kind = self.rng.random()
            pace = "at once" if kind < 0.3 else "late" if kind > 0.8 else ""
        return 0 if pace == "at once" else NEVER if pace == "late" else int(self.rng.expovariate(0.05))

    def _finish(self, queue_key: Hashable, queue: deque[AsyncOp]) -> None:
        m = self.machine
        op = queue.popleft()
        m.progress += 1
        m.now = op.ins
        self.current = op
        try:
            op.run()
        except EmulationError as error:
            if not error.where and op.ins is not None:
                raise type(error)(
                    f"{op.name} (asynchronous, {op.engine}) of CTA {m.cta_name(op.cta)}: {error.detail}", op.ins.where
                ) from error
            raise
        if op.done is not None:
            op.done()
        self.current = None
        if m.observer is not None:
            m.observer.finish(op)
        if m.tracing:
            m.emit(op.cta, op.engine, "end", op.name, **op.data)
        if queue:
            self._start(queue[0])
        elif self.queues.get(queue_key) is queue:
            del self.queues[queue_key]

    def step(self) -> None:
        """Run everything that is due."""
        tick = self.machine.tick
        self.machine.fraction = 0.999  # units come after the turns of the warps
        for key, queue in list(self.queues.items()):
            while queue and queue[0].due <= tick:
                self._finish(key, queue)

    def next_due(self) -> int:
        """The tick at which the next operation is due (NEVER: only when all else stands still)."""
        return min(queue[0].due for queue in self.queues.values())

    def force_one(self) -> None:
        """Run one head of a queue now: everything else stands still, so even the latest has to come."""
        self.machine.fraction = 0.999
        keys = list(self.queues)
        key = self.rng.choice(keys) if self.rng is not None else keys[0]
        self._finish(key, self.queues[key])
