"""Recorded results: the schema of book/results/*.json, checked on the way in and on the way out.

A file is one record: numbers of one provenance, from one machine, on one day.

    measured    on a machine: names it, its GPU, driver, clocks, versions, the source's revision, date and repeats
    modelled    by the clock of ptxemu: names the version of the clock
    published   by others: names the source and its address

The three are never mixed in a file, and `Record.label` says which it is wherever a number is shown. Infinities and
NaN are refused: a failed measurement is left out, and said in `note`.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = [
    "SCHEMA",
    "Entry",
    "InvalidRecord",
    "Provenance",
    "Record",
    "load",
    "load_all",
    "results_dir",
    "save",
    "validate",
]

SCHEMA = "attnbook.results/1"


class Provenance(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    MODELLED = "modelled"
    PUBLISHED = "published"


class InvalidRecord(ValueError):
    """A record that breaks the schema; the message lists every fault."""


@dataclass(frozen=True)
class Entry:
    """One number.

    quantity  what it is: "throughput", "time", "error" ...
    unit      "TFLOPS", "ms", "percent of FlashAttention-4" ...
    subject   a stage's slug, or what it is compared with, such as "flash-attn-4 4.0.0b36"
    shape     {"batch", "heads", "seqlen", "head_dim"} integers, {"dtype"} and {"causal"}
    value     the median of the repeats
    low, high the middle half of the repeats (25th and 75th percentile); equal to value where there is one only
    repeats   how many
    """

    quantity: str
    unit: str
    subject: str
    shape: Mapping[str, int | str | bool]
    value: float
    low: float
    high: float
    repeats: int = 1


@dataclass(frozen=True)
class Record:
    """One file of results.

    source    measured: the command; modelled: "ptxemu clock <version>"; published: the citation
    machine   measured: {"name", "gpu", "driver", "cuda", "clocks_mhz"}; modelled: {"name"} of the chip that is modelled
    versions  {package: version}
    revision  the git revision of the source that was run
    date      "2026-12-01"
    url       published: where
    note      what a reader should know
    """

    provenance: Provenance
    source: str
    date: str
    entries: tuple[Entry, ...]
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    url: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """What a legend says: "measured, NVIDIA H200, 2026-12-01"."""
        if self.provenance is Provenance.MEASURED:
            return f"measured, {self.machine['gpu'] or self.machine['name']}, {self.date}"
        if self.provenance is Provenance.MODELLED:
            return f"modelled, {self.machine['name']}, {self.source}"
        return f"published, {self.source}"

    def to_json(self) -> str:
        """The file's text: sorted keys, two spaces, one newline at the end."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


_SHAPE = {"batch": int, "heads": int, "seqlen": int, "head_dim": int, "dtype": str, "causal": bool}
_MEASURED_ON = ("name", "gpu", "driver", "cuda", "clocks_mhz")


def validate(raw: Any, where: str = "record") -> Record:
    """The record that `raw` (from JSON) describes. InvalidRecord, with every fault and what is expected, otherwise."""
    if not isinstance(raw, Mapping):
        raise InvalidRecord(f"{where}: a record is an object, not {type(raw).__name__}")
    faults = list(_faults(raw))
    if faults:
        raise InvalidRecord("\n".join(f"{where}: {fault}" for fault in faults))
    known = {f.name: raw[f.name] for f in fields(Record) if f.name in raw}
    entries = tuple(Entry(**entry) for entry in raw["entries"])
    return Record(**known | {"provenance": Provenance(raw["provenance"]), "entries": entries})


def _faults(raw: Mapping[str, Any]) -> Iterator[str]:
    if raw.get("schema") != SCHEMA:
        yield f"schema is {raw.get('schema')!r}; this reads {SCHEMA!r}"
    names = {f.name for f in fields(Record)} | {"schema"}
    yield from (
        f"{name!r} is not a field; the fields are {', '.join(sorted(names))}" for name in sorted(set(raw) - names)
    )
    provenance = raw.get("provenance")
    if provenance not in tuple(Provenance):
        yield f"provenance is {provenance!r}; take one of: {', '.join(Provenance)}"
    if not _text(raw.get("source")):
        yield "source is missing: the command, the clock's version, or the citation"
    yield from _date_faults(raw.get("date"))
    if not isinstance(raw.get("note", ""), str):
        yield f"note is {raw['note']!r}; it must be text"
    machine, versions = raw.get("machine", {}), raw.get("versions", {})
    if not isinstance(machine, Mapping) or not isinstance(versions, Mapping):
        yield "machine and versions must be objects"
    elif provenance == Provenance.MEASURED:
        yield from (f"measured, and machine has no {name!r}" for name in _MEASURED_ON if name not in machine)
        if not versions or not all(_text(version) for version in versions.values()):
            yield "measured, and versions is empty or holds something other than text"
        if not re.fullmatch(r"[0-9a-f]{7,40}(\+dirty)?", str(raw.get("revision", ""))):
            yield f"measured, and revision is {raw.get('revision')!r}; it must be a git revision"
    elif provenance == Provenance.MODELLED and not _text(machine.get("name")):
        yield "modelled, and machine does not name the chip"
    elif provenance == Provenance.PUBLISHED and not str(raw.get("url", "")).startswith("https://"):
        yield f"published, and url is {raw.get('url')!r}; it must be an https address"
    entries = raw.get("entries")
    if not isinstance(entries, list | tuple) or not entries:
        yield "entries is missing or empty"
        return
    for number, entry in enumerate(entries):
        yield from (f"entry {number}: {fault}" for fault in _entry_faults(entry))


def _date_faults(value: Any) -> Iterator[str]:
    try:
        if not isinstance(value, str) or datetime.date.fromisoformat(value).isoformat() != value:
            raise ValueError
    except ValueError:
        yield f"date is {value!r}; it must be like 2026-12-01"


def _entry_faults(entry: Any) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"an entry is an object, not {type(entry).__name__}"
        return
    names = {f.name for f in fields(Entry)}
    required = names - {"repeats"}
    yield from (f"{name!r} is missing" for name in sorted(required - set(entry)))
    yield from (
        f"{name!r} is not a field; the fields are {', '.join(sorted(names))}" for name in sorted(set(entry) - names)
    )
    yield from (
        f"{name} is {entry[name]!r}; it must be text"
        for name in ("quantity", "unit", "subject")
        if name in entry and not _text(entry[name])
    )
    numbers = {name: entry[name] for name in ("value", "low", "high") if name in entry}
    wrong = {name: number for name, number in numbers.items() if not _finite(number)}
    yield from (f"{name} is {number!r}; it must be a finite number" for name, number in wrong.items())
    if len(numbers) == 3 and not wrong and not numbers["low"] <= numbers["value"] <= numbers["high"]:
        yield f"low <= value <= high does not hold: {numbers['low']}, {numbers['value']}, {numbers['high']}"
    repeats = entry.get("repeats", 1)
    if type(repeats) is not int or repeats < 1:
        yield f"repeats is {repeats!r}; it must be at least 1"
    shape = entry.get("shape", {})
    if not isinstance(shape, Mapping):
        yield f"shape is {shape!r}; it must be an object"
        return
    for name, kind in _SHAPE.items():
        if name not in shape:
            yield f"shape has no {name!r}"
        elif type(shape[name]) is not kind:
            yield f"shape: {name} is {shape[name]!r}; it must be {kind.__name__}"


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def load(path: Path | str) -> Record:
    """Read and check one file. InvalidRecord names the file and every fault."""
    path = Path(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InvalidRecord(f"{path}: not JSON: {error}") from None
    return validate(raw, str(path))


def save(record: Record, path: Path | str) -> Path:
    """Check a record and write it. InvalidRecord if it breaks the schema; nothing is written then."""
    text = record.to_json()
    validate(json.loads(text), str(path))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def results_dir() -> Path:
    """book/results of the checkout that this package lies in. FileNotFoundError where it is installed without the
    book."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "_toc.yml").is_file():
            return parent / "book" / "results"
    raise FileNotFoundError(f"{Path(__file__).parent} lies in no checkout of the book; pass a folder")


def load_all(folder: Path | str | None = None) -> dict[str, Record]:
    """Every record of a folder (book/results), by file name without ".json", in order. Empty where there is none."""
    folder = results_dir() if folder is None else Path(folder)
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}
