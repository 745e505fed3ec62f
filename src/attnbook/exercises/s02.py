"""Exercises of stage 2."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_KEY = 91


def _grade_cell(answer: Any) -> str:
    from importlib import import_module

    from attnbook.ladder import LADDER

    stage = import_module(LADDER["p_in_tmem"].module)
    first, columns = stage.TMEM_ALIASES["P"]
    per_cell = stage.TILE_N // columns
    column, half = first + _KEY // per_cell, ("low", "high")[_KEY % per_cell]
    if answer[0] == _KEY:
        raise Wrong(f"Column {_KEY} held the score. Two probabilities share a cell.")
    if answer[0] != column:
        raise Wrong(f"Not column {answer[0]}: P begins at column {first}, two keys to a cell.")
    if answer[1] != half:
        raise Wrong(f"The column is right. Keys 0 and 1 share cell {first}, key 0 in its low half.")
    return f"Right: key {_KEY} stands in column {column}, {half} half."


add(Exercise("s02-cell", _grade_cell, solution=lambda: (45, "high"), wrong=lambda: (45, "low")))


def _grade_lost(answer: Any) -> str:
    from attnbook.widgets.overlay import overlay

    lost = len(overlay(64, list(range(16)))[-1][2])
    if answer == 64:
        raise Wrong("Nearly all of the upper half, but not all: look at the last steps, when the reader is there too.")
    if answer != lost:
        raise Wrong(f"Not {answer}. Step 1 reads scores 0 to 7 and writes columns 64 to 67. Who has read score 64?")
    return f"Right: {lost} of the 128 scores are gone before they are read."


add(Exercise("s02-lost", _grade_lost, solution=lambda: 60, wrong=lambda: 64))

_BUGGY_PACK = '''\
def pack_row(p):
    """128 probabilities as uint16 bit patterns -> 64 cells of 32 bits."""
    import numpy as np

    p = p.astype(np.uint32)
    return (p[0::2] << 16) | p[1::2]
'''


def _grade_pack(answer: Any) -> str:
    import numpy as np

    scope: dict[str, Any] = {}
    try:
        exec(str(answer), scope)
        given = scope["pack_row"]
    except Exception as error:
        raise Wrong(f"The text does not define pack_row: {type(error).__name__}: {error}") from None
    row = np.random.default_rng(0).integers(0, 1 << 16, 128, dtype=np.uint16)
    cells = np.asarray(given(row.copy()))
    if cells.shape != (64,) or cells.dtype != np.uint32:
        raise Wrong(f"pack_row must return 64 cells of uint32, not {cells.shape} of {cells.dtype}.")
    if np.array_equal(cells, row.astype(np.uint32)[:64] | row.astype(np.uint32)[64:] << 16):
        raise Wrong("Neighbouring keys share a cell, not key j and key j + 64.")
    # Two 16-bit halves, the low one first: the memory of a little-endian pair.
    if not np.array_equal(cells.view(np.uint16), row):
        raise Wrong(
            "The cells do not hold keys 0, 1, 2, ... in order. Which half of a cell does the tensor core take first?"
        )
    return "Right: the even key in the low half, the odd key in the high half."


add(
    Exercise(
        "s02-bug",
        _grade_pack,
        solution=lambda: _BUGGY_PACK.replace("(p[0::2] << 16) | p[1::2]", "p[0::2] | (p[1::2] << 16)"),
        wrong=lambda: _BUGGY_PACK.replace("p[0::2] << 16) | p[1::2]", "p[:64]) | p[64:] << 16"),
        text=_BUGGY_PACK,
    )
)
