"""Which chapters the book has, in reading order, from `_toc.yml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class BookError(Exception):
    """The book cannot be built as it stands; the message says what to mend."""


@dataclass(frozen=True)
class Chapter:
    """One page of the book: `name` as in `_toc.yml` (no suffix), `path` of its source file."""

    name: str
    path: Path

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == ".ipynb"


def find_root(given: Path | None) -> Path:
    """The folder of `_toc.yml`: the one given, else the current one, else the checkout that this module lies in."""
    candidates = [given] if given else [Path.cwd(), Path(__file__).resolve().parents[3]]
    for folder in candidates:
        if (folder / "_toc.yml").is_file():
            return folder.resolve()
    looked = " nor ".join(str(folder) for folder in candidates)
    raise BookError(f"No _toc.yml in {looked}. Run this in a checkout of the book, or give --root FOLDER.")


def chapters(root: Path) -> list[Chapter]:
    """Every page that `_toc.yml` names, in order; a name without a file, or with two, is an error."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    found = []
    for name in _names(toc):
        paths = [root / f"{name}{suffix}" for suffix in (".ipynb", ".md") if (root / f"{name}{suffix}").is_file()]
        if not paths:
            raise BookError(f"_toc.yml names {name}, but there is neither {name}.ipynb nor {name}.md.")
        if len(paths) > 1:
            raise BookError(
                f"_toc.yml names {name}, and there are two of them: {name}.ipynb and {name}.md. Remove one."
            )
        found.append(Chapter(name, paths[0]))
    return found


def _names(node: Any) -> list[str]:
    """The file names under one node of the table of contents (format jb-book: root, parts, chapters, sections)."""
    if isinstance(node, list):
        return [name for item in node for name in _names(item)]
    names = [str(node[key]) for key in ("root", "file") if key in node]
    for key in ("parts", "chapters", "sections"):
        names += _names(node.get(key, []))
    return [name.removesuffix(".ipynb").removesuffix(".md") for name in names]
