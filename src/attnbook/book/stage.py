"""The sources as Jupyter Book gets them: a copy of the book in which each notebook carries its outputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from attnbook.book import figures
from attnbook.book.execute import with_outputs
from attnbook.book.keys import digest, files_under, tree, versions
from attnbook.book.toc import Chapter

SOURCES = ("_config.yml", "_toc.yml", "book", "src/attnbook/kernels")  # the kernels are there to be downloaded


def pages_key(root: Path, outputs: dict[str, str]) -> str:
    """Hash of what the pages depend on: the book's sources, the outputs (by their keys), the versions, the builder."""
    return digest([tree(root, *SOURCES, "src/attnbook/book"), versions(), json.dumps(outputs, sort_keys=True)])


def lay(root: Path, stage: Path, chapters: list[Chapter], kept: dict[str, dict[str, Any]]) -> None:
    """Write `stage` anew: the sources of `root`, and each notebook of `chapters` with its outputs from `kept`."""
    shutil.rmtree(stage, ignore_errors=True)
    for source in SOURCES:
        for file in [root / source] if (root / source).is_file() else files_under(root / source):
            target = stage / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    found = []
    for chapter in chapters:
        if chapter.is_notebook:
            notebook = with_outputs(json.loads(chapter.path.read_text(encoding="utf-8")), kept[chapter.name])
            target = stage / chapter.path.relative_to(root)
            target.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
            found.append((f"/{chapter.name}", list(figures.of(notebook))))
    for page in stage.glob("book/*.md"):
        text = page.read_text(encoding="utf-8")
        if figures.MARK in text:
            page.write_text(text.replace(figures.MARK, figures.index(found)), encoding="utf-8")
