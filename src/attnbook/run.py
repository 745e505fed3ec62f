"""Run one stage on one input, and say whether the answer is right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnbook.attention import DTYPES, Execution, execute, problem_of
from attnbook.inputs import family as family_of
from attnbook.ladder import LADDER, Stage
from attnbook.machine import Machine, version_of
from attnbook.reference import Verdict, check

if TYPE_CHECKING:
    import ptxemu
    from attnbook.compile import Compiled, Problem

__all__ = ["Result", "run"]

SCHEMA = "attnbook.run/1"


@dataclass(frozen=True)
class Result:
    """One run of one stage.

    o, lse   the answer, on the device of the inputs; lse is None unless asked for
    verdict  what `reference.check` says of it
    run      what ptxemu found out: instructions, events, bank conflicts; None on a GPU
    seconds  wall time of the launch. On the emulator that is the time of the emulation and says nothing of a GPU
    """

    stage: Stage
    problem: Problem
    family: str
    seed: int
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor | None
    verdict: Verdict
    run: ptxemu.Run | None
    machine: Machine
    on_gpu: bool
    compiled: Compiled
    seconds: float
    check_seconds: float

    @property
    def trace(self) -> ptxemu.Trace:
        """The events of the run. ValueError where none were collected."""
        if self.run is None or not self.run.events:
            raise ValueError("no events were collected; run with trace=True, on the emulator")
        return self.run.trace

    @property
    def backend(self) -> str:
        """ "emulator", or the GPU's name."""
        return self.machine.gpu.name if self.on_gpu and self.machine.gpu else "emulator"

    def report(self) -> str:
        """A few lines of text: machine, shape, verdict, time, instruction counts."""
        p, c, v = self.problem, self.compiled, self.verdict
        where = self.backend if self.on_gpu else "ptxemu, the emulator"
        rows = [
            ("stage", f"{self.stage.name}, {self.stage.title}: {c.arch} on {where}"),
            (
                "problem",
                f"batch {p.batch}, heads {p.heads}, seqlen {p.seqlen}, head dim {p.head_dim}, {p.dtype}, "
                f"scale {p.softmax_scale:.6g}; input {self.family}, seed {self.seed}",
            ),
            (
                "kernel",
                f"{c.registers} registers and {c.stack_bytes} bytes of stack a thread, "
                f"{c.shared_bytes:,} bytes of shared memory a CTA; compiled in {c.compile_seconds:.2f} s",
            ),
        ]
        if self.run is None:
            rows.append(("run", f"{self.seconds * 1e3:.3f} ms, one call, launch included"))
        else:
            ctas, threads = math.prod(self.run.grid), math.prod(self.run.block)
            rows.append(("run", f"{ctas} CTAs of {threads} threads, emulated in {self.seconds:.2f} s"))
            top = ", ".join(f"{name} {count:,}" for name, count in self.run.instructions.most_common(4))
            rows.append(("instructions", f"{self.run.warp_instructions:,} of warps; most: {top}"))
            rows += [("finding", str(finding)) for finding in self.run.findings]
        rows.append(("o", _against(v.error, v.allowed, "row error", v.where) + f"; PyTorch's is {v.torch_error:.2e}"))
        if v.lse_error is not None and v.lse_allowed is not None:
            rows.append(("lse", _against(v.lse_error, v.lse_allowed, "error", v.lse_where)))
        rows.append(("verdict", "right" if v.ok else str(v)))
        return "\n".join(f"{name:<13} {text}" for name, text in rows)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the whole run but the tensors and events."""
        p, c = self.problem, self.compiled
        emulation = None
        if self.run is not None:
            emulation = {
                "grid": list(self.run.grid),
                "block": list(self.run.block),
                "cluster": list(self.run.cluster),
                "ticks": self.run.ticks,
                "warp_instructions": self.run.warp_instructions,
                "instructions": dict(self.run.instructions.most_common()),
                "findings": [str(finding) for finding in self.run.findings],
            }
        packages = ("torch", "nvidia-cutlass-dsl", "numpy", "attnbook")
        return {
            "schema": SCHEMA,
            "stage": {"number": self.stage.number, "slug": self.stage.slug, "title": self.stage.title},
            "problem": asdict(p) | {"scale": p.softmax_scale},
            "input": {"family": self.family, "seed": self.seed},
            "machine": self.machine.to_dict() | {"ran_on": self.backend},
            "versions": {package: version_of(package) for package in packages},
            "kernel": {
                "name": c.kernel_name,
                "arch": c.arch,
                "registers": c.registers,
                "stack_bytes": c.stack_bytes,
                "shared_bytes": c.shared_bytes,
            },
            "verdict": self.verdict.to_dict(),
            "seconds": {
                "of": "one call on the GPU" if self.on_gpu else "emulation on this machine, not GPU time",
                "compile": c.compile_seconds,
                "run": self.seconds,
                "check": self.check_seconds,
            },
            "emulation": emulation,
        }

    def __str__(self) -> str:
        return self.report()


def _against(error: float, allowed: float, what: str, where: tuple[int, int, int] | None) -> str:
    return f"{what} {error:.2e} of {allowed:.2e} allowed, at (batch, head, query) {where}"


def run(
    stage: int | str | Stage = "final",
    batch: int = 1,
    heads: int = 1,
    seqlen: int = 512,
    *,
    dtype: str = "bf16",
    family: str = "normal",
    seed: int = 0,
    scale: float | None = None,
    lse: bool = False,
    trace: bool = False,
    device: str | None = None,
    schedule: str | None = None,
    schedule_seed: int = 0,
    ptx_edit: Callable[[str], str] | None = None,
    races: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Compile a stage, draw an input, launch the kernel on the machine that is there, and check the answer.

    stage          a number, a slug, or "final"
    batch, heads, seqlen
                   of q, k and v: (batch, seqlen, heads, 128)
    dtype          "bf16" or "fp16"
    family, seed   the input: a name in `reference.INPUT_FAMILIES`
    scale          of the softmax; 1 / sqrt(128) if None
    lse            have the kernel write the log-sum-exp too, and check it
    trace          collect events, with the kernel's IKET ranges: `Result.trace`
    device         None or "auto", "emulator", "gpu"
    schedule       whose turn it is on the emulator: "fair" or "adversarial", by schedule_seed
    ptx_edit       PTX text to PTX text, applied before the emulator reads it: to see what a missing wait does
    races          look for missing synchronisation: the findings are in `Result.run.findings`
    progress       called as progress(CTAs done, all CTAs) by the emulator

    Asking for trace, schedule, races or ptx_edit runs on the emulator, whatever GPU is there. Raises ValueError for bad
    input, and what ptxemu raises for a kernel that deadlocks or breaks a rule.
    """
    found = LADDER[stage]
    _check_counts(batch=batch, heads=heads, seqlen=seqlen)
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype!r} is none of {', '.join(DTYPES)}")
    kind = family_of(family)
    if kind.causal and "causal" not in found.features:
        raise ValueError(
            f"input family {family!r} needs a causal kernel, and stage {found.number} is dense; take another"
        )
    config = None
    if trace or schedule is not None or schedule_seed or ptx_edit is not None or races:
        device, config = _emulator_config(device, trace, schedule, schedule_seed, races)
    q, k, v = kind(batch, heads, seqlen, dtype=DTYPES[dtype], seed=seed, scale=scale)
    problem = problem_of(q, k, v, causal=kind.causal, scale=scale, lse=lse, stage=found)
    done: Execution = execute(
        found, problem, q, k, v, device=device, config=config, iket=trace, ptx_edit=ptx_edit, progress=progress
    )
    start = time.perf_counter()
    verdict = check(done.o, done.lse, q, k, v, scale=problem.softmax_scale, causal=kind.causal)
    return Result(
        stage=found,
        problem=problem,
        family=family,
        seed=seed,
        q=q,
        k=k,
        v=v,
        o=done.o,
        lse=done.lse,
        verdict=verdict,
        run=done.run,
        machine=done.machine,
        on_gpu=done.on_gpu,
        compiled=done.compiled,
        seconds=done.seconds,
        check_seconds=time.perf_counter() - start,
    )


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}; it must be a whole number of at least 1")


def _emulator_config(
    device: str | None, trace: bool, schedule: str | None, schedule_seed: int, races: bool
) -> tuple[str, Any]:
    import ptxemu

    if device == "gpu":
        raise ValueError(
            "device = 'gpu', and trace, schedule, schedule_seed, races and ptx_edit are the emulator's; "
            "leave them out, or pass device='emulator'"
        )
    settings: dict[str, Any] = {"trace": trace, "seed": schedule_seed}
    if races:
        settings |= {"races": True, "on_race": "collect"}
    if schedule is not None:
        settings["schedule"] = schedule
    return "emulator", ptxemu.Config(**settings)
