"""Movable figure: a full/empty pipeline, moment by moment, from the trace of a real run."""

from __future__ import annotations

from dataclasses import dataclass

from attnbook import pipeline
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.memory import SHARED_RESERVED

SLOTS = (1, 2, 3)
FULL, EMPTY = SHARED_RESERVED + 512, SHARED_RESERVED + 512 + 32  # where the kernel's barriers stand


@dataclass(frozen=True)
class Moment:
    """What holds after one event. content: for each slot ("free" | "loading" | "tile", number of the tile);
    full, empty: phases; producer, consumer: what they wait for ("full 1", "empty 0") or an empty string."""

    text: str
    content: tuple[tuple[str, int], ...]
    full: tuple[int, ...]
    empty: tuple[int, ...]
    producer: str
    consumer: str


def moments(slots: int) -> list[Moment]:
    """The moments of a fair run of the pipeline with so many slots."""
    done = pipeline.run(pipeline.kernel(slots), trace=True)
    if done.run is None or done.kind != "right":
        raise RuntimeError(f"the pipeline of {slots} slots ended with {done.kind}: {done.message}")
    content, full, empty = [("free", -1)] * slots, [0] * slots, [0] * slots
    waits = {"warp0": "", "warp1": ""}
    asked, out = 0, []

    def note(text: str) -> None:
        out.append(Moment(text, tuple(content), tuple(full), tuple(empty), waits["warp0"], waits["warp1"]))

    for event in done.run.events:
        barrier = int(event.data.get("barrier", 0))
        if event.name == "wait" and event.row in waits and barrier:
            if event.kind == "end":
                waits[event.row] = ""
                continue
            name, slot = ("empty", (barrier - EMPTY) // 8) if barrier >= EMPTY else ("full", (barrier - FULL) // 8)
            phase = int(event.data["phase"])
            waits[event.row] = f"{name}[{slot}], phase {phase}"
            who = "producer" if event.row == "warp0" else "consumer"
            note(f"The {who} waits for the end of phase {phase} of {name}[{slot}], so for parity {phase & 1}.")
        elif event.name == "bulk copy" and event.kind == "begin":
            slot = (int(event.data["offset"]) - SHARED_RESERVED) // 128
            content[slot] = ("loading", asked)
            note(f"The producer announces 128 bytes on full[{slot}], arrives, and asks for tile {asked}.")
            asked += 1
        elif event.name == "phase":
            if barrier >= EMPTY:
                slot = (barrier - EMPTY) // 8
                tile = content[slot][1]
                empty[slot] = int(event.data["phase"])
                content[slot] = ("free", tile)
                note(f"32 lanes have read tile {tile} and arrive: empty[{slot}] enters phase {empty[slot]}.")
            else:
                slot = (barrier - FULL) // 8
                full[slot] = int(event.data["phase"])
                content[slot] = ("tile", content[slot][1])
                note(f"The last byte of tile {content[slot][1]} has come: full[{slot}] enters phase {full[slot]}.")
    return out


def pipeline_steps() -> Explorer:
    """Producer, ring and consumer of a small pipeline, for one, two and three slots."""
    runs = [moments(n) for n in SLOTS]
    longest = max(map(len, runs))

    def draw(which: int, at: int) -> tuple[Svg, str]:
        found = runs[which]
        m = found[min(at, len(found) - 1)]
        s = Svg(760, 300, title="A pipeline, moment by moment")
        for x, name, role, waits in ((8, "producer", "load", m.producer), (588, "consumer", "softmax", m.consumer)):
            s.rect(x, 60, 164, 96, f"soft-{role}", rx=6)
            s.text(x + 82, 86, name, "tl", anchor="middle")
            s.text(x + 82, 114, "waits for" if waits else "at work", "t", anchor="middle")
            s.text(x + 82, 136, waits, "tb", anchor="middle")
        s.text(380, 24, "the ring, in shared memory", "tl", anchor="middle")
        for slot, (state, tile) in enumerate(m.content):
            y = 44 + 82 * slot
            kind = {"free": "off", "loading": "r-wait", "tile": "m-smem"}[state]
            s.rect(220, y, 320, 34, f"{kind} line" if kind == "off" else kind, rx=4)
            words = {"free": "free", "loading": f"tile {tile} on its way", "tile": f"tile {tile}"}[state]
            s.text(380, y + 22, words, "tb", anchor="middle")
            s.text(230, y + 22, f"slot {slot}", "tc")
            for x, name, phase in ((220, "full", m.full[slot]), (388, "empty", m.empty[slot])):
                s.rect(x, y + 38, 152, 26, "cell s5")
                s.text(x + 76, y + 56, f"{name}: phase {phase}", "tc", anchor="middle")
            if state == "loading":
                s.arrow([(176, 108), (198, y + 17), (216, y + 17)], "r-load")
            if state == "tile":
                s.arrow([(544, y + 17), (562, y + 17), (584, 108)], "r-softmax")
        return s, f"**{min(at, len(found) - 1) + 1} of {len(found)}.** {m.text}"

    return explore(
        [
            Control("slots", "slots", [str(n) for n in SLOTS], "choice"),
            Control("moment", "moment", [str(n + 1) for n in range(longest)], limits=[len(found) for found in runs]),
        ],
        draw,
        name="pipeline_steps",
        title="A full/empty pipeline, moment by moment",
        caption=(
            "Six tiles go through a ring of slots. Each slot has two barriers: `full` ends a phase when the bytes are "
            "there, `empty` when all 32 readers are done. With one slot somebody always waits. With two, the next "
            "tile is asked for before this one is read. The consumer waits for the phase of its lap, the producer for "
            "the one before, which at the start has never been and counts as over."
        ),
        source="emulated: the trace of the kernel in this chapter, fair schedule",
        start=[1, 0],
    )
