"""The mutation bench on this book's kernels: ``python -m attnbook.mutations [NAME ...]`` records, `load` reads.

A record is book/results/mutations/NAME.json, a `ptxemu.mutate.Table`. What survives a bench is explained in
book/results/mutations/survivors.json: {kernel: {mutant: argument}}. A record belongs to the PTX that it was made from
(`Table.digest`); `stale` says whether the kernel has changed since.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from attnbook.mutate import waits
from attnbook.results import results_dir
from ptxemu.mutate import VERDICTS, Mutant, Result, Runner, Table, bench_text, digest_of, mutants

__all__ = [
    "SUBJECTS",
    "Subject",
    "added",
    "explanations",
    "load",
    "record",
    "recorded",
    "stale",
    "survivors_html",
    "table_html",
]

SEEDS = (0, 1)  # of the adversarial schedules that a mutant must get past, after the fair one
STAGES = range(1, 8)


@dataclass(frozen=True)
class Subject:
    """A kernel on the bench. name: of its record.  title: for tables.  build: its PTX, and how to run another one."""

    name: str
    title: str
    build: Callable[[], tuple[str, Runner]]
    only: Callable[[], Callable[[Mutant], bool]] | None = None


def _stage_text(number: int) -> Any:
    import importlib

    module = importlib.import_module("attnbook.compile")
    return module.compile(number, module.Problem(dtype="bf16", lse=True), arch="sm_100a")


def _stage(number: int) -> tuple[str, Runner]:
    """A stage on two tiles, or on three where a ring has three slots: every barrier is used again."""
    import torch

    import ptxemu
    from attnbook.inputs import INPUT_FAMILIES
    from attnbook.reference import check, poison

    kernel = _stage_text(number)
    seqlen = 256 if number < 6 else 384
    q, k, v = INPUT_FAMILIES["normal"](1, 1, seqlen, dtype=torch.bfloat16, seed=5)
    o, lse = torch.empty_like(q), torch.empty(1, 1, seqlen)

    def run(text: str, config: ptxemu.Config) -> bool:
        poison(o)
        poison(lse)
        arguments = kernel.arguments(q, k, v, o, lse, q.shape[-1] ** -0.5)
        ptxemu.launch(kernel.fn, *arguments, ptx=text, config=config)
        return bool(check(o, lse, q, k, v).ok)

    return kernel.ptx, run


def _gemm_ws() -> tuple[str, Runner]:
    """Five tiles of C in two places of tensor memory, ten steps through three slots."""
    import tempfile

    import cutlass.cute as cute
    import torch
    from cutlass.cute.runtime import from_dlpack

    import ptxemu
    from attnbook.kernels.blackwell.gemm_ws import Gemm
    from ptxemu.cutedsl import ptx_of

    def dlpack(t: torch.Tensor) -> Any:
        return (
            from_dlpack(t, assumed_align=16)
            .mark_layout_dynamic(leading_dim=1)
            .mark_compact_shape_dynamic(mode=1, divisibility=8)
        )

    random = torch.Generator().manual_seed(1)
    a, b = (torch.randn(rows, 128, generator=random).bfloat16() for rows in (128, 640))
    c = torch.empty(128, 640)
    exact, scale = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --generate-line-info --gpu-arch sm_100a --dump-dir {folder}"
        fn = cute.compile(Gemm(), dlpack(a), dlpack(b), dlpack(c), options=options)

    def run(text: str, config: ptxemu.Config) -> bool:
        c.fill_(torch.nan)
        ptxemu.launch(fn, dlpack(a), dlpack(b), dlpack(c), ptx=text, config=config)
        return bool(((c.double() - exact).abs() / scale).max() * 2**24 < a.shape[1])

    return ptx_of(fn), run


def added(number: int) -> list[Mutant]:
    """The mutants of what a stage of the ladder adds to the one before: waits by their barrier, all else by its line.

    All mutants of stage 1. Needs the source files that the line information names.
    """
    text = _stage_text(number).ptx
    here = _labelled(text)
    before = Counter(label for _, label in _labelled(_stage_text(number - 1).ptx)) if number > 1 else Counter()
    new = []
    for mutant, label in here:
        if before[label] > 0:
            before[label] -= 1
        else:
            new.append(mutant)
    return new


def _labelled(text: str) -> list[tuple[Mutant, tuple[str, str]]]:
    names = waits(text)
    found = []
    for mutant in mutants(text):
        family, _, rest = mutant.name.partition("/")
        what = names[int(rest.split()[0])] if family == "wait" else _code_at(mutant.source)
        found.append((mutant, (mutant.kind, what)))
    return found


@lru_cache(maxsize=4096)
def _code_at(source: str | None) -> str:
    if source is None:
        return ""
    file, _, line = source.rpartition(":")
    path = Path(__file__).parent / "kernels" / "blackwell" / file
    return path.read_text().splitlines()[int(line) - 1].strip() if path.is_file() else source


def _only_added(number: int) -> Callable[[], Callable[[Mutant], bool]]:
    def make() -> Callable[[Mutant], bool]:
        names = {mutant.name for mutant in added(number)}
        return lambda mutant: mutant.name in names

    return make


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("s01", "stage 1, baseline", lambda: _stage(1)),
        Subject("gemm_ws", "warp-specialised GEMM", _gemm_ws),
        *(
            Subject(f"s{n:02}", f"what stage {n} adds", lambda n=n: _stage(n), _only_added(n))  # type: ignore[misc]
            for n in STAGES
            if n > 1
        ),
    )
}


def folder() -> Path:
    """book/results/mutations."""
    return results_dir() / "mutations"


def recorded() -> list[str]:
    """The names of all records, also of kernels that others wrote."""
    return sorted(path.stem for path in folder().glob("*.json") if path.stem != "survivors")


def load(name: str) -> Table:
    """The record of a kernel. FileNotFoundError with the remedy where there is none."""
    path = folder() / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name}: no record of {name}; python -m attnbook.mutations {name} makes one")
    return Table.from_dict(json.loads(path.read_text()))


def save(name: str, table: Table) -> None:
    """Write a record; one that is not complete is NAME.part, and is no record yet."""
    folder().mkdir(parents=True, exist_ok=True)
    record, part = folder() / f"{name}.json", folder() / f"{name}.part"
    (record if table.complete else part).write_text(table.to_json() + "\n")
    if table.complete:
        part.unlink(missing_ok=True)


def _begun(name: str) -> Table | None:
    """What is there of a record, complete or not."""
    for path in (folder() / f"{name}.part", folder() / f"{name}.json"):
        if path.is_file():
            return Table.from_dict(json.loads(path.read_text()))
    return None


def explanations() -> dict[str, dict[str, str]]:
    """{kernel: {mutant: why nothing could notice it}}"""
    path = folder() / "survivors.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def unexplained(name: str) -> tuple[list[str], list[str]]:
    """(survivors without an explanation, explanations without a survivor) of a record."""
    survivors = {r.name for r in load(name).results if r.verdict in ("survivor", "answer")}
    given = set(explanations().get(name, {}))
    return sorted(survivors - given), sorted(given - survivors)


def stale(name: str) -> bool:
    """Is the record of another PTX than the kernel compiles to now?"""
    return load(name).digest != digest_of(SUBJECTS[name].build()[0])


def record(name: str, *, fresh: bool = False, progress: Any = sys.stderr, strict: bool = True) -> Table:
    """Run the bench on a kernel and write its record, after every mutant, so that it can be stopped and taken up."""
    subject = SUBJECTS[name]
    text, runner = subject.build()
    return run_bench(name, subject.title, text, runner, subject.only, fresh=fresh, progress=progress, strict=strict)


def run_bench(
    name: str,
    title: str,
    text: str,
    runner: Runner,
    only: Callable[[], Callable[[Mutant], bool]] | None = None,
    *,
    fresh: bool = False,
    progress: Any = sys.stderr,
    strict: bool = True,
) -> Table:
    """`record` for a kernel that is not in SUBJECTS."""
    before = None if fresh else _begun(name)
    table = bench_text(
        text,
        runner,
        kernel=title,
        seeds=SEEDS,
        strict=strict,
        only=only() if only else None,
        progress=progress,
        resume=before,
        each=lambda table: save(name, table),
    )
    save(name, table)
    return table


# ---------------------------------------------------------------------------------------------------------- the page


class _Html(str):
    """HTML that a notebook shows as it is."""

    def _repr_html_(self) -> str:
        return str(self)


def table_html(names: Sequence[str] | None = None) -> _Html:
    """One row a kernel: how many mutants there are, what noticed them, and what a test of the answer sees."""
    heads = ["kernel", "mutants", *VERDICTS, "noticed by the checker", "of those not redundant", "a test fails"]
    rows = []
    for name in names or recorded():
        table = load(name)
        counts = Counter(r.verdict for r in table.results)
        n = len(table.results)
        tested = sum(r.test != "right" for r in table.results)
        cells = [table.kernel, n, *(counts[v] or "" for v in VERDICTS), _share(table.noticed, n)]
        given = explanations().get(name, {})
        needed = sum(r.name not in given and r.verdict != "unreached" for r in table.results)
        rows.append([*cells, _share(table.noticed, needed), _share(tested, n)])
    return _html(heads, rows)


def kinds_html(name: str) -> _Html:
    """One row for each kind of edit of one kernel."""
    table = load(name)
    rows = []
    for kind in dict.fromkeys(r.kind for r in table.results):
        some = [r for r in table.results if r.kind == kind]
        counts = Counter(r.verdict for r in some)
        rows.append([kind, len(some), *(counts[v] or "" for v in VERDICTS), sum(r.test != "right" for r in some)])
    return _html(["edit", "mutants", *VERDICTS, "a test fails"], rows)


def mutants_html(name: str, only: Callable[[Result], bool] = lambda r: True) -> _Html:
    """One row a mutant: what was done where, what noticed it, and in whose name."""
    why = explanations().get(name, {})
    rows = []
    for r in filter(only, load(name).results):
        says = " / ".join(r.lines) or _in_short(r.message)
        if r.missing:
            says += f" (missing: {r.missing})"
        rows.append([r.name, r.source or f"PTX {r.ptx_line}", r.verdict, r.by, says if r.noticed else why.get(r.name)])
    return _html(["mutant", "where", "noticed by", "run", "what it says"], rows)


def _in_short(message: str) -> str:
    """The first line; of a deadlock, who waits."""
    first, *others = message.split("\n")
    waiting = [line.strip().split(" for the end")[0] for line in others if " waits on " in line]
    return "; ".join(waiting)[:160] if waiting else first[:160]


def stages_html() -> _Html:
    """One row for each mutant of what a stage adds to the one before it, stages 2 and on."""
    rows = []
    for number in STAGES:
        name = f"s{number:02}"
        if number > 1 and name in recorded():
            table = load(name)
            rows += [
                [number, r.name, r.source, _code_at(r.source), r.verdict, r.by, " / ".join(r.lines)]
                for r in table.results
            ]
            if not table.results:
                rows.append([number, "none: it adds no synchronisation", "", "", "", "", ""])
    return _html(["stage", "mutant", "where", "the line there", "noticed by", "run", "the pair"], rows)


def survivors_html(names: Sequence[str] | None = None) -> _Html:
    """One row for each argument: the kernel, the mutants that it is about, the argument."""
    rows = []
    for name in names or recorded():
        table = load(name)
        given = explanations().get(name, {})
        by_reason: dict[str, list[Result]] = {}
        for r in table.results:
            if not r.noticed:
                default = "not explained" if r.verdict != "unreached" else VERDICTS["unreached"]
                by_reason.setdefault(given.get(r.name, default), []).append(r)
        for reason, some in by_reason.items():
            which = ", ".join(dict.fromkeys(f"{r.kind} ({r.source or f'PTX {r.ptx_line}'})" for r in some))
            rows.append([table.kernel, len(some), which, reason])
    return _html(["kernel", "mutants", "which", "why nothing can notice"], rows)


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "-"


def _html(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> _Html:
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return _Html(
        f"<div class='bk-scroll' role='region' tabindex='0' aria-label='{escape(heads[0])}s'><table class='bk-table'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    kind = " class='num'" if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: everything is noticed or explained; 1: not; 2: bad input; 130: stopped, what is done is kept."""
    parser = argparse.ArgumentParser(
        prog="python -m attnbook.mutations",
        description="Take one synchronising instruction out of a kernel at a time, and record what notices. What is "
        "recorded already, of the same PTX, is not run again. Ctrl-C keeps what is done.",
    )
    parser.add_argument("name", nargs="*", help=f"kernels: {', '.join(SUBJECTS)}; all of them if none is named")
    parser.add_argument("--fresh", action="store_true", help="run what is recorded again, too")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(argv)
    unknown = [name for name in options.name if name not in SUBJECTS]
    if unknown:
        parser.error(f"no kernel {unknown[0]!r}: take one of {', '.join(SUBJECTS)}")
    code = 0
    tables = {}
    for name in options.name or SUBJECTS:
        if options.list:
            only = SUBJECTS[name].only
            wanted = only() if only else lambda m: True
            for m in filter(wanted, mutants(SUBJECTS[name].build()[0])):
                print(f"{name}  {m.name:32} {m.source or '':34} PTX {m.ptx_line}: {m.instruction}")
            continue
        table = tables[name] = record(name, fresh=options.fresh, progress=None if options.quiet else sys.stderr)
        if not options.json:
            print(table)
        missing, surplus = unexplained(name) if table.complete else ([], [])
        for mutant in missing:
            print(f"{name}: {mutant} survives without an explanation in survivors.json", file=sys.stderr)
        for mutant in surplus:
            print(f"{name}: survivors.json explains {mutant}, which does not survive", file=sys.stderr)
        code = code or int(bool(missing or surplus))
        if not table.complete:
            code = 130
            break
    if options.json and not options.list:
        print(json.dumps({name: table.to_dict() for name, table in tables.items()}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
