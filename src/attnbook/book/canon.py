"""The one form in which a notebook stands in git, so that a diff shows what a person changed and nothing else.

nbformat 4.5; keys sorted, one space of indent, a newline at the end; a stable id for each cell; no outputs, no
execution counts, no traces of an editor; the kernel is `python3`. JupyterLab opens these files as they are; `--fix`
brings back what it saved.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What an author sets on a cell on purpose. The rest (timings, scroll positions, trust) is an editor's.
CELL_METADATA = ("tags", "mystnb", "slideshow")
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def canonical(notebook: dict[str, Any], slug: str) -> str:
    """The text of `notebook` (parsed JSON) in canonical form; ids that are missing or doubled are made from `slug`."""
    if notebook.get("nbformat") != 4:
        raise ValueError(
            f"nbformat is {notebook.get('nbformat')!r}, not 4: open the notebook in JupyterLab and save it"
        )
    seen: set[str] = set()
    cells = [_cell(cell, seen, f"{slug}-{number:03d}") for number, cell in enumerate(notebook["cells"], 1)]
    whole = {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cell(cell: dict[str, Any], seen: set[str], fallback_id: str) -> dict[str, Any]:
    source = cell.get("source", "")
    text = source if isinstance(source, str) else "".join(source)
    text = "\n".join(line.rstrip() if cell["cell_type"] == "code" else line for line in text.split("\n")).strip("\n")
    cell_id = cell.get("id", "")
    if not CELL_ID.fullmatch(cell_id) or cell_id in seen:
        cell_id = fallback_id
        while cell_id in seen:
            cell_id += "x"
    seen.add(cell_id)
    clean: dict[str, Any] = {
        "cell_type": cell["cell_type"],
        "id": cell_id,
        "metadata": {key: value for key, value in cell.get("metadata", {}).items() if key in CELL_METADATA and value},
        "source": text.splitlines(keepends=True),
    }
    if cell["cell_type"] == "code":
        clean |= {"execution_count": None, "outputs": []}
    return clean


def run(files: list[Path], *, fix: bool) -> int:
    """Check the form of each file, or mend it; prints a line for each that differs. Returns 1 if any is left."""
    left = 0
    for path in files:
        text = path.read_text(encoding="utf-8")
        try:
            wanted = canonical(json.loads(text), path.stem)
        except (ValueError, KeyError) as error:
            print(f"{path}: not a notebook that can be read ({error})")
            left = 1
            continue
        if wanted == text:
            continue
        if fix:
            path.write_text(wanted, encoding="utf-8")
            print(f"{path}: mended")
        else:
            print(f"{path}: not in canonical form; mend it with: python -m attnbook.book canon --fix {path}")
            left = 1
    return left
