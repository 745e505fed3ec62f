"""Movable figure of the ring of K/V slots: what stands where, and how far the loads are ahead, moment by moment."""

from __future__ import annotations

from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.slots import Stay, places_of, stays
from attnbook.figures.svg import Svg
from attnbook.figures.traces import stage_trace
from attnbook.widgets.explorer import Control, Explorer, explore

STATES = ("free", "on its way", "there", "in use")
CLASSES = {"free": "off", "on its way": "r-load", "there": "soft-load", "in use": "r-mma"}


def moments(row: list[Stay]) -> list[tuple[float, str, int]]:
    """(when, what happens, token) in order: "asked", "there", "used" and "free" of every token."""
    kinds = ("asked", "there", "used", "free")
    return sorted((getattr(s, k), k, t) for t, s in enumerate(row) for k in kinds if getattr(s, k))


def state(stay: Stay, seen: set[str]) -> str:
    """What a token's place is like when these of its moments have passed."""
    if "free" in seen:
        return "free"
    return "in use" if "used" in seen else "there" if "there" in seen else "on its way" if seen else "free"


def ring_steps(stage: Any = 6, *, tiles: int = 4) -> Explorer:
    """The tokens of K and V through a stage's slots, step by step through an emulated run.

    ValueError for a stage without a ring.
    """
    number = stage_number(stage)
    slots = list(places_of(stage))
    if "K" in slots:
        raise ValueError(f"stage {number} has one place for K and one for V, and no ring; take stage 6 on")
    row = stays(stage_trace(stage, seqlen=128 * tiles), stage)
    told = moments(row)
    n = len(slots)
    words = {
        "asked": "the load warp asks for {0}, token {1}, into slot {2}",
        "there": "{0} has arrived in slot {2}: `kv_full{2}` ends its phase {3}",
        "used": "the tensor core begins to read {0} in slot {2}",
        "free": "{0} is used up: `kv_empty{2}` ends its phase {3}, and slot {2} is free",
    }
    x0, w = 8.0, 744.0
    cell = w / len(row)

    def draw(at: int) -> tuple[Svg, str]:
        seen: dict[int, set[str]] = {t: set() for t in range(len(row))}
        for _, kind, token in told[: at + 1]:
            seen[token].add(kind)
        _, now, token = told[at]
        asked = sum("asked" in s for s in seen.values())
        freed = sum("free" in s for s in seen.values())
        s = Svg(760, 304, title="Tokens of K and V through the slots")
        s.text(x0, 20, "tokens, in the order of loading and of use", "tl")
        for t, stay in enumerate(row):
            kind = state(stay, seen[t])
            cls = "off" if kind == "free" else CLASSES[kind]
            ink = " on" if kind in ("on its way", "in use") else ""
            x = x0 + cell * t
            s.rect(x + 1, 34, cell - 2, 44, cls, rx=4)
            s.text(x + cell / 2, 53, stay.name, f"tb{ink}", anchor="middle")
            done = "used up" if "free" in seen[t] else "not asked for" if not seen[t] else kind
            s.text(x + cell / 2, 70, done, f"tc{ink}", anchor="middle")
            if t == token:
                s.rect(x, 32, cell, 48, "pick", rx=5)
        a, b = x0 + cell * freed, x0 + cell * asked
        s.bracket(a + 2, 94, b - 2, 94)
        middle = min(max((a + b) / 2, x0 + 150), x0 + w - 150)
        s.text(middle, 116, f"asked for and not used up: {asked - freed} of {n} slots", "t", anchor="middle")
        wide = (w - 24) / n
        for i, name in enumerate(slots):
            x = x0 + (wide + 12) * i
            mine = [t for t, stay in enumerate(row) if stay.place == name]
            here = next((t for t in reversed(mine) if seen[t]), None)
            kind = "free" if here is None else state(row[here], seen[here])
            ink = " on" if kind in ("on its way", "in use") else ""
            s.rect(x, 140, wide, 78, CLASSES[kind] if kind != "free" else "m-smem", rx=6)
            s.text(x + 12, 162, f"slot {i}", f"tb{ink}")
            label = row[here].name if here is not None and kind != "free" else "free"
            s.text(x + wide / 2, 190, label, f"tl{ink}", anchor="middle")
            s.text(x + wide / 2, 209, "" if kind == "free" else kind, f"tc{ink}", anchor="middle")
            if name == row[token].place:
                s.rect(x - 3, 137, wide + 6, 84, "pick", rx=8)
            for k, (barrier, moment) in enumerate((("kv_full", "there"), ("kv_empty", "free"))):
                y = 238 + 34 * k
                phase = sum(moment in seen[t] for t in mine)
                s.rect(x, y, wide, 28, "m-smem", rx=4)
                s.text(x + 10, y + 19, f"{barrier}{i}", "tb")
                s.text(x + wide - 10, y + 19, f"phase {phase}, parity {phase & 1}", "t", anchor="end")
                if name == row[token].place and now == moment:
                    s.rect(x, y, wide, 28, "mark", rx=4)
        text = words[now].format(row[token].name, token, token % n, token // n)
        return s, f"**Moment {at + 1} of {len(told)}**: {text}. Lap {token // n} of slot {token % n}."

    return explore(
        [Control("step", "moment", [str(i + 1) for i in range(len(told))])],
        draw,
        name="ring_steps",
        title="The ring of K/V slots",
        caption=(
            f"Above, the tokens of {tiles} KV tiles in their order; below, the {n} slots and their barriers, in which "
            f"token t goes to slot t mod {n}. Blue is on its way, pale blue is there, orange is being read. "
            "The bracket spans what has been asked for and is not used up: it is as long as the ring whenever the load "
            "warp can make it so. A frame marks where something happens."
        ),
        source=f"from the events of an emulated run of stage {number}, CTA 0; the steps say nothing of time",
        start=[8],
        interval=900,
    )
