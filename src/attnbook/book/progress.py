"""What the terminal says while the chapters run: two tqdm bars on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from tqdm import tqdm

SLOW_CELL = 5.0  # seconds: a log names each cell that took longer


class Progress:
    """Bars (or lines) over `total` chapters and, within the one that runs, over its cells. Use as a context manager."""

    def __init__(self, total: int, *, live: bool | None = None) -> None:
        self.live = sys.stderr.isatty() if live is None else live
        self.total = total
        self.done = 0
        self._cell = ""
        self._cell_start = 0.0
        self._chapter = ""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._outer: tqdm | None = None
        self._inner: tqdm | None = None

    def __enter__(self) -> Progress:
        if self.live and self.total:
            self._outer = tqdm(total=self.total, desc="chapters", unit="chapter", position=0, dynamic_ncols=True)
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._outer is not None:
            self._stop.set()
            self._ticker.join()
            if self._inner is not None:
                self._inner.close()
            self._outer.close()

    def say(self, line: str) -> None:
        """One line that stays on the screen."""
        if self._outer is not None:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def chapter_starts(self, name: str, cells: int) -> None:
        self._chapter = name
        self._start = time.perf_counter()
        if self._outer is None:
            self.say(f"[{self.done + 1}/{self.total}] {name}: running {cells} cells")
            return
        with self._lock:
            self._outer.set_postfix_str(name)
            self._inner = tqdm(total=cells, unit="cell", position=1, leave=False, dynamic_ncols=True)

    def cell_starts(self, number: int, label: str) -> None:
        self._cell, self._cell_start = f"cell {number}: {label}", time.perf_counter()
        self._show_cell()

    def cell_ends(self) -> None:
        seconds = time.perf_counter() - self._cell_start
        if self._outer is None and seconds >= SLOW_CELL:
            self.say(f"        {self._cell} took {seconds:.1f} s")
        with self._lock:
            if self._inner is not None:
                self._inner.update()

    def chapter_ends(self) -> None:
        seconds = time.perf_counter() - self._start
        with self._lock:
            if self._inner is not None:
                self._inner.close()
                self._inner = None
        self.done += 1
        self.say(f"[{self.done}/{self.total}] {self._chapter}: {seconds:.1f} s")
        if self._outer is not None:
            self._outer.update()

    def _show_cell(self) -> None:
        with self._lock:
            if self._inner is not None:
                self._inner.set_description_str(f"{self._cell[:58]} ({time.perf_counter() - self._cell_start:.0f} s)")

    def _tick(self) -> None:
        """Keep the seconds of a long cell moving."""
        while not self._stop.wait(1.0):
            self._show_cell()
