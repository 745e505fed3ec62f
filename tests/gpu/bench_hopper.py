"""Check and time packed Hopper kernels on the GPU: python tests/gpu/bench_hopper.py FOLDER OUT.json [options].

FOLDER is what tests/gpu/pack_hopper.py wrote. Needs PyTorch with CUDA, NumPy and a Hopper GPU; no compiler and no
CuTe-DSL: `ptxemu.host` interprets the packed host function, with the addresses of the GPU's tensors, and says what to
launch; the driver launches it.

Every kernel is checked first: poisoned outputs, the project's rule for every row of a small problem and for the rows of
one query tile at each size that is timed, and three runs that agree bit for bit. One that fails is not timed. Then all
of them take turns, forwards and backwards, on buffers that rotate; figures are medians over the rounds, ratios are
formed within a round. The chip is at its power limit nearly all the time, and its clock follows what ran in the last
tens of milliseconds: so each timing follows a warm-up by the same kernel. The SM clock and the power are read (NVML)
while each runs alone for a quarter of a second.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
import torch

from attnbook import reference
from ptxemu.host import Device, HostModule, KernelFacts

DRIVER = c.CDLL("libcuda.so.1")
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
HEAD_DIM = 128


def call(name: str, *args: Any) -> None:
    error = getattr(DRIVER, name)(*args)
    if error:
        raise RuntimeError(f"{name}: CUDA error {error}")


class Packed:
    """One packed kernel. prepare(...) works out a launch once; the result launches it again and again."""

    def __init__(self, path: Path) -> None:
        record = json.loads(path.read_text())
        self.name, self.causal, self.order, self.facts = (record[x] for x in ("name", "causal", "order", "facts"))
        self.kernels = {
            name: KernelFacts(tuple(params), shared) for name, (params, shared) in record["kernels"].items()
        }
        self.host = HostModule(record["host"], self.kernels, Device.of("sm_90a"))
        self.entry = record["function"]
        self.image = path.with_suffix(".cubin").read_bytes()
        self.functions: dict[str, c.c_void_p] = {}

    def _function(self, name: str, shared: int) -> c.c_void_p:
        if name not in self.functions:
            module, function = c.c_void_p(), c.c_void_p()
            call("cuModuleLoadData", c.byref(module), self.image)
            call("cuModuleGetFunction", c.byref(function), module, name.encode())
            call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
            self.functions[name] = function
        return self.functions[name]

    def prepare(self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float) -> Any:
        """A function that launches the kernel on these tensors, on the default stream."""
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        values = []
        for name in self.order:
            if name in tensors:
                t = tensors[name]
                layout = f"@P{t.dim()}i{t.dim() - 1}q"
                values.append(struct.pack(layout, t.data_ptr(), *t.shape, *t.stride()[:-1]))
            else:
                values.append(struct.pack("@f", scale) if name == "scale" else struct.pack("@P", 0))
        held = [c.create_string_buffer(value, len(value) + 8) for value in values]
        places = [c.addressof(x) for x in held]
        (launch,) = self.host.run(self.entry, places, [(a, len(x)) for a, x in zip(places, values, strict=True)])
        if launch.cluster != (1, 1, 1):
            raise RuntimeError(f"{self.name} wants a cluster of {launch.cluster}, which this launcher does not do")
        function = self._function(launch.kernel, launch.shared)
        params = [c.create_string_buffer(x, max(len(x), 1)) for x in launch.params]
        # A tensor map must lie at a multiple of 64 only in the kernel's own parameter space; the driver copies it.
        pointers = (c.c_void_p * len(params))(*[c.addressof(x) for x in params])
        grid, block, shared = launch.grid, launch.block, launch.shared

        def go(keep: Any = (params, tensors)) -> None:
            call("cuLaunchKernel", function, *grid, *block, shared, None, pointers, None)

        return go


class Sdpa:
    """PyTorch's own attention with one of its backends."""

    def __init__(self, name: str, backend: Any, causal: bool) -> None:
        self.name, self.backend, self.causal = name, backend, causal
        self.facts = {"package": f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"}

    def prepare(self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float) -> Any:
        from torch.nn.attention import sdpa_kernel

        transposed = [x.transpose(1, 2) for x in (q, k, v)]

        def go() -> Any:
            with sdpa_kernel(self.backend):
                return torch.nn.functional.scaled_dot_product_attention(*transposed, is_causal=self.causal, scale=scale)

        self.last = go
        return go


def inputs(batch: int, seqlen: int, heads: int, seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    tensors = [torch.randn(batch, seqlen, heads, HEAD_DIM, device="cuda").bfloat16() for _ in range(3)]
    o = torch.full_like(tensors[0], torch.nan)
    return [*tensors, o, torch.full((batch, heads, seqlen), torch.nan, device="cuda")]


def check(kernel: Packed, batch: int, seqlen: int, heads: int, rows: int | None = None) -> str:
    """An empty text if the answer is right and three times the same; else what is wrong. rows: only the last count."""
    q, k, v, o, lse = inputs(batch, seqlen, heads, seed=seqlen)
    go = kernel.prepare(q, k, v, o, lse, HEAD_DIM**-0.5)
    seen = []
    for _ in range(3):
        o.fill_(torch.nan)
        lse.fill_(torch.nan)
        torch.cuda.synchronize()
        go()
        torch.cuda.synchronize()
        seen.append((o.clone(), lse.clone()))
    if torch.isnan(o).any() or torch.isnan(lse).any():
        return f"{seqlen}: {int(torch.isnan(o).sum())} elements of o and {int(torch.isnan(lse).sum())} of lse unwritten"
    if not all(torch.equal(o, a) and torch.equal(lse, b) for a, b in seen):
        return f"{seqlen}: three runs differ"
    tail = slice(None) if rows is None else slice(seqlen - rows, seqlen)
    heads_checked = slice(0, None if rows is None else 1)
    part = [x[:1, :, heads_checked].cpu() if rows else x.cpu() for x in (q, k, v)]
    mine = o[:1, tail, heads_checked].cpu() if rows else o.cpu()
    mine_lse = lse[:1, heads_checked, tail].cpu() if rows else lse.cpu()
    verdict = reference.check(mine, mine_lse, part[0][:, tail], part[1], part[2], causal=kernel.causal)
    return "" if verdict.ok else f"{seqlen}: {verdict}"


def milliseconds(launches: list[Any], repeats: int) -> float:
    """Time of one launch: `repeats` of them between two events, over the buffers in turn."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for i in range(repeats):
        launches[i % len(launches)]()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


class Clock(threading.Thread):
    """Reads the SM clock (MHz) and the power (W) until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.mhz: list[int] = []
        self.watts: list[float] = []
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            self.mhz.append(self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))
            self.watts.append(self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000)
            time.sleep(0.01)


def clock_while(launches: list[Any], ms: float, seconds: float) -> dict[str, float]:
    """Median SM clock and power over the second half of `seconds` of running."""
    clock = Clock()
    clock.start()
    spent = milliseconds(launches, max(2, int(seconds * 1e3 / ms)))
    clock.stopped = True
    clock.join()
    half = len(clock.mhz) // 2
    return {
        "sm_mhz": statistics.median(clock.mhz[half:]),
        "watts": statistics.median(clock.watts[half:]),
        "sustained_ms": spent,
    }


def book_record(raw: dict[str, Any], command: str) -> Any:
    """What was measured, as a record of the book (attnbook.results)."""
    from attnbook.results import Entry, Provenance, Record

    gpu, driver, _, most, *_ = (x.strip() for x in raw["gpu"].split(","))
    entries = []
    for row in raw["timings"]:
        shape = {"batch": row["batch"], "heads": raw["heads"], "seqlen": row["seqlen"], "head_dim": HEAD_DIM}
        shape |= {"dtype": "bf16", "causal": row["causal"]}
        subject = row["kernel"].removesuffix("_causal") if row["kernel"] != "h10_causal" else row["kernel"]
        subject = {"fa4": raw["kernels"].get("fa4", {}).get("package"), "fa2": "FlashAttention-2 in torch"}.get(
            subject, f"cuDNN {raw['versions']['cudnn']}" if subject == "cudnn" else subject
        )
        flops = row["tflops"] * row["ms"]

        def entry(quantity: str, unit: str, values: list[float], subject: str = subject, shape: Any = shape) -> Entry:
            low, value, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            return Entry(quantity, unit, str(subject), shape, value, low, high, len(values))

        entries.append(entry("throughput", "TFLOPS", [flops / x for x in row["times"]]))
        if "ratios" in row:
            entries.append(entry("throughput against the best peer", "ratio in a round", row["ratios"]))
        if "sm_mhz" in row:
            entries.append(entry("SM clock", "MHz", [row["sm_mhz"]]))
            entries.append(entry("throughput, sustained", "TFLOPS", [row["tflops_sustained"]]))
    return Record(
        provenance=Provenance.MEASURED,
        source=command,
        date=raw["date"],
        entries=tuple(entries),
        machine={
            "name": "NVIDIA H200",
            "gpu": gpu,
            "driver": driver,
            "cuda": raw["versions"]["cuda"],
            "clocks_mhz": {"sm_max": int(most.split()[0])},
            "kernels": raw["kernels"],
        },
        versions=raw["versions"],
        revision=raw["revision"],
        note=(
            f"Forward, bf16, {raw['tokens']} tokens in all. Every kernel was checked before it was timed. The chip was "
            "at its power limit nearly all the time: the clock is part of the result. Causal counts half the FLOPs."
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seqlens", type=int, nargs="*", default=[4096, 8192, 16384])
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--burst", type=float, default=25.0, help="milliseconds of running for one timing")
    parser.add_argument(
        "--clock", type=float, default=0.25, help="seconds of running for a reading of the clock; 0: none"
    )
    parser.add_argument("--record", type=Path, help="write a record for book/results too")
    parser.add_argument("--warm", type=float, default=60.0, help="milliseconds of warm-up by the same kernel before it")
    parser.add_argument("--only", nargs="*", help="names")
    parser.add_argument("--revision", default="unknown")
    options = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    began = time.time()

    kernels = [Packed(path) for path in sorted(options.folder.glob("*.json"))]
    kernels = [x for x in kernels if not options.only or x.name in options.only]
    smi = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
    gpu = subprocess.run(["nvidia-smi", f"--query-gpu={smi}", "--format=csv,noheader"], capture_output=True, text=True)
    record: dict[str, Any] = {
        "schema": "attnbook.hopper/1",
        "gpu": gpu.stdout.strip(),
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        },
        "revision": options.revision,
        "date": time.strftime("%Y-%m-%d"),
        "heads": options.heads,
        "tokens": options.tokens,
        "kernels": {x.name: x.facts for x in kernels},
        "checks": {},
        "timings": [],
    }
    print(gpu.stdout.strip(), flush=True)
    right = []
    for kernel in kernels:
        try:
            wrong = check(kernel, 2, 1024, 2) or check(kernel, 2, max(options.seqlens), options.heads, 128)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[:500]
        record["checks"][kernel.name] = wrong or "right"
        print(f"{kernel.name:24} {wrong or 'right'}   {time.time() - began:.0f} s", flush=True)
        if not wrong:
            right.append(kernel)

    backends = torch.nn.attention.SDPBackend
    for causal in (False, True):
        for seqlen in options.seqlens:
            batch = max(1, options.tokens // seqlen)
            sets = [inputs(batch, seqlen, options.heads, seed) for seed in range(2)]
            flops = 4 * batch * options.heads * seqlen * seqlen * HEAD_DIM / (2 if causal else 1)
            running = [x for x in right if x.causal == causal]
            if not running:
                continue
            running += [Sdpa("cudnn", backends.CUDNN_ATTENTION, causal)]
            running += [Sdpa("fa2", backends.FLASH_ATTENTION, causal)] if not causal or seqlen == 8192 else []
            launches, repeats = {}, {}
            for kernel in list(running):
                try:
                    launches[kernel.name] = [kernel.prepare(*tensors, HEAD_DIM**-0.5) for tensors in sets]
                    for _ in range(2):
                        one = milliseconds(launches[kernel.name], 2)
                except Exception as error:
                    print(f"{kernel.name}: {type(error).__name__}: {error}"[:300], flush=True)
                    running.remove(kernel)
                    continue
                repeats[kernel.name] = max(2, int(options.burst / one))
            times: dict[str, list[float]] = {x.name: [] for x in running}
            for turn in range(options.rounds):
                for kernel in running if turn % 2 == 0 else running[::-1]:
                    runs = launches[kernel.name]
                    milliseconds(runs, max(1, round(options.warm / options.burst * repeats[kernel.name])))
                    times[kernel.name].append(milliseconds(runs, repeats[kernel.name]))
            peers = [times[name] for name in ("fa4_causal" if causal else "fa4", "cudnn") if name in times]
            best = [min(x) for x in zip(*peers, strict=True)]
            for kernel in running:
                ms = statistics.median(times[kernel.name])
                row = {"kernel": kernel.name, "seqlen": seqlen, "batch": batch, "causal": causal, "ms": ms}
                row |= {"tflops": flops / ms / 1e9, "times": times[kernel.name]}
                if best:
                    row["ratios"] = [b / x for b, x in zip(best, times[kernel.name], strict=True)]
                    row["to_best_peer"] = statistics.median(row["ratios"])
                if options.clock:
                    row |= clock_while(launches[kernel.name], ms, options.clock)
                    row["tflops_sustained"] = flops / row["sustained_ms"] / 1e9
                record["timings"].append(row)
                print(
                    f"{'causal' if causal else 'dense ':6} {seqlen:6} {kernel.name:26} {row['tflops']:7.1f} TFLOPS"
                    f"  {row.get('to_best_peer', 0):6.3f}  sustained {row.get('tflops_sustained', 0):6.1f}"
                    f"  {row.get('sm_mhz', 0):5.0f} MHz {row.get('watts', 0):4.0f} W",
                    flush=True,
                )
            options.out.write_text(json.dumps(record, indent=1))
            if options.record:
                from attnbook.results import save

                save(book_record(record, "tests/gpu/bench_hopper.py"), options.record)
            print(f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
