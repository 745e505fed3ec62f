"""``python -m ptxemu kernel.ptx``: run a PTX file on the emulated machine and say what it did."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ptxemu import Config, EmulationError, Run, run_ptx
from ptxemu.ptx import Module, parse

EPILOG = """\
One --arg for every .param of the kernel, in order:
  s32:-7  u64:4096  f32:1.5  f16:0.5      a number, packed to the type
  bytes:00ff..                            bytes in hexadecimal, as they are
  zeros:f32:1024  ones:f16:64x32          a buffer in global memory; the parameter is its address
  arange:s32:100  normal:f32:1024         counting up; standard normal numbers (--seed)
  poison:f32:1024                         every byte 0xff, so that what is not written shows
  data.npy                                a buffer with an array's contents

Example, a kernel that adds two vectors of 1000 floats:
  python -m ptxemu add.ptx --grid 8 --block 128 --arg normal:f32:1000 --arg normal:f32:1000 \\
      --arg poison:f32:1000 --arg s32:1000 --print 2
"""

_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64} | {
    f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}").type
    for sign in "su"
    for bits in (8, 16, 32, 64)
}


def three(text: str) -> tuple[int, int, int]:
    """``4``, ``4,2`` or ``4,2,1`` -> (4, 2, 1)."""
    try:
        numbers = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one to three positive numbers, as in 4,2,1")
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z


def dtype_of(name: str) -> type:
    if name not in _DTYPES:
        raise argparse.ArgumentTypeError(f"no type {name!r}: use one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def buffer(kind: str, dtype: type, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "ones":
        return np.ones(shape, dtype)
    if kind == "arange":
        return np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    if kind == "poison":
        return np.full(np.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
    return generator.standard_normal(shape).astype(dtype)


def argument(text: str, generator: np.random.Generator) -> np.ndarray | bytes:
    """One ``--arg``: a buffer (its address becomes the parameter) or the bytes of a number."""
    if text.endswith(".npy"):
        return np.ascontiguousarray(np.load(text))
    kind, _, rest = text.partition(":")
    try:
        if kind == "bytes":
            return bytes.fromhex(rest)
        if kind in ("zeros", "ones", "arange", "normal", "poison"):
            name, _, shape = rest.partition(":")
            return buffer(kind, dtype_of(name), tuple(int(n) for n in shape.split("x")), generator)
        dtype = dtype_of(kind)
        return dtype(float(rest) if kind[0] == "f" else int(rest, 0)).tobytes()
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"--arg {text!r}: {error}") from error


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m ptxemu",
        description="Run a PTX file on the emulated machine and say what it did.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("ptx", type=Path, help="the PTX file")
    found.add_argument("--entry", help="name of the kernel, or a part of it that only one has; default: the only one")
    found.add_argument("--list", action="store_true", help="list the kernels and their parameters, and stop")
    found.add_argument("--grid", type=three, default=(1, 1, 1), metavar="X,Y,Z", help="CTAs in the grid (1)")
    found.add_argument("--block", type=three, metavar="X,Y,Z", help="threads in a CTA; default: the kernel's .reqntid")
    found.add_argument("--cluster", type=three, default=(1, 1, 1), metavar="X,Y,Z", help="CTAs in a cluster (1)")
    found.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory of a CTA (0)")
    found.add_argument("--arg", action="append", default=[], metavar="SPEC", help="a kernel parameter; see below")
    found.add_argument("--print", type=int, action="append", default=[], metavar="N", help="print buffer N afterwards")
    found.add_argument("--save", action="append", default=[], metavar="N=FILE.npy", help="save buffer N afterwards")
    found.add_argument("--schedule", choices=("fair", "adversarial"), default="fair", help="who runs next (fair)")
    found.add_argument("--seed", type=int, default=0, help="of the adversarial schedule and of normal: buffers (0)")
    found.add_argument("--trace", type=Path, metavar="FILE.json", help="record events and write them here")
    found.add_argument("--races", action="store_true", help="look for races; all findings are printed, exit status 1")
    found.add_argument("--strict", action="store_true", help="with --races: what the letter of the ISA asks for, too")
    found.add_argument("--json", action="store_true", help="print the summary as JSON")
    return found


def choose(module: Module, wanted: str | None) -> str:
    names = list(module.entries)
    chosen = [name for name in names if wanted is None or wanted in name]
    if wanted in names:
        return wanted  # type: ignore[return-value]
    if len(chosen) != 1:
        which = "no kernel" if not chosen else "several kernels"
        raise argparse.ArgumentTypeError(f"--entry: {which} of that name; the file has {', '.join(names) or 'none'}")
    return chosen[0]


def listing(module: Module) -> str:
    lines = []
    for name, entry in module.entries.items():
        lines.append(name)
        if entry.reqntid:
            lines.append(f"  block {entry.reqntid}")
        lines += [f"  param {i}: {param.size} bytes" for i, param in enumerate(entry.params.values())]
    return "\n".join(lines)


def summary(run: Run) -> dict[str, object]:
    """What a run did, as plain data."""
    return {
        "kernel": run.kernel,
        "grid": run.grid,
        "block": run.block,
        "cluster": run.cluster,
        "shared_bytes": run.shared_bytes,
        "warp_instructions": run.warp_instructions,
        "instructions": dict(run.instructions.most_common()),
        "ticks": run.ticks,
        "seconds": run.seconds,
        "bank_conflicts": [
            {
                "ptx_line": c.ptx_line,
                "instruction": c.instruction,
                "source": c.source,
                "accesses": c.accesses,
                "wavefronts": c.wavefronts,
                "ideal": c.ideal,
            }
            for c in run.bank_conflicts.values()
        ],
        "findings": [finding if isinstance(finding, dict) else finding.to_dict() for finding in run.findings],
    }


def report(run: Run) -> str:
    """What a run did, to be read."""
    rate = run.warp_instructions / run.seconds if run.seconds else 0.0
    lines = [
        f"{run.kernel}",
        f"  grid {run.grid}, block {run.block}, cluster {run.cluster}, {run.shared_bytes} bytes of shared memory",
        f"  {run.warp_instructions} warp instructions in {run.seconds:.3f} s ({rate:,.0f} a second), {run.ticks} ticks",
    ]
    width = len(str(run.warp_instructions))
    lines += [f"    {count:{width}d}  {opcode}" for opcode, count in run.instructions.most_common()]
    conflicts = [c for c in run.bank_conflicts.values() if c.wavefronts > c.ideal]
    if conflicts:
        lines.append("  bank conflicts (wavefronts taken, and needed without conflicts)")
        lines += [
            f"    {c.wavefronts} of {c.ideal}  {c.instruction} at PTX line {c.ptx_line}"
            + (f", {c.source}" if c.source else "")
            for c in sorted(conflicts, key=lambda c: c.ideal - c.wavefronts)
        ]
    lines.append(f"  findings: {len(run.findings)}")
    for finding in run.findings:
        if isinstance(finding, dict):
            place = finding.get("source") or f"PTX line {finding.get('ptx_line')}"
            lines.append(f"    {finding.get('rule')}: {finding.get('text')} ({place})")
        else:
            lines.append(f"    {finding}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 1 where the kernel went wrong, 2 where the call did."""
    found = parser()
    options = found.parse_args(argv)
    try:
        module = parse(options.ptx.read_text())
        if options.list:
            print(listing(module))
            return 0
        entry = choose(module, options.entry)
        block = options.block or module.entries[entry].reqntid
        if block is None:
            raise argparse.ArgumentTypeError("--block is needed: the kernel has no .reqntid")
        generator = np.random.default_rng(options.seed)
        arguments = [argument(text, generator) for text in options.arg]
        saves = [item.partition("=") for item in options.save]
        for number in [*options.print, *(int(n) for n, _, _ in saves)]:
            if not 0 <= number < len(arguments) or isinstance(arguments[number], bytes):
                raise argparse.ArgumentTypeError(f"argument {number} is no buffer")
    except (argparse.ArgumentTypeError, OSError, ValueError) as error:
        found.error(str(error))
    except EmulationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    config = Config(
        schedule=options.schedule,
        seed=options.seed,
        trace=options.trace is not None,
        races=options.races or options.strict,
        strict=options.strict,
        on_race="collect",
    )
    try:
        run = run_ptx(
            options.ptx.read_text(),
            entry=entry,
            grid=options.grid,
            block=block,
            cluster=options.cluster,
            shared=options.shared,
            args=arguments,
            config=config,
        )
    except EmulationError as error:
        print(f"{type(error).__name__}: {error}", *error.findings, sep="\n  ", file=sys.stderr)
        return 1
    print(json.dumps(summary(run), indent=2) if options.json else report(run))
    for number in options.print:
        print(f"argument {number}:\n{arguments[number]}", file=sys.stderr if options.json else sys.stdout)
    for number, _, path in saves:
        np.save(path, arguments[int(number)])  # type: ignore[arg-type]
    if options.trace is not None:
        options.trace.write_text(run.trace.to_json())
    return int(config.races and bool(run.findings))


if __name__ == "__main__":
    sys.exit(main())
