"""The style sheet of figures and widgets. figures.css is its one source; book/assets/book.css carries a copy of it.

`python -m attnbook.figures.style book/assets/book.css` writes the copy; a test holds the two equal.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

BEGIN = "/* ==== figures.css: copied from src/attnbook/figures/figures.css by attnbook.figures.style ==== */\n"
END = "/* ==== end of figures.css ==== */\n"

ROLES = ("load", "mma", "softmax", "correction", "epilogue", "wait")
MEMORIES = ("hbm", "l2", "smem", "tmem", "reg")


@cache
def figures_css() -> str:
    """The text of figures.css."""
    return files("attnbook.figures").joinpath("figures.css").read_text(encoding="utf-8")


def embed(page_css: str) -> str:
    """page_css with its marked block replaced by figures.css."""
    if BEGIN not in page_css or END not in page_css:
        raise ValueError(f"book.css has no block between {BEGIN.strip()!r} and {END.strip()!r}; put both lines back")
    head, rest = page_css.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    return f"{head}{BEGIN}{figures_css()}{END}{tail}"


def palette(css: str | None = None) -> dict[str, dict[str, str]]:
    """The colour variables by theme: {"light": {"--role-load": "#0b61a4", ...}, "dark": {...}}; var() is resolved."""
    css = figures_css() if css is None else css
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S).split("@media print")[0]
    themes: dict[str, dict[str, str]] = {"light": {}, "dark": {}}
    for selector, block in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        variables = dict(re.findall(r"(--(?:bk|role|mem)-[\w-]+)\s*:\s*([^;]+);", block))
        if ":root" in selector:
            themes["light"].update(variables)
        if 'data-theme="dark"' in selector:
            themes["dark"].update(variables)
    for table in themes.values():
        for name, value in table.items():
            while value.startswith("var("):
                value = table[value[4:-1].strip()]
            table[name] = value
    return themes


def main(path: str) -> None:
    page = Path(path)
    page.write_text(embed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
