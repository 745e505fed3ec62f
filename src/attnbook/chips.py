"""What is known of the chips, one fact at a time, each with its unit, its source and how sure it is.

Every number of a chip that a figure, a budget or a model of time uses stands here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sureness = Literal["documented", "published", "derived", "assumed"]
"""documented: the vendor says so; published: a paper or an article says so; derived: arithmetic on the other two;
assumed: no figure was found, and this value is a working guess."""

FA4 = "FlashAttention-4 paper (arXiv 2603.05451), roofline inputs"
PTX = "PTX ISA, Tensor Memory"
TUNING = "NVIDIA tuning guide for this architecture, occupancy and shared memory"
GUIDE = "CUDA Programming Guide, arithmetic throughput and limits by compute capability"
DGX = "NVIDIA DGX B200 data sheet, divided by 8 GPUs"
DGX_B300 = "NVIDIA DGX B300 data sheet, divided by 8 GPUs"
AS_B200 = "no figure found; taken to be as on a B200"
CHIPS_AND_CHEESE = "Chips and Cheese, article on the B200"
H200_SHEET = "NVIDIA H200 data sheet"
HOPPER = "NVIDIA H100 architecture white paper"
FA4_PLOTS = "FlashAttention-4 paper, forward plots, as quoted by the b200-attention benchmark"

KIB = 1024


@dataclass(frozen=True)
class Fact:
    value: float
    unit: str
    what: str
    source: str
    sure: Sureness


@dataclass(frozen=True)
class Chip:
    """The facts of one chip: chip["smem_bytes"] is the Fact, chip.smem_bytes its number."""

    name: str
    arch: str
    facts: dict[str, Fact]

    def __getitem__(self, key: str) -> Fact:
        if key not in self.facts:
            raise KeyError(f"{self.name} has no fact {key!r}; known: {', '.join(sorted(self.facts))}")
        return self.facts[key]

    def __contains__(self, key: str) -> bool:
        return key in self.facts

    def value(self, key: str) -> float:
        """The number of a fact, in the fact's unit."""
        return self[key].value

    def __getattr__(self, key: str) -> float:
        if key.startswith("_") or key not in self.facts:
            raise AttributeError(f"{self.name} has no fact {key!r}; known: {', '.join(sorted(self.facts))}")
        return self.facts[key].value


def _with_derived(name: str, arch: str, facts: dict[str, Fact]) -> Chip:
    sms, clock = facts["sms"].value, facts["clock_hz"].value
    return Chip(
        name,
        arch,
        facts
        | {
            "bf16_flops": Fact(
                facts["mma_flops_per_clk"].value * sms * clock,
                "FLOP/s",
                "peak of the tensor cores, dense bf16",
                "rate x SMs x clock",
                "derived",
            ),
            "hbm_bytes_per_clk_sm": Fact(
                facts["hbm_bytes_per_s"].value / sms / clock,
                "B/clk/SM",
                "HBM bytes a clock for each SM when all of them load",
                "bandwidth / SMs / clock",
                "derived",
            ),
        },
    )


def _sm_common() -> dict[str, Fact]:
    return {
        "schedulers": Fact(
            4,
            "warp schedulers",
            "sub-partitions of an SM, each issues one warp instruction a clock",
            GUIDE,
            "documented",
        ),
        "reg_bytes": Fact(65536 * 4, "B/SM", "register file: 65,536 registers of 32 bits", GUIDE, "documented"),
        "reg_bytes_per_clk": Fact(
            128 * 3 * 4,
            "B/clk/SM",
            "register reads that 128 FP32 multiply-adds of three operands need",
            "128 lanes x 3 operands x 4 B",
            "derived",
        ),
        "max_regs_thread": Fact(255, "registers", "most registers of one thread", GUIDE, "documented"),
        "max_threads": Fact(2048, "threads/SM", "resident threads", GUIDE, "documented"),
        "fma_per_clk": Fact(128, "FMA/clk/SM", "FP32 multiply-adds", GUIDE, "documented"),
        "mufu_per_clk": Fact(16, "ops/clk/SM", "special functions such as ex2", FA4, "published"),
        "smem_bytes": Fact(228 * KIB, "B/SM", "shared memory of an SM", TUNING, "documented"),
        "smem_cta_bytes": Fact(227 * KIB, "B/CTA", "most shared memory of one CTA", TUNING, "documented"),
        "smem_bytes_per_clk": Fact(128, "B/clk/SM", "shared memory: 32 banks of 4 bytes", FA4, "published"),
        "smem_banks": Fact(32, "banks", "shared memory banks, 4 bytes wide", GUIDE, "documented"),
    }


B200 = _with_derived(
    "B200",
    "sm_100a",
    {
        **_sm_common(),
        "sms": Fact(148, "SMs", "SMs that are switched on", FA4, "published"),
        "clock_hz": Fact(1.85e9, "Hz", "clock behind the stated peak", FA4, "published"),
        "mma_flops_per_clk": Fact(8192, "FLOP/clk/SM", "dense bf16/fp16 tensor-core rate", FA4, "published"),
        "tmem_bytes": Fact(128 * 512 * 4, "B/SM", "TMEM: 128 lanes x 512 columns x 32 bits", PTX, "documented"),
        "tmem_lanes": Fact(128, "lanes", "rows of TMEM", PTX, "documented"),
        "tmem_columns": Fact(512, "columns", "columns of TMEM, 32 bits each", PTX, "documented"),
        "tmem_bytes_per_clk": Fact(
            2048,
            "B/clk/SM",
            "tcgen05.ld: 16 bytes a clock for each lane",
            "no figure found; this book's working guess",
            "assumed",
        ),
        "l2_bytes": Fact(126e6, "B", "L2 cache of the chip", CHIPS_AND_CHEESE, "published"),
        "hbm_bytes": Fact(180e9, "B", "HBM3e capacity", DGX, "documented"),
        "hbm_bytes_per_s": Fact(8e12, "B/s", "HBM3e bandwidth", DGX, "documented"),
    },
)

B300 = _with_derived(
    "B300",
    "sm_103a",
    {key: fact for key, fact in B200.facts.items() if key not in ("bf16_flops", "hbm_bytes_per_clk_sm", "l2_bytes")}
    | {
        "sms": Fact(148, "SMs", "SMs that are switched on", AS_B200, "assumed"),
        "clock_hz": Fact(1.85e9, "Hz", "clock behind the stated peak", AS_B200, "assumed"),
        "mma_flops_per_clk": Fact(8192, "FLOP/clk/SM", "dense bf16/fp16 tensor-core rate", AS_B200, "assumed"),
        "mufu_per_clk": Fact(32, "ops/clk/SM", "special functions such as ex2", FA4, "published"),
        "hbm_bytes": Fact(288e9, "B", "HBM3e capacity", DGX_B300, "documented"),
        "hbm_bytes_per_s": Fact(8e12, "B/s", "HBM3e bandwidth", DGX_B300, "documented"),
    },
)

H200 = _with_derived(
    "H200",
    "sm_90a",
    {
        **_sm_common(),
        "sms": Fact(132, "SMs", "SMs that are switched on", HOPPER, "documented"),
        "clock_hz": Fact(989.4e12 / (4096 * 132), "Hz", "clock behind the stated 989 TFLOPS", H200_SHEET, "derived"),
        "mma_flops_per_clk": Fact(4096, "FLOP/clk/SM", "dense bf16/fp16 tensor-core rate", FA4, "published"),
        "l2_bytes": Fact(50e6, "B", "L2 cache of the chip", HOPPER, "documented"),
        "hbm_bytes": Fact(141e9, "B", "HBM3e capacity", H200_SHEET, "documented"),
        "hbm_bytes_per_s": Fact(4.8e12, "B/s", "HBM3e bandwidth", H200_SHEET, "documented"),
    },
)

# FlashAttention-4's own forward TFLOPS, dense, head dim 128, by sequence length: read off the paper's plots by others.
FA4_FORWARD = {
    n: Fact(tflops * 1e12, "FLOP/s", f"FlashAttention-4 forward, sequence length {n}", FA4_PLOTS, "published")
    for n, tflops in ((4096, 1532), (8192, 1579), (16384, 1601))
}

CHIPS = {c.name: c for c in (B200, B300, H200)}


def human_bytes(n: float, *, binary: bool = True) -> str:
    """33554432 -> "32 MiB" (binary) or 8e12 -> "8 TB" (decimal); whole numbers without a fraction."""
    base, units = (1024.0, ["B", "KiB", "MiB", "GiB"]) if binary else (1000.0, ["B", "kB", "MB", "GB", "TB"])
    i = 0
    while abs(n) >= base and i < len(units) - 1:
        n, i = n / base, i + 1
    return f"{n:,.0f} {units[i]}" if abs(n - round(n)) < 0.05 else f"{n:,.1f} {units[i]}"
