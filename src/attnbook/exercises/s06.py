"""Exercises of stage 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnbook.exercises import Exercise, Wrong, add

_TILE = 7


def _grade_slot(answer: Any) -> str:
    from attnbook.compile import stage_module

    module = stage_module("kv_ring")
    token = 2 * _TILE + 1
    slot, parity = module.ring(token)
    if answer == module.ring(_TILE):
        raise Wrong(f"That is token {_TILE}. A KV tile is two tokens.")
    if answer == module.ring(token - 1):
        raise Wrong("That is K of the same tile.")
    if answer[0] != slot:
        raise Wrong(f"Not slot {answer[0]}: number the tokens K0, V0, K1, V1, and count slots in turn.")
    if answer[1] != parity:
        raise Wrong("The slot is right. In which lap is it, counted from 0?")
    return f"Right: token {token}, lap {token // module.KV_SLOTS} of slot {slot}."


add(Exercise("s06-slot", _grade_slot, solution=lambda: (0, 1), wrong=lambda: (0, 0)))


def _grade_slots(answer: Any) -> str:
    from attnbook.chips import B200
    from attnbook.compile import stage_module

    module = stage_module("kv_ring")
    ring = module.KV_SLOTS * module.TILE_BYTES
    others = max(o + n for o, n in module.SMEM.values()) - ring
    slots = int(B200.smem_cta_bytes - others) // module.TILE_BYTES
    if answer == int(B200.smem_cta_bytes) // module.TILE_BYTES:
        raise Wrong("And where are the Q tiles?")
    if answer != slots:
        raise Wrong(f"Not {answer}: what do two Q tiles leave of the 227 KiB?")
    return f"Right: {slots} slots of {module.TILE_BYTES:,} bytes beside {others:,} bytes of the rest."


add(Exercise("s06-slots", _grade_slots, solution=lambda: 5, wrong=lambda: 7))


def mystery(ptx: str) -> str:
    """Stage 6 without one of its commits: an edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.drop_commit(5)(ptx)


def who_waits(edit: Callable[[str], str], seqlen: int = 384) -> dict[str, tuple[str, int]]:
    """What each role of the edited kernel waits for when nothing moves any more: role -> (barrier, phase)."""
    import attnbook
    import ptxemu
    from attnbook.figures.still import barrier_names
    from attnbook.widgets.roles import roles_of

    names = barrier_names("kv_ring")
    try:
        attnbook.run("kv_ring", batch=1, heads=1, seqlen=seqlen, ptx_edit=edit, device="emulator")
    except ptxemu.DeadlockError as error:
        waits = {w["warp"]: w for w in error.waiting if w["barrier"] in names and w["cta"] in (0, (0, 0, 0))}
        roles = {role: warps[0] for role, warps in roles_of("kv_ring").items()}
        return {r: (names[waits[w]["barrier"]], waits[w]["phase"]) for r, w in roles.items() if w in waits}
    raise ValueError("the edited kernel does not hang")


def _grade_mystery(answer: Any) -> str:
    from attnbook.compile import stage_module

    slots = stage_module("kv_ring").KV_SLOTS
    barrier, phase = who_waits(mystery)["load"]
    slot = int(barrier[-1])
    token = slot + slots * (phase + 1)
    if answer[0] == token - slots:
        raise Wrong(f"Token {answer[0]} has been loaded: its slot is not given back. Who comes after it in that slot?")
    if answer[0] != token:
        raise Wrong(f"Not token {answer[0]}. Which slot does the load warp wait for, and in which lap?")
    last = "PV" if (token - slots) % 2 else "QK"
    if answer[1] != last:
        raise Wrong("The token is right. What stood in that slot before, and which product reads that?")
    return f"Right: after {last} of tile {(token - slots) // 2} nobody gives slot {slot} back."


add(Exercise("s06-bug", _grade_mystery, solution=lambda: (4, "PV"), wrong=lambda: (1, "PV")))
