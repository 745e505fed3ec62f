"""The stages under the clock: cycles of an SM, and what that makes of the whole chip. Everything here is modelled.

One SM is replayed with as many CTAs as fit on it (`resident`), over two numbers of KV tiles. Their difference is what a
further tile costs, and with it the time of any length is a line. The chip is that SM, in waves, as often as the grid
asks.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnbook.ladder import LADDER, Stage
from attnbook.results import Entry, Provenance, Record
from ptxemu import clock
from ptxemu.clock import CHIPS, Chip, Timing

TILES = (4, 8)  # KV tiles of the two replays
SHARED_PER_SM, SHARED_PER_CTA = 228 * 1024, 1024  # bytes; what the system keeps of each CTA's
REGISTERS_PER_SM, THREADS_PER_SM = 65536, 2048
TMEM_COLUMNS = 512
CYCLES = "cycles of an SM for 128 queries by 128 keys"


@dataclass(frozen=True)
class StageTiming:
    """A stage on a chip.

    timing: the replay of one SM over `tiles` KV tiles of 128 keys. resident: CTAs on the SM. rows: queries of a CTA.
    per_tile: cycles of the SM for each further KV tile of all its resident CTAs. fixed: cycles that do not grow.
    """

    stage: Stage
    chip: Chip
    timing: Timing
    tiles: int
    resident: int
    rows: int
    head_dim: int
    per_tile: float
    fixed: float

    @property
    def cycles_per_product(self) -> float:
        """Cycles for 128 queries and 128 keys: one S = Q K^T, its softmax, and one O += P V."""
        return self.per_tile / (self.resident * self.rows / 128)

    def cycles(self, seqlen: int, batch: int = 1, heads: int = 1) -> float:
        """Cycles of the whole launch, in waves; the last wave counts as a full one."""
        ctas = batch * heads * math.ceil(seqlen / self.rows)
        waves = math.ceil(ctas / (self.chip.of("sms") * self.resident))
        return waves * (self.fixed + self.per_tile * math.ceil(seqlen / 128))

    def seconds(self, seqlen: int, batch: int = 1, heads: int = 1) -> float:
        return self.cycles(seqlen, batch, heads) / self.chip.of("clock_hz")

    def tflops(self, seqlen: int, batch: int = 1, heads: int = 1) -> float:
        """4 B H N^2 d over the time, in TFLOPS."""
        return 4 * batch * heads * seqlen**2 * self.head_dim / self.seconds(seqlen, batch, heads) / 1e12

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {
            "stage": self.stage.number,
            "slug": self.stage.slug,
            "chip": self.chip.name,
            "resident": self.resident,
            "cycles_per_product": self.cycles_per_product,
            "share_of_peak": self.share_of_peak(),
            "tflops_8k": self.tflops(8192, batch=4, heads=16),
            "utilisation": self.timing.utilisation(),
        }

    def share_of_peak(self) -> float:
        """The tensor core's share of a long sequence's time."""
        return 4 * 128 * 128 * self.head_dim / self.chip.of("mma_flops") / self.cycles_per_product


def time(
    stage: int | str | Stage = "final", chip: str | Chip = "B200", *, resident: int | None = None, ranges: bool = False
) -> StageTiming:
    """Put a stage under the clock of a chip.

    resident: CTAs on an SM (default: as many as its shared memory, tensor memory, registers and threads allow).
    ranges: time the build with the kernel's named ranges in it, for a timeline; it is a few percent slower.
    Raises ValueError for a chip that the clock does not know.
    """
    found = LADDER[stage]
    if isinstance(chip, str):
        if chip not in CHIPS:
            raise ValueError(f"chip = {chip!r}: the clock has a table for {', '.join(CHIPS)}")
        chip = CHIPS[chip]
    compiled, module = _compiled(found.number, ranges), _module(found.number)
    rows = getattr(module, "ROWS", None) or module.TILE_M * getattr(module, "Q_TILES", 1)
    fits = residents(compiled.shared_bytes, compiled.registers, module.THREADS, module.TMEM_COLUMNS)
    resident = fits if resident is None else resident
    if not 1 <= resident <= fits:
        raise ValueError(f"resident = {resident}: {fits} CTAs of stage {found.number} fit on an SM")
    code = _code(found.number, ranges)
    short, long = (
        clock.replay(_recorded(found.number, tiles, fits, rows, ranges), code, chip, ctas=range(resident))
        for tiles in TILES
    )
    per_tile = (long.cycles - short.cycles) / (TILES[1] - TILES[0])
    fixed = short.cycles - per_tile * TILES[0]
    return StageTiming(found, chip, long, TILES[1], resident, rows, module.HEAD_DIM, per_tile, fixed)


@dataclass(frozen=True)
class Effect:
    """What a figure of the chip's table does to a prediction: cycles per product with the figure divided and
    multiplied by its spread, in that order, and as it stands.
    """

    key: str
    fact: clock.Fact
    divided: float
    multiplied: float
    as_is: float

    @property
    def swing(self) -> float:
        """The larger of the two changes, as a fraction."""
        return max(abs(self.divided / self.as_is - 1), abs(self.multiplied / self.as_is - 1))


def sensitivity(
    stage: int | str | Stage,
    chip: str = "B200",
    *,
    resident: int | None = None,
    progress: Callable[[], Any] = lambda: None,
) -> list[Effect]:
    """Move every uncertain figure of the table by its spread, one at a time; largest effect first.

    The clock's own frequency is left out: it moves seconds, not cycles.
    """
    middle = time(stage, chip, resident=resident)
    effects = []
    for key, fact in CHIPS[chip].facts.items():
        if fact.spread == 1 or fact.unit == "Hz":
            continue
        low, high = (
            time(stage, CHIPS[chip].with_(**{key: value}), resident=resident).cycles_per_product
            for value in (fact.value / fact.spread, fact.value * fact.spread)
        )
        progress()
        effects.append(Effect(key, fact, low, high, middle.cycles_per_product))
    return sorted(effects, key=lambda effect: -effect.swing)


def spread(effects: list[Effect]) -> tuple[float, float]:
    """(fastest, slowest) cycles per product when independent errors of the table add as squares."""
    as_is = effects[0].as_is
    faster = math.hypot(*(as_is - min(e.divided, e.multiplied, as_is) for e in effects))
    slower = math.hypot(*(max(e.divided, e.multiplied, as_is) - as_is for e in effects))
    return as_is - faster, as_is + slower


def record(stages: Sequence[Stage], chip: str = "B200", *, progress: Callable[[], Any] = lambda: None) -> Record:
    """What the clock says of stages, with ranges, as a record for book/results.

    Entries: "cycles" (an SM's for 128 queries by 128 keys) and "throughput" at 4K, 8K and 16K, the subject a stage with
    its CTAs on an SM; and the cycles again with one figure of the table moved, low and high its two directions.
    """
    entries = []
    for stage in stages:
        fits = time(stage, chip).resident
        for resident in sorted({1, fits}):
            timing = time(stage, chip, resident=resident)
            effects = sensitivity(stage, chip, resident=resident, progress=progress)
            as_is = timing.cycles_per_product
            low, high = spread(effects)
            subject = f"{stage.slug}, {resident} CTA{'s' if resident > 1 else ''} an SM"

            def shape(seqlen: int, batch: int, timing: StageTiming = timing) -> dict[str, int | str | bool]:
                sizes = {"batch": batch, "heads": 16, "seqlen": seqlen, "head_dim": timing.head_dim}
                return {**sizes, "dtype": "bf16", "causal": False}

            tile = shape(8192, 4)
            entries.append(Entry("cycles", CYCLES, subject, tile, as_is, low, high))
            for seqlen, batch in ((4096, 8), (8192, 4), (16384, 2)):
                tflops = timing.tflops(seqlen, batch, 16)
                ends = tflops * as_is / high, tflops * as_is / low
                entries.append(Entry("throughput", "TFLOPS", subject, shape(seqlen, batch), tflops, *ends))
            for effect in effects:
                if effect.swing > 0.01:
                    ends = min(effect.divided, effect.multiplied), max(effect.divided, effect.multiplied)
                    low_, high_ = min(ends[0], as_is), max(ends[1], as_is)
                    entries.append(Entry(f"cycles, {effect.key} moved", CYCLES, subject, tile, as_is, low_, high_))
    return Record(
        Provenance.MODELLED,
        "ptxemu clock",
        datetime.date.today().isoformat(),
        tuple(entries),
        {"name": chip},
        note="low and high: the table's uncertain figures moved by their spread, added as squares",
    )


def residents(shared_bytes: int, registers: int, threads: int, tmem_columns: int) -> int:
    """How many CTAs fit on an SM (CUDA Programming Guide, occupancy; PTX ISA, tensor memory allocation)."""
    per_warp = -(-registers * 32 // 256) * 256
    return min(
        SHARED_PER_SM // (shared_bytes + SHARED_PER_CTA),
        REGISTERS_PER_SM // (per_warp * (threads // 32)),
        THREADS_PER_SM // threads,
        TMEM_COLUMNS // tmem_columns if tmem_columns else 32,
    )


def recorded(stage: int | str | Stage) -> tuple[clock.Recorder, list[clock.Sass]]:
    """The longer of the runs that `time` records of a stage, and the stage's SASS."""
    found = LADDER[stage]
    compiled, module = _compiled(found.number, False), _module(found.number)
    rows = getattr(module, "ROWS", None) or module.TILE_M * getattr(module, "Q_TILES", 1)
    fits = residents(compiled.shared_bytes, compiled.registers, module.THREADS, module.TMEM_COLUMNS)
    return _recorded(found.number, TILES[1], fits, rows, False), _code(found.number, False)


def _module(number: int) -> Any:
    from attnbook.compile import stage_module

    return stage_module(number)


@functools.cache
def _compiled(number: int, ranges: bool) -> Any:
    from attnbook.compile import compile as compile_stage

    return compile_stage(number, iket=ranges)


@functools.cache
def _code(number: int, ranges: bool) -> list[clock.Sass]:
    return clock.parse(_compiled(number, ranges).annotated_sass)


@functools.cache
def _recorded(number: int, tiles: int, resident: int, rows: int, ranges: bool) -> clock.Recorder:
    """A run over `tiles` KV tiles, of which the first `resident` CTAs are written down."""
    import torch

    import ptxemu

    compiled = _compiled(number, ranges)
    heads = max(1, math.ceil(resident * rows / (128 * tiles)))
    draw = torch.Generator().manual_seed(0)
    shape = (1, 128 * tiles, heads, _module(number).HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=draw).to(torch.bfloat16) for _ in range(3))
    o = torch.empty_like(q)
    recorder = clock.Recorder(ctas=range(resident))
    arguments = compiled.arguments(q, k, v, o, torch.empty(1, heads, shape[1]), shape[-1] ** -0.5)
    config = ptxemu.Config(trace=True, bank_conflicts=False, observer=recorder)
    ptxemu.launch(compiled.fn, *arguments, config=config)
    return recorder
