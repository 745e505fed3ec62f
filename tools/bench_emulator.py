"""How fast the emulator is: warp instructions a second, and whether a change of it changed any answer.

    python tools/bench_emulator.py                          FlashAttention-4's forward, stage 1 and stage 7
    python tools/bench_emulator.py --save before.json       keep figures and fingerprints
    python tools/bench_emulator.py --against before.json    ratios to kept figures; differing fingerprints are an error
    python tools/bench_emulator.py --vs ../old              in turn with another checkout: ratios that noise cannot move

Figures are CPU seconds of a launch on one core, the best and the median of --repeat, so that other programs on the
machine count little; "first" has the decoding of the kernel in it. Memory: the most that the process had at any time,
and by how much the launches raised it (the rest is PyTorch and the compiler). A fingerprint is a hash of the results,
instruction counts, bank conflicts, ticks and, from a run of its own, events: under the fair schedule and under
adversarial ones (--seeds).
FlashAttention-4 needs the packages of requirements-peers.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Launch = Callable[..., tuple[Any, list[Any]]]  # (**Config's fields) -> (Run, result tensors)


def flash_attention(seqlen: int, dim: int, pair: bool, causal: bool) -> Launch:
    """FlashAttention-4's sm_100 forward, batch 1, one head."""
    os.environ |= {"FLASH_ATTENTION_ARCH": "sm_100", "FLASH_ATTENTION_NUM_SMS": "148"}
    sys.path.insert(0, str(ROOT / "tests" / "peers"))
    import worker

    worker.stand_in_for_triton()
    import flash_attention as fa

    import ptxemu

    worker.this_machine(148)
    function = fa.compiled(dim, causal, pair, 1, False, "bf16")
    q, k, v, o, lse = fa.problem(dim, 1, "bf16", 1, seqlen, 1, 0)
    arguments = fa.arguments(fa.FlashAttentionForwardSm100, q, k, v, o, lse)

    def launch(**config: Any) -> tuple[Any, list[Any]]:
        return ptxemu.launch(function, *arguments, config=ptxemu.Config(**config)), [o, lse]

    return launch


def stage(number: int, seqlen: int) -> Launch:
    """A stage of the book, batch 1, one head."""
    import importlib

    import torch

    import ptxemu
    from attnbook.inputs import INPUT_FAMILIES

    compile_module = importlib.import_module("attnbook.compile")
    kernel = compile_module.compile(number, compile_module.Problem(dtype="bf16", lse=True))
    q, k, v = INPUT_FAMILIES["normal"](1, 1, seqlen, dtype=torch.bfloat16, seed=5)
    o, lse = torch.empty_like(q), torch.empty(1, 1, seqlen)
    arguments = kernel.arguments(q, k, v, o, lse, q.shape[-1] ** -0.5)

    def launch(**config: Any) -> tuple[Any, list[Any]]:
        return ptxemu.launch(kernel.fn, *arguments, config=ptxemu.Config(**config)), [o, lse]

    return launch


CASES: dict[str, Callable[[], Launch]] = {
    "fa4-1024": lambda: flash_attention(1024, 128, False, False),
    "fa4-causal-1024": lambda: flash_attention(1024, 128, False, True),
    "fa4-pair-1024": lambda: flash_attention(1024, 128, True, False),
    "stage1-512": lambda: stage(1, 512),
    "stage7-512": lambda: stage(7, 512),
}


def timed(launch: Launch) -> tuple[float, Any]:
    """CPU seconds of a launch, and its Run."""
    began = time.process_time()
    run, _ = launch()
    return time.process_time() - began, run


def fingerprint(launch: Launch, **config: Any) -> str:
    """A hash of everything that must not depend on how fast the emulator is."""
    import torch

    run, results = launch(**config)
    seen: list[Any] = [sorted(run.instructions.items()), run.ticks, [str(x) for x in run.findings]]
    seen += [(line, c.accesses, c.wavefronts, c.ideal) for line, c in sorted(run.bank_conflicts.items())]
    seen += [(e.t, e.cta, e.row, e.kind, e.name, sorted(map(str, e.data.items()))) for e in run.events]
    digest = hashlib.sha256(repr(seen).encode())
    for tensor in results:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def measure(name: str, repeat: int, seeds: int) -> dict[str, Any]:
    launch = CASES[name]()
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, run = timed(launch)
    seconds = [timed(launch)[0] for _ in range(repeat)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prints = {"fair": fingerprint(launch), "traced": fingerprint(launch, trace=True)}
    for seed in range(1, seeds + 1):
        prints[f"adversarial {seed}"] = fingerprint(launch, schedule="adversarial", seed=seed)
    return {
        "instructions": run.warp_instructions,
        "first": first,
        "best": min(seconds),
        "median": statistics.median(seconds),
        "peak MiB": peak / 1024,
        "raised MiB": (peak - peak_before) / 1024,
        "fingerprints": prints,
    }


def serve(name: str) -> None:
    """For each line on stdin one launch; its seconds on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    launch = CASES[name]()
    launch()
    for _ in sys.stdin:
        print(timed(launch)[0], file=answers, flush=True)


def in_turn(name: str, other: Path, repeat: int) -> list[float]:
    """Seconds of the other checkout / seconds of this one, for launches in turn."""
    processes = []
    for root in (other.resolve(), ROOT):
        command = [sys.executable, str(Path(__file__).resolve()), name, "--serve"]
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    ratios = []
    for _ in range(repeat):
        seconds = []
        for process in processes:
            assert process.stdin is not None and process.stdout is not None
            print(file=process.stdin, flush=True)
            seconds.append(float(process.stdout.readline()))
        ratios.append(seconds[0] / seconds[1])
    for process in processes:
        process.communicate()
    return ratios


def numpy_call() -> float:
    """Microseconds for one NumPy addition of 128 elements: what the speed of the machine at hand is measured in."""
    import numpy as np

    a = np.ones((4, 1, 32), np.float32)
    out = np.empty_like(a)
    return min(timeit.repeat(lambda: np.add(a, a, out), number=20000, repeat=5)) / 20000 * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases", nargs="*", help=f"some of {', '.join(CASES)}", default=["fa4-1024", "stage1-512", "stage7-512"]
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--vs", type=Path, metavar="CHECKOUT")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            serve(*options.cases)
            os.chdir(ROOT)
        return 0
    if options.vs:
        for name in options.cases:
            ratios = sorted(in_turn(name, options.vs, options.repeat))
            middle = statistics.median(ratios)
            print(f"{name:16} {middle:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs)")
        return 0
    print(f"one NumPy addition of 128 elements takes {numpy_call():.2f} us here now")
    save = options.save.resolve() if options.save else None
    before = json.loads(options.against.read_text()) if options.against else {}
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    found: dict[str, Any] = {}
    differs = False
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the compiler writes its PTX here
        for name in options.cases:
            now = found[name] = measure(name, options.repeat, options.seeds)
            rate, million = now["instructions"], 1e6
            print(
                f"{name:16} {rate:9,} warp instructions  first {now['first']:.3f} s  median {now['median']:.3f} s"
                f" ({rate / now['median'] / million:.2f} M/s)  best {now['best']:.3f} s"
                f" ({rate / now['best'] / million:.2f} M/s)  peak {now['peak MiB']:.0f} MiB"
                f" (launches +{now['raised MiB']:.0f})",
                flush=True,
            )
            if name in before:
                old = before[name]
                ratios = [f"{key} {old[key] / now[key]:.2f}x" for key in ("first", "median", "best")]
                same = old["fingerprints"] == now["fingerprints"]
                differs |= not same
                print(f"{'':16} faster by {', '.join(ratios)}; fingerprints {'the same' if same else 'DIFFER'}")
                for key, value in old["fingerprints"].items():
                    if now["fingerprints"].get(key) != value:
                        print(f"{'':16}   {key}: {value} before, {now['fingerprints'].get(key)} now")
        os.chdir(ROOT)
    if save:
        save.write_text(json.dumps(found, indent=1))
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
