"""What the clock knows of each chip: one table, each figure with its unit, its source and how sure it is.

Fixed latencies of arithmetic are not here: the compiler writes them into the SASS as stall counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Sureness = Literal["documented", "published", "measured", "derived", "assumed"]

GUIDE = "CUDA Programming Guide, throughput of native arithmetic instructions by compute capability"
FA4 = "FlashAttention-4 paper (arXiv 2603.05451), section 2"
ASSUMED = "no figure found: a working value, of the order that older chips show"
HOPPER_PAPER = "Luo et al., Dissecting the NVIDIA Hopper Architecture (arXiv 2501.12084)"


@dataclass(slots=True, frozen=True)
class Fact:
    """value in unit; spread: the factor by which it may be off in either direction (1.0: exact)."""

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


_COMMON = {
    # A warp instruction keeps the pipe of its sub-partition busy for so long.
    "fma": Fact(1, "cycles", GUIDE + ": 128 fp32 a cycle and SM", "documented"),
    "imad": Fact(2, "cycles", GUIDE + ": 64 a cycle and SM", "documented"),
    "packed": Fact(2, "cycles", "FFMA2 and the like do the work of two", "derived"),
    "alu": Fact(2, "cycles", GUIDE + ": 64 32-bit integer, logic, compare a cycle and SM", "documented"),
    "convert": Fact(2, "cycles", GUIDE + ": 64 conversions from 32 bits a cycle and SM", "documented", 1.5),
    "mufu": Fact(8, "cycles", GUIDE + ": 16 special functions a cycle and SM", "documented"),
    "uniform": Fact(2, "cycles", ASSUMED, "assumed", 2.0),
    "mufu_latency": Fact(18, "cycles", ASSUMED, "assumed", 1.5),
    "lds_latency": Fact(29, "cycles", HOPPER_PAPER, "published", 1.2),
    "ldg_latency": Fact(270, "cycles", HOPPER_PAPER + ", L2 hit", "published", 1.3),
    "special_latency": Fact(20, "cycles", ASSUMED, "assumed", 2.0),
    "uniform_latency": Fact(12, "cycles", ASSUMED, "assumed", 2.0),
    "read_latency": Fact(12, "cycles", ASSUMED + "; until a memory instruction has read its registers", "assumed", 2.0),
    "shared_bytes": Fact(128, "bytes a cycle and SM", "32 banks of 4 bytes", "documented"),
    "try_wait_latency": Fact(20, "cycles", ASSUMED, "assumed", 1.5),
    "wake_latency": Fact(20, "cycles", ASSUMED + "; from the end of a phase to the waiting warp", "assumed", 2.0),
    "arrive_latency": Fact(15, "cycles", ASSUMED, "assumed", 2.0),
    "bar_latency": Fact(20, "cycles", HOPPER_PAPER + ", order of a barrier among few warps", "assumed", 1.5),
    "tma_latency": Fact(600, "cycles", HOPPER_PAPER + ", TMA load that hits L2", "published", 1.4),
    "tma_row": Fact(1, "cycles", ASSUMED + "; for a row of a box, 128 bytes at most", "assumed", 2.0),
    "tma_bytes": Fact(64, "bytes a cycle and SM", ASSUMED + "; the width of an SM's road to L2", "assumed", 1.5),
    "tma_issue": Fact(20, "cycles", ASSUMED, "assumed", 2.0),
    "fence_latency": Fact(15, "cycles", ASSUMED, "assumed", 2.0),
}

B200 = Chip(
    "B200",
    "sm_100a",
    _COMMON
    | {
        "clock_hz": Fact(1.85e9, "Hz", FA4, "published", 1.05),
        "sms": Fact(148, "SMs", FA4, "published"),
        "mma_flops": Fact(8192, "FLOP a cycle and SM, bf16", FA4, "published"),
        "mma_latency": Fact(40, "cycles", ASSUMED + "; last multiplication to arrival", "assumed", 2.0),
        "mma_issue": Fact(20, "cycles", ASSUMED + "; instruction to start when idle", "assumed", 2.0),
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

H200 = Chip(
    "H200",
    "sm_90a",
    _COMMON
    | {
        "clock_hz": Fact(1.755e9, "Hz", ASSUMED + "; read the clock of the run", "assumed", 1.1),
        "sms": Fact(132, "SMs", "NVIDIA H200 data sheet", "documented"),
        "mma_flops": Fact(4096, "FLOP a cycle and SM, bf16", FA4, "published"),
        "mma_latency": Fact(30, "cycles", HOPPER_PAPER + ", wgmma", "published", 1.5),
        "mma_issue": Fact(10, "cycles", ASSUMED, "assumed", 2.0),
    },
)

CHIPS = {chip.name: chip for chip in (H200, B200, B300)}
