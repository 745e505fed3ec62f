"""The index of figures: every figure of the built chapters, with the function that draws it, from their outputs."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "<!-- figures -->"

_STILL = re.compile(r'<figure class="bk-fig"([^>]*)>(.*?)</figure>', re.DOTALL)
_NAME = re.compile(r'data-figure="([^"]+)"')
_TITLE = re.compile(r"<title>([^<]*)</title>")
_LABEL = re.compile(r'aria-label="([^"]*)"')
_VIEW = "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"


@dataclass(frozen=True)
class Figure:
    """A figure on a page. name: of the function that draws it; movable: the reader can move it."""

    name: str
    title: str
    movable: bool


def of(notebook: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a notebook with its outputs, in order."""
    states = notebook["metadata"].get("widgets", {}).get(_STATE, {}).get("state", {})
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if _VIEW in data:
                state = states.get(data[_VIEW]["model_id"], {}).get("state", {})
                if state.get("name"):
                    yield Figure(state["name"], state.get("title", ""), True)
                continue
            for attributes, body in _STILL.findall("".join(data.get("text/html", ""))):
                name = _NAME.search(attributes)
                title = _TITLE.search(body) or _LABEL.search(attributes)
                if name:
                    yield Figure(name[1], html.unescape(title[1]) if title else "", False)


def source(figure: Figure) -> str:
    """Where a figure's function stands: "attnbook/figures/machine.py". Raises BookError for a name without one."""
    from attnbook import figures, widgets
    from attnbook.book.toc import BookError

    home = widgets if figure.movable else figures
    try:
        path = inspect.getsourcefile(getattr(home, figure.name))
    except AttributeError:
        path = None
    if path is None:
        raise BookError(f"the figure {figure.name!r} is drawn by no function of {home.__name__} with that name")
    return "/".join(Path(path).parts[-3:])


def index(pages: list[tuple[str, list[Figure]]]) -> str:
    """The index as Markdown. pages: (document, its figures)."""
    every = [figure for _, found in pages for figure in found]
    movable = {figure for figure in every if figure.movable}
    still = {figure for figure in every if not figure.movable}
    lines = [
        f"{len(movable | still)} different figures stand in these chapters. {len(movable)} of them can be moved.",
        "",
        "| chapter | figure | | drawn by |",
        "|---|---|---|---|",
    ]
    for document, found in pages:
        for n, figure in enumerate(found):
            chapter = f"{{doc}}`{document}`" if n == 0 else ""
            kind = "movable" if figure.movable else ""
            title = figure.title.replace("|", "\\|")
            lines.append(f"| {chapter} | {title} | {kind} | `{figure.name}` in `{source(figure)}` |")
    return "\n".join(lines)
