"""Run one notebook, cell by cell, and keep what it shows: outputs and the state of its widgets.

The kernel runs in the notebook's folder, on the Python that runs this. `ATTNBOOK_STATIC=1` tells the book's widgets
that their page will have no kernel: they bring recorded frames then. What is kept is made repeatable: no timings, no
random widget ids, no machine's paths.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from attnbook.book.keys import code_cells
from attnbook.book.progress import Progress
from attnbook.book.toc import BookError, Chapter

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run_notebook(root: Path, chapter: Chapter, progress: Progress, *, timeout: float) -> dict[str, Any]:
    """Execute the chapter; returns {"outputs": one list for each code cell, "widgets": widget state or None}.

    Raises BookError with the cell, its output and the traceback when a cell fails, takes longer than `timeout` seconds,
    kills its kernel or shows a control that needs one. A cell tagged `raises-exception` may fail: the page shows
    its error.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # an optional check that takes 2 s to load
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(chapter.path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=120,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=True,
        resources={"metadata": {"path": str(chapter.path.parent)}},
    )
    progress.chapter_starts(chapter.name, len(code_cells(notebook)))
    at: dict[str, Any] = {"number": 0, "cell": None}  # which cell runs, for the report
    stopped = threading.Event()
    with tempfile.TemporaryFile() as kernel_log, tempfile.TemporaryDirectory() as sockets:
        client.km = client.create_kernel_manager()
        client.km.transport, client.km.ip = "ipc", f"{sockets}/k"  # no ports: nothing listens on the network

        async def run_cells() -> None:
            async with client.async_setup_kernel(env=_environment(root), stdout=kernel_log, stderr=kernel_log):
                _cancel_on_signals(stopped)
                for index, cell in enumerate(notebook.cells):
                    if cell.cell_type != "code":
                        continue
                    at.update(number=at["number"] + 1, cell=cell)
                    progress.cell_starts(at["number"], first_line(cell.source))
                    await client.async_execute_cell(cell, index, execution_count=at["number"])
                    progress.cell_ends()
                client.set_widgets_metadata()

        try:
            asyncio.run(run_cells())
        except (asyncio.CancelledError, DeadKernelError) as error:
            if stopped.is_set():
                raise KeyboardInterrupt from None
            if isinstance(error, asyncio.CancelledError):
                raise
            kernel_log.seek(0)
            tail = kernel_log.read().decode(errors="replace")[-3000:]
            raise BookError(_report(chapter, at, f"the kernel died. Its last words:\n{tail}")) from None
        except CellExecutionError as error:
            raise BookError(_report(chapter, at, f"{error.ename}: {error.evalue}")) from None
        except CellTimeoutError:
            remedy = f"no answer within {timeout:.0f} s: make the cell do less, or give the build a larger --timeout"
            raise BookError(_report(chapter, at, remedy)) from None
    kept = _repeatable(root, chapter, json.loads(nbformat.writes(notebook)))
    _refuse_dead_controls(chapter, kept)
    progress.chapter_ends()
    return kept


def first_line(source: str) -> str:
    """The line that names a cell in a progress bar: its first that is neither empty, a comment, nor an import."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    for line in lines:
        if not line.startswith(("#", "%", "import ", "from ")):
            return line
    return lines[0] if lines else "(empty)"


def with_outputs(notebook: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The notebook (parsed JSON, as in git) with the kept outputs in its code cells; changes and returns `notebook`."""
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), kept["outputs"], strict=True), 1):
        cell["outputs"] = outputs
        cell["execution_count"] = number
    if kept["widgets"]:
        notebook["metadata"]["widgets"] = kept["widgets"]
    return notebook


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {
        "ATTNBOOK_STATIC": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONFAULTHANDLER": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of this environment, not one of the same name in the home folder
        "IPYTHONDIR": str(root / "_build" / "ipython"),  # no start-up files of the person who builds
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def _cancel_on_signals(stopped: threading.Event) -> None:
    """Ctrl-C stops the build and its kernel cleanly. (The client's own handler would only end the kernel.)"""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop() -> None:
        stopped.set()
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _report(chapter: Chapter, at: dict[str, Any], reason: str) -> str:
    """What a person needs to mend a cell: where it stands, what it says, what it printed, why it stopped."""
    cell, printed, trace = at["cell"], [], ""
    if cell is None:
        return f"{chapter.path.name}: no cell was run: {reason}"
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            printed.append(output["text"])
        elif output["output_type"] == "error":
            trace = "\n".join(output["traceback"])
    if not sys.stderr.isatty():
        trace = ANSI.sub("", trace)
    parts = [
        f"{chapter.path.name}: code cell {at['number']} (id {cell.get('id', '?')}) failed: {reason}",
        "--- the cell " + "-" * 60,
        cell.source,
    ]
    if printed:
        parts += ["--- what it printed " + "-" * 53, "".join(printed).rstrip()]
    if trace:
        parts += ["--- traceback " + "-" * 59, trace]
    parts += ["-" * 73, "The chapters before this one are kept; the last complete pages stay as they are."]
    return "\n".join(parts)


def _repeatable(root: Path, chapter: Chapter, notebook: dict[str, Any]) -> dict[str, Any]:
    """Outputs and widget state with nothing in them that differs from run to run or tells whose machine this was."""
    kept: dict[str, Any] = {
        "outputs": [cell["outputs"] for cell in code_cells(notebook)],
        "widgets": notebook["metadata"].get("widgets"),
    }
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    for folder in map(str, (root, sys.prefix, Path.home())):
        if len(folder) > 1:
            text = re.sub(re.escape(json.dumps(folder, ensure_ascii=False)[1:-1]) + r"(/|(?![\w.-]))", _relative, text)
    text = re.sub(r"( object) at 0x[0-9a-f]{6,}(?=>)", r"\1", text)
    ids = (kept["widgets"] or {}).get(WIDGET_STATE, {}).get("state", {})
    for count, old in enumerate(sorted(ids, key=lambda model: _first_seen(text, model))):
        text = text.replace(old, f"{chapter.path.stem}-{count:04d}")
    return json.loads(text)


def _relative(place: re.Match[str]) -> str:
    return "" if place[1] else "."


def _first_seen(text: str, model_id: str) -> tuple[int, int]:
    """Order of widget models that does not hang on their random ids: first use in an output, then first mention."""
    view = text.find(f'"model_id": "{model_id}"')
    return (view if view >= 0 else len(text), text.find(model_id))


def _refuse_dead_controls(chapter: Chapter, kept: dict[str, Any]) -> None:
    """A control that does nothing in a page is worse than none: only anywidgets live without a kernel."""
    state = (kept["widgets"] or {}).get(WIDGET_STATE, {}).get("state", {})
    for number, outputs in enumerate(kept["outputs"], 1):
        for output in outputs:
            view = output.get("data", {}).get(WIDGET_VIEW)
            if view is None:
                continue
            model = state.get(view["model_id"], {})
            if "_esm" not in model.get("state", {}):
                raise BookError(
                    f"{chapter.path.name}: code cell {number} shows a {model.get('model_name', 'widget')}, which does "
                    "nothing without a kernel. Where ATTNBOOK_STATIC=1 is set, show an anywidget with recorded frames."
                )
