"""Wrapped semantics: the registry, and what wrappers share.

`instrument` is called for each instruction of a checked program when it is decoded, before guards and divergence are
dealt with, so that a wrapper sees the bundle as the semantics do: `w.mask` are the lanes that take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from ..findings import Access
from ..isa import Decode
from ..isa.mbarrier import barrier_address
from ..memory import SHARED_RANK_SHIFT, SHARED_RESERVED
from .clocks import SOME

Run = Callable[[Any], Any]
Wrap = Callable[[Decode, Run], Run]
WRAPPERS: dict[str, Wrap] = {}


def wraps(*names: str) -> Callable[[Wrap], Wrap]:
    """Register the wrapper of these instructions (by the name of their family)."""

    def register(wrap: Wrap) -> Wrap:
        for name in names:
            WRAPPERS[name] = wrap
        return wrap

    return register


def instrument(d: Decode, semantics: Any) -> Any:
    """The semantics with what the checker has to be told; as they are for what touches no memory."""
    wrap = WRAPPERS.get(d.name)
    return semantics if wrap is None or not callable(semantics) else wrap(d, semantics)


def parts_of(d: Decode) -> list[str]:
    return d.ins.opcode.split(".")


def size_of(parts: list[str]) -> int:
    """Bytes of an access, from its type and vector length."""
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4", "v8")), 1)
    kind = parts[-1]
    if kind.endswith("x2"):
        return 4 * count
    if kind in ("f16", "bf16"):
        return 2 * count
    return int(kind[1:]) // 8 * count


def shared_cells(check: Any, w: Any, address: np.ndarray, size: int) -> np.ndarray | None:
    """Flat cells of an access to shared memory, (warps, CTAs, 32, k); None for the system's part of it."""
    m, g = check.machine, check.granule
    address = np.broadcast_to(address, w.shape).astype(np.int64)
    offset = address & (1 << SHARED_RANK_SHIFT) - 1
    some = offset if w.mask is None else offset[w.mask]
    if not some.size or int(some.min()) < SHARED_RESERVED or int(some.max()) + size > m.shared.size:
        return None  # the system's part, or a fault that the instruction itself reports
    rank = address >> SHARED_RANK_SHIFT
    if int((rank if w.mask is None else rank[w.mask]).max()) >= m.cluster_size:
        return None
    owner = w.cta - w.cta % m.cluster_size + rank
    first = owner * check.row + offset // g
    if w.mask is not None:
        first = np.where(w.mask, first, 0)
    return np.asarray(first[..., None] + np.arange(-(-size // g)))


def each(w: Any, value: Callable[[int, int, tuple[int, int]], int]) -> np.ndarray:
    """A number for each warp of a bundle, (warps, CTAs)."""
    found = np.zeros(w.shape[:2], np.int32)
    for cta, warp, at in w.each_warp():
        found[at] = value(cta, warp, at)
    return found


def barriers_of(
    d: Decode, operand: ptx.Operand
) -> Callable[[Any], list[tuple[int, int, int, tuple[int, int], np.ndarray]]]:
    """A function: bundle -> (CTA, warp, view, (owner, offset), every lane) for every barrier that a warp uses."""
    address = barrier_address(d, operand)

    def find(w: Any) -> list[tuple[int, int, int, tuple[int, int], np.ndarray]]:
        m = w.machine
        where = np.broadcast_to(address(w), w.shape)
        found = []
        for cta, warp, at in w.each_warp():
            mine = where[at] if w.mask is None else where[at][w.mask[at]]
            several = np.unique(mine).tolist() if (mine != mine[0]).any() else [int(mine[0])]
            view = m.check.view_of(w, at) if len(several) == 1 else SOME
            for a in several:
                rank, offset = a >> SHARED_RANK_SHIFT, a & (1 << SHARED_RANK_SHIFT) - 1
                lanes = where[at] == a if w.mask is None else (where[at] == a) & w.mask[at]
                found.append((cta, warp, view, (cta - cta % m.cluster_size + rank, offset), lanes))
        return found

    return find


def barrier_access(
    w: Any, cta: int, warp: int, view: int, lanes: np.ndarray, ins: ptx.Instr, what: str, offset: int
) -> Any:
    lane = int(lanes.argmax()) if view == SOME else None
    source = str(ins.source) if ins.source else None
    return Access(what, w.machine.linear(cta), warp, lane, ins.line, source, "mbarrier", (offset, offset + 8), True,
                  "generic")  # fmt: skip
