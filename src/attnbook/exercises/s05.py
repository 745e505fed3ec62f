"""Exercises of stage 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_SEQLEN = 512


def _grade_bytes(answer: Any) -> str:
    import attnbook

    trace = attnbook.run("two_q_tiles", batch=1, heads=1, seqlen=_SEQLEN, trace=True, device="emulator").trace
    loads = [e.data for e in trace.events if e.row == "tma" and e.kind == "begin" and "tensor" in e.data]
    loaded = sum(d["bytes"] for d in loads if d["tensor"] in ("k", "v"))
    if answer == 2 * loaded:
        raise Wrong("That is stage 4, with a CTA for every 128 queries.")
    if answer == loaded // 2:
        raise Wrong("K or V? Both are loaded.")
    if answer != loaded:
        raise Wrong(f"Not {answer}: how many CTAs are there, how many KV tiles does each walk over?")
    return f"Right: {loaded:,} bytes, counted from the loads of an emulated run."


add(Exercise("s05-bytes", _grade_bytes, solution=lambda: 524288, wrong=lambda: 1048576))


def _grade_longest(answer: Any) -> str:
    from attnbook.figures.schedule import steady

    longest = max(s for s in range(0, 2049, 16) if steady("two_q_tiles", s)[1] == 1)
    if answer == 1024:
        raise Wrong("With as long a softmax the tensor core works 80 % of the time. What stands between QK and its PV?")
    if answer != longest:
        raise Wrong(f"Not {answer}. Slide the softmax down until no gap is left between the products.")
    return f"Right: with {longest} cycles the tensor core is always at work, and with more it is not."


add(Exercise("s05-longest", _grade_longest, solution=lambda: 512, wrong=lambda: 1024))


def mystery(ptx: str) -> str:
    """Stage 5 with one wait removed: an edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.drop_wait("p_full", 0)(ptx)


def wrong_rows(edit: Callable[[str], str], seqlen: int) -> list[float]:
    """For each 128 queries, the share of rows in which the edited kernel's O differs from the kernel's own."""
    import attnbook

    good, bad = (
        attnbook.run("two_q_tiles", batch=1, heads=1, seqlen=seqlen, ptx_edit=e, device="emulator").o
        for e in (None, edit)
    )
    differs = (good != bad).any(dim=-1)[0, :, 0]
    return [float(part.float().mean()) for part in differs.split(128)]


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate
    from attnbook.compile import stage_module

    names = stage_module("two_q_tiles").BARRIERS
    if answer not in names:
        raise Wrong(f"{answer!r} is not a barrier of this stage; they are {', '.join(names)}.")
    name, q = str(answer)[:-1], str(answer)[-1]
    if q not in "01":
        raise Wrong(f"{answer} serves both Q tiles. Which rows are wrong?")
    ptx = attnbook.compile("two_q_tiles").ptx
    if mutate.waits(ptx).count(name) == 1:
        raise Wrong("The softmax warps of both Q tiles run the same text. Who has a wait for one Q tile alone?")
    if mutate.drop_wait(name, int(q))(ptx) != mystery(ptx):
        raise Wrong(f"Without the wait for {answer} other rows are wrong.")
    return "Right: P0 V starts before P0 is there, and O0 is wrong. Q tile 1 does not notice."


add(Exercise("s05-bug", _grade_mystery, solution=lambda: "p_full0", wrong=lambda: "p_full1"))
