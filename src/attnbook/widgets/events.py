"""The movable timeline: the events of one CTA by warp and unit, to zoom, scrub and step through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import traitlets

from attnbook.figures.still import UNIT_NOTE, UNIT_SOURCE, barriers_of, draw_still, pack
from attnbook.figures.svg import caption_html
from attnbook.widgets.explorer import Widget, script
from ptxemu.trace import Trace


class Timeline(Widget):
    """The movable timeline. Build it with timeline()."""

    _esm = script("timeline.js", "timeline_main.js")
    data: traitlets.Dict = traitlets.Dict().tag(sync=True)
    still = traitlets.Unicode("").tag(sync=True)
    window: traitlets.List = traitlets.List().tag(sync=True)
    cursor = traitlets.Float(0.0).tag(sync=True)


def timeline(
    trace: Trace,
    cta: int = 0,
    *,
    rows: Sequence[str] | None = None,
    barriers: Mapping[int, str] | None = None,
    window: tuple[float, float] | None = None,
    title: str = "What every warp and unit does, in order",
    caption: str = "",
) -> Timeline:
    """The events of one CTA of a run, by warp and unit.

    Args:
        trace: of a Run or a Result (events with begin, end and mark).
        rows: which, in which order (default: all). barriers: names by address (default: those of the trace's stage).
            window: the part to show first (default: all).
        caption: what to see in it; the unit's meaning is added.
    """
    data = pack(trace, cta, rows=rows, barriers=barriers_of(trace) if barriers is None else barriers)
    note = UNIT_NOTE[trace.unit]
    return Timeline(
        name="timeline",
        title=title,
        caption=caption_html(f"{caption} {note}".strip(), UNIT_SOURCE[trace.unit]),
        data=data,
        window=list(window or ()),
        still=draw_still(data, title, window).svg(),
    )
