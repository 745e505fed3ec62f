"""Exercises of stage 1."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_P_ROW, _P_KEY = 37, 91


def _grade_address(answer: Any) -> str:
    from attnbook import figures

    offset = figures.operand_offset("baseline", "P", _P_ROW, _P_KEY)
    if answer == (_P_ROW * 128 + _P_KEY) * 2:
        raise Wrong("That is where it would be in a plain row-major tile. Here 8 columns make a slice of all 128 rows.")
    if answer != offset:
        raise Wrong(f"Not byte {answer}. Whole slices of 8 columns first, then the row, then the column.")
    return f"Right: the kernel's own layout puts P[{_P_ROW}, {_P_KEY}] at byte {offset}."


add(Exercise(name="s01-address", grade=_grade_address, solution=lambda: 23126, wrong=lambda: (37 * 128 + 91) * 2))


def _rescale_bytes(tiles: int) -> int:
    """Bytes that the rescale of O moves between TMEM and registers in one CTA, counted in an emulated run."""
    import attnbook

    run = attnbook.run("baseline", batch=1, heads=1, seqlen=128 * tiles, seed=0, device="emulator").run
    assert run is not None  # the emulator always leaves one
    stores = sum(n for opcode, n in run.instructions.items() if opcode.startswith("tcgen05.st"))
    ctas = tiles  # one CTA for each 128 queries
    return 2 * stores // ctas * 32 * 8 * 4  # each store is 32 lanes x 8 columns x 4 bytes, and was loaded before


def _grade_rescale(answer: Any) -> str:
    truth = _rescale_bytes(4)
    if answer == truth * 4 // 3:
        raise Wrong("Nearly: is there anything to rescale before the first tile has been added?")
    if answer * 2 == truth:
        raise Wrong("That is one way. O is read, multiplied and written back.")
    if answer != truth:
        raise Wrong(f"Not {answer:,}. O is 128 x 128 in fp32; count how often it is read and written.")
    return f"Right: {truth:,} bytes, counted from the tcgen05.st that the emulator executed."


add(
    Exercise(
        name="s01-rescale",
        grade=_grade_rescale,
        solution=lambda: 3 * 2 * 128 * 128 * 4,
        wrong=lambda: 4 * 2 * 128 * 128 * 4,
    )
)


def mystery(ptx: str) -> str:
    """Stage 1 with the wait for one barrier removed. Which one? An edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.drop_wait("o_full")(ptx)


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate

    ptx = attnbook.compile("baseline").ptx
    names = mutate.waits(ptx)
    if answer not in names:
        raise Wrong(f"{answer!r} is not a barrier of this kernel; it waits on {', '.join(names)}.")
    if mutate.drop_wait(answer)(ptx) != mystery(ptx):
        raise Wrong(f"With the wait for {answer} gone the kernel fails otherwise. Which data is read too early?")
    return f"Right: nobody waits for {answer}, so the CTA gives its TMEM back while the last product is being added."


add(Exercise(name="s01-bug", grade=_grade_mystery, solution=lambda: "o_full", wrong=lambda: "kv_full"))
