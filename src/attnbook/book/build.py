"""Build the book: run what is stale, lay the sources out with their outputs, make the pages.

The last good pages stay in their place until the new ones are complete.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnbook.book import keys, stage
from attnbook.book.execute import run_notebook
from attnbook.book.progress import Progress
from attnbook.book.toc import BookError, Chapter, chapters

KEY_FILE = ".pages-key"
# Jupyter Book, less an optional check of URLs in JSON schemas whose grammar takes two seconds to load.
JUPYTER_BOOK = "import sys; sys.modules['rfc3987_syntax'] = None; from jupyter_book.cli.main import main; main()"


def build(root: Path, *, timeout: float = 600, fresh: bool = False) -> Path:
    """Bring `root`/_build/html up to date and return its index.html. Raises BookError with what to mend."""
    start = time.perf_counter()
    out = root / "_build"
    out.mkdir(exist_ok=True)
    with _only_build(out):
        html, previous = out / "html", out / "html.previous"
        if not html.exists() and previous.exists():  # interrupted between the two renames of _replace
            previous.rename(html)
        book = chapters(root)
        around = keys.surroundings(root)
        wanted = {c.name: keys.outputs_key(_read(c.path), around) for c in book if c.is_notebook}
        kept = _run_stale(root, out / "executed", [c for c in book if c.is_notebook], wanted, timeout, fresh)
        pages_key = stage.pages_key(root, wanted)
        if fresh or not _is_current(html, pages_key):
            stage.lay(root, out / "stage", book, {name: entry["kept"] for name, entry in kept.items()})
            _make_pages(out, pages_key)
            news = "The book is ready"
        else:
            news = "The book is up to date"
        print(f"{news} ({time.perf_counter() - start:.1f} s). Open\n  {(html / 'index.html').as_uri()}", flush=True)
        return html / "index.html"


@contextmanager
def _only_build(out: Path) -> Iterator[None]:
    """One build at a time in a checkout; a second one waits."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another build is at work in this checkout; waiting for it.", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BookError(f"{path} is not a notebook that can be read: {error}") from None


def _run_stale(
    root: Path, store: Path, notebooks: list[Chapter], wanted: dict[str, str], timeout: float, fresh: bool
) -> dict[str, dict[str, Any]]:
    """Run the notebooks whose kept outputs do not carry the wanted key, one by one; each is kept once it is done."""
    kept: dict[str, dict[str, Any]] = {}
    stale = []
    for chapter in notebooks:
        file = store / f"{chapter.name}.json"
        entry = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if entry.get("key") == wanted[chapter.name] and not fresh:
            kept[chapter.name] = entry
        else:
            stale.append(chapter)
    with Progress(len(stale)) as progress:
        for chapter in stale:
            entry = {"key": wanted[chapter.name], "kept": run_notebook(root, chapter, progress, timeout=timeout)}
            file = store / f"{chapter.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(entry, sort_keys=True, ensure_ascii=False), encoding="utf-8")
            unfinished.replace(file)
            kept[chapter.name] = entry
    return kept


def _is_current(html: Path, key: str) -> bool:
    mark = html / KEY_FILE
    return (html / "index.html").is_file() and mark.is_file() and mark.read_text() == key


def _make_pages(out: Path, key: str) -> None:
    """Jupyter Book over the staged sources, warnings as errors, into a new folder that then takes the place of html."""
    print("Making the pages", file=sys.stderr, flush=True)
    work, log = out / "pages", out / "pages.log"
    shutil.rmtree(work, ignore_errors=True)
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(out / "stage")]
    command += ["--path-output", str(work), "-n", "-W", "--keep-going"]
    with log.open("wb") as sink:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=_quiet(), check=False)
    made = work / "_build" / "html"
    if result.returncode or not (made / "index.html").is_file():
        raise BookError(_complaints(log, out / "stage"))
    (made / KEY_FILE).write_text(key)
    _replace(out / "html", made, out / "html.previous")
    shutil.rmtree(work, ignore_errors=True)


def _quiet() -> dict[str, str]:
    """A plain terminal and no user's settings for Jupyter Book."""
    return os.environ | {"NO_COLOR": "1", "TERM": "dumb", "PYTHONWARNINGS": "ignore", "JUPYTER_PREFER_ENV_PATH": "1"}


def _complaints(log: Path, staged: Path) -> str:
    """The warnings and errors in the log of Jupyter Book, with the paths that an author knows; else the log's end."""
    lines = log.read_text(encoding="utf-8", errors="replace").replace(f"{staged}/", "").splitlines()
    hits = [line for line in lines if "WARNING" in line or "ERROR" in line or "rror:" in line]
    shown = hits or lines[-40:]
    return "\n".join(
        ["Jupyter Book found what must be mended (a warning is an error here):", *shown, f"The whole log: {log}"]
    )


def _replace(current: Path, made: Path, previous: Path) -> None:
    """Put the new folder in the place of the current one; `build` undoes a stop between the two renames."""
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    made.rename(current)
    shutil.rmtree(previous, ignore_errors=True)
