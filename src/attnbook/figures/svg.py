"""A small SVG writer: every picture has a title and a description, and every colour is a CSS class.

Nothing here knows what is drawn. A picture is a list of element strings, so that a movable figure can send each
distinct
element once and name it by number in every frame (see attnbook.widgets.explorer).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from attnbook.figures import style

Number = int | float
Point = tuple[Number, Number]


def num(v: Number) -> str:
    """A coordinate with at most two decimals and no trailing zeros."""
    s = f"{v:.2f}".rstrip("0").rstrip(".")
    return "0" if s == "-0" else s


def _attrs(cls: str, attrs: dict[str, Any]) -> str:
    out = f' class="{cls}"' if cls else ""
    for key, value in attrs.items():
        if value is not None:
            shown = num(value) if isinstance(value, int | float) else escape(str(value))
            out += f' {key.rstrip("_").replace("_", "-")}="{shown}"'
    return out


class Svg:
    """One picture.

    Args:
        width, height: size in CSS pixels at desktop width (text sizes are meant at this size; 760 fits the column).
        title: what it is (the accessible name).
        desc: what it shows, for a reader who cannot see it; may be set later, before it is shown.
        caption: can be read alone, without the text around it. Plain text; `code` between backticks.
        source: where the numbers come from ("published: ...", "emulated: ...", "from the layout: ...").
        name: the figure's name in the page (data-figure), for tests and links.
    """

    def __init__(
        self,
        width: Number,
        height: Number,
        *,
        title: str,
        desc: str = "",
        caption: str = "",
        source: str = "",
        name: str = "",
    ) -> None:
        self.width, self.height = width, height
        self.title, self.desc, self.caption, self.source, self.name = title, desc, caption, source, name
        self.elements: list[str] = []

    # ---- elements -----------------------------------------------------------------------------------------------

    def raw(self, element: str) -> None:
        """Append one element, already written as SVG."""
        self.elements.append(element)

    def rect(self, x: Number, y: Number, w: Number, h: Number, cls: str = "", *, rx: Number = 0, **attrs: Any) -> None:
        r = f' rx="{num(rx)}"' if rx else ""
        self.raw(f'<rect x="{num(x)}" y="{num(y)}" width="{num(w)}" height="{num(h)}"{r}{_attrs(cls, attrs)}/>')

    def circle(self, x: Number, y: Number, r: Number, cls: str = "", **attrs: Any) -> None:
        self.raw(f'<circle cx="{num(x)}" cy="{num(y)}" r="{num(r)}"{_attrs(cls, attrs)}/>')

    def line(self, x1: Number, y1: Number, x2: Number, y2: Number, cls: str = "ln", **attrs: Any) -> None:
        ends = f'x1="{num(x1)}" y1="{num(y1)}" x2="{num(x2)}" y2="{num(y2)}"'
        self.raw(f"<line {ends}{_attrs(cls, attrs)}/>")

    def path(self, d: str, cls: str = "ln", **attrs: Any) -> None:
        self.raw(f'<path d="{d}"{_attrs(cls, attrs)}/>')

    def polyline(self, points: Sequence[Point], cls: str = "ln", **attrs: Any) -> None:
        pts = " ".join(f"{num(x)},{num(y)}" for x, y in points)
        self.raw(f'<polyline points="{pts}"{_attrs(cls, attrs)}/>')

    def text(self, x: Number, y: Number, s: object, cls: str = "t", *, anchor: str = "start", **attrs: Any) -> None:
        """One line of text; y is the baseline. anchor: start, middle or end. cls: t, ts, tl, tm (see figures.css)."""
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.raw(f'<text x="{num(x)}" y="{num(y)}"{where}{_attrs(cls, attrs)}>{escape(str(s), quote=False)}</text>')

    def lines(
        self, x: Number, y: Number, rows: Sequence[object], cls: str = "t", *, step: Number = 17, anchor: str = "start"
    ) -> None:
        """Several lines of text, the first at baseline y."""
        for i, row in enumerate(rows):
            self.text(x, y + i * step, row, cls, anchor=anchor)

    def vertical(self, x: Number, y: Number, text: object, cls: str = "t") -> None:
        """Text that reads upwards, its middle at (x, y)."""
        turn = f"translate({num(x)} {num(y)}) rotate(-90)"
        self.raw(f'<text text-anchor="middle" transform="{turn}" class="{cls}">{escape(str(text), quote=False)}</text>')

    def arrow(self, points: Sequence[Point], cls: str = "", *, head: Number = 7, width: Number | None = None) -> None:
        """A line through points with a head at the last one; cls colours both (role or memory class, or empty for "
        "ink)."""
        (x0, y0), (x1, y1) = points[-2], points[-1]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 or 1.0
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        bx, by = x1 - ux * head, y1 - uy * head
        half = head * 0.45
        shaft = "M" + "L".join(f"{num(x)} {num(y)}" for x, y in [*points[:-1], (bx, by)])
        wings = f"L{num(bx - uy * half)} {num(by + ux * half)}L{num(bx + uy * half)} {num(by - ux * half)}Z"
        stroke = f' stroke-width="{num(width)}"' if width else ""
        self.raw(
            f'<g class="arrow {cls}"><path class="shaft" d="{shaft}"{stroke}/>'
            f'<path class="head" d="M{num(x1)} {num(y1)}{wings}"/></g>'
        )

    def hatch(self, x: Number, y: Number, w: Number, h: Number, cls: str = "hatch", *, gap: Number = 6) -> None:
        """Diagonal lines inside a rectangle, as one path (patterns by url(#id) break when the same id is hidden)."""
        d = []
        c = x + y + gap
        while c < x + w + y + h:
            xa, xb = max(x, c - (y + h)), min(x + w, c - y)
            if xb > xa:
                d.append(f"M{num(xa)} {num(c - xa)}L{num(xb)} {num(c - xb)}")
            c += gap
        if d:
            self.path("".join(d), cls)

    def bracket(
        self, x1: Number, y1: Number, x2: Number, y2: Number, label: str = "", *, cls: str = "ts", away: Number = 6
    ) -> None:
        """A thin measuring line with end ticks and a label beside its middle: horizontal (label above) or vertical."""
        if y1 == y2:
            self.path(f"M{num(x1)} {num(y1 - 3)}v6M{num(x1)} {num(y1)}H{num(x2)}M{num(x2)} {num(y1 - 3)}v6", "ln thin")
            if label:
                self.text((x1 + x2) / 2, y1 - away, label, cls, anchor="middle")
        else:
            self.path(f"M{num(x1 - 3)} {num(y1)}h6M{num(x1)} {num(y1)}V{num(y2)}M{num(x1 - 3)} {num(y2)}h6", "ln thin")
            if label:
                end = "start" if away > 0 else "end"
                self.text(x1 + away, (y1 + y2) / 2 + 4, label, cls, anchor=end)

    @contextmanager
    def group(self, cls: str = "", **attrs: Any) -> Iterator[None]:
        self.raw(f"<g{_attrs(cls, attrs)}>")
        yield
        self.raw("</g>")

    # ---- output -------------------------------------------------------------------------------------------------

    @property
    def body(self) -> str:
        return "".join(self.elements)

    def svg(self) -> str:
        """The bare <svg> element."""
        w, h = num(self.width), num(self.height)
        return (
            f'<svg class="bk" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
            f'role="img" aria-label="{escape(self.title)}"><title>{escape(self.title)}</title>'
            f"<desc>{escape(self.desc)}</desc>{self.body}</svg>"
        )

    def html(self) -> str:
        """The figure: the picture in a box that scrolls on a narrow screen, and its caption."""
        cap = caption_html(self.caption, self.source)
        name = f' data-figure="{escape(self.name)}"' if self.name else ""
        return (
            f'<figure class="bk-fig"{name}><div class="bk-scroll" role="region" tabindex="0" '
            f'aria-label="{escape(self.title)}">{self.svg()}</div>'
            + (f"<figcaption>{cap}</figcaption>" if cap else "")
            + "</figure>"
        )

    def __str__(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": with_style(self.html()), "text/plain": f"{self.title}. {self.desc}"}


class Html:
    """A piece of HTML with the same outputs as a figure (listings, diffs, tables)."""

    def __init__(self, body: str, *, title: str, desc: str = "", caption: str = "", source: str = "", name: str = ""):
        self.body, self.title, self.desc = body, title, desc
        self.caption, self.source, self.name = caption, source, name

    def html(self) -> str:
        cap = caption_html(self.caption, self.source)
        name = f' data-figure="{escape(self.name)}"' if self.name else ""
        label = escape(f"{self.title}. {self.desc}".strip())
        return (
            f'<figure class="bk-fig" aria-label="{label}"{name}>{self.body}'
            + (f"<figcaption>{cap}</figcaption>" if cap else "")
            + "</figure>"
        )

    def __str__(self) -> str:
        return self.html()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": with_style(self.html()), "text/plain": f"{self.title}. {self.desc}"}


def inline(text: str) -> str:
    """Escape plain text; `code` between backticks becomes <code>."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))


def caption_html(caption: str, source: str) -> str:
    out = inline(caption)
    if source:
        out += f' <span class="bk-src">{inline(source)}</span>'
    return out.strip()


def is_static() -> bool:
    """True while the book is being built: the page then brings the style sheet itself."""
    return os.environ.get("ATTNBOOK_STATIC") == "1"


def with_style(html: str) -> str:
    """Add the style sheet in a live notebook, which does not load the book's."""
    return html if is_static() else f"<style>{style.figures_css()}</style>{html}"
