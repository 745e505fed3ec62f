"""The checker of one machine: what an access does to the shadows, and what is not ordered. (Edges: edges.py.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ptx
from ..errors import RaceError
from ..findings import Finding
from . import report
from .clocks import FULL, ROWS, SOME, Clocks, G, S, T, Table, V
from .edges import Edges
from .outside import GlobalShadow
from .records import BULK, GENERIC, TENSOR, TMEM, WGMMA, Maker, Records
from .shadow import Shadow, get

if TYPE_CHECKING:
    from ..machine import Machine, Warps

ENOUGH = 64  # findings about the same two instructions, after which only their number grows
FEW = 24  # old accesses that are looked at one by one
LEFT = 1 << 30  # the PC of a lane that has left the kernel


class Checker(Edges):
    """Clocks, shadows and findings of the resident CTAs of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.run = machine.launch.run
        self.strict = machine.config.strict
        self.granule = report.granule(machine.program)
        self.told: dict[tuple[int, int], list[Finding]] = {}  # findings about two instructions

    def start(self) -> None:
        """Fresh CTAs: nobody has accessed anything."""
        m = self.machine
        self.clocks = Clocks(m.ctas, m.warps_per_cta, m.cluster_size, self.strict)
        self.records = Records()
        self.shared = Shadow((m.shared.bytes.size // self.granule,), self.records)
        self.row = m.shared.bytes.shape[1] // self.granule  # cells of one CTA
        self._tmem: Shadow | None = None
        self.objects = np.zeros(self.shared.last.shape, np.bool_)  # where mbarriers live
        self.globals = GlobalShadow(self)
        self.fragments: dict[Any, np.ndarray] = {}  # lanes that have executed something, of warps that have parted
        self.start_edges()

    def tensor_memory(self) -> Shadow:
        """Cells of 16 lanes of a column: (CTA, 8, 512)."""
        if self._tmem is None:
            self._tmem = Shadow((self.machine.ctas, 8, 512), self.records)
        return self._tmem

    # --------------------------------------------------------------------------------------------------------- findings

    def say(self, finding: Finding, ins: ptx.Instr | None) -> Finding | None:
        """Note a finding; raise it, if that is what was asked for. Returns the one that stands for it, if noted."""
        if finding.strict and not self.strict:
            return None
        for old in self.run.findings:
            if isinstance(old, Finding) and old.key == finding.key:
                old.count += finding.count
                return old
        self.run.findings.append(finding)
        if self.machine.config.on_race == "raise":
            raise RaceError(str(finding), ins.where if ins is not None else "", finding)
        return finding

    def race(self, shadow: Shadow, old: int, new: int, cells: np.ndarray, known: Table | None, reads: bool) -> None:
        """`new` does not know of `old`, and they touch the same flat cells. reads: `old` is a read."""
        a, b = self.records.maker(old).ins, self.records.maker(new).ins
        told = self.told.setdefault((a.pc, b.pc), [])
        if len(told) >= ENOUGH:  # the same two instructions again: only count
            told[-1].count += 1
            return
        finding = report.race(self, shadow, old, new, cells, known, reads)
        noted = self.say(finding, b)
        if noted is not None:
            told.append(noted)

    def uninitialised(self, shadow: Shadow, record: int, cells: np.ndarray) -> None:
        """`record` reads cells that nobody has written."""
        self.say(report.uninitialised(self, shadow, record, cells), self.records.maker(record).ins)

    # ---------------------------------------------------------------------------------------- accesses of whole bundles

    def views(self, w: Warps) -> np.ndarray:
        """FULL or SOME for each warp of a bundle, shape (warps, CTAs)."""
        if w.mask is None:
            return np.zeros(w.shape[:2], np.intp)
        return np.where((w.mask | (w.lane_pc == LEFT)).all(-1), FULL, SOME)

    def view_of(self, w: Warps, at: tuple[int, int]) -> int:
        """FULL or SOME for one warp of a bundle."""
        if w.mask is None or w.mask[at].all() or (w.mask[at] | (w.lane_pc[at] == LEFT)).all():
            return FULL
        return SOME

    def covered(self, w: Warps, at: tuple[int, int], key: Any, lanes: np.ndarray | None = None) -> int:
        """FULL when every lane of a warp has now executed what `key` names, in one go or, the lanes having parted, in
        several; else SOME. lanes: those that do it now, where not all that are active.
        """
        if lanes is None and self.view_of(w, at) == FULL:
            return FULL
        if lanes is None:
            assert w.mask is not None
            lanes = w.mask[at]
        lanes = lanes | (w.lane_pc[at] == LEFT) if w.mask is not None else lanes
        before = self.fragments.get(key)
        if before is not None and not (before & lanes & (w.lane_pc[at] != LEFT)).any():
            lanes = lanes | before
        if lanes.all():
            self.fragments.pop(key, None)
            return FULL
        self.fragments[key] = lanes
        return SOME

    def generic(
        self,
        w: Warps,
        shadow: Shadow | None,
        cells: np.ndarray,
        ins: ptx.Instr,
        what: str,
        write: bool,
        strong: bool = False,
        aside: list[tuple[Any, ...]] | None = None,
        later: tuple[np.ndarray, np.ndarray, str] | None = None,
        barrier: tuple[int, int, int] | None = None,
    ) -> None:
        """An access of a bundle through the generic proxy. cells: (warps, CTAs, 32, k), flat in the shadow.

        strong: PTX ISA 8.4, it does not race with another strong one. aside: where a read is put if there is no shadow.
        later: of an asynchronous access, (components, clocks, what ends it), each for every warp, and the
        (CTA, offset, phase) of the barrier it reports to.
        """
        clocks, records = self.clocks, self.records
        nw, nc, _ = w.shape
        views = self.views(w)
        w0, _, c0, _, step = w.key
        ctas = (np.arange(nc) * step + c0)[None, :]
        numbers = (np.arange(nw) + w0)[:, None]
        maker = Maker(0, ins, what, [(c0 + j * step, w0 + i, None) for i in range(nw) for j in range(nc)], write)
        clocks.version[ctas, numbers] += 1
        cluster = np.broadcast_to(ctas // clocks.cluster_size, (nw, nc)).ravel()
        stamp = np.array(self.strong.now)[cluster] if shadow is not self.shared else 0
        first = records.add(maker, nw * nc, GENERIC, cluster, strong, stamp)
        record = np.arange(first, first + nw * nc, dtype=np.int32)
        component = ctas % clocks.cluster_size * clocks.warps + numbers + np.where(views == FULL, 0, clocks.fixed)
        now = clocks.now[ctas, numbers, views]
        records.component[record] = records.by[record] = component.ravel()
        records.clock[record] = records.at[record] = now.ravel()
        if later is not None:
            records.component[record], records.clock[record], maker.ends = later[0].ravel(), later[1].ravel(), later[2]
            maker.barrier = barrier
        base = ((ctas * clocks.warps + numbers) * 2 + views) * (ROWS * clocks.width)
        shape = (nw, nc, 32, cells.shape[-1])
        cells = np.broadcast_to(cells, shape)
        whose = np.broadcast_to(np.arange(nw * nc).reshape(nw, nc, 1, 1), shape)
        lanes = np.broadcast_to(np.arange(32)[:, None], shape)
        active = ... if w.mask is None else w.mask
        flat, whose, lanes = cells[active].reshape(-1), whose[active].reshape(-1), lanes[active].reshape(-1)
        if not flat.size:
            return
        ids = record[whose]
        maker.cells, maker.lanes, maker.records = flat, lanes, ids
        if shadow is None:
            assert aside is not None
            aside.append((flat, ids))
            return
        bases = base.reshape(-1)[whose]
        last = shadow.last.reshape(-1)
        old = last[flat]
        if not write and shadow is self.shared and not old.all():
            for i in np.unique(ids[old == 0]).tolist():
                self.uninitialised(shadow, i, flat[(old == 0) & (ids == i)])
        self._compare(shadow, old, flat, ids, bases, strong, False)
        if not write:
            shadow.read_each(flat, ids)
            return
        for readers in shadow.readers(flat):
            self._compare(shadow, readers, flat, ids, bases, strong, True)
        if shadow is self.shared and self.objects[flat].any():
            hit = self.objects[flat]
            for i in np.unique(ids[hit]).tolist():
                self._spares_barriers(i, flat[hit & (ids == i)])
        shadow.wrote(flat, ids)
        lost = last[flat] != ids
        if lost.any() and not strong:  # warps of one bundle write to the same cell
            for c, mine in dict(zip(flat[lost].tolist(), ids[lost].tolist(), strict=True)).items():
                self.race(shadow, mine, int(last[c]), np.array([c]), None, False)

    def _compare(
        self,
        shadow: Shadow,
        old: np.ndarray,
        cells: np.ndarray,
        ids: np.ndarray,
        bases: np.ndarray,
        strong: bool,
        reads: bool,
    ) -> None:
        """The generic accesses `ids` to cells that `old` have accessed: each has to know of the old one."""
        records, clocks = self.records, self.clocks
        bad = records.clock[old] > clocks.know.reshape(-1)[bases + (V * clocks.width + records.component[old])]
        if shadow is not self.shared:
            bad |= (records.cluster[old] != records.cluster[ids]) & (old != 0)
        if strong:
            bad &= ~records.strong[old]
        if not bad.any():
            return
        pairs: dict[tuple[int, int], list[int]] = {}
        for o, i, c in zip(old[bad].tolist(), ids[bad].tolist(), cells[bad].tolist(), strict=True):
            pairs.setdefault((o, i), []).append(c)
        for (o, i), where in pairs.items():
            some = [c for c in where if not self._same_lane(o, i, c)]
            if some and not self.globals.ordered(shadow, o, i):
                self.race(shadow, o, i, np.array(some), None, reads)

    def _same_lane(self, old: int, new: int, cell: int) -> bool:
        """Whether the same lane of the same warp has accessed the cell both times: program order."""
        a, b = self.records.maker(old), self.records.maker(new)
        if self.records.clock[old] != self.records.at[old] or self.records.component[old] != self.records.by[old]:
            return False  # asynchronous: not in program order
        if a.cells is None or b.cells is None or a.warps[old - a.first][:2] != b.warps[new - b.first][:2]:
            return False
        before = a.lanes[(a.cells == cell) & (a.records == old)]
        return bool(np.isin(b.lanes[(b.cells == cell) & (b.records == new)], before).all())

    # ------------------------------------------------------------------------------------ accesses of single operations

    def access(self, shadow: Shadow, key: Any, record: int, known: Table, write: bool, read: bool = False) -> None:
        """An access of one operation that knows `known`, to the cells at `key`. read: it reads them too."""
        old = get(shadow.last, key)
        if (read or not write) and (shadow is self.shared or shadow is self._tmem) and not old.all():
            self.uninitialised(shadow, record, shadow.flat(key)[old == 0])
        self._verify(shadow, old, key, record, known, False)
        if write:
            for readers in shadow.readers(key):
                self._verify(shadow, readers, key, record, known, True)
            shadow.wrote(key, record)
            if shadow is self.shared:
                self._spares_barriers(record, shadow.flat(key) if get(self.objects, key).any() else None)
        else:
            shadow.read(key, record)

    def windows(self, w: Warps, column: int, n: int, lane: int, ins: ptx.Instr, what: str, number: np.ndarray) -> bool:
        """A tcgen05.ld or .st of a whole bundle, each warp to its own 32 lanes: all at once. number: of the load or
        store, (warps, CTAs). False if anything is not in order; then nothing has been noted.
        """
        clocks, records, shadow = self.clocks, self.records, self.tensor_memory()
        nw, nc, _ = w.shape
        w0, _, c0, c1, step = w.key
        write = what == "tcgen05.st"
        key = slice(c0, c1, step), slice(lane // 16, lane // 16 + 2 * nw), slice(column, column + n)
        ctas, numbers = (np.arange(nc) * step + c0)[:, None], np.repeat(np.arange(nw) + w0, 2)[None, :]
        row = T if self.strict else V
        base = ((ctas * clocks.warps + numbers) * 2 * ROWS + row) * clocks.width
        know = clocks.know.reshape(-1)
        old = [shadow.last[key]]
        if write:
            old += shadow.readers(key)
        elif not old[0].all():
            return False
        for some in old:
            if (records.clock[some] > know[base[..., None] + records.component[some]]).any():
                return False
        clocks.version[ctas, np.arange(nw) + w0] += 1
        maker = Maker(0, ins, what, [(c0 + j * step, w0 + i, None) for j in range(nc) for i in range(nw)], write,
                      ends=f"tcgen05.wait::{what[-2:]}")  # fmt: skip
        first = records.add(maker, nw * nc, TMEM, np.repeat(ctas[:, 0] // clocks.cluster_size, nw))
        record = np.arange(first, first + nw * nc, dtype=np.int32)
        own = (ctas % clocks.cluster_size * clocks.warps + np.arange(nw) + w0).reshape(-1)
        records.by[record], records.at[record] = own, clocks.now[ctas, numbers[:, ::2], FULL].reshape(-1)
        records.component[record] = own + clocks.fixed * (2 if write else 3)
        records.clock[record] = number.T.reshape(-1)
        cells = np.repeat(record.reshape(nc, nw), 2, axis=1)[..., None]
        if write:
            shadow.wrote(key, cells)
        else:
            shadow.read(key, cells)
        return True

    def _spares_barriers(self, record: int, cells: np.ndarray | None) -> None:
        """A write to shared memory, where an mbarrier lives (PTX ISA "mbarrier": only mbarrier instructions may)."""
        if cells is None:
            return
        cell = int(cells[self.objects[cells]][0])
        offset = cell % self.row * self.granule
        place = cell // self.row, offset - offset % 8
        found = self.phases.inits.get(place)
        if found is not None:
            self.say(report.overwritten(self, record, cells, place, found[2]), self.records.maker(record).ins)

    def _verify(self, shadow: Shadow, old: np.ndarray, key: Any, record: int, known: Table, reads: bool) -> None:
        first = int(old.flat[0])
        if (old == first).all():
            if first == 0 or self._knows(shadow, first, record, known, reads):
                return
            bad = np.ones(old.shape, np.bool_)
        else:
            several = np.unique(old).tolist()
            if len(several) <= FEW:
                unknown = [o for o in several if o and not self._knows(shadow, o, record, known, reads)]
                if not unknown:
                    return
                bad = np.isin(old, unknown)
            else:
                bad = self._unordered(shadow, old, record, known, reads)
                if not bad.any():
                    return
        flat = shadow.flat(key)
        for o in np.unique(old[bad]).tolist():
            if self.records.maker(o) is not self.records.maker(record) and not self.globals.ordered(shadow, o, record):
                self.race(shadow, o, record, flat[bad & (old == o)], known, reads)

    def _knows(self, shadow: Shadow, old: int, record: int, known: Table, reads: bool) -> bool:
        """Whether an operation knows of an old access: `_unordered` for one of them."""
        r = self.records
        component, clock, kind = int(r.component[old]), int(r.clock[old]), int(r.kind[record])
        if shadow is self._tmem:
            rows = (V, T) if kind == GENERIC or not self.strict else (T,)
            if any(known[row, component] >= clock for row in rows):
                return True
            return kind == TENSOR == r.kind[old] and (
                r.by[old] == r.by[record] or any(known[row, r.by[old]] >= r.at[old] for row in rows)
            )
        if known[V, component] < clock or (shadow is not self.shared and r.cluster[old] != r.cluster[record]):
            return False
        if kind == GENERIC or r.kind[old] != GENERIC or (reads and not self.strict):
            return True
        return bool(known[S if shadow is self.shared else G, component] >= clock)

    def _unordered(self, shadow: Shadow, old: np.ndarray, record: int, known: Table, reads: bool) -> np.ndarray:
        """Which of the old accesses an operation does not know of. reads: they are reads."""
        r = self.records
        component, clock, kinds, kind = r.component[old], r.clock[old], r.kind[old], int(r.kind[record])
        if shadow is self._tmem:
            known_v = known[T] if self.strict and kind != GENERIC else np.maximum(known[V], known[T])
            bad = clock > known_v[component]
            if kind == TENSOR:  # the tensor core works in the order of issue
                by = r.by[old]
                bad &= ~((kinds == TENSOR) & ((by == r.by[record]) | (r.at[old] <= known_v[by])))
            return bad & (old != 0)
        bad = clock > known[V][component]
        if kind in (BULK, TENSOR, WGMMA) and (not reads or self.strict):
            row = known[S if shadow is self.shared else G]
            bad |= (kinds == GENERIC) & (clock > row[component])
        if shadow is not self.shared:
            bad |= r.cluster[old] != r.cluster[record]
        return bad & (old != 0)


__all__ = ["SOME", "Checker"]
