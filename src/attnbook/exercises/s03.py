"""Exercises of stage 3."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_ROW, _CHUNK = 6, 3


def _grade_chunk(answer: Any) -> str:
    from ptxemu.isa import swizzle

    place = int(swizzle.SWIZZLE_128B(_ROW * 128 + _CHUNK * 16)) // 16 % 8
    if answer == _CHUNK:
        raise Wrong("That is where it would be without the swizzle.")
    if answer == (_CHUNK + _ROW) % 8:
        raise Wrong("Not a rotation. The row and the chunk are combined bit by bit.")
    if answer != place:
        raise Wrong(f"Not chunk {answer}. Write both numbers in binary.")
    return f"Right: {_CHUNK} XOR {_ROW} = {place}."


add(Exercise("s03-chunk", _grade_chunk, solution=lambda: 5, wrong=lambda: (3 + 6) % 8))


def _rows_loaded(stage: str, seqlen: int) -> int:
    """Rows of boxes that the TMA brings for one CTA, from an emulated run."""
    import attnbook

    trace = attnbook.run(stage, batch=1, heads=1, seqlen=seqlen, trace=True, device="emulator").trace
    mine = (e.data for e in trace.events if e.row == "tma" and e.kind == "begin" and e.cta == 0)
    return sum(data["box"][1] for data in mine if "box" in data)


def _grade_rows(answer: Any) -> str:
    rows = _rows_loaded("swizzle", 512)
    if answer == rows - 256:
        raise Wrong("That is K and V. Q is loaded too, once.")
    if answer == rows * 8:
        raise Wrong("That is stage 2, with rows of 16 bytes.")
    if answer != rows:
        raise Wrong(f"Not {answer}: a tile is 128 rows of 256 bytes, and a row of a box has 128 bytes.")
    return f"Right: {rows:,} rows, counted from the loads of CTA 0."


add(Exercise("s03-rows", _grade_rows, solution=lambda: 2304, wrong=lambda: 2048))


def mystery(ptx: str) -> str:
    """Stage 3 with a mistake in some descriptors: an edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.read_plain("QK")(ptx)


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate

    if answer not in ("QK", "PV"):
        raise Wrong(f"{answer!r} is neither 'QK' nor 'PV'.")
    ptx = attnbook.compile("swizzle").ptx
    if mutate.read_plain(answer)(ptx) != mystery(ptx):
        raise Wrong("With scale = 0 every weight is the same, whatever Q and K say. Is the answer right then?")
    return "Right: Q and K are written swizzled and read plain. With equal weights it does not show."


add(Exercise("s03-bug", _grade_mystery, solution=lambda: "QK", wrong=lambda: "PV"))
