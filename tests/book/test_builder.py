"""The builder on a book of two small chapters: what it keeps, what it runs again, what it says when something fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbook.book import canon, keys
from attnbook.book.execute import first_line
from attnbook.book.toc import BookError, chapters

CONFIG = """
title: Small
only_build_toc_files: true
exclude_patterns: [".*", ".*/**"]
execute: {execute_notebooks: "off"}
sphinx: {config: {nb_ipywidgets_js: {}}}
"""
WIDGET = """
import anywidget
class Dot(anywidget.AnyWidget):
    _esm = "export default { render({ el }) { el.textContent = 'dot'; } };"
Dot()
"""


def notebook(*sources: str, title: str = "A chapter", tags: tuple[str, ...] = ()) -> str:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": f"# {title}"}]
    cells += [{"cell_type": "code", "metadata": {"tags": list(tags)}, "source": source} for source in sources]
    return canon.canonical({"nbformat": 4, "cells": cells}, "cell")


class SmallBook:
    """A book in a temporary folder, built by the command line as `make book` does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "book").mkdir()
        (root / "src").mkdir()
        (root / "_config.yml").write_text(CONFIG)
        (root / "_toc.yml").write_text("format: jb-book\nroot: book/one\nchapters:\n- file: book/two\n")
        self.write("one", "print('one ran')")
        self.write("two", "print('two ran')")

    def write(self, name: str, *sources: str, **more) -> None:
        (self.root / "book" / f"{name}.ipynb").write_text(notebook(*sources, **more))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "attnbook.book", "build", "--root", str(self.root)]

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        self.log = done.stdout + done.stderr
        return done

    def page(self, name: str) -> str:
        return (self.root / "_build" / "html" / "book" / f"{name}.html").read_text()

    def ran(self) -> list[str]:
        return [name for name in ("one", "two") if f"book/{name}: running" in self.log]


@pytest.fixture
def book(tmp_path: Path) -> SmallBook:
    return SmallBook(tmp_path)


def test_builds_keeps_and_rebuilds_what_changed(book: SmallBook) -> None:
    assert book.build().returncode == 0, book.log
    assert book.ran() == ["one", "two"]
    assert "one ran" in book.page("one")
    assert "two ran" in book.page("two")
    index = (book.root / "_build" / "html" / "index.html").as_uri()
    assert book.log.count(index) == 1

    start = time.perf_counter()
    assert book.build().returncode == 0
    assert "up to date" in book.log
    assert book.ran() == []
    assert "Making the pages" not in book.log
    assert time.perf_counter() - start < 10

    book.write("two", "print('two ran')", title="Another title")  # prose: new pages, no new run
    assert book.build().returncode == 0
    assert book.ran() == []
    assert "Another title" in book.page("two")
    assert "two ran" in book.page("two")

    book.write("two", "print('two has changed')")  # code of one chapter: that chapter runs
    (book.root / "book" / "one.ipynb").write_text(notebook("1/0"))  # and a failure keeps the last good pages
    assert book.build().returncode == 1
    assert book.ran() == ["one"]
    for told in ("one.ipynb: code cell 1", "1/0", "ZeroDivisionError: division by zero", "Traceback"):
        assert told in book.log
    assert "one ran" in book.page("one")
    assert "two ran" in book.page("two")

    book.write("one", "print('one ran')", title="A link to [nowhere](nowhere.md)")  # so does a warning of Jupyter Book
    assert book.build().returncode == 1
    assert book.ran() == ["two"]
    assert "book/one.ipynb" in book.log
    assert "nowhere.md" in book.log
    assert "A chapter" in book.page("one")
    assert "two ran" in book.page("two")


def test_a_change_in_the_library_runs_every_chapter_again(book: SmallBook) -> None:
    before = keys.surroundings(book.root)
    for place in ("src/library.py", "book/results/machine.json", "requirements.txt"):
        (book.root / place).parent.mkdir(exist_ok=True)
        (book.root / place).write_text("1")
        after = keys.surroundings(book.root)
        assert after != before, place
        before = after
    (book.root / "src" / "__pycache__").mkdir()
    (book.root / "src" / "__pycache__" / "library.pyc").write_text("1")
    assert keys.surroundings(book.root) == before


def test_outputs_key_is_that_of_the_code() -> None:
    plain = json.loads(notebook("x = 1", "x"))
    key = keys.outputs_key(plain, "around")
    assert keys.outputs_key(json.loads(notebook("x = 1", "x", title="Other")), "around") == key
    assert keys.outputs_key(json.loads(notebook("x = 2", "x")), "around") != key
    assert keys.outputs_key(json.loads(notebook("x = 1\nx")), "around") != key
    assert keys.outputs_key(json.loads(notebook("x = 1", "x", tags=("hide-input",))), "around") != key
    assert keys.outputs_key(plain, "elsewhere") != key


def test_a_failure_keeps_the_chapters_before_it_and_shows_what_the_cell_printed(book: SmallBook) -> None:
    book.write("two", "print('before the fall')\nraise ValueError('the tile is 96 wide')")
    assert book.build().returncode == 1
    assert "before the fall" in book.log
    assert "ValueError: the tile is 96 wide" in book.log
    assert (book.root / "_build" / "executed" / "book" / "one.json").is_file()
    assert not (book.root / "_build" / "html").exists()
    book.write("two", "import time", "time.sleep(30)")
    assert book.build("--timeout", "1").returncode == 1
    assert book.ran() == ["two"]
    assert "two.ipynb: code cell 2" in book.log
    assert "--timeout" in book.log


def test_a_stop_in_the_middle_keeps_the_chapters_done_and_leaves_no_kernel(book: SmallBook) -> None:
    pid = book.root / "pid"
    book.write("two", f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    build = subprocess.Popen(book.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < end and build.poll() is None
        time.sleep(0.05)
    build.send_signal(signal.SIGINT)
    said, _ = build.communicate(timeout=30)
    assert build.returncode == 130, said
    assert "Stopped" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert (book.root / "_build" / "executed" / "book" / "one.json").is_file()


def test_a_kernel_that_dies_leaves_its_last_words(book: SmallBook) -> None:
    book.write("one", "import os, sys\nsys.__stderr__.write('out of tiles')\nsys.__stderr__.flush()\nos._exit(3)")
    assert book.build().returncode == 1
    assert "the kernel died" in book.log
    assert "out of tiles" in book.log


def test_a_control_that_needs_a_kernel_is_refused(book: SmallBook) -> None:
    book.write("one", "import ipywidgets\nipywidgets.IntSlider()")
    assert book.build().returncode == 1
    assert "IntSliderModel" in book.log
    assert "ATTNBOOK_STATIC" in book.log


def test_widgets_are_kept_and_runs_repeat_to_the_byte(book: SmallBook) -> None:
    book.write("one", WIDGET, "import os\nos.environ['ATTNBOOK_STATIC'], os.getcwd(), __import__('sys').prefix")
    kept = book.root / "_build" / "executed" / "book" / "one.json"
    assert book.build().returncode == 0, book.log
    first = kept.read_bytes()
    assert b"one-0000" in first
    assert b"export default" in first
    assert str(book.root).encode() not in first
    assert sys.prefix.encode() not in first
    assert "widget-view+json" in book.page("one")
    kept.unlink()
    assert book.build().returncode == 0
    assert book.ran() == ["one"]
    assert kept.read_bytes() == first


def test_toc_names_what_is_missing(book: SmallBook) -> None:
    (book.root / "book" / "two.ipynb").unlink()
    with pytest.raises(BookError, match=r"neither book/two\.ipynb nor book/two\.md"):
        chapters(book.root)
    (book.root / "book" / "two.md").write_text("# Two")
    assert [chapter.name for chapter in chapters(book.root)] == ["book/one", "book/two"]
    book.write("two", "1")
    with pytest.raises(BookError, match="two of them"):
        chapters(book.root)


def test_a_cell_is_named_by_the_line_that_does_something() -> None:
    assert first_line("# a note\nimport numpy as np\n\nresult = run(1)\nresult") == "result = run(1)"
    assert first_line("import numpy") == "import numpy"
    assert first_line("\n") == "(empty)"


def test_canonical_form_is_stable_and_drops_what_an_editor_leaves() -> None:
    raw = {
        "nbformat": 4,
        "nbformat_minor": 4,
        "metadata": {"kernelspec": {"name": "conda-env"}, "widgets": {}},
        "cells": [
            {"cell_type": "code", "metadata": {"scrolled": True, "tags": ["hide-input"]}, "source": "a = 1  \na\n",
             "execution_count": 7, "outputs": [{"output_type": "stream"}]},
            {"cell_type": "markdown", "id": "kept", "metadata": {}, "source": "# T", "attachments": {}},
            {"cell_type": "markdown", "id": "kept", "metadata": {}, "source": "again"},
        ],
    }  # fmt: skip
    text = canon.canonical(raw, "slug")
    made = json.loads(text)
    assert canon.canonical(made, "slug") == text
    assert [cell["id"] for cell in made["cells"]] == ["slug-001", "kept", "slug-003"]
    assert made["cells"][0]["source"] == ["a = 1\n", "a"]
    assert made["cells"][0]["metadata"] == {"tags": ["hide-input"]}
    assert made["cells"][0]["outputs"] == []
    assert made["metadata"]["kernelspec"]["name"] == "python3"


def test_canon_command_checks_and_mends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chapter.ipynb"
    path.write_text(json.dumps(json.loads(notebook("1")), indent=4))
    assert canon.run([path], fix=False) == 1
    assert "--fix" in capsys.readouterr().out
    assert canon.run([path], fix=True) == 0
    assert canon.run([path], fix=False) == 0
    path.write_text("{")
    assert canon.run([path], fix=True) == 1
