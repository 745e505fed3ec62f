"""The command line: `attnbook doctor`, `run`, `clock` and `trace`.

Exit codes: 0 all is well; 1 the answer is wrong, the kernel breaks a rule of the machine, or something is missing; 2
bad input; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbook import __version__
from attnbook.inputs import INPUT_FAMILIES
from attnbook.ladder import FINAL, HOPPER, LADDER

if TYPE_CHECKING:
    from attnbook.run import Result

OK, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

PATIENCE = 2.0  # seconds of emulation before a progress bar appears


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return OK
    try:
        return int(options.command(options))
    except KeyboardInterrupt:
        print("\nattnbook: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: `attnbook run | head`
        sys.stderr.close()
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnbook",
        description='The kernels of "Attention, Cycle by Cycle": run one and check its answer, or look at the machine.',
        epilog="attnbook COMMAND --help says more.",
    )
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"attnbook {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_doctor(commands)
    _add_run(commands)
    _add_clock(commands)
    _add_trace(commands)
    return parser


def _add_doctor(commands: Any) -> None:
    text = "say what this machine has, which backend runs the kernels, what is missing and the command that mends it"
    doctor = commands.add_parser(
        "doctor", help=text, description=f"{text[0].upper()}{text[1:]}. Exit code 1 if kernels cannot run here."
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(command=_doctor)


def _add_run(commands: Any) -> None:
    families = "\n".join(
        f"  {family.name:<16} {family.bites}" for family in INPUT_FAMILIES.values() if not family.causal
    )
    every = (*LADDER.implemented, *HOPPER.implemented)
    stages = "\n".join(f"  {stage.name:<3} {stage.slug:<20} {stage.idea}" for stage in every)
    text = "run one stage on one input, and check the answer against FP64"
    run = commands.add_parser(
        "run",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"stages that are here:\n{stages}\n\ninput families, and the mistake that each shows:\n{families}\n\n"
        "exit codes: 0 right, 1 wrong or a rule of the machine broken, 2 bad input, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.set_defaults(command=_run)
    problem = run.add_argument_group("what to compute")
    problem.add_argument(
        "--stage", default=FINAL, metavar="STAGE", help=f"number, slug or {FINAL!r} (default: {FINAL})"
    )
    problem.add_argument("--batch", type=int, default=1, metavar="N", help="batches (default: 1)")
    problem.add_argument("--heads", type=int, default=1, metavar="N", help="heads (default: 1)")
    problem.add_argument("--seqlen", type=int, default=512, metavar="N", help="queries, and keys (default: 512)")
    problem.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="of q, k, v and o (default: bf16)")
    problem.add_argument(
        "--input", default="normal", metavar="FAMILY", help="a family from the list below (default: normal)"
    )
    problem.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the input (default: 0)")
    problem.add_argument("--scale", type=float, default=None, metavar="X", help="softmax scale (default: 1/sqrt(128))")
    problem.add_argument("--lse", action="store_true", help="have the log-sum-exp written too, and check it")
    where = run.add_argument_group("where and how")
    where.add_argument(
        "--device",
        choices=("auto", "emulator", "gpu"),
        default="auto",
        help="what runs it (default: the machine that is there)",
    )
    where.add_argument(
        "--schedule",
        choices=("fair", "adversarial"),
        default=None,
        help="whose turn it is on the emulator (default: fair); adversarial: any order that the machine allows",
    )
    where.add_argument(
        "--schedule-seed", type=int, default=0, metavar="N", help="seed of the adversarial schedule (default: 0)"
    )
    where.add_argument(
        "--races", action="store_true", help="look for missing synchronisation on the emulator; 1 if there is any"
    )
    output = run.add_argument_group("output")
    output.add_argument(
        "--json", metavar="FILE", help="write the result as JSON; - for standard output, instead of text"
    )
    output.add_argument("--trace", metavar="FILE", help="write the events of the emulated run as JSON")
    output.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_clock(commands: Any) -> None:
    text = "what stages cost on a chip, modelled: cycles, the whole chip's TFLOPS, and which units are busy"
    clock = commands.add_parser("clock", help=text, description=f"{text[0].upper()}{text[1:]}.")
    clock.set_defaults(command=_clock)
    clock.add_argument(
        "--stage", action="append", metavar="STAGE", help="number or slug; may be given more than once (default: all)"
    )
    clock.add_argument("--chip", default="B200", metavar="NAME", help="a chip that the clock knows (default: B200)")
    clock.add_argument(
        "--resident", type=int, default=None, metavar="N", help="CTAs on an SM (default: as many as fit)"
    )
    clock.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for standard output")
    clock.add_argument(
        "--record",
        metavar="FILE",
        help="write a record for book/results instead, with the range that the table leaves: a minute a stage",
    )


def _add_trace(commands: Any) -> None:
    text = "write what every warp and unit does, in modelled cycles or in the order of an emulated run"
    trace = commands.add_parser(
        "trace",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="formats: chrome (JSON) and perfetto (protobuf) open in ui.perfetto.dev; json is this project's own.",
    )
    trace.set_defaults(command=_trace)
    trace.add_argument("--stage", default=FINAL, metavar="STAGE", help=f"number, slug or {FINAL!r} (default: {FINAL})")
    trace.add_argument("--out", required=True, metavar="FILE", help="where to write it")
    trace.add_argument(
        "--format",
        choices=("chrome", "perfetto", "json"),
        default=None,
        help="default: by the file's name: .pftrace is perfetto, .json is chrome",
    )
    trace.add_argument("--chip", default="B200", metavar="NAME", help="whose cycles (default: B200)")
    trace.add_argument("--order", action="store_true", help="the order of the emulated run instead of modelled cycles")


def _clock(options: argparse.Namespace) -> int:
    try:
        stages = [LADDER[name] for name in options.stage] if options.stage else list(LADDER.implemented)
        if options.json:
            _check_writable(options.json)
        from tqdm import tqdm

        from attnbook.clock import record, time
        from attnbook.results import save

        if options.record:
            _check_writable(options.record)
            bar = tqdm(desc="moving the table's figures", unit=" replay", file=sys.stderr)
            save(record(stages, options.chip, progress=lambda: bar.update()), Path(options.record))
            return OK
        rows = []
        for stage in tqdm(stages, unit=" stage", desc="timing", delay=PATIENCE, leave=False, file=sys.stderr):
            rows.append(time(stage, options.chip, resident=options.resident).to_dict())
    except (KeyError, ValueError, FileNotFoundError) as error:
        return _complain(error, BAD_INPUT)
    if options.json:
        text = json.dumps({"chip": options.chip, "kind": "modelled", "stages": rows}, indent=2)
        print(text) if options.json == "-" else Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.json != "-":
        print(f"{options.chip}, modelled; 128 queries by 128 keys, head dim 128")
        print("stage                     CTAs/SM   cycles   of peak   TFLOPS at 8K   tensor   TMA   MUFU   FMA   issue")
        for row in rows:
            use = row["utilisation"]
            shares = "  ".join(f"{use[unit]:5.0%}" for unit in ("tensor", "tma", "mufu", "fma", "issue"))
            print(
                f"{row['stage']:2} {row['slug']:22} {row['resident']:7} {row['cycles_per_product']:8,.0f} "
                f"{row['share_of_peak']:8.1%} {row['tflops_8k']:14,.0f}   {shares}"
            )
    return OK


def _trace(options: argparse.Namespace) -> int:
    kinds = {".pftrace": "perfetto", ".json": "chrome"}
    kind = options.format or kinds.get(Path(options.out).suffix)
    try:
        LADDER[options.stage]
        _check_writable(options.out)
        if kind is None:
            raise ValueError(
                f"--out {options.out}: name the format with --format, or end the name in .pftrace or .json"
            )
        if options.order:
            from attnbook.run import run

            trace = run(options.stage, seqlen=512, trace=True).trace
        else:
            from attnbook.clock import time

            trace = time(options.stage, options.chip, ranges=True).timing.trace()
    except (KeyError, ValueError, FileNotFoundError) as error:
        return _complain(error, BAD_INPUT)
    from ptxemu import export

    assert trace is not None  # asked for
    data = {"chrome": export.to_chrome, "perfetto": export.to_perfetto, "json": lambda t: t.to_json()}[kind](trace)
    Path(options.out).write_bytes(data if isinstance(data, bytes) else data.encode())
    print(f"{options.out}: {len(trace.events):,} events in {trace.unit}s, for {kind}")
    return OK


def _doctor(options: argparse.Namespace) -> int:
    from attnbook.doctor import diagnose

    diagnosis = diagnose()
    print(json.dumps(diagnosis.to_dict(), indent=2) if options.json else diagnosis.report())
    return OK if diagnosis.ok else WRONG


def _run(options: argparse.Namespace) -> int:
    try:
        LADDER[options.stage]  # before PyTorch is loaded, since this may fail
        for path in filter(None, (options.json, options.trace)):
            _check_writable(path)
    except (KeyError, ValueError) as error:
        return _complain(error, BAD_INPUT)
    try:
        with _no_garbage_collection():
            import cutlass.cute  # noqa: F401  (the compiler needs it later; imported here it costs half)

            import ptxemu
            from attnbook.run import run
    except ImportError as error:
        return _complain(f"{error}; `attnbook doctor` says what is missing", WRONG)
    bar = _Bar(quiet=options.quiet)
    try:
        with bar:
            result = run(
                options.stage,
                options.batch,
                options.heads,
                options.seqlen,
                dtype=options.dtype,
                family=options.input,
                seed=options.seed,
                scale=options.scale,
                lse=options.lse,
                trace=options.trace is not None,
                device=options.device,
                schedule=options.schedule,
                schedule_seed=options.schedule_seed,
                races=options.races,
                progress=bar.update,
            )
    except ptxemu.EmulationError as error:
        return _complain(f"{type(error).__name__}: {error}", WRONG)
    except (ValueError, TypeError) as error:
        return _complain(error, BAD_INPUT)
    _write(result, options)
    races = options.races and result.run is not None and result.run.findings
    return OK if result.verdict.ok and not races else WRONG


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Import large packages without the collector's passes over their million objects, and keep it off them afterwards.

    Takes a second off a start that would last four.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _write(result: Result, options: argparse.Namespace) -> None:
    if options.trace:
        Path(options.trace).write_text(result.trace.to_json(), encoding="utf-8")
    if options.json == "-":
        print(json.dumps(result.to_dict(), indent=2))
        return
    print(result.report())
    if options.json:
        Path(options.json).write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")


def _check_writable(path: str) -> None:
    if path != "-" and not Path(path).absolute().parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {Path(path).absolute().parent}; make it first")


def _complain(what: object, code: int) -> int:
    print(f"attnbook: {what}", file=sys.stderr)
    return code


class _Bar:
    """A progress bar on standard error, for a run that takes longer than PATIENCE."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.bar: Any = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, done: int, total: int) -> None:
        """`done` of `total` CTAs are finished."""
        if self.quiet:
            return
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(total=total, unit=" CTA", desc="emulating", delay=PATIENCE, leave=False, file=sys.stderr)
        self.bar.update(done - self.bar.n)


if __name__ == "__main__":
    sys.exit(main())
