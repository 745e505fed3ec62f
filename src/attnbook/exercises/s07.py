"""Exercises of stage 7."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_SEQLEN = 233  # 105 keys in its last tile, as 1,001 have


def _grade_longest(answer: Any) -> str:
    from attnbook.figures.schedule import steady

    longest = max(s for s in range(0, 2049, 16) if steady("interleave", s)[1] == 1)
    if answer == 512:
        raise Wrong("That is stage 6. How many products of the other Q tile stand between a QK and its PV now?")
    if answer != longest:
        raise Wrong(f"Not {answer}. Slide the softmax up until the first gap opens between two products.")
    return f"Right: {longest} cycles, what two products take, and what the exponentials of a tile take."


add(Exercise("s07-longest", _grade_longest, solution=lambda: 1024, wrong=lambda: 512))


def _stores(seqlen: int) -> int:
    """Stores into tensor memory of eight columns that a run executes, a warp instruction each."""
    import attnbook

    run = attnbook.run("interleave", batch=1, heads=1, seqlen=seqlen, device="emulator").run
    assert run is not None  # the emulator always leaves one
    return sum(n for op, n in run.instructions.items() if op.startswith("tcgen05.st") and ".x8." in op)


def _grade_mask(answer: Any) -> str:
    from attnbook.compile import stage_module

    module = stage_module("interleave")
    warps = len(module.ROLES["softmax"])  # of the only CTA
    scores = (_stores(_SEQLEN) - _stores(2 * module.TILE_N)) // warps * module.CHUNK
    if answer == module.TILE_N - (_SEQLEN - module.TILE_N):
        raise Wrong("So many become -inf. The mask goes through whole chunks.")
    if answer != scores:
        raise Wrong(f"Not {answer}. How many keys has the last tile, and in which chunk of 8 does it end?")
    return f"Right: {scores} scores, {scores // module.CHUNK} chunks, counted from the stores of an emulated run."


add(Exercise("s07-mask", _grade_mask, solution=lambda: 24, wrong=lambda: 23))

_WAITS = ("first K", "V", "next K")  # the waits on kv_full in the order of the text


def mystery(ptx: str) -> str:
    """Stage 7 with one wait removed: an edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.drop_wait("kv_full", 2)(ptx)


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate

    if answer not in _WAITS:
        raise Wrong(f"{answer!r} is not one of {', '.join(_WAITS)}.")
    ptx = attnbook.compile("interleave").ptx
    if mutate.drop_wait("kv_full", _WAITS.index(answer))(ptx) != mystery(ptx):
        raise Wrong("That wait is executed with one KV tile too, and nothing is found there. Which one is not?")
    return "Right: with one KV tile there is no next K. With two, nobody waits for it."


add(Exercise("s07-bug", _grade_mystery, solution=lambda: "next K", wrong=lambda: "V"))
