"""Exercises of stage 4."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_TILES, _TILE = 4, 3


def _events() -> list[Any]:
    """The events of CTA 0 in an emulated run over _TILES KV tiles."""
    import attnbook

    trace = attnbook.run(
        "warp_specialization", batch=1, heads=1, seqlen=128 * _TILES, trace=True, device="emulator"
    ).trace
    return [e for e in trace.events if e.cta == 0]


def _grade_parity(answer: Any) -> str:
    from attnbook.compile import stage_module
    from attnbook.figures.still import barrier_names

    address = {name: a for a, name in barrier_names("warp_specialization").items()}["kv_empty"]
    load = f"warp{stage_module('warp_specialization').ROLES['load'][0]}"
    waits = [
        e.data["phase"]
        for e in _events()
        if e.row == load and e.name == "wait" and e.kind == "begin" and e.data["barrier"] == address
    ]
    phase = waits[_TILE - 1]  # the wait before tile 0 passes at once and leaves no event
    if answer[0] == _TILE:
        raise Wrong(f"Phase {_TILE} of kv_empty ends when tile {_TILE} has been used. It is not loaded yet.")
    if answer[0] != phase:
        raise Wrong(f"Not phase {answer[0]}. Which tile must be used up before, and from where do phases count?")
    if answer[1] != phase & 1:
        raise Wrong(f"The phase is right. Its parity is not {answer[1]}.")
    return (
        f"Right: tile {_TILE - 1} was used up in phase {phase}, parity {phase & 1}, as in the trace of an emulated run."
    )


add(Exercise("s04-parity", _grade_parity, solution=lambda: (2, 0), wrong=lambda: (3, 1)))


def _grade_arrivals(answer: Any) -> str:
    counts: dict[str, int] = {}
    total = 0
    for e in _events():
        if e.row.startswith("mbar:") and e.name == "init":
            counts[e.row] = e.data["pending"]
        elif e.row.startswith("mbar:") and e.name == "phase":
            total += counts[e.row]
    if answer == 4 * _TILES + 2:
        raise Wrong("You have counted phases. One of the barriers takes more than one arrival to end one.")
    if answer != total:
        raise Wrong(f"Not {answer}. For each barrier: how many phases, times how many arrivals?")
    return f"Right: {total}, counted from the phases of an emulated run. Bytes are not arrivals."


add(Exercise("s04-arrivals", _grade_arrivals, solution=lambda: 1 + 3 * 4 + 4 * 4 + 1, wrong=lambda: 18))


def mystery(ptx: str) -> str:
    """Stage 4 with one wait for the wrong parity: an edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.flip_parity("kv_empty")(ptx)


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate

    ptx = attnbook.compile("warp_specialization").ptx
    names = mutate.waits(ptx)
    if answer not in names:
        raise Wrong(f"{answer!r} is not a barrier of this kernel; it waits on {', '.join(names)}.")
    if mutate.flip_parity(answer)(ptx) != mystery(ptx):
        raise Wrong(
            f"Whoever waits for {answer} waits rightly: what it needs is not there. Walk back along the arrows."
        )
    return "Right: before the first tile the place is free, and that wait must pass at once."


add(Exercise("s04-bug", _grade_mystery, solution=lambda: "kv_empty", wrong=lambda: "kv_full"))
