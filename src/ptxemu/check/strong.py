"""Synchronisation through memory: strong accesses, their release and acquire, and fences around relaxed ones.

PTX ISA 8.4 "Operation types", 8.8 "Release and Acquire Patterns", 8.9.2 "Observation Order" (an atomic
read-modify-write carries on what an earlier release has put there; a plain store does not).

Within a cluster, clocks are passed on. Between clusters they mean nothing, and something coarser is kept: a cluster
counts its releases, and knows up to which release of each other cluster it has acquired, whatever warp did it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .clocks import FULL, SOME, Table

Who = tuple[int, int, int]  # CTA, warp, view


class Strong:
    """What has been released at which address."""

    def __init__(self, check: Any) -> None:
        self.check = check
        self.tables: dict[Any, dict[int, Table]] = {}  # address -> cluster -> what was released there
        self.stamps: dict[Any, dict[int, int]] = {}  # address -> cluster -> release that can be seen there
        self.fenced: dict[Who, tuple[Table | None, dict[int, int]]] = {}  # at the latest fence of a warp
        self.wanted: dict[Who, Table] = {}  # seen by relaxed reads since then
        self.wanted_stamps: dict[Who, dict[int, int]] = {}
        clusters = check.machine.ctas // check.machine.cluster_size
        self.now = [1] * clusters  # releases of each cluster so far, plus one
        self.known: list[dict[int, int]] = [{} for _ in range(clusters)]

    def _released(self, cluster: int) -> dict[int, int]:
        """What a release of this cluster tells others; accesses from now on are later."""
        self.known[cluster][cluster] = self.now[cluster]
        self.now[cluster] += 1
        return dict(self.known[cluster])

    def _places(self, w: Any, address: np.ndarray, shared: bool) -> list[tuple[Who, int, list[Any]]]:
        """(warp, cluster, addresses) of a bundle's access."""
        check = self.check
        found = []
        address = np.broadcast_to(address, w.shape)
        for cta, warp, at in w.each_warp():
            mine = np.unique(address[at] if w.mask is None else address[at][w.mask[at]]).tolist()
            cluster = cta // check.machine.cluster_size
            found.append(((cta, warp, check.view_of(w, at)), cluster, [(cluster, a) if shared else a for a in mine]))
        return found

    def write(self, w: Any, address: np.ndarray, shared: bool, atomic: bool, releases: bool, scope: str) -> None:
        """A strong store, or the store of an atomic; before it is done."""
        clocks = self.check.clocks
        for who, cluster, places in self._places(w, address, shared):
            if releases:
                told, stamps = clocks.tell(*who), self._released(cluster)
                clocks.step(*who)
            else:
                told, stamps = self.fenced.get(who) or self.fenced.get((*who[:2], SOME), (None, {}))
            for place in places:
                if not atomic:
                    self.tables[place], self.stamps[place] = {}, {}
                if told is None:
                    continue
                tables = self.tables.setdefault(place, {})
                old = tables.get(cluster)
                tables[cluster] = clocks.fit(told) if old is None else np.maximum(clocks.fit(old), clocks.fit(told))
                if scope in ("gpu", "sys"):
                    _merge(self.stamps.setdefault(place, {}), stamps)

    def read(self, w: Any, address: np.ndarray, shared: bool, acquires: bool) -> None:
        """A strong load, or the load of an atom; after it is done."""
        clocks = self.check.clocks
        for who, cluster, places in self._places(w, address, shared):
            for place in places:
                known = self.tables.get(place, {}).get(cluster)
                stamps = self.stamps.get(place, {})
                if acquires:
                    if known is not None:
                        clocks.acquire(*who, known)
                    _merge(self.known[cluster], stamps)
                    continue
                if known is not None:
                    old = self.wanted.get(who)
                    self.wanted[who] = known if old is None else np.maximum(clocks.fit(old), clocks.fit(known))
                _merge(self.wanted_stamps.setdefault(who, {}), stamps)

    def fence(self, cta: int, warp: int, view: int) -> None:
        """fence.acq_rel, fence.sc, membar: what relaxed reads have seen is acquired; relaxed writes from now on
        release what is known."""
        clocks = self.check.clocks
        cluster = cta // self.check.machine.cluster_size
        for seen in (FULL, SOME):  # what all lanes have read each of them has read
            known = self.wanted.pop((cta, warp, seen), None)
            if known is not None:
                clocks.acquire(cta, warp, view, known)
            _merge(self.known[cluster], self.wanted_stamps.pop((cta, warp, seen), {}))
        stamps = self._released(cluster)
        for who in ((cta, warp, FULL), (cta, warp, SOME)) if view == FULL else ((cta, warp, SOME),):
            self.fenced[who] = clocks.tell(*who), stamps
        clocks.step(cta, warp, view)

    def ordered(self, old_cluster: int, stamp: int, cluster: int) -> bool:
        """Whether a cluster has acquired what another had done when it had made `stamp` - 1 releases."""
        return self.known[cluster].get(old_cluster, 0) >= stamp


def _merge(into: dict[int, int], more: dict[int, int]) -> None:
    for cluster, n in more.items():
        if into.get(cluster, 0) < n:
            into[cluster] = n
