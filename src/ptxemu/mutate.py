"""The mutation bench: take one piece of synchronisation out of a kernel at a time, and see what notices.

A *mutant* is the kernel's PTX with one synchronising instruction removed or weakened. `mutants` lists them, `bench`
runs every one under the checked driver (`Config(races=True)`) and says what noticed it. What nothing notices has
survived: the instruction was redundant, or the checker is blind.

Instructions are found by the parser (`ptxemu.ptx`), never by a search in the text: an edit replaces the characters of
exactly one instruction and keeps the number of lines, so that every message names the lines of the original.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from . import ptx
from .config import Config
from .errors import DeadlockError, EmulationError, RaceError
from .findings import Finding

CHECKER = ("race", "deadlock", "near-miss", "rule")  # verdicts of the emulator's own
VERDICTS = {
    "race": "the checked driver names two accesses that nothing orders",
    "deadlock": "nothing can run any more, or the kernel never ends",
    "near-miss": "a barrier is used against its rules, or a phase laps a waiter",
    "rule": "another rule of the architecture is broken",
    "answer": "only the answer is wrong",
    "survivor": "nothing notices",
    "unreached": "this run never comes to the instruction, which says nothing about it",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit of one instruction.

    name: unique in the kernel, such as "wait/3 drop": family, its number in the text from 0, what is done to it.
    kind: family and edit, such as "wait drop".  ptx_line, source: the place ("file.py:12", None without line info).
    instruction: the text that is taken out.  start, end: its characters.  replacement: what stands there instead.
    digest: of the PTX that it belongs to.
    """

    name: str
    kind: str
    ptx_line: int
    source: str | None
    instruction: str
    start: int
    end: int
    replacement: str
    digest: str

    def apply(self, text: str) -> str:
        """The mutated PTX. ValueError for a text that this mutant was not made from."""
        if digest_of(text) != self.digest:
            raise ValueError(f"{self.name} belongs to another PTX text: call mutants() on this one")
        lines = text.count("\n", self.start, self.end) - self.replacement.count("\n")
        return text[: self.start] + self.replacement + "\n" * lines + text[self.end :]


def digest_of(text: str) -> str:
    """Twelve hexadecimal digits that tell one kernel's code from another's.

    Only what the parser sees counts: no comments, no blanks, no line information.
    """
    code = (ins.opcode + " " + ins.text for entry in _parsed(text).entries.values() for ins in entry.code)
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:12]


class _Places(ptx._Parser):
    """The parser, with the characters of every instruction on record."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.spans: list[tuple[ptx.Instr, int, int]] = []

    def instruction(self, entry: ptx.Entry, scope: Any, text: str, at: int, pending: list) -> None:
        super().instruction(entry, scope, text, at, pending)
        self.spans.append((entry.code[-1], at, at + len(text) + 1))  # with the semicolon


_last: tuple[str, ptx.Module, _Places] | None = None


def _parse(text: str) -> tuple[ptx.Module, _Places]:
    global _last
    if _last is None or _last[0] != text:
        parser = _Places(text)
        _last = (text, parser.module(), parser)
    return _last[1], _last[2]


def _parsed(text: str) -> ptx.Module:
    return _parse(text)[0]


def mutants(text: str) -> list[Mutant]:
    """Every mutant of every kernel in a PTX text, in the order of the text.

    Raises PtxSyntaxError for text that is not PTX. setmaxnreg is left alone: it shares registers and orders nothing.
    """
    module, parser = _parse(text)
    digest = digest_of(text)
    constants = _constants(module)
    numbers: Counter[str] = Counter()
    made = []
    for ins, start, end in parser.spans:
        family = family_of(ins.opcode)
        if family is None:
            continue
        number = numbers[family]
        numbers[family] += 1
        source = str(ins.source) if ins.source else None
        for edit, replacement in _edits(family, ins, constants):
            name = f"{family}/{number} {edit}"
            made.append(Mutant(name, f"{family} {edit}", ins.line, source, ins.text, start, end, replacement, digest))
    return made


_FAMILIES = (  # (beginning of the opcode, family); the first that fits
    ("mbarrier.try_wait", "wait"),
    ("mbarrier.test_wait", "wait"),
    ("mbarrier.arrive.expect_tx", "expect_tx"),
    ("mbarrier.expect_tx", "expect_tx"),
    ("mbarrier.arrive", "arrive"),
    ("mbarrier.init", "init"),
    ("tcgen05.commit", "commit"),
    ("tcgen05.wait::ld", "wait::ld"),
    ("tcgen05.wait::st", "wait::st"),
    ("tcgen05.fence::before_thread_sync", "fence::before"),
    ("tcgen05.fence::after_thread_sync", "fence::after"),
    ("fence.proxy", "fence.proxy"),
    ("fence.mbarrier_init", "fence.mbarrier_init"),
    ("fence", "fence"),
    ("membar", "fence"),
    ("bar.warp.sync", "bar.warp"),
    ("barrier.cluster.arrive", "cluster arrive"),
    ("barrier.cluster.wait", "cluster wait"),
    ("bar.arrive", "bar arrive"),
    ("barrier.arrive", "bar arrive"),
    ("barrier.cta.arrive", "bar arrive"),
    ("bar.cta.arrive", "bar arrive"),
    ("bar", "bar"),  # bar.sync, barrier.sync, barrier.cta.sync, bar.red ...
    ("cp.async.mbarrier.arrive", "arrive"),
    ("cp.async.bulk.commit_group", "bulk commit"),
    ("cp.async.bulk.wait_group", "bulk wait"),
    ("cp.async.commit_group", "cp.async commit"),
    ("cp.async.wait_group", "cp.async wait"),
    ("cp.async.wait_all", "cp.async wait"),
    ("griddepcontrol.wait", "griddepcontrol"),
    ("wgmma.fence", "wgmma.fence"),
    ("wgmma.commit_group", "wgmma.commit"),
    ("wgmma.wait_group", "wgmma.wait"),
)


def family_of(opcode: str) -> str | None:
    """The family of a synchronising instruction, None for any other."""
    return next((family for beginning, family in _FAMILIES if (opcode + ".").startswith(beginning)), None)


def _constants(module: ptx.Module) -> dict[ptx.Reg, int]:
    """The registers that only ever hold one number: written once, by a mov of a literal."""
    moved: dict[ptx.Reg, int] = {}
    written: Counter[ptx.Reg] = Counter()
    for entry in module.entries.values():
        for ins in entry.code:
            if ins.operands and isinstance(ins.operands[0], ptx.Reg):
                written[ins.operands[0]] += 1
                source = ins.operands[1] if len(ins.operands) > 1 else None
                literal = isinstance(source, ptx.Imm) and source.kind == "int"
                if literal and ins.opcode.startswith("mov.") and ins.guard is None:
                    moved[ins.operands[0]] = int(source.value)  # type: ignore[union-attr]
    return {register: value for register, value in moved.items() if written[register] == 1}


def _edits(family: str, ins: ptx.Instr, constants: dict[ptx.Reg, int]) -> Iterator[tuple[str, str]]:
    """(what is done, what stands there instead) for one instruction."""
    guard, opcode, rest = _parts(ins)
    operands = list(ptx._split(rest))
    if family == "wait":
        # What it would say if the phase were complete: the loop around it ends at once.
        yield "drop", f"{guard}setp.eq.u32 {operands[0]}, 0, 0;"
        if ".parity" in opcode:
            other = [*operands[:2], "ptxemu_other", *operands[3:]]
            flip = f"xor.b32 ptxemu_other, {operands[2]}, 1;"
            yield "other parity", f"{{ .reg .b32 ptxemu_other; {flip} {guard}{opcode} {', '.join(other)}; }}"
        return
    if family == "init":
        count = ins.operands[1]
        known = count.value if isinstance(count, ptx.Imm) else constants.get(count)  # type: ignore[arg-type]
        for edit, step in (("count + 1", 1), ("count - 1", -1)):
            if known is not None and known + step < 1:
                continue  # no barrier has a count of 0
            yield edit, _added(guard, opcode, operands, 1, step)
        return
    yield "drop", ""
    if family == "expect_tx":
        for edit, step in (("16 bytes more", 16), ("16 bytes less", -16)):
            yield edit, _added(guard, opcode, operands, len(operands) - 1, step)
    elif family == "arrive" and opcode.startswith("mbarrier.") and ".noComplete" not in opcode:
        at = next(i for i, operand in enumerate(operands) if operand.startswith("["))
        if len(operands) == at + 1:
            yield "count + 1", f"{guard}{opcode} {', '.join(operands)}, 2;"
        else:
            yield "count + 1", _added(guard, opcode, operands, at + 1, 1)
    elif family in ("bulk wait", "cp.async wait", "wgmma.wait") and operands:
        yield "one group fewer", f"{guard}{opcode} {int(operands[0]) + 1};"


def _parts(ins: ptx.Instr) -> tuple[str, str, str]:
    m = ptx._INSTRUCTION.match(ins.text)
    assert m is not None  # it has been parsed
    negated, name, opcode, rest = m.groups()
    return (f"@{negated}{name} " if name else "", opcode, rest)


def _added(guard: str, opcode: str, operands: list[str], at: int, step: int) -> str:
    """The instruction with a constant added to one of its 32-bit operands."""
    changed = [*operands[:at], "ptxemu_other", *operands[at + 1 :]]
    return (
        f"{{ .reg .b32 ptxemu_other; add.s32 ptxemu_other, {operands[at]}, {step};"
        f" {guard}{opcode} {', '.join(changed)}; }}"
    )


# ---------------------------------------------------------------------------------------------------------- the bench


@dataclass(slots=True)
class Result:
    """What became of one mutant.

    verdict: a key of VERDICTS, of the first thing that noticed it.  message: what that said.  lines: of a race, what
    both accesses are and where ("st.shared, s01_baseline.py:210").  missing: the edge that a race says is missing.
    by: the run that noticed it, "fair", "adversarial 3" or "strict" (seen only by the letter of the ISA); "reached" for
    a survivor that the run has come to.
    test: what a test of the answer alone, run once in the fair order, would have seen: "right", "wrong", or the name
    of an error.
    """

    name: str
    kind: str
    ptx_line: int
    source: str | None
    instruction: str
    verdict: str
    message: str = ""
    lines: tuple[str, ...] = ()
    missing: str = ""
    by: str = ""
    test: str = ""

    @property
    def noticed(self) -> bool:
        """By the checker. A wrong answer alone is not enough: it says that something is wrong, not what."""
        return self.verdict in CHECKER


@dataclass(slots=True)
class Table:
    """The results of one kernel. complete: every mutant was run (False after Ctrl-C)."""

    kernel: str
    digest: str
    mutants: int
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return len(self.results) == self.mutants

    @property
    def survivors(self) -> list[Result]:
        """What neither the checker nor the answer noticed."""
        return [r for r in self.results if r.verdict == "survivor"]

    @property
    def noticed(self) -> int:
        """How many the checker noticed."""
        return sum(r.noticed for r in self.results)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Table:
        """Back from `to_dict`."""
        results = [Result(**{**r, "lines": tuple(r["lines"])}) for r in data["results"]]
        return cls(**{**data, "results": results})

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.noticed} of {len(self.results)} mutants noticed by the checker"]
        if not self.complete:
            lines[0] += f" ({self.mutants - len(self.results)} more were not run)"
        kinds = dict.fromkeys(r.kind for r in self.results)
        lines.append(f"  {'':32}" + "".join(f"{v:>10}" for v in VERDICTS) + "   answer wrong")
        for kind in kinds:
            rows = [r for r in self.results if r.kind == kind]
            counts = Counter(r.verdict for r in rows)
            wrong = sum(r.test != "right" for r in rows)
            lines.append(f"  {kind:32}" + "".join(f"{counts[v] or '':>10}" for v in VERDICTS) + f"{wrong:>10}")
        for r in self.results:
            if r.verdict in ("survivor", "answer"):
                lines.append(f"  {r.verdict}: {r.name}, PTX line {r.ptx_line}, {r.source}: {r.instruction}")
        return "\n".join(lines)


Runner = Callable[[str, Config], bool]


def bench_text(
    text: str,
    runner: Runner,
    *,
    kernel: str = "",
    seeds: Iterable[int] = (0, 1),
    strict: bool = True,
    only: Callable[[Mutant], bool] | None = None,
    max_steps: int | None = None,
    progress: TextIO | None = sys.stderr,
    resume: Table | None = None,
    each: Callable[[Table], None] | None = None,
) -> Table:
    """Run every mutant of a PTX text.

    runner(text, config): launch that text on fresh inputs, and say whether the answer is right.
    seeds: of the adversarial schedules tried after the fair one, until something notices.
    strict: try what the letter of the ISA asks for, too (`Config.strict`), last.
    only: a filter of mutants.  max_steps: warp instructions that a run may take before it counts as endless; five
    million by default.
    progress: where a bar is drawn when it is a terminal, else a line every ten mutants; None for silence.
    resume: what an earlier bench of the same text has done already.  each: called with the table after every mutant.
    Ctrl-C ends the bench and keeps what is done (`Table.complete` is then False).
    Raises ValueError where the kernel itself is not clean: then nothing could be blamed on a mutant.
    """
    import time

    started = time.perf_counter()
    chosen = [m for m in mutants(text) if only is None or only(m)]
    configs = [("fair", Config(races=True))]
    configs += [(f"adversarial {seed}", Config(races=True, schedule="adversarial", seed=seed)) for seed in seeds]
    if strict:
        configs.append(("strict", Config(races=True, strict=True)))
    limit = max_steps or 5_000_000
    configs = [(name, _limited(config, limit)) for name, config in configs]
    for name, config in configs:
        try:
            right = runner(text, config)
        except EmulationError as error:
            raise ValueError(f"the kernel itself is not clean ({name}): {error}") from error
        if not right:
            raise ValueError(f"the kernel's own answer is wrong ({name}): mend it first")
    table = Table(kernel, digest_of(text), len(chosen))
    before = {r.name: r for r in resume.results} if resume and resume.digest == table.digest else {}
    wanted = {m.name for m in chosen}
    kept = {n: r for n, r in before.items() if n in wanted and (r.verdict != "survivor" or r.by == "reached")}
    table.results = [kept[m.name] for m in chosen if m.name in kept]
    spent = resume.seconds if resume and before else 0.0
    try:
        for done, mutant in enumerate(chosen):
            _show(progress, done, len(chosen), mutant.name)
            if mutant.name in kept:
                continue
            kept[mutant.name] = _judge(mutant, mutant.apply(text), runner, configs, limit)
            table.results = [kept[m.name] for m in chosen if m.name in kept]
            table.seconds = spent + time.perf_counter() - started
            if each:
                each(table)
        _show(progress, len(chosen), len(chosen), "")
    except KeyboardInterrupt:
        if progress:
            print(f"\nstopped: {len(table.results)} of {len(chosen)} mutants are kept", file=progress)
    return table


def bench(
    compiled: Any,
    args_factory: Callable[[], Sequence[Any]],
    check: Callable[[Sequence[Any]], bool],
    **options: Any,
) -> Table:
    """`bench_text` for what ``cute.compile`` returned.

    args_factory() makes the arguments of one launch, with outputs that hold nothing useful; check(arguments) says
    whether the answer in them is right. options: those of `bench_text`.
    """
    from .cutedsl import launch, ptx_of

    def runner(text: str, config: Config) -> bool:
        arguments = args_factory()
        launch(compiled, *arguments, ptx=text, config=config)
        return check(arguments)

    return bench_text(ptx_of(compiled), runner, **options)


def _limited(config: Config, steps: int) -> Config:
    from dataclasses import replace

    return replace(config, max_steps=steps, bank_conflicts=False)


def _judge(mutant: Mutant, text: str, runner: Runner, configs: list[tuple[str, Config]], limit: int) -> Result:
    made = Result(mutant.name, mutant.kind, mutant.ptx_line, mutant.source, mutant.instruction, "survivor")
    try:
        made.test = "right" if runner(text, _limited(Config(), limit)) else "wrong"
    except EmulationError as error:
        made.test = type(error).__name__
    for name, config in configs:
        try:
            right = runner(text, config)
        except RaceError as error:
            _noted(made, name, error.finding, str(error))
            break
        except EmulationError as error:
            endless = "max_steps" in str(error)
            made.verdict = "deadlock" if isinstance(error, DeadlockError) or endless else "rule"
            made.message, made.by = _FOLDERS.sub("", str(error)), name
            break
        if not right and made.verdict == "survivor":
            made.verdict, made.by = "answer", name  # and the search goes on for more than that
    if made.verdict == "survivor" and made.test != "right":
        made.verdict, made.by = "answer", "plain"
    if made.verdict == "survivor":
        made.verdict, made.by = ("survivor", "reached") if _reached(mutant, text, runner, limit) else ("unreached", "")
    return made


def _reached(mutant: Mutant, edited: str, runner: Runner, limit: int) -> bool:
    """Does the run come to the instruction at all? A trap in its place ends it then."""
    trapped = edited[: mutant.start] + "trap;" + edited[mutant.start + len(mutant.replacement) :]
    try:
        runner(trapped, _limited(Config(), limit))
    except EmulationError:
        return True
    return False


def _noted(made: Result, name: str, finding: Finding | None, message: str) -> None:
    made.verdict, made.message, made.by = "race", message, name
    if finding is None:
        return
    if finding.kind in ("barrier", "lap", "pending"):
        made.verdict = "near-miss"
    made.message, made.missing = finding.message, finding.missing
    sides = [side for side in (finding.first, finding.second) if side is not None]
    made.lines = tuple(f"{side.what}, {_file_name(side.source) or f'PTX line {side.ptx_line}'}" for side in sides)


_FOLDERS = re.compile(r"/[^\s()]*/(?=[\w.-]+\.py:\d+)")  # a record names files, wherever they lie


def _file_name(source: str | None) -> str | None:
    return source.rsplit("/", 1)[-1] if source else None


def _show(out: TextIO | None, done: int, total: int, name: str) -> None:
    if out is None or not total:
        return
    if out.isatty():
        filled = 30 * done // total
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {name[:40]:40}", end=end, file=out, flush=True)
    elif done % 10 == 0 or done == total:
        print(f"{done}/{total} {name}", file=out, flush=True)
