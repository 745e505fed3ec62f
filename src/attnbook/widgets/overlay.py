"""P written over the scores it came from: which order is safe, worked out cell by cell."""

from __future__ import annotations

from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore

KEYS, CHUNK = 128, 8  # scores of a row; scores that one load brings
PER_CELL = 2  # probabilities of 16 bits in a TMEM cell of 32


def overlay(first: int, order: list[int]) -> list[tuple[set[int], set[int], set[int]]]:
    """The history of one TMEM row while P is written over S, chunk by chunk.

    first: the column where P begins. order: the chunks of 8 scores in the order in which they are read.
    Returns for each step (columns whose score is still unread, columns that hold P, columns of scores that were
    overwritten before they were read: the damage), after the step. Columns are counted from the start of S.
    """
    unread, holds, damage = set(range(KEYS)), set(), set()
    history = []
    for chunk in order:
        unread -= set(range(CHUNK * chunk, CHUNK * (chunk + 1)))
        start = first + chunk * CHUNK // PER_CELL
        stored = set(range(start, start + CHUNK // PER_CELL))
        damage |= stored & unread
        unread -= stored  # what is overwritten cannot be read any more
        holds |= stored
        history.append((set(unread), set(holds), set(damage)))
    return history


def tmem_overlay() -> Explorer:
    """One row of S becoming P: three placements and orders, sixteen steps each."""
    up, down = list(range(16)), list(range(15, -1, -1))
    choices = [
        ("P at 0, left to right", 0, up, "what stage 2 does"),
        ("P at 0, right to left", 0, down, "the same place, the other order"),
        ("P at 64, right to left", 64, down, "the other half, the other order"),
    ]
    x0, w = 8.0, 744.0
    cell = w / KEYS

    def draw(which: int, at: int) -> tuple[Svg, str]:
        _, first, order, what = choices[which]
        history = overlay(first, order)
        unread, holds, damage = history[at]
        s = Svg(760, 150, title="One row of TMEM, S becoming P")
        s.text(x0, 18, "one row of S in TMEM: 128 columns, one score each", "tl")
        s.text(x0 + w, 18, what, "ts", anchor="end")
        chunk = order[at]
        s.bracket(x0 + cell * CHUNK * chunk, 54, x0 + cell * CHUNK * (chunk + 1), 54)
        label_x = min(max(x0 + cell * CHUNK * (chunk + 0.5), x0 + 40), x0 + w - 40)
        s.text(label_x, 46, "read now", "ts", anchor="middle")
        for column in range(KEYS):
            kind = "m-tmem" if column in unread else "off"
            if column in holds:
                kind = "r-softmax"
            s.rect(x0 + cell * column, 62, cell, 44, f"{kind} cell")
            if column in damage:
                s.rect(x0 + cell * column, 106, cell, 6, "fill-ink")
        for column in range(0, KEYS + 1, 32):
            anchor = "start" if column == 0 else "end" if column == KEYS else "middle"
            s.text(x0 + cell * column, 124, column, "ts", anchor=anchor)
        s.text(x0, 144, "filled: P", "ts")
        s.text(x0 + 90, 144, "outlined: score not yet read", "ts")
        s.text(x0 + 300, 144, "grey: score used up", "ts")
        s.text(x0 + 460, 144, "black edge: overwritten unread", "ts")
        where = first + chunk * CHUNK // PER_CELL
        fate = f"{len(damage)} scores lost so far" if damage else "nothing lost"
        step = (
            f"**Step {at + 1}**: reads scores {CHUNK * chunk} to {CHUNK * chunk + 7}, writes their probabilities to "
            f"columns {where} to {where + 3}: {fate}."
        )
        return s, step

    return explore(
        [
            Control("order", "order", [c[0] for c in choices], "choice"),
            Control("step", "step", [f"{i + 1} of 16" for i in range(16)]),
        ],
        draw,
        name="tmem_overlay",
        title="P takes the place of S",
        caption=(
            "A thread reads eight scores of its row, and eight probabilities need four cells. Written from the left, P "
            "stays behind the reader and covers only what is used up. In the other order, from the same place, it "
            "runs into scores that nobody has read. From the other half it is the right-to-left order that is safe."
        ),
        source="computed cell by cell; stage 2's test holds the kernel to the first",
        interval=500,
    )
