"""Put FlashAttention-4's dense forward under the clock: CUTE_DSL_ARCH=sm_100a python tests/peers/record_clock.py FILE.

Needs requirements-peers.txt. Writes a record for book/results. One cluster is replayed over 8 and over 16 KV tiles; a
longer sequence is on the line through them, and the chip is that SM in waves.
"""

from __future__ import annotations

import datetime
import glob
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ARCH = os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("FLASH_ATTENTION_ARCH", ARCH.removesuffix("a"))
os.environ.setdefault("FLASH_ATTENTION_NUM_SMS", "132" if ARCH == "sm_90a" else "148")
sys.path.insert(0, str(Path(__file__).parent))
TARGET = Path(sys.argv[1]).absolute()
FOLDER = tempfile.TemporaryDirectory()
os.chdir(FOLDER.name)  # where the compiler leaves its files

import worker  # noqa: E402

worker.stand_in_for_triton()

import cutlass.cute as cute  # noqa: E402
import flash_attention as fa  # noqa: E402

import ptxemu  # noqa: E402
from attnbook.compile import disassemble  # noqa: E402
from attnbook.results import Entry, Provenance, Record, save  # noqa: E402
from ptxemu import clock  # noqa: E402

CHIP = clock.CHIPS["H200" if ARCH == "sm_90a" else "B200"]
SHAPES = ((4096, 8), (8192, 4), (16384, 2))


def timed(pair: bool) -> tuple[float, float, int]:
    """(cycles that do not grow, cycles for each KV tile of 128 keys, query rows of an SM's CTA)."""
    kernel = fa.kernel(128, False, pair, 1, False, "bf16")
    tensors = fa.problem(128, 1, "bf16", 1, 256, 1, 0)
    options = "--keep-ptx --keep-cubin --generate-line-info"
    compiled = cute.compile(kernel, *fa.arguments(type(kernel), *tensors), options=options)
    newest = max(glob.glob("*.cubin"), key=os.path.getmtime)
    code = clock.parse(disassemble(Path(newest).read_bytes(), annotated=True))
    rows = 128 if ARCH == "sm_90a" else 256
    cycles: list[float] = []
    for seqlen in (1024, 2048):
        q, k, v, o, lse = fa.problem(128, 1, "bf16", 1, seqlen, 1, 0)
        some = rows * (2 if pair else 1)
        arguments: list[Any] = fa.arguments(type(kernel), q[:, :some], k, v, o[:, :some], lse[:, :, :some].contiguous())
        recorder = clock.Recorder(ctas=range(2 if pair else 1))
        config = ptxemu.Config(trace=True, bank_conflicts=False, observer=recorder)
        ptxemu.launch(compiled, *arguments, config=config)
        cycles.append(clock.replay(recorder, code, CHIP, keep=False).cycles)
    tile = (cycles[1] - cycles[0]) / 8
    return cycles[0] - 8 * tile, tile, rows


def main(path: Path) -> None:
    entries = []
    for pair in (False, True) if ARCH != "sm_90a" else (False,):
        fixed, tile, rows = timed(pair)
        name = f"flash-attn-4 4.0.0b36, {'two CTAs' if pair else 'one CTA'} an MMA"
        for seqlen, batch in SHAPES:
            ctas = batch * 16 * math.ceil(seqlen / rows)
            # Persistent, or balanced by many waves: work in CTAs over SMs, with the last wave as full as it is.
            waves = math.ceil(ctas / CHIP.of("sms"))
            seconds = waves * (fixed + tile * seqlen / 128) / CHIP.of("clock_hz")
            tflops = 4 * batch * 16 * seqlen**2 * 128 / seconds / 1e12
            shape = {"batch": batch, "heads": 16, "seqlen": seqlen, "head_dim": 128, "dtype": "bf16", "causal": False}
            entries.append(Entry("throughput", "TFLOPS", name, shape, tflops, tflops, tflops))
        shape = {"batch": 1, "heads": 1, "seqlen": 2048, "head_dim": 128, "dtype": "bf16", "causal": False}
        entries.append(Entry("cycles", "cycles of an SM for a KV tile of 128 keys", name, shape, tile, tile, tile))
    record = Record(
        Provenance.MODELLED, "ptxemu clock", datetime.date.today().isoformat(), tuple(entries), {"name": CHIP.name},
        note="flash-attn-4 4.0.0b36 from PyPI, dense forward; at the clock of the chip's table",
    )  # fmt: skip
    save(record, path)
    for entry in entries:
        print(f"{entry.subject:45} {entry.shape['seqlen']:6} {entry.value:9,.0f} {entry.unit}")


if __name__ == "__main__":
    main(TARGET)
