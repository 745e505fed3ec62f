"""A panel that runs a stage's kernel with other settings: live in a notebook, recorded in the book's pages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import traitlets

from attnbook.figures.budget import stage_number
from attnbook.figures.still import barrier_names, pack
from attnbook.figures.svg import Svg, caption_html, is_static
from attnbook.widgets.events import timeline
from attnbook.widgets.explorer import Control, Widget, script, step_html

SCALES = {"1/√128": None, "1/4": 0.25}
SETTINGS: dict[str, tuple[Any, ...]] = {
    "seqlen": (128, 256, 384),
    "dtype": ("bf16", "fp16"),
    "scale": tuple(SCALES),
    "family": ("normal", "rising_max"),
}
FAMILY_NAMES = {"rising_max": "rising maximum", "falling_max": "falling maximum", "outlier_last": "outlier at the end"}


class RunPanel(Widget):
    """Recorded results behind the same controls as the live panel. Build it with run_panel()."""

    _esm = script("timeline.js", "run_panel.js")
    controls: traitlets.List = traitlets.List().tag(sync=True)
    results: traitlets.List = traitlets.List().tag(sync=True)
    timelines: traitlets.List = traitlets.List().tag(sync=True)
    values: traitlets.List = traitlets.List().tag(sync=True)


def row_errors(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """Relative error ||o - ref|| / ||ref|| of every row (batch, head, query order), of the kernel and of PyTorch."""
    from attnbook.reference import attention_fp64, attention_torch

    p = result.problem
    ref, _ = attention_fp64(result.q, result.k, result.v, scale=p.softmax_scale)
    torch_o, _ = attention_torch(result.q, result.k, result.v, scale=p.softmax_scale)
    length = ref.norm(dim=-1).clamp_min(1e-300)
    out = []
    for o in (result.o.cpu(), torch_o):
        error = ((o.double() - ref).norm(dim=-1) / length).permute(0, 2, 1).reshape(-1)
        out.append(error.numpy())
    return out[0], out[1]


def result_picture(result: Any) -> tuple[Svg, str]:
    """The error of every row beside PyTorch's, and a sentence with the verdict."""
    mine, theirs = row_errors(result)
    v, p = result.verdict, result.problem
    step = max(1, len(mine) // 512)
    mine, theirs = mine[::step], theirs[::step]
    finite = np.concatenate([mine, theirs])
    finite = finite[np.isfinite(finite)]
    top = float(finite.max()) * 1.15 if len(finite) and finite.max() > 0 else 1.0
    s = Svg(760, 214, title="Error of every row", name="result")
    x0, y0, w, h = 74, 34, 676, 140

    def dots(errors: np.ndarray) -> str:
        d, last = [], (0, 0)
        for i, e in enumerate(errors):
            if not np.isfinite(e):
                continue
            x, y = round(x0 + 3 + (w - 6) * i / max(1, len(errors) - 1)), round(y0 + h * (1 - min(float(e) / top, 1)))
            d.append(f"m{x - last[0]} {y - last[1]}h0")
            last = (x, y)
        return "".join(d).replace("m", "M", 1)

    s.text(x0, 18, "error of each output row, relative", "tl")
    for x, name, cls in ((560, "PyTorch", "points theirs big"), (652, "the kernel", "points now big")):
        s.path(f"M{x} 13h0", cls)
        s.text(x + 10, 18, name, "t")
    for k in (0, 0.5, 1):
        y = y0 + h * (1 - k)
        s.line(x0, y, x0 + w, y, "ln hair")
        s.text(x0 - 8, y + 4, f"{k * top:.1e}" if k else "0", "ts", anchor="end")
    s.path(dots(theirs), "points theirs")
    s.path(dots(mine), "points now")
    rows = p.batch * p.heads * p.seqlen
    for i in range(0, rows, max(128, rows // 4)):
        s.text(x0 + 3 + (w - 6) * i / (rows - 1), y0 + h + 18, f"{i:,}", "ts", anchor="middle")
    s.text(x0 + w, y0 + h + 18, f"query row {rows - 1:,}", "ts", anchor="end")
    if result.run is None:
        work = f"one call took {result.seconds * 1e3:.3f} ms on {result.backend}"
    else:
        n = 1
        for g in result.run.grid:
            n *= g
        work = f"{n} CTA{'s' if n > 1 else ''}, {result.run.warp_instructions:,} warp instructions, emulated"
    text = (
        f"**{'Right' if v.ok else 'WRONG'}.** Worst row: error {v.error:.2e} of {v.allowed:.2e} allowed (PyTorch's "
        f"own: {v.torch_error:.2e}). "
        f"{p.dtype}, scale {p.softmax_scale:.4g}; {work}."
    )
    return s, text


def run_panel(stage: Any = 1, settings: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """Controls for sequence length, type, softmax scale and input; the result and the timeline of a run with them.

    In a live notebook this is an ipywidgets panel (with heads and batch too) whose button runs the kernel. While the
    book is built
    every setting is run once, now, and its result goes into the page behind the same controls.

    Args:
        settings: what the recorded panel offers: seqlen, dtype, scale (keys of SCALES) and family; default SETTINGS.
    """
    if is_static():
        return recorded(stage, settings or SETTINGS)
    return live(stage)


def recorded(stage: Any, settings: Mapping[str, Sequence[Any]]) -> RunPanel:
    """Run every combination of the settings and keep what it showed."""
    from attnbook.run import run

    controls = [
        Control("seqlen", "sequence length", [str(x) for x in settings["seqlen"]], "choice"),
        Control("dtype", "type", list(settings["dtype"]), "choice"),
        Control("scale", "scale", list(settings["scale"]), "choice"),
        Control("family", "input", [FAMILY_NAMES.get(x, x) for x in settings["family"]], "select"),
    ]
    names = barrier_names(stage)
    timelines: dict[str, int] = {}
    results = []
    for seqlen, dtype, scale, family in itertools.product(
        *(settings[k] for k in ("seqlen", "dtype", "scale", "family"))
    ):
        result = run(
            stage, batch=1, heads=1, seqlen=seqlen, dtype=dtype, family=family, scale=SCALES[scale], trace=True
        )
        svg, text = result_picture(result)
        events = json.dumps(pack(result.trace, 0, barriers=names), ensure_ascii=False)
        results.append(
            {"svg": svg.svg(), "text": step_html(text), "timeline": timelines.setdefault(events, len(timelines))}
        )
    shown = [c for c in controls if len(c.options) > 1]  # what has one setting only is no control
    return RunPanel(
        name="run_panel",
        title=f"Stage {stage_number(stage)} with other settings",
        caption=caption_html(
            f"Every setting was run once on the emulator when this page was made: {len(results)} runs, each checked "
            f"row by row against FP64. "
            "Open the chapter in JupyterLab to run any other. The timeline shows CTA 0; its axis is order, not time.",
            "emulated",
        ),
        controls=[c.state() for c in shown],
        results=results,
        timelines=[json.loads(t) for t in timelines],
        values=[int(c.name == "seqlen") for c in shown],
    )


def live(stage: Any) -> Any:
    """The panel of a live notebook: ipywidgets, and a button that compiles what is new and runs it."""
    import ipywidgets as w
    from IPython.display import HTML, display

    from attnbook.inputs import INPUT_FAMILIES
    from attnbook.run import run

    style = {"description_width": "9em"}
    seqlen = w.IntSlider(256, 128, 1024, 128, description="sequence length", style=style)
    heads = w.IntSlider(1, 1, 4, description="heads", style=style)
    batch = w.IntSlider(1, 1, 2, description="batch", style=style)
    dtype = w.Dropdown(options=["bf16", "fp16"], description="type", style=style)
    scale = w.FloatText(128**-0.5, step=0.01, description="softmax scale", style=style)
    family = w.Dropdown(
        options=[f for f, k in INPUT_FAMILIES.items() if not k.causal], description="input", style=style
    )
    button = w.Button(description="Run", button_style="primary", tooltip="Run the kernel with these settings")
    out = w.Output()

    def on_click(_: Any) -> None:
        button.disabled, button.description = True, "Running"
        try:
            with out:
                out.clear_output(wait=True)
                try:
                    r = run(
                        stage,
                        batch=batch.value,
                        heads=heads.value,
                        seqlen=seqlen.value,
                        dtype=dtype.value,
                        scale=scale.value,
                        family=family.value,
                        trace=True,
                    )
                except ValueError as error:
                    display(HTML(f'<p class="bk-check bk-check-wrong">{step_html(str(error))}</p>'))
                    return
                picture, text = result_picture(r)
                picture.desc = text
                display(picture)
                display(HTML(f"<p>{step_html(text)}</p>"))
                display(timeline(r.trace, title=f"Stage {stage_number(stage)}, CTA 0"))
        finally:
            button.disabled, button.description = False, "Run"

    button.on_click(on_click)
    left, right = w.VBox([seqlen, heads, batch]), w.VBox([dtype, scale, family])
    panel = w.VBox([w.HBox([left, right]), button, out])
    on_click(None)
    return panel
