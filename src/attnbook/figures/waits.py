"""Who waits for whom: the barriers of a stage as arrows between its roles, from the stage's own facts."""

from __future__ import annotations

import re
from typing import Any

from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg

UNITS = {"load": "TMA", "mma": "tensor core"}  # what a role hands its work to; the unit arrives in the role's name
CLASSES = {"load": "load", "mma": "mma", "softmax": "softmax", "correction": "correction", "epilogue": "epilogue"}
BOX, GAP = 130.0, 181.0  # widths of a role and of the space between two


def role_of(who: str) -> str:
    """The role behind a barrier's "arrives" or "waits": "TMA (K, V)" is the load role, "softmax of 1" is softmax."""
    for role, unit in UNITS.items():
        if who.startswith(unit):
            return role
    return who.split()[0].rstrip(",")


def warps_text(warps: tuple[int, ...]) -> str:
    """Warps 0 to 3, or warp 4."""
    return f"warp {warps[0]}" if len(warps) == 1 else f"warps {warps[0]} to {warps[-1]}"


def barrier_edges(stage: Any) -> list[tuple[str, str, str, str]]:
    """(barrier, role that arrives, role that waits, what completes a phase) for each barrier of a stage with roles.

    ValueError for a stage without them.
    """
    module = stage_module(stage)
    if not hasattr(module, "ROLES"):
        raise ValueError(f"stage {stage_number(stage)} has no roles: every warp waits for everything; take stage 4 on")
    edges = []
    for name, b in module.BARRIERS.items():
        inside = re.search(r"\((.*)\)", b["arrives"])
        what = inside[1].replace("K^T", "Kᵀ") if inside else ""
        if b["bytes"]:
            what = f"{what}: {b['bytes']:,} bytes"
        elif b["count"] > 1:
            what = f"{b['count']} arrivals, one a warp"
        if str(b["phases"]) == "1":
            what = f"{what}, once"
        edges.append((name, role_of(b["arrives"]), role_of(b["waits"]), what or b["arrives"]))
    return edges


def barrier_graph(stage: Any = 4) -> Svg:
    """The roles of a stage side by side, and its barriers as arrows from who arrives to who waits."""
    module, number = stage_module(stage), stage_number(stage)
    edges = barrier_edges(stage)
    order = [r for r in ("load", "mma", "softmax", "correction", "epilogue") if r in module.ROLES]
    place = {role: i for i, role in enumerate(order)}
    used: dict[int, int] = {}
    rows = []
    for name, source, target, what in edges:
        a, b = place[source], place[target]
        gap = min(a, b)
        if abs(a - b) != 1:
            raise ValueError(
                f"barrier {name} of stage {number} joins {source} and {target}, which do not stand together"
            )
        rows.append((name, a, b, gap, used.get(gap, 0), what))
        used[gap] = used.get(gap, 0) + 1
    pitch, y0 = 50.0, 34.0
    height = pitch * max(used.values())
    circle = all(n in module.BARRIERS for n in ("kv_full", "s_full", "p_full", "kv_empty"))
    s = Svg(
        8 + BOX * len(order) + GAP * (len(order) - 1),
        y0 + height + 14,
        title=f"Stage {number}: who waits for whom",
        name="barrier_graph",
        desc="; ".join(f"{n}: {a} arrives, {b} waits" for n, a, b, _ in edges),
        caption=(
            f"The roles of stage {number}, and its {len(edges)} mbarriers as arrows from who arrives to who waits. "
            "Under a barrier's name stands what completes one of its phases. "
            + (
                "Follow `kv_full`, `s_full`, `p_full` and `kv_empty`: a circle. With one place for K and V and one "
                "for S there is one tile on it, and whoever has it is the only one at work."
                if circle
                else "An arrow to the right says that something is there, one to the left that a place is free or "
                "that an operand is ready."
            )
        ),
        source=f"from the facts of stage {number}, which a test holds against the compiled kernel",
    )
    for role, i in place.items():
        x = 4 + (BOX + GAP) * i
        s.rect(x, y0 - 26, BOX, height + 34, f"soft-{CLASSES[role]}", rx=6)
        s.text(x + BOX / 2, y0 + height / 2 - 14, role, "th", anchor="middle")
        s.text(x + BOX / 2, y0 + height / 2 + 10, warps_text(module.ROLES[role]), "t", anchor="middle")
        if role in UNITS:
            s.text(x + BOX / 2, y0 + height / 2 + 30, f"+ {UNITS[role]}", "t", anchor="middle")
    for name, a, b, gap, row, what in rows:
        y = y0 + pitch * row + 8
        left, right = (BOX + GAP) * gap + BOX + 8, (BOX + GAP) * (gap + 1)
        ends = [(left, y), (right, y)] if a < b else [(right, y), (left, y)]
        s.arrow(ends, f"r-{CLASSES[order[a]]}", width=2, head=10)
        s.text((left + right) / 2, y - 7, name, "tb", anchor="middle")
        s.text((left + right) / 2, y + 16, what, "ts", anchor="middle")
    return s
