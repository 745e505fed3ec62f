"""What the clock knows of each chip: one table, each figure with its unit, its source and how sure it is.

Fixed latencies of arithmetic are not here: the compiler writes them into the SASS as stall counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Sureness = Literal["documented", "published", "measured", "derived", "assumed"]

GUIDE = "CUDA Programming Guide, throughput of native arithmetic instructions by compute capability"
FA4 = "FlashAttention-4 paper (arXiv 2603.05451), section 2"
ASSUMED = "no figure found: a working value, of the order that older chips show"


@dataclass(slots=True, frozen=True)
class Fact:
    """value in unit; spread: the factor by which it may be off in either direction (1: as good as exact)."""

    value: float
    unit: str
    source: str
    sure: Sureness
    spread: float = 1.0


@dataclass(slots=True, frozen=True)
class Chip:
    """A chip as the clock sees it. facts: chip["mufu"] is the Fact, chip.of("mufu") its value."""

    name: str
    arch: str
    facts: dict[str, Fact] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Fact:
        if key not in self.facts:
            raise KeyError(f"the table of {self.name} has no {key!r}; it has {', '.join(sorted(self.facts))}")
        return self.facts[key]

    def of(self, key: str) -> float:
        return self[key].value

    def with_(self, **values: float) -> Chip:
        """The chip with some values changed: for the sensitivity of a prediction."""
        facts = dict(self.facts)
        for key, value in values.items():
            old = self[key]
            facts[key] = Fact(value, old.unit, old.source, old.sure, old.spread)
        return Chip(self.name, self.arch, facts)


RECORD = Path(__file__).parent / "data" / "h200.json"
RUN = "measured on an H200, tests/gpu/record_clock.py, data/h200.json"


def _measured(value: float, unit: str, how: str = "", spread: float = 1.1) -> Fact:
    return Fact(value, unit, RUN + (f": {how}" if how else ""), "measured", spread)


def _carried(fact: Fact) -> Fact:
    """A figure of the H200 in the table of a chip on which nobody has measured it."""
    return Fact(fact.value, fact.unit, fact.source + "; assumed for this chip", "assumed", max(1.5, fact.spread))


# What a warp instruction keeps busy of its sub-partition, cycles. Documented, and measured on the H200.
_RATES = {
    "fma": Fact(1, "cycles", GUIDE + ": 128 fp32 a cycle and SM", "documented"),
    "imad": Fact(2, "cycles", GUIDE + ": 64 a cycle and SM", "documented"),
    "packed": Fact(2, "cycles", "FFMA2 and the like do the work of two", "derived"),
    "alu": Fact(2, "cycles", GUIDE + ": 64 32-bit integer, logic, compare a cycle and SM", "documented"),
    "convert": Fact(2, "cycles", GUIDE + ": 64 conversions from 32 bits a cycle and SM", "documented"),
    "mufu": Fact(8, "cycles", GUIDE + ": 16 special functions a cycle and SM", "documented"),
    "shuffle": _measured(4, "cycles", "shfl rate", 1.05),
    "uniform": Fact(2, "cycles", ASSUMED, "assumed", 2.0),
    "shared_bytes": Fact(128, "bytes a cycle and SM", "32 banks of 4 bytes", "documented"),
}

_H200_LATENCIES = {
    "mufu_latency": _measured(17, "cycles", "ex2 latency"),
    "shuffle_latency": _measured(24, "cycles", "shfl latency"),
    "lds_latency": _measured(23, "cycles", "lds latency"),
    "ldg_latency": _measured(281, "cycles", "ldg latency, L2"),
    "try_wait_latency": _measured(39.5, "cycles", "try_wait of a phase that is over, less the branch behind it"),
    "arrive_latency": _measured(25, "cycles", "mbarrier hand-over: arrive and wake together, split by guess", 1.5),
    "wake_latency": _measured(31, "cycles", "mbarrier hand-over: arrive and wake together, split by guess", 1.5),
    "bar_latency": _measured(12, "cycles", "bar.sync of 1 to 12 warps, a line"),
    "bar_warp": _measured(2, "cycles for each warp at the barrier", "bar.sync of 1 to 12 warps, a line"),
    "tma_row": _measured(1.0, "cycles for each row of a box, one SM alone", "tma, 16-byte rows, eight boxes less one"),
    "l2_row": _measured(1.7, "cycles for each row of a box, all SMs", "tma, 16-byte rows, 132 SMs, less a latency"),
    "tma_bytes": _measured(107, "bytes a cycle and SM, one SM alone", "tma, 128-byte rows, eight boxes less one"),
    "l2_bytes": _measured(27.8, "bytes a cycle and SM, all together", "tma, 128-byte rows, 132 SMs, less a latency"),
    "tma_latency": _measured(280, "cycles", "tma latency of a box, less its rows, issue and wake", 1.2),
    "tma_issue": Fact(20, "cycles", ASSUMED, "assumed", 2.0),
    "special_latency": Fact(20, "cycles", ASSUMED, "assumed", 2.0),
    "uniform_latency": Fact(12, "cycles", ASSUMED, "assumed", 2.0),
    "read_latency": Fact(12, "cycles", ASSUMED + "; until a memory instruction has read its registers", "assumed", 2.0),
    "fence_latency": Fact(15, "cycles", ASSUMED, "assumed", 2.0),
}

H200 = Chip(
    "H200",
    "sm_90a",
    _RATES
    | _H200_LATENCIES
    | {
        "clock_hz": _measured(1.65e9, "Hz", "clock under a long load of wgmma: 1.62 to 1.68 GHz", 1.2),
        "sms": Fact(132, "SMs", "NVIDIA H200 data sheet", "documented"),
        "mma_flops": Fact(4096, "FLOP a cycle and SM, bf16", FA4, "published"),
        "mma_latency": _measured(35, "cycles", "wgmma m64n128k16: one and its wait, less its own 64 and issue"),
        "mma_issue": Fact(10, "cycles", ASSUMED, "assumed", 2.0),
    },
)

B200 = Chip(
    "B200",
    "sm_100a",
    _RATES
    | {key: _carried(fact) for key, fact in _H200_LATENCIES.items()}
    | {
        "clock_hz": Fact(1.85e9, "Hz", FA4, "published", 1.1),
        "sms": Fact(148, "SMs", FA4, "published"),
        "mma_flops": Fact(8192, "FLOP a cycle and SM, bf16", FA4, "published"),
        "mma_latency": Fact(40, "cycles", ASSUMED + "; last multiplication to arrival", "assumed", 2.0),
        "mma_issue": Fact(20, "cycles", ASSUMED + "; instruction to start when idle", "assumed", 2.0),
        "l2_bytes": Fact(64, "bytes a cycle and SM, all SMs together", ASSUMED, "assumed", 1.5),
        "tmem_load_bytes": Fact(512, "bytes a cycle and sub-partition", ASSUMED, "assumed", 2.0),
        "tmem_store_bytes": Fact(256, "bytes a cycle and sub-partition", ASSUMED, "assumed", 2.0),
        "tmem_latency": Fact(30, "cycles", ASSUMED, "assumed", 2.0),
    },
)

B300 = Chip(
    "B300",
    "sm_103a",
    B200.facts | {"mufu": Fact(4, "cycles", FA4 + ": 32 special functions a cycle and SM", "published")},
)

CHIPS = {chip.name: chip for chip in (H200, B200, B300)}


def recorded() -> dict[str, Any]:
    """What tests/gpu/record_clock.py found on an H200: the machine, the date, and the figures by name."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record
