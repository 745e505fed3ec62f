"""A movable figure: one picture for every position of its controls, all of them in the page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import anywidget
import traitlets

from attnbook.figures.style import figures_css
from attnbook.figures.svg import Svg, caption_html, inline, is_static


def script(*names: str) -> str:
    """The widget's module: common.js and the named files, in order."""
    here = files("attnbook.widgets")
    return "\n".join(here.joinpath(n).read_text(encoding="utf-8") for n in ("common.js", *names))


def step_html(text: str) -> str:
    """Plain text with `code` and **bold** to HTML."""
    parts = inline(text).split("**")
    return "".join(f"<b>{p}</b>" if i % 2 else p for i, p in enumerate(parts))


@dataclass(frozen=True)
class Control:
    """One control of a movable figure.

    name: short key (data-control, data-set); label: what the reader sees; options: the name of each position.
    kind: "range" (a slider with previous, play, next), "choice" (radio buttons) or "select" (a list).
    limits: for a range, how many of its options there are at each position of the first control (default: always all).
    """

    name: str
    label: str
    options: Sequence[str]
    kind: Literal["range", "choice", "select"] = "range"
    limits: Sequence[int] = ()

    def state(self) -> dict[str, Any]:
        """As the page's script takes it."""
        plain = {"name": self.name, "label": self.label, "options": list(self.options), "kind": self.kind}
        return plain | ({"limits": list(self.limits)} if self.limits else {})


class Widget(anywidget.AnyWidget):
    """Base of all: the style sheet comes along in a live notebook, where the book's pages do not bring it."""

    name = traitlets.Unicode("").tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    caption = traitlets.Unicode("").tag(sync=True)

    _css = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **kwargs: object) -> None:
        super().__init__(_css="" if is_static() else figures_css(), **kwargs)


class Explorer(Widget):
    """Frames chosen by controls. Build it with explore()."""

    _esm = script("explorer.js")
    controls: traitlets.List = traitlets.List().tag(sync=True)
    pool: traitlets.List = traitlets.List(traitlets.Unicode()).tag(sync=True)
    frames: traitlets.List = traitlets.List().tag(sync=True)
    steps: traitlets.List = traitlets.List(traitlets.Unicode()).tag(sync=True)
    size: traitlets.List = traitlets.List().tag(sync=True)
    values: traitlets.List = traitlets.List().tag(sync=True)
    interval = traitlets.Int(900).tag(sync=True)

    def _at(self, values: Sequence[int]) -> int:
        at = 0
        for control, value in zip(self.controls, values, strict=True):
            at = at * len(control["options"]) + value
        return at

    def svg_at(self, *values: int) -> str:
        """The elements of the picture at one position, as the page draws it."""
        return "".join(self.pool[i] for i in unpack(self.frames, self._at(values)))

    def step_at(self, *values: int) -> str:
        """The sentence at one position, as HTML."""
        return str(self.steps[self._at(values)])


def pack(frames: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Frames (lists of element numbers) as {"all": [...]} or as the changes to an earlier one:
    {"from": frame, "set": [position, number, ...]}, whichever is shorter."""
    out: list[dict[str, Any]] = []
    for i, frame in enumerate(frames):
        best: dict[str, Any] = {"all": list(frame)}
        for j in {0, i - 1, i // 2} & set(range(i)):
            if len(frames[j]) == len(frame):
                changes = [x for at, n in enumerate(frame) if frames[j][at] != n for x in (at, n)]
                if len(changes) < len(best.get("set", frame)):
                    best = {"from": j, "set": changes}
        out.append(best)
    return out


def unpack(frames: Sequence[dict[str, Any]], i: int) -> list[int]:
    """The element numbers of one packed frame."""
    if "all" in frames[i]:
        return list(frames[i]["all"])
    numbers = unpack(frames, frames[i]["from"])
    changes = frames[i]["set"]
    for at, n in zip(changes[::2], changes[1::2], strict=True):
        numbers[at] = n
    return numbers


def explore(
    controls: Sequence[Control],
    draw: Callable[..., tuple[Svg, str]],
    *,
    name: str,
    title: str,
    caption: str,
    source: str = "",
    start: Sequence[int] | None = None,
    interval: int = 900,
) -> Explorer:
    """Draw every position of the controls and put them into one widget.

    Args:
        draw: called with one index for each control; returns the picture and the sentence that says what it shows.
            All pictures must have the same size.
        start: where the controls stand at first (default: all at 0).
        interval: milliseconds between frames while it plays.
    """
    index: dict[str, int] = {}
    frames: list[list[int]] = []
    steps: list[str] = []
    size: tuple[float, float] | None = None
    for position in itertools.product(*(range(len(c.options)) for c in controls)):
        svg, step = draw(*position)
        if size not in (None, (svg.width, svg.height)):
            raise ValueError(
                f"{name}: position {position} is {svg.width} x {svg.height}, the first was {size}; give all one size"
            )
        size = (svg.width, svg.height)
        frames.append([index.setdefault(e, len(index)) for e in svg.elements])
        steps.append(step_html(step))
    assert size is not None
    return Explorer(
        name=name,
        title=title,
        caption=caption_html(caption, source),
        controls=[c.state() for c in controls],
        pool=list(index),
        frames=pack(frames),
        steps=steps,
        size=list(size),
        values=list(start or [0] * len(controls)),
        interval=interval,
    )
