"""What orders accesses: barriers, fences, waits, and the ends of asynchronous operations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import ptx
from ..agents import AsyncOp
from ..isa.descriptors import SmemDescriptor, operand_chunks
from ..isa.swizzle import Swizzle
from ..isa.tmabox import _chunks
from . import report
from .clocks import FULL, SOME, Clocks, E, T, Table, V, X
from .phases import Phases
from .records import BULK, TENSOR, WGMMA, Maker, Records
from .shadow import Rows, Shadow
from .strong import Strong

if TYPE_CHECKING:
    from ..isa.tensormap import TensorMap
    from ..machine import Machine, Warps
    from .outside import GlobalShadow

GROUP = 16  # TMEM lanes to a cell of the shadow


_extents: dict[int, tuple[NDArray[np.intp], int, int]] = {}


def extent(chunks: NDArray[np.intp]) -> tuple[int, int]:
    """Lowest and one past the highest of an array that is kept for good (those of `chunk_indices` are)."""
    found = _extents.get(id(chunks))
    if found is None:
        if len(_extents) > 4096:
            _extents.clear()
        found = _extents[id(chunks)] = chunks, int(chunks.min()), int(chunks.max()) + 1
    return found[1], found[2]


class Note:
    """What the checker keeps with an asynchronous operation.

    known: what its thread knew when it asked.  by, at: the epoch of asking.  component, clock: the epoch of its end;
    -1 until it reports to its mbarrier.  ends: what has to be waited for, in words.
    """

    __slots__ = ("at", "born", "by", "clock", "component", "ends", "issued", "key", "kind", "known", "open", "twins")

    def __init__(self, known: Table, by: int, at: int, kind: int, ends: str, component: int = -1, clock: int = 0):
        self.known, self.by, self.at, self.kind, self.ends = known, by, at, kind, ends
        self.component, self.clock = component, clock
        self.key: Hashable = None  # of its component, where that is not known before it does something
        self.born = 0  # records there were when it was asked for
        self.issued: tuple[int, int] | None = None  # of an MMA: its place in the order of issue
        self.open: list[int] = []  # records whose epoch is not known yet
        self.twins: set[Any] = set()  # accesses of the same instruction by other lanes of the warp


class Stream:
    """The MMAs of one thread: components of those done and of those issued, and what the latest knew."""

    __slots__ = ("count", "done", "issued", "known", "version")

    def __init__(self, done: int, issued: int, known: Table) -> None:
        self.done, self.issued, self.known = done, issued, known
        self.count = 0
        self.version = -1, -1


class Edges:
    """The part of the checker that keeps what is passed on."""

    machine: Machine
    clocks: Clocks
    records: Records
    shared: Shadow
    objects: NDArray[np.bool_]
    globals: GlobalShadow
    granule: int
    row: int
    strict: bool

    def start_edges(self) -> None:
        self.phases = Phases(self)
        self.strong = Strong(self)
        self.bundle: Warps | None = None  # the one that executes an instruction of an asynchronous unit
        self.twins: dict[tuple[int, int], Note] = {}  # by warp, for that instruction
        self.bar_waits = True  # bar.sync rather than bar.arrive
        self.named: dict[tuple[int, int], tuple[Table, list[tuple[int, int]]]] = {}
        self.cluster_barriers: dict[tuple[int, int], Table] = {}
        self.counts: dict[Hashable, int] = {}  # operations of a stream so far
        self.latest: dict[tuple[int, int, int], Stream] = {}  # MMAs by thread
        self.products: dict[tuple[int, int], list[Table]] = {}  # what warps knew that have issued a wgmma
        self.loads: dict[tuple[int, int], dict[int, int]] = {}  # number of a tcgen05.ld -> that of its registers ...
        self.held: dict[tuple[int, int], dict[int, int]] = {}  # ... which nobody has read; register -> number of the ld
        self.lone: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}  # clock of single lanes at a tcgen05.wait
        self.in_flight: dict[tuple[int, int], tuple[int, int]] = {}  # (CTA, component) -> latest clock and record
        self.copies: dict[tuple[int, int], list[int]] = {}  # cp.async of a warp that its groups end with
        self.groups: dict[tuple[int, int], list[int]] = {}  # products of a warp that its wgmma groups end with
        self.under_way: dict[tuple[int, int], dict[int, tuple[int, bool, ptx.Instr]]] = {}  # registers of products
        self.seen: dict[tuple[int, int], int] = {}  # tcgen05.ld up to this one are done, or have been read from

    def finish(self) -> None:
        """All CTAs have exited: what worked on their shared memory should have been waited for before."""
        for (cta, component), (clock, record) in self.in_flight.items():
            if self.clocks.know[cta, :, :, V, component].max() < clock:
                finding = report.left_behind(self, record)  # type: ignore[arg-type]
                self.say(finding, self.records.maker(record).ins)  # type: ignore[attr-defined]
        self.phases.finish()

    def count(self, key: Hashable) -> int:
        """One more in a stream."""
        self.counts[key] = found = self.counts.get(key, 0) + 1
        return found

    # ------------------------------------------------------------------------------------------ barriers of whole warps

    def named_arrive(self, cta: int, warp: int, number: int) -> None:
        """PTX ISA 8.9.4: bar.sync, .red and .arrive synchronise with bar.sync and .red of the same barrier."""
        table, waiters = self.named.setdefault((cta, number), (self.clocks.table(), []))
        fitted = self.clocks.fit(table)
        if fitted is not table:
            self.named[cta, number] = fitted, waiters
        self.clocks.release(cta, warp, FULL, fitted)
        if self.bar_waits:
            waiters.append((cta, warp))

    def named_complete(self, cta: int, number: int) -> None:
        table, waiters = self.named.pop((cta, number))
        for who in waiters:
            self.clocks.acquire(*who, FULL, table)
            self.clocks.join_lanes(*who)

    def cluster_arrive(self, cta: int, warp: int, relaxed: bool) -> None:
        """PTX ISA 8.9.4: barrier.cluster.arrive synchronises with barrier.cluster.wait."""
        cluster = cta // self.machine.cluster_size
        key = cluster, self.machine.cluster_barriers[cluster].generation
        table = self.cluster_barriers[key] = self.clocks.fit(self.cluster_barriers.get(key, self.clocks.table()))
        self.clocks.release(cta, warp, FULL, table, relaxed)

    def cluster_wait(self, cta: int, warp: int, relaxed: bool) -> None:
        cluster = cta // self.machine.cluster_size
        generation = self.machine.cluster_barriers[cluster].entered[cta, warp]
        known = self.cluster_barriers.get((cluster, generation))
        if known is not None:
            self.clocks.acquire(cta, warp, FULL, known, relaxed)
        self.clocks.join_lanes(cta, warp)

    # -------------------------------------------------------------------------------------------------------- mbarriers

    def object_at(self, place: tuple[int, int], lives: bool) -> None:
        """An mbarrier lives at (CTA, offset) from now on, or no longer."""
        first = place[0] * self.row + place[1] // self.granule
        self.objects[first : first + 8 // self.granule] = lives

    def barrier_changes(self, owner: int, offset: int, phase: int, arrivals: int, complete: int) -> None:
        """Somebody arrives or pays bytes. A warp's own arrival has been noted before; this is for operations.

        complete_tx tells of the accesses of its own operation only (PTX ISA 8.9.1.1); tcgen05.commit of all earlier
        tcgen05 operations of its thread, which it waits for (9.7.16.6.2.2), and so of what those knew.
        """
        op = self.machine.agents.current
        if op is None or op.note is None or not (arrivals or complete):
            return
        note: Note = op.note
        if note.kind == BULK:
            component = self.clocks.component(owner, ("mbarrier", self.machine.rank(owner), offset))
            for record in note.open:
                self.records.component[record], self.records.clock[record] = component, phase + 1
                self.records.maker(record).barrier = owner, offset, phase
                if self.records.maker(record).write:
                    self.in_flight[owner, component] = phase + 1, record
            note.open = []
            return
        table = self.phases.table(owner, offset)
        table[:] = np.maximum(table, self.clocks.fit(note.known))
        for component, clock in ((note.component, note.clock), note.issued or (note.component, note.clock)):
            for row in (V, X, E):
                table[row, component] = max(int(table[row, component]), clock)

    def phase_ends(self, owner: int, offset: int, phase: int) -> None:
        component = self.clocks.names[owner // self.machine.cluster_size].get(
            ("mbarrier", self.machine.rank(owner), offset)
        )
        self.phases.ends(owner, offset, phase, component)

    # ------------------------------------------------------------------------------------------ asynchronous operations

    def submitted(self, op: AsyncOp) -> None:
        """An operation is asked for: what its thread knows now, it knows."""
        clocks, cta, ins = self.clocks, op.cta, op.ins
        parent = self.machine.agents.current
        if ins is None or op.warp < 0:  # the latter have been noted when they were issued
            return
        if parent is not None and parent.note is not None:  # the second half of a bulk store
            before: Note = parent.note
            op.note = Note(before.known, before.by, before.at, BULK, "cp.async.bulk.wait_group", -1, before.clock)
            op.note.key = "bulk written", self.machine.rank(cta), op.warp, op.lane
            op.note.twins, op.note.born = before.twins, before.born
            return
        if ins.opcode.startswith("wgmma"):
            self._submit_product(op)
            return
        w = self.bundle
        view = SOME
        if w is not None:
            w0, _, c0, _, step = w.key
            at = op.warp - w0, (cta - c0) // step
            view = self.view_of(w, at)  # type: ignore[attr-defined]
        if op.engine == "tensor":
            op.note = self._matrix(op, view, ins.opcode.startswith("tcgen05.commit"))
            return
        twin = self.twins.get((cta, op.warp)) if w is not None else None
        if twin is not None:  # another lane of the same instruction: what one knows they all do
            note = Note(twin.known, twin.by, twin.at, BULK, twin.ends)
            note.twins, note.born = twin.twins, twin.born
        else:
            note = Note(clocks.tell(cta, op.warp, view), *clocks.epoch(cta, op.warp, view), BULK, "mbarrier")
            note.born = self.records.count
            self.twins[cta, op.warp] = note
            clocks.step(cta, op.warp, view)
        if ".bulk_group" in ins.opcode:
            note.ends, note.key = (
                "cp.async.bulk.wait_group.read",
                ("bulk read", self.machine.rank(cta), op.warp, op.lane),
            )
            note.clock = self.counts.get(("groups", cta, op.warp, op.lane), 0) + 1
        op.note = note

    def _matrix(self, op: AsyncOp, view: int, commits: bool) -> Note:
        """An MMA, or a commit of all the MMAs of its thread so far."""
        clocks, cta, warp = self.clocks, op.cta, op.warp
        stream = cta, warp, op.lane
        found = self.latest.get(stream)
        if found is None:
            thread = self.machine.rank(cta), warp, op.lane
            done, issued = (
                clocks.component(cta, ("MMAs done", *thread)),
                clocks.component(cta, ("MMAs issued", *thread)),
            )
            found = self.latest[stream] = Stream(done, issued, clocks.table())
        if not commits:
            found.count += 1
            version = int(clocks.version[cta, warp]), view
            if version != found.version:  # else it knows what the one before it knew
                found.version, found.known = version, clocks.tell(cta, warp, view)
                clocks.step(cta, warp, view)
            clocks.know[cta, warp, :, V, found.issued] = clocks.know[cta, warp, :, T, found.issued] = found.count
        n = found.count
        note = Note(found.known, found.issued, n, TENSOR, "tcgen05.commit", found.done, n)
        note.issued, note.born = (found.issued, n), self.records.count
        return note

    def _submit_product(self, op: AsyncOp) -> None:
        """A wgmma knows what all four warps know."""
        cta, first = op.cta, op.warp
        known = np.minimum.reduce([self.clocks.fit(t) for t in self.products.pop((cta, first // 4), [])])
        component = self.clocks.component(cta, ("wgmma", self.machine.rank(cta), first // 4))
        n = self.count(("wgmma", cta, first // 4))
        by, now = self.clocks.epoch(cta, first, FULL)
        op.note = Note(self.clocks.fit(known), by, now, WGMMA, "wgmma.wait_group", component, n)
        op.note.born = self.records.count

    def record(self, write: bool, what: str = "") -> tuple[int, Table]:
        """A record for an access of the operation that is being done, and what the operation knows."""
        op = self.machine.agents.current
        assert op is not None and op.note is not None and op.ins is not None
        note: Note = op.note
        if note.key is not None:
            note.component, note.key = self.clocks.component(op.cta, note.key), None
        lane = op.lane if op.lane >= 0 else None
        words = what or op.name.removesuffix(" write")
        maker = Maker(0, op.ins, words, [(op.cta, op.warp, lane)], write, ends=note.ends)
        maker.op = op
        number = self.records.add(maker, 1, note.kind, op.cta // self.clocks.cluster_size)
        self.records.epochs(number, note.component, note.clock, note.by, note.at)
        if note.component < 0:
            note.open.append(number)
        elif note.kind == BULK and not write:
            self.in_flight[op.cta, note.component] = note.clock, number
        note.known = self.clocks.fit(note.known)
        return number, note.known

    def again(self, *access: Any) -> bool:
        """Whether another lane of the same warp instruction has made exactly this access: one stands for all, as
        kernels let all lanes of a warp issue the same store.
        """
        op = self.machine.agents.current
        assert op is not None and op.note is not None
        twins: set[Any] = op.note.twins
        found = access in twins
        twins.add(access)
        return found

    def box(self, cta: int, offset: int, nbytes: int, inner: int, swizzle: Swizzle, write: bool) -> None:
        """A box of a tensor copy in shared memory."""
        if self.again(cta, offset, nbytes, write):
            return
        if not swizzle.bits:
            self.run_of_bytes(cta, offset, nbytes, write)
            return
        phase = offset % 1024
        chunks = _chunks(phase, nbytes // inner, inner, swizzle)
        self._chunks(cta, offset - phase, chunks, write, "")

    def _chunks(self, cta: int, start: int, chunks: np.ndarray, write: bool, what: str) -> None:
        """16-byte chunks of shared memory, numbered from `start`."""
        per = 16 // self.granule
        first = cta * self.row + start // self.granule
        low, high = extent(chunks)
        if start < 0 or (start // self.granule + high * per) > self.row:
            return  # a fault, which the operation itself reports
        key: Any
        if high - low == chunks.size:  # all of a stretch
            key = slice(first + low * per, first + high * per)
        else:
            key = Rows(first // per + chunks.reshape(-1), per)
        number, known = self.record(write, what)
        self.access(self.shared, key, number, known, write)  # type: ignore[attr-defined]

    def run_of_bytes(self, cta: int, offset: int, nbytes: int, write: bool) -> None:
        """A run of bytes of shared memory."""
        first = cta * self.row + offset // self.granule
        number, known = self.record(write)
        key = slice(first, first + -(-nbytes // self.granule))
        self.access(self.shared, key, number, known, write)  # type: ignore[attr-defined]

    def operand(self, cta: int, d: SmemDescriptor, rows: int, major: int, itemsize: int = 2, kbytes: int = 32) -> None:
        """A matrix operand in shared memory. itemsize: bytes of an element; kbytes: bytes of K in a row."""
        base, chunks, _ = operand_chunks(d, rows, major, itemsize, kbytes)
        self._chunks(cta, base, chunks, False, "")

    def chunks(self, cta: int, base: int, index: np.ndarray) -> None:
        """Chunks of 16 bytes of shared memory that a tcgen05.cp reads."""
        self._chunks(cta, base, index, False, "")

    def cells(self, cta: int, rows: Any, column: int, n: int, write: bool) -> None:
        """Cells of tensor memory that an MMA accesses. rows: a slice of lanes, or their numbers."""
        groups: Any
        if isinstance(rows, slice):
            groups = slice(rows.start // GROUP, -(-rows.stop // GROUP))
        else:
            groups = np.unique(np.asarray(rows) // GROUP)
        number, known = self.record(write)
        key = cta, groups, slice(column, column + n)
        self.access(self.tensor_memory(), key, number, known, write)  # type: ignore[attr-defined]

    def tensor(self, tensor: TensorMap, coords: list[int], write: bool) -> None:
        """The part of a box that lies in global memory."""
        if not self.again(tensor.address, *coords, write):
            self.globals.tensor(tensor, coords, write)

    def global_bytes(self, address: int, nbytes: int, write: bool) -> None:
        """A run of bytes of global memory."""
        if not self.again(address, nbytes, write):
            self.globals.run_of_bytes(address, nbytes, write)

    # ------------------------------------------------------------------------------------------ registers of tcgen05.ld

    def pending_load(self, cta: int, warp: int, n: int, registers: list[int]) -> None:
        """The n-th tcgen05.ld of a warp will write these registers."""
        who = cta, warp
        self.loads.setdefault(who, {})[n] = len(registers)
        held = self.held.setdefault(who, {})
        for r in registers:
            held[r] = n

    def loads_done(self, cta: int, warp: int) -> None:
        """tcgen05.wait::ld."""
        self.loads.pop((cta, warp), None)
        self.held.pop((cta, warp), None)

    def registers_read(self, w: Warps, registers: tuple[int, ...]) -> None:
        """An instruction reads registers that some tcgen05.ld writes. That waits for the load (PTX ISA 9.7.16.6.4.5,
        "a true register dependency will be respected"), which is then done with tensor memory, too: by the letter only
        tcgen05.wait::ld promises that, so that `strict` does not count it.
        """
        for cta, warp, _ in w.each_warp():
            held = self.held.get((cta, warp))
            if not held:
                continue
            loads = self.loads[cta, warp]
            some = False
            for r in registers:
                n = held.pop(r, None)
                if n is not None:
                    some = loads.pop(n, None) is not None or some
            if not some:
                continue
            first = min(loads, default=None)
            done = self.counts[("tcgen05.ld", cta, warp)] if first is None else first - 1
            if done == self.seen.get((cta, warp)):
                continue
            self.seen[cta, warp] = done
            if not self.strict:
                self.tmem_done(cta, warp, self.clocks.of_warp(cta, warp) + 3 * self.clocks.fixed, done)

    def tmem_done(self, cta: int, warp: int, component: int, n: int) -> None:
        """The first n tcgen05.ld (or .st) of a warp are done. The warp has made them together, and what one lane has
        waited for is over for all; by the letter each thread waits for its own part.
        """
        self.clocks.done(cta, warp, FULL, component, n)
        if not self.strict:
            self.clocks.done(cta, warp, SOME, component, n)
        self.lone.setdefault((cta, warp), {})[component] = n, int(self.clocks.now[cta, warp, SOME])

    def consumed(self, maker: Maker, record: int) -> bool:
        """Whether registers of this tcgen05.ld had been read."""
        return self.seen.get(maker.warps[0][:2], 0) >= int(self.records.clock[record])

    # ----------------------------------------------------------------------------------------------- registers of wgmma

    def product_issued(
        self, cta: int, warp: int, results: tuple[int, ...], sources: tuple[int, ...], ins: ptx.Instr
    ) -> None:
        """A warp issues a wgmma: it reads `sources` and writes `results` until it is waited for."""
        group = self.products.setdefault((cta, warp // 4), [])
        group.append(self.clocks.tell(cta, warp, FULL))
        n = self.count(("products of", cta, warp))
        registers = self.under_way.setdefault((cta, warp), {})
        for r in sources:
            if r not in registers or not registers[r][1]:
                registers[r] = n, False, ins
        for r in results:
            registers[r] = n, True, ins
        self.clocks.step(cta, warp, FULL)

    def products_committed(self, cta: int, warp: int) -> None:
        """wgmma.commit_group."""
        self.groups.setdefault((cta, warp), []).append(self.counts.get(("products of", cta, warp), 0))

    def products_done(self, cta: int, warp: int, left: int) -> None:
        """wgmma.wait_group: all but the `left` latest groups are done."""
        groups = self.groups.get((cta, warp), [])
        if len(groups) <= left:
            return
        done = groups[len(groups) - left - 1]
        component = self.clocks.component(cta, ("wgmma", self.machine.rank(cta), warp // 4))
        for view in (FULL, SOME):  # the warps multiply together: what one lane has waited for is over
            self.clocks.done(cta, warp, view, component, done)
        registers = self.under_way.get((cta, warp), {})
        left_over = {r: x for r, x in registers.items() if x[0] > done}
        if left_over:
            self.under_way[cta, warp] = left_over
        else:
            self.under_way.pop((cta, warp), None)

    def registers_touched(self, w: Warps, touched: tuple[tuple[int, bool], ...], ins: ptx.Instr) -> None:
        """An instruction reads (True) or writes registers of products; not allowed while those are under way."""
        for cta, warp, _ in w.each_warp():
            registers = self.under_way.get((cta, warp))
            for r, reads in touched if registers else ():
                found = registers.get(r)  # type: ignore[union-attr]
                if found is not None and (found[1] or not reads):
                    self.say(report.register(self, cta, warp, found[2], found[1], ins, reads, r), ins)  # type: ignore
