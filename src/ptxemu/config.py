"""What a run is asked for (`Config`) and what it gives back (`Run`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .trace import Event, Trace

if TYPE_CHECKING:
    from .observe import Observer


@dataclass(slots=True, frozen=True)
class Config:
    """How to run a kernel.

    schedule: "fair" (every warp gets its turn, units finish after a fixed delay) or "adversarial" (any order that the
    machine allows, by `seed`:
        warps run ahead or lag, asynchronous units finish as early or as late as they may, a try_wait may time out).
    seed: of the adversarial schedule; the same seed gives the same run.
    trace: collect events.
    bank_conflicts: count shared-memory wavefronts for each instruction.
    max_resident_ctas: thread blocks on the machine at once (None: as many as fit in a memory budget). Clusters are
    never torn apart.
    progress: called as progress(finished CTAs, all CTAs).
    max_steps: limit on warp instructions, a guard against loops that never end.
    observer: is told of everything that goes on (see observe.Observer).
    races: the checked driver: note every access to shared, tensor and global memory and everything that orders them,
        and report what is not ordered (package check). Slower; the answer is the same.
    strict: with races, report also what works on every chip known but is not promised by the letter of the ISA.
    on_race: "raise" a RaceError at the first finding, or "collect" them all in Run.findings.
    """

    schedule: Literal["fair", "adversarial"] = "fair"
    seed: int = 0
    trace: bool = False
    bank_conflicts: bool = True
    max_resident_ctas: int | None = None
    progress: Callable[[int, int], None] | None = None
    max_steps: int = 1_000_000_000
    observer: Observer | None = None
    races: bool = False
    strict: bool = False
    on_race: Literal["raise", "collect"] = "raise"

    def __post_init__(self) -> None:
        if self.schedule not in ("fair", "adversarial"):
            raise ValueError(f'schedule={self.schedule!r} is not known: use "fair" or "adversarial"')
        if self.on_race not in ("raise", "collect"):
            raise ValueError(f'on_race={self.on_race!r} is not known: use "raise" or "collect"')
        if self.strict and not self.races:
            raise ValueError("strict=True says how races are looked for: pass races=True with it")
        if self.max_resident_ctas is not None and self.max_resident_ctas < 1:
            raise ValueError(f"max_resident_ctas={self.max_resident_ctas} must be at least 1")


@dataclass(slots=True)
class BankConflicts:
    """Shared-memory traffic of one instruction: warp accesses, wavefronts they took, wavefronts they would take
    without conflicts.
    """

    instruction: str
    ptx_line: int
    source: str | None
    accesses: int = 0
    wavefronts: int = 0
    ideal: int = 0


@dataclass(slots=True)
class Run:
    """What happened.

    instructions: warp instructions issued, by opcode. warp_instructions: their sum. ticks: rounds of the scheduler.
    seconds: host wall time. bank_conflicts: by PTX line. findings: rule violations noted by the checked driver.
    runs: the single launches in order, where a host function made several (this Run is then their sum); else empty.
    """

    kernel: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    instructions: Counter[str] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    findings: list[Any] = field(default_factory=list)
    bank_conflicts: dict[int, BankConflicts] = field(default_factory=dict)
    seconds: float = 0.0
    ticks: int = 0
    runs: list[Run] = field(default_factory=list)

    @property
    def warp_instructions(self) -> int:
        return self.instructions.total()

    @property
    def trace(self) -> Trace:
        """The events as a Trace in ticks (order of events, no time)."""
        meta = {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "cluster": list(self.cluster),
        }
        return Trace("tick", self.events, meta)
