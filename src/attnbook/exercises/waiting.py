"""Exercises of the chapter "Waiting well"."""

from __future__ import annotations

from typing import Any

from attnbook import pipeline
from attnbook.exercises import Exercise, Wrong, add


def _grade_parity(answer: Any) -> str:
    tile, slots = 7, 3
    slot, lap = tile % slots, tile // slots
    truth = (slot, lap & 1, (lap & 1) ^ 1)
    for got, right, why in zip(
        answer,
        truth,
        (
            "The slot is the tile's number modulo the number of slots.",
            "In which lap of the ring is it? Laps count from 0.",
            "The producer waits for the end of the lap before.",
        ),
        strict=True,
    ):
        if int(got) != right:
            raise Wrong(f"Not {got}. {why}")
    return f"Right: tile {tile} is in lap {lap} of slot {slot}."


add(Exercise("waiting-parity", _grade_parity, solution=lambda: (1, 0, 1), wrong=lambda: (1, 1, 0)))


def _grade_bytes(answer: Any) -> str:
    from attnbook.figures.traces import stage_run

    announced = {int(e.data["bytes"]) for e in stage_run(1).trace.events if e.name == "expect"}
    if int(answer) == min(announced):
        raise Wrong("That is one tile. Which two share this barrier?")
    if int(answer) != max(announced):
        raise Wrong(f"Not {answer}. Count elements, and the bytes of each.")
    return f"Right: the run of stage 1 announces {max(announced):,} bytes for each KV tile."


add(Exercise("waiting-bytes", _grade_bytes, solution=lambda: 65536, wrong=lambda: 32768))

_BUGGY = pipeline.broken("the slot is freed before it is read")


def _grade_bug(answer: Any) -> str:
    for needed in ("mbarrier.arrive.shared::cta.b64 %rd4", "ld.shared.u32 %r17", "WAIT_FULL", "WAIT_EMPTY"):
        if needed not in str(answer):
            raise Wrong(f"The pipeline must still load, wait, read and free: {needed} is gone.")
    outcome = pipeline.run(str(answer), races=True)
    if outcome.kind != "right":
        raise Wrong(f"{outcome.kind}: {outcome.message.splitlines()[0]}")
    if outcome.findings:
        raise Wrong(f"The sum is right, and yet: {outcome.findings[0].splitlines()[0]}")
    return "Right: first the read, then the arrival that lets the producer overwrite."


add(
    Exercise(
        "waiting-bug",
        _grade_bug,
        solution=lambda: pipeline.kernel(2),
        wrong=lambda: _BUGGY.replace("], 32;", "], 33;"),
        text=_BUGGY,
    )
)
