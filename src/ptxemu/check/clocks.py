"""Who knows of what: vector clocks of warps, and what barriers pass on.

PTX ISA 8.9.4 "Memory synchronization", 8.9.5 "Causality order" (base causality is transitive, so clocks are joined);
8.6 "Proxies"; 9.7.16.6 "Memory Consistency Model for 5th generation of TensorCore operations".

A *component* is something whose progress is counted: a warp (the accesses of all its lanes together, and apart from
them those of single lanes), a warp's tcgen05.st and tcgen05.ld, the MMAs of a thread (issued, and completed), the bulk
groups of a thread, the phases of an mbarrier. An access is known by one component and its count, its *epoch*.
Components are numbered within a cluster; the first 4 W of a cluster of W warps are fixed.

What a warp knows is a table [row, component]. The rows are ways of being ordered:
    V  happens before (base causality)
    S  happens before, with a fence.proxy.async for shared memory on the way     G  the same for global memory
    T  ordered for tcgen05 instructions only (fences around a relaxed synchronisation)
    X  comes earlier in execution, behind a tcgen05.fence::before_thread_sync: ordered for tcgen05 after an
       after_thread_sync
    B  what the warp knew at its latest tcgen05.fence::before_thread_sync
    I  mbarrier objects that are initialised, behind a fence.mbarrier_init
    E  comes earlier in execution: says nothing of memory, only for reports
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

V, S, G, T, X, B, I, E = range(8)  # noqa: E741
ROWS = 8
FULL, SOME = 0, 1  # views of a warp: all lanes together; some lanes, which know less of what the others did
SPARE = 48  # components of a cluster besides those of its warps, to begin with

Table = NDArray[np.int32]


class Clocks:
    """Tables of all warps of the resident CTAs: `know` is int32 [CTA, warp, view, row, component]."""

    def __init__(self, ctas: int, warps: int, cluster_size: int, strict: bool = False) -> None:
        self.strict = strict  # tcgen05 instructions are ordered by their own fences only
        self.ctas, self.warps, self.cluster_size = ctas, warps, cluster_size
        self.fixed = cluster_size * warps
        self.width = 4 * self.fixed + SPARE
        self.names: list[dict[Hashable, int]] = [{} for _ in range(ctas // cluster_size)]
        self.know = np.zeros((ctas, warps, 2, ROWS, self.width), np.int32)
        self.version = np.zeros((ctas, warps), np.int64)  # grows when a warp learns something
        self.now = np.ones((ctas, warps, 2), np.int32)  # the clock of a warp: of all lanes, of single lanes
        for cta in range(ctas):
            for warp in range(warps):
                self._show(cta, warp)

    # ---- components

    def of_warp(self, cta: int, warp: int) -> int:
        """The component of a warp's accesses; + fixed: of single lanes, + 2 fixed: tcgen05.st, + 3 fixed:
        tcgen05.ld."""
        return cta % self.cluster_size * self.warps + warp

    def component(self, cta: int, key: Hashable) -> int:
        """A further component of the CTA's cluster; new the first time."""
        names = self.names[cta // self.cluster_size]
        found = names.get(key)
        if found is None:
            found = names[key] = 4 * self.fixed + len(names)
            if found >= self.width:
                self._grow()
        return found

    def _grow(self) -> None:
        old, self.width = self.width, self.width + max(SPARE, self.width // 2)
        wide = np.zeros((*self.know.shape[:-1], self.width), np.int32)
        wide[..., :old] = self.know
        self.know = wide

    def table(self) -> Table:
        """What nobody has told anything yet."""
        return np.zeros((ROWS, self.width), np.int32)

    def fit(self, table: Table) -> Table:
        """The table with as many components as there are now."""
        if table.shape[1] == self.width:
            return table
        wide = self.table()
        wide[:, : table.shape[1]] = table
        return wide

    # ---- a warp's own clock

    def _show(self, cta: int, warp: int) -> None:
        i = self.of_warp(cta, warp)
        self.know[cta, warp, FULL, V, i] = self.now[cta, warp, FULL]
        self.know[cta, warp, SOME, V, i + self.fixed] = self.now[cta, warp, SOME]

    def step(self, cta: int, warp: int, view: int) -> None:
        """Accesses from now on are later than what has been told so far."""
        if view == FULL:
            self.now[cta, warp, FULL] += 1
        self.now[cta, warp, SOME] += 1
        self._show(cta, warp)

    def epoch(self, cta: int, warp: int, view: int) -> tuple[int, int]:
        """The epoch of an access made now."""
        i = self.of_warp(cta, warp)
        return (i if view == FULL else i + self.fixed), int(self.now[cta, warp, view])

    def tell(self, cta: int, warp: int, view: int) -> Table:
        """All that the warp (or these lanes of it) can pass on. A fresh table."""
        if view == FULL:
            return np.maximum(self.know[cta, warp, FULL], self.know[cta, warp, SOME])
        return self.know[cta, warp, SOME].copy()

    # ---- edges

    def release(self, cta: int, warp: int, view: int, into: Table, relaxed: bool = False) -> None:
        """A warp arrives at something that keeps its knowledge in `into`. relaxed: no release (PTX ISA 8.8)."""
        told = self.tell(cta, warp, view)
        if relaxed:
            np.maximum(into[X], told[B], out=into[X])
            np.maximum(into[I], told[I], out=into[I])
        else:
            if self.strict:
                told[T] = 0
            np.maximum(into, told, out=into)
            np.maximum(into[X], told[B if self.strict else V], out=into[X])
            np.maximum(into[X], told[B], out=into[X])
        np.maximum(into[E], told[V], out=into[E])
        self.step(cta, warp, view)

    def acquire(self, cta: int, warp: int, view: int, known: Table, relaxed: bool = False) -> None:
        """A warp has waited for what `known` was told. relaxed: no acquire."""
        self.version[cta, warp] += 1
        known = self.fit(known)
        mine = self.know[cta, warp] if view == FULL else self.know[cta, warp, SOME:]
        if relaxed:
            for row in (X, I, E):
                np.maximum(mine[:, row], known[row], out=mine[:, row])
        else:
            np.maximum(mine, known, out=mine)
        self._show(cta, warp)

    def join_lanes(self, cta: int, warp: int) -> None:
        """The lanes of a warp have synchronised (bar.warp.sync and all barriers)."""
        self.version[cta, warp] += 1
        mine = self.know[cta, warp]
        mine[...] = np.maximum(mine[FULL], mine[SOME])
        self.step(cta, warp, FULL)

    def proxy_fence(self, cta: int, warp: int, view: int, rows: tuple[int, ...]) -> None:
        """fence.proxy.async: whatever happened before it is ordered for the async proxy too."""
        self.version[cta, warp] += 1
        mine = self.know[cta, warp]
        for row in rows:
            if view == FULL:
                np.maximum(mine[FULL, row], mine[FULL, V], out=mine[FULL, row])
            np.maximum(mine[SOME, row], mine[SOME, V], out=mine[SOME, row])
        self.step(cta, warp, view)

    def before_sync(self, cta: int, warp: int, view: int) -> None:
        """tcgen05.fence::before_thread_sync."""
        mine = self.know[cta, warp] if view == FULL else self.know[cta, warp, SOME:]
        mine[:, B] = mine[:, T] if self.strict else np.maximum(mine[:, V], mine[:, T])

    def after_sync(self, cta: int, warp: int, view: int) -> None:
        """tcgen05.fence::after_thread_sync."""
        self.version[cta, warp] += 1
        mine = self.know[cta, warp] if view == FULL else self.know[cta, warp, SOME:]
        np.maximum(mine[:, T], mine[:, X], out=mine[:, T])

    def init_fence(self, cta: int, warp: int, view: int) -> None:
        """fence.mbarrier_init: objects initialised so far."""
        mine = self.know[cta, warp] if view == FULL else self.know[cta, warp, SOME:]
        np.maximum(mine[:, I], mine[:, V], out=mine[:, I])
        self.step(cta, warp, view)

    def done(self, cta: int, warp: int, view: int, component: int, count: int) -> None:
        """These lanes have waited for the end of `count` asynchronous operations of a component."""
        self.version[cta, warp] += 1
        for row in (V, T):
            mine = self.know[cta, warp, view, row]
            if mine[component] < count:
                mine[component] = count
