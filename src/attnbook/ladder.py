"""The ladder: every stage in order, what its one idea is, what is published for it, and whether its kernel is written.

    LADDER[1], LADDER["baseline"], LADDER["final"]   one stage: by number, by slug, the last one whose kernel is written
    for stage in LADDER: ...                         all of them, in order
    HOPPER[3], LADDER["h3"]                          the twin for Hopper GPUs has a ladder and numbers of its own

A stage is implemented when its file is there: kernels/blackwell/s<number>_<slug>.py or
kernels/hopper/h<number>_<slug>.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import overload

__all__ = ["HOPPER", "LADDER", "PUBLISHED", "Ladder", "Published", "Stage"]

KERNELS = Path(__file__).parent / "kernels"
FINAL = "final"


@dataclass(frozen=True)
class Published:
    """Where published figures come from, and what was measured."""

    source: str
    url: str
    quantity: str
    conditions: str


PUBLISHED = Published(
    source="IaroslavElistratov/b200-attention, README",
    url="https://github.com/IaroslavElistratov/b200-attention",
    quantity="percent of FlashAttention-4's throughput in the same run",
    conditions=(
        "forward, dense, bf16, head dim 128, 16 heads, 32K tokens in all (batch 8, 4, 2 at 4K, 8K, 16K), B200;"
        " CUDA kernels of that lineage with the same idea, against flash-attn-4 4.0.0b4; median of six ratios"
    ),
)


@dataclass(frozen=True, eq=False)  # one object a stage: compared and hashed as such
class Stage:
    """One stage of the ladder.

    number     from 1
    slug       its name in file names and on the command line
    title      its name in headings
    idea       the one idea, in a sentence
    path       the kernel's file; None while it is not written
    machine    "blackwell" (sm_100a) or "hopper" (sm_90a)
    features   what the kernel has, inherited ones first
    previous   the number of the stage that this one changes; None for the first
    published  {sequence length: percent of FlashAttention-4 in the same run}; empty where nothing is published
    note       what is known instead, where nothing is published
    """

    number: int
    slug: str
    title: str
    idea: str
    path: Path | None
    machine: str
    features: tuple[str, ...]
    previous: int | None
    published: MappingProxyType[int, float]
    note: str = ""

    @property
    def name(self) -> str:
        """What it is called on the command line: "3", or "h3" on the Hopper ladder."""
        return f"h{self.number}" if self.machine == "hopper" else str(self.number)

    @property
    def implemented(self) -> bool:
        """Whether there is a kernel to run."""
        return self.path is not None

    @property
    def module(self) -> str:
        """The dotted name of the kernel's module. ValueError while it is not written."""
        if self.path is None:
            raise ValueError(
                f"stage {self.number} ({self.slug}) has no kernel yet; the last one that has is {LADDER[FINAL].number}"
            )
        return f"attnbook.kernels.{self.machine}.{self.path.stem}"

    def __str__(self) -> str:
        return f"stage {self.number}, {self.title}"


class Ladder(Sequence[Stage]):
    """The stages in order. Index it with a stage's number (from 1), its slug, or "final".

    twin: another ladder, whose stages answer to their names ("h3") here too.
    """

    def __init__(self, stages: Sequence[Stage], twin: Ladder | None = None) -> None:
        self._stages = tuple(stages)
        self.twin = twin

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages)

    @overload
    def __getitem__(self, key: int | str | Stage) -> Stage: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Stage]: ...
    def __getitem__(self, key: int | str | Stage | slice) -> Stage | Sequence[Stage]:
        """A stage by number, slug or "final"; a Stage stands for itself. A slice cuts the list, which counts from 0.

        Raises KeyError with the names there are.
        """
        if isinstance(key, slice):
            return self._stages[key]
        if isinstance(key, Stage):
            return key
        if key == FINAL:
            return self.implemented[-1]
        for stage in self._stages:
            if key in (stage.number, stage.slug, str(stage.number)):
                return stage
        for stage in self.twin or ():
            if key == stage.name:
                return stage
        raise UnknownStage(
            f"stage {key!r} is not on the ladder; take a number from 1 to {len(self)}, {FINAL!r}, or one of: "
            + ", ".join(stage.slug for stage in self)
        )

    @property
    def implemented(self) -> tuple[Stage, ...]:
        """Those whose kernel is written."""
        return tuple(stage for stage in self if stage.implemented)

    def __str__(self) -> str:
        """A table: number, slug, title, published percentages, whether it is here."""
        lines = []
        for stage in self:
            figures = " / ".join(f"{percent:.1f}" for percent in stage.published.values()) or "-"
            here = "here" if stage.implemented else ""
            lines.append(f"{stage.number:>2}  {stage.slug:<20} {stage.title:<20} {figures:<20} {here}")
        return "\n".join(line.rstrip() for line in lines)


class UnknownStage(KeyError):
    """A name or number that is not on the ladder."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


@dataclass(frozen=True)
class _Row:
    slug: str
    title: str
    idea: str
    published: tuple[float, float, float] | None
    adds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    note: str = ""


_ROWS = (
    _Row(
        "baseline",
        "Baseline",
        "a correct tcgen05 attention: one warpgroup does everything in turn, P goes through shared memory, no swizzle",
        (14.2, 14.1, 13.7),
        adds=("bf16", "fp16", "scale", "lse", "tma", "tcgen05", "p_in_smem"),
    ),
    _Row(
        "p_in_tmem",
        "P in TMEM",
        "P stays in tensor memory, and the second MMA takes its A operand from there",
        (15.1, 15.0, 15.0),
        adds=("p_in_tmem",),
        drops=("p_in_smem",),
    ),
    _Row(
        "swizzle",
        "Swizzle",
        "the 128-byte swizzle: rows of 128 bytes, an eighth of the TMA boxes",
        (25.9, 25.9, 26.2),
        adds=("swizzle_128b",),
    ),
    _Row(
        "warp_specialization",
        "Warp specialization",
        "a load warp, an MMA warp and softmax warps, tied together by full and empty barriers",
        (26.6, 26.4, 26.5),
        adds=("warp_specialization",),
    ),
    _Row(
        "two_q_tiles",
        "Two Q tiles",
        "two Q tiles in a CTA: the softmax of one hides under the MMA of the other",
        (40.5, 40.3, 41.3),
        adds=("two_q_tiles",),
    ),
    _Row(
        "kv_ring",
        "K/V ring",
        "a ring of K and V slots lets the loads run ahead",
        (48.6, 48.6, 48.4),
        adds=("kv_ring",),
    ),
    _Row(
        "interleave",
        "Interleaved MMAs",
        "PV of tile i, then QK of tile i+1, for each Q tile: the tensor core always has work",
        (58.2, 58.5, 58.0),
        adds=("interleave",),
    ),
    _Row(
        "hardware_exp2",
        "Hardware exp2",
        "softmax in base 2: ex2.approx.ftz with the scale folded in",
        (64.1, 64.1, 63.8),
        adds=("hardware_exp2",),
    ),
    _Row(
        "software_exp2",
        "Software exp2",
        "a part of the exponentials is computed as a cubic polynomial on the FMA pipe",
        (69.3, 70.1, 70.6),
        adds=("software_exp2",),
    ),
    _Row(
        "register_cache",
        "Register cache",
        "S is read from tensor memory once and kept in registers",
        (72.9, 73.7, 73.6),
        adds=("register_cache",),
    ),
    _Row(
        "lazy_rescale",
        "Lazy rescale",
        "O is rescaled only when the factor for it, exp(new maximum - old maximum), is over 2^8",
        (81.7, 83.0, 83.3),
        adds=("lazy_rescale",),
    ),
    _Row(
        "correction_warps",
        "Correction warps",
        "warps of their own rescale O, off the softmax path",
        (84.9, 85.8, 86.3),
        adds=("correction_warps",),
    ),
    _Row(
        "early_pv",
        "Early PV",
        "PV starts when the first 96 columns of P are there",
        (87.2, 88.1, 88.4),
        adds=("early_pv",),
    ),
    _Row(
        "persistent",
        "Persistent CTAs",
        "one CTA for each SM works through many tiles, and barrier phases carry over",
        (90.7, 90.3, 89.8),
        adds=("persistent",),
    ),
    _Row(
        "wide_loads",
        "Wide loads",
        "wide loads from tensor memory, and four independent chains for the maximum",
        (92.3, 92.5, 92.0),
        adds=("wide_loads",),
    ),
    _Row(
        "split_rowsum",
        "Split row sum",
        "the row sum is packed and split into independent chains",
        (93.4, 93.7, 93.7),
        adds=("split_rowsum",),
    ),
    _Row(
        "phase_bits",
        "Phase bits",
        "barrier phases are bits in registers",
        (93.7, 94.0, 94.1),
        adds=("phase_bits",),
    ),
    _Row(
        "l2_promotion",
        "L2 promotion",
        "TMA descriptors that promote loads to 256-byte L2 lines",
        (94.4, 94.4, 94.1),
        adds=("l2_promotion",),
    ),
    _Row(
        "register_budget",
        "Register budget",
        "setmaxnreg moves registers from the other warps to the softmax warps, which then hold a whole row of scores",
        None,
        adds=("register_budget",),
    ),
    _Row(
        "tma_store",
        "TMA store",
        "O goes through shared memory and a TMA store, in a warp of its own",
        None,
        adds=("tma_store",),
    ),
    _Row(
        "two_cta",
        "Two CTAs",
        "two CTAs share one MMA of 256 rows and halve the traffic of K and V",
        None,
        adds=("two_cta",),
        note="FlashAttention-4 does this",
    ),
    _Row(
        "publish_early",
        "Publish early",
        "where the compiler sinks the publishing of P, and how to keep it early",
        None,
        adds=("publish_early",),
        note="NVIDIA's open kernel does this",
    ),
)


def _build() -> Ladder:
    stages: list[Stage] = []
    features: tuple[str, ...] = ()
    for number, row in enumerate(_ROWS, start=1):
        features = (*(feature for feature in features if feature not in row.drops), *row.adds)
        path = KERNELS / "blackwell" / f"s{number:02d}_{row.slug}.py"
        stages.append(
            Stage(
                number=number,
                slug=row.slug,
                title=row.title,
                idea=row.idea,
                path=path if path.exists() else None,
                machine="blackwell",
                features=features,
                previous=number - 1 or None,
                published=MappingProxyType(dict(zip((4096, 8192, 16384), row.published or (), strict=False))),
                note=row.note,
            )
        )
    return Ladder(stages, twin=HOPPER)


@dataclass(frozen=True)
class _HopperRow:
    slug: str
    title: str
    idea: str
    adds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    previous: int = 0  # 0: the row before


_HOPPER_ROWS = (
    _HopperRow(
        "baseline",
        "Baseline",
        "a correct wgmma attention: one warpgroup does everything in turn, P stays in registers",
        adds=("bf16", "fp16", "scale", "lse", "tma", "wgmma", "swizzle_128b", "p_in_registers"),
    ),
    _HopperRow(
        "base2",
        "Base 2",
        "softmax in base 2 with the scale folded in, and short chains for maximum and sum",
        adds=("hardware_exp2",),
    ),
    _HopperRow(
        "load_warp",
        "Load warp",
        "a warp of its own loads, tied to the computing warps by full and empty barriers",
        adds=("warp_specialization",),
    ),
    _HopperRow(
        "two_warpgroups",
        "Two warpgroups",
        "two computing warpgroups share each tile of K and V; setmaxnreg gives them the registers",
        adds=("two_warpgroups", "register_budget"),
    ),
    _HopperRow("kv_ring", "K/V ring", "two slots each for K and V: the load warp runs a tile ahead", adds=("kv_ring",)),
    _HopperRow(
        "overlap",
        "Overlap",
        "the softmax of a tile under the PV of the tile before, inside a warpgroup",
        adds=("overlap",),
    ),
    _HopperRow(
        "pingpong",
        "Ping-pong",
        "named barriers make the two warpgroups take turns at the tensor core",
        adds=("pingpong",),
    ),
    _HopperRow(
        "three_warpgroups",
        "Three warpgroups",
        "192 query rows share each tile of K and V, 80 keys a step; any length",
        adds=("three_warpgroups", "any_length"),
        drops=("two_warpgroups",),
        previous=6,
    ),
    _HopperRow(
        "skip_rescale",
        "Skipped rescales",
        "O is rescaled only where a maximum of the warp has grown",
        adds=("skip_rescale",),
    ),
    _HopperRow(
        "causal",
        "Causal",
        "causal masks that skip what is masked, and CTAs with much to do go first",
        adds=("causal", "longest_first"),
    ),
    _HopperRow(
        "head_dims",
        "Head dims and GQA",
        "head dimension 64, and query heads that share a head of K and V",
        adds=("head_dim_64", "gqa"),
    ),
)


def _build_hopper() -> Ladder:
    stages: list[Stage] = []
    for number, row in enumerate(_HOPPER_ROWS, start=1):
        previous = row.previous or number - 1
        before = stages[previous - 1].features if previous else ()
        path = KERNELS / "hopper" / f"h{number:02d}_{row.slug}.py"
        stages.append(
            Stage(
                number=number,
                slug=row.slug,
                title=row.title,
                idea=row.idea,
                path=path if path.exists() else None,
                machine="hopper",
                features=(*(feature for feature in before if feature not in row.drops), *row.adds),
                previous=previous or None,
                published=MappingProxyType({}),
            )
        )
    return Ladder(stages)


HOPPER = _build_hopper()
LADDER = _build()
