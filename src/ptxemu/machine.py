"""The machine: resident CTAs with their registers and memories, and the launch that runs a grid on it in waves.

What runs when is schedule.py's; what an instruction does is isa/'s. This module holds the state that both share.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import iket, ptx
from .agents import Agents, AsyncOp
from .barriers import ClusterBarrier, Mbarriers, NamedBarriers
from .blas import one_thread
from .config import BankConflicts, Config, Run
from .errors import EmulationError
from .memory import SHARED_RANK_SHIFT, SHARED_RESERVED, Allocation, GlobalMemory, SharedMemory
from .program import MAX_RUN, Program, decode
from .registers import FORMS, RegisterFiles, Scratch, View, Views
from .schedule import Blocked, Scheduler, Wait
from .trace import Event

if TYPE_CHECKING:
    from .check.checker import Checker

__all__ = ["Allocation", "AsyncOp", "Blocked", "Machine", "Thread", "Wait", "Warps", "launch_module"]

RectKey = tuple[int, int, int, int, int]  # warps [first, end), resident CTAs [first, end) by step

MEMORY_BUDGET = 1 << 30  # bytes of registers, shared memory and TMEM of the resident CTAs
MAX_RESIDENT = 160
POISON = 0xFF  # what uninitialised shared memory and TMEM hold: NaN as bf16, fp16 and fp32


@dataclass(slots=True, frozen=True)
class Thread:
    """An active lane: resident CTA, warp in the CTA, lane, and the index of its element in a register array of the
    bundle.
    """

    cta: int
    warp: int
    lane: int
    at: tuple[int, int, int]


class Warps(View):
    """A bundle of warps at one PC: warps [first, end) of each of some resident CTAs. Register arrays have `shape` =
    (warps, CTAs, 32).

    ctas, cta: the resident CTAs, as a list and as an array that goes with registers; warp: likewise.

    Read `w.u32[slot]`, write `w.to.u32[slot]`. `mask` is None when every lane is active. `twin` is the same bundle
    with a mask, whose
    writes go to scratch first.
    """

    __slots__ = (
        "count",
        "cta",
        "ctas",
        "key",
        "lane_pc",
        "machine",
        "mask",
        "rect",
        "shape",
        "shared_base",
        "shared_row",
        "to",
        "twin",
        "warp",
    )

    ctas: list[int]
    to: View
    twin: Warps
    mask: np.ndarray | None

    def __init__(self, machine: Machine, key: RectKey) -> None:
        w0, w1, c0, c1, step = self.key = key
        self.machine = machine
        self.rect = (slice(w0, w1), slice(c0, c1, step))
        self.ctas = list(range(c0, c1, step))
        self.cta = np.array(self.ctas).reshape(1, -1, 1)
        self.warp = np.arange(w0, w1).reshape(-1, 1, 1)
        self.shape = (w1 - w0, self.cta.size, 32)
        self.count = self.shape[0] * self.shape[1]
        self.mask = None
        self.to = self
        # A CTA's own shared addresses start here; row: index of its first byte in the array of all CTAs.
        self.shared_base = ((self.cta % machine.cluster_size) << SHARED_RANK_SHIFT).astype(np.uint32)
        self.shared_row = self.cta * machine.shared.bytes.shape[1]
        self.lane_pc = machine.lane_pc[self.rect]
        for name in FORMS:
            setattr(self, name, Views(machine.files.typed[name], self.rect))
        self.twin = self._masked()

    def _masked(self) -> Warps:
        twin = object.__new__(Warps)
        for name in (*FORMS, *self.__slots__):
            if name != "twin":
                setattr(twin, name, getattr(self, name))
        twin.to = Scratch(self.shape)
        twin.twin = twin
        return twin

    def active(self) -> np.ndarray:
        """The active lanes as a bool array of `shape`."""
        return np.ones(self.shape, np.bool_) if self.mask is None else self.mask

    def threads(self) -> Iterator[Thread]:
        """Every active lane, warp by warp."""
        w0, _, c0, _, step = self.key
        if self.mask is None:
            indices: Any = itertools.product(*map(range, self.shape))
        else:
            indices = zip(*(axis.tolist() for axis in np.nonzero(self.mask)), strict=True)
        for at in indices:
            yield Thread(c0 + at[1] * step, w0 + at[0], at[2], at)

    def each_warp(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Every warp with an active lane: (resident CTA, warp in the CTA, index)."""
        w0, _, c0, _, step = self.key
        some = None if self.mask is None else np.asarray(self.mask.any(-1))
        for i in range(self.shape[0]):
            for j in range(self.shape[1]):
                if some is None or some[i, j]:
                    yield c0 + j * step, w0 + i, (i, j)


class Machine:
    """`ctas` resident CTAs of one launch."""

    def __init__(self, launch: Launch, ctas: int) -> None:
        self.launch, self.ctas, self.config = launch, ctas, launch.config
        self.program, self.cluster_size = launch.program, launch.cluster_size
        self.memory = launch.memory
        self.warps_per_cta = -(-launch.threads // 32)
        self.files = RegisterFiles(self.program.slots, self.warps_per_cta, ctas)
        self.shared = SharedMemory(ctas, launch.shared_bytes, self.cluster_size)
        self.lane_pc = np.zeros((self.warps_per_cta, ctas, 32), np.int32)
        self.local = np.zeros((self.warps_per_cta, ctas, 32, launch.local_bytes), np.uint8)
        # Where IKET marks store their payload: the system's part of shared memory, for each warp its own.
        self.doorbell = iket.doorbell(self.program.module)
        self.doorbells = np.zeros((self.warps_per_cta, ctas, iket.DOORBELL_BYTES), np.uint8)
        self.tracing = self.config.trace
        self.observer = self.config.observer
        self.check: Checker | None = None
        if self.config.races:
            from .check import Checker

            self.check = Checker(self)
        self.tick = launch.run.ticks
        self.fraction = 0.0  # how far into the tick: events of one tick keep their order
        self.row_time: dict[tuple[int, str], float] = {}  # of the last event of a row: none comes before it
        self.turn_base = 0  # instructions of the present turn before pc 0 of the present block
        self.progress = 0  # grows with every change that another warp could be waiting for
        self.expired: set[tuple[int, int]] = set()  # (cta, warp) whose try_wait has reached its time limit
        self.polling = False  # an instruction looked at a state that somebody else has to change
        self.now: ptx.Instr | None = None  # the instruction that changes barriers now, for events
        self.used = False
        self._bundles: dict[RectKey, Warps] = {}
        self._tmem: np.ndarray | None = None

    def start(self, first: int) -> None:
        """Fresh CTAs, numbers first, first + 1, ... of the launch order, at the first instruction."""
        fresh, self.used = not (self.used or self.files.dirty), True
        self.order = self.launch.order[first : first + self.ctas]
        rng = random.Random(f"{self.config.seed}/{first}") if self.config.schedule == "adversarial" else None
        noise = None if rng is None else np.random.default_rng(rng.getrandbits(64))
        for raw in self.files.raw.values():
            if noise is None:
                if not fresh:  # new arrays are zero already, and take no memory before they are used
                    raw.fill(0)
            else:  # nobody may rely on what a register holds before it is written
                junk = noise.integers(0, 256, (raw.shape[0], raw.itemsize), np.uint8)
                each = junk % 2 if raw.dtype == np.bool_ else junk.view(raw.dtype)
                raw[...] = each.reshape(-1, *[1] * (raw.ndim - 1))
        self.shared.reset(POISON)
        if self._tmem is not None:
            self._tmem.fill(0xFFFFFFFF)
        self.cta_state: list[dict] = [{} for _ in range(self.ctas)]
        self.mbarriers = Mbarriers(self)
        self.named = NamedBarriers(self)
        self.cluster_barriers = [ClusterBarrier() for _ in range(self.ctas // self.cluster_size)]
        self.agents = Agents(self, rng)
        self.live = np.ones((self.warps_per_cta, self.ctas), np.bool_)
        self.expired.clear()
        self._fill_constants()
        self.scheduler = Scheduler(self, rng)
        if self.observer is not None:
            self.observer.start(self)
        if self.check is not None:
            self.check.start()

    # ---- geometry

    def bundle(self, key: RectKey) -> Warps:
        found = self._bundles.get(key)
        if found is None:
            found = self._bundles[key] = Warps(self, key)
        return found

    def rank(self, cta: int) -> int:
        """The rank of a resident CTA in its cluster."""
        return cta % self.cluster_size

    def peer(self, cta: int, rank: int) -> int:
        """The resident CTA with that rank in the same cluster."""
        return cta - cta % self.cluster_size + rank

    def linear(self, cta: int) -> int:
        """The linear index in the grid of a resident CTA."""
        x, y, z = self.order[cta]
        return x + self.launch.grid[0] * (y + self.launch.grid[1] * z)

    def cta_name(self, cta: int) -> str:
        x, y, z = self.order[cta]
        return f"({x},{y},{z})"

    def live_warps(self, cta: int) -> int:
        return int(self.live[:, cta].sum())

    # ---- memories

    @property
    def tmem(self) -> np.ndarray:
        """Tensor memory: uint32 [resident CTA, 128 lanes, 512 columns]."""
        if self._tmem is None:
            self._tmem = np.full((self.ctas, 128, 512), 0xFFFFFFFF, np.uint32)
        return self._tmem

    def mbarrier_arrive(self, cta: int, address: int, count: int = 1) -> None:
        """Arrive on the mbarrier at a shared-space address, as `cta` sees it."""
        self.mbarriers.update(*self.mbarriers.locate(cta, address), arrivals=count)

    def mbarrier_complete_tx(self, cta: int, address: int, nbytes: int) -> None:
        """complete_tx on the mbarrier at a shared-space address, as `cta` sees it."""
        self.mbarriers.update(*self.mbarriers.locate(cta, address), complete=nbytes)

    def complete_cluster_barrier(self, cluster: int) -> None:
        """End the phase of a cluster's barrier when every warp of the cluster that has not exited has arrived."""
        b = self.cluster_barriers[cluster]
        first = cluster * self.cluster_size
        ctas = range(first, first + self.cluster_size)
        if b.arrived and {(c, int(i)) for c in ctas for i in np.flatnonzero(self.live[:, c])} <= b.arrived:
            b.arrived = set()
            b.generation += 1
            self.wake(("cluster", cluster, b.generation - 1))

    # ---- what goes on

    def submit(self, op: AsyncOp) -> None:
        """Give work to an asynchronous unit."""
        self.agents.submit(op)

    def wake(self, key: Any) -> None:
        """Whatever waits for `key` may go on (or try again)."""
        self.scheduler.wake(key)

    def at(self, pc: int) -> None:
        """The present turn has come to the instruction at `pc`: say how far into the tick that is."""
        self.fraction = min((self.turn_base + pc) / (2 * MAX_RUN), 0.998)

    def emit(self, cta: int, row: str, kind: Any, name: str, **data: Any) -> None:
        """Note an event of a resident CTA, now."""
        linear = self.linear(cta)
        t = self.row_time[linear, row] = max(self.tick + self.fraction, self.row_time.get((linear, row), 0))
        self.launch.run.events.append(Event(t, linear, row, kind, name, data))

    @staticmethod
    def place(ins: ptx.Instr | None) -> dict[str, Any]:
        """Where an instruction stands, as data of an event."""
        if ins is None:
            return {}
        return {"ptx_line": ins.line} if ins.source is None else {"ptx_line": ins.line, "source": str(ins.source)}

    def bank_conflicts(self, ins: ptx.Instr) -> BankConflicts:
        """The counters of one shared-memory instruction."""
        table = self.launch.run.bank_conflicts
        found = table.get(ins.line)
        if found is None:
            found = table[ins.line] = BankConflicts(ins.opcode, ins.line, str(ins.source) if ins.source else None)
        return found

    # ---- constants

    def _fill_constants(self) -> None:
        literals: dict[int, list[tuple[int, int]]] = {}
        for (bits, kind, *what), slot in self.program.constants.items():
            target = self.files.raw[bits][slot]
            if kind == "literal" and bits != 128:
                literals.setdefault(bits, []).append((slot, what[0]))
            elif kind == "literal":
                target[...] = [what[0] & (1 << 64) - 1, what[0] >> 64]
            elif kind == "special":
                target[...] = self.special(what[0]).astype(target.dtype)
            else:
                target[...] = self.symbol(what[0], what[1]).astype(target.dtype)
        for bits, some in literals.items():  # all at once: there are hundreds
            raw = self.files.raw[bits]
            slots, values = zip(*some, strict=True)
            raw[list(slots)] = np.array(values, raw.dtype).reshape(-1, 1, 1, 1)

    def special(self, name: str) -> np.ndarray:
        """The value of a special register for every thread, broadcastable to [warp, CTA, lane] (PTX ISA "Special
        Registers").
        """
        launch = self.launch
        lane = np.arange(32).reshape(1, 1, 32)
        warp = np.arange(self.warps_per_cta).reshape(-1, 1, 1)
        base, _, axis_name = name.partition(".")
        axis = "xyz".find(axis_name) if axis_name else 0
        order = np.array(self.order).reshape(1, self.ctas, 1, 3)
        cluster = np.array(launch.cluster)
        bx, by, _ = launch.block
        thread = warp * 32 + lane
        match base:
            case "tid":
                return (thread % bx, thread // bx % by, thread // (bx * by))[axis]
            case "ntid":
                return np.array(launch.block[axis])
            case "ctaid":
                return order[..., axis]
            case "nctaid":
                return np.array(launch.grid[axis])
            case "clusterid":
                return order[..., axis] // cluster[axis]
            case "nclusterid":
                return np.array(launch.grid[axis] // launch.cluster[axis])
            case "cluster_ctaid":
                return order[..., axis] % cluster[axis]
            case "cluster_nctaid":
                return cluster[axis]
            case "cluster_ctarank":
                return (np.arange(self.ctas) % self.cluster_size).reshape(1, -1, 1)
            case "cluster_nctarank":
                return np.array(self.cluster_size)
            case "is_explicit_cluster":
                return np.array(self.cluster_size > 1)
            case "laneid":
                return lane
            case "warpid":
                return warp
            case "nwarpid":
                return np.array(self.warps_per_cta)
            case "smid":
                return np.arange(self.ctas).reshape(1, -1, 1)
            case "nsmid":
                return np.array(self.ctas)
            case "gridid":
                return np.array(0)
            case "dynamic_smem_size":
                return np.array(launch.dynamic_shared)
            case "total_smem_size" | "aggr_smem_size":
                return np.array(launch.shared_bytes)
            case "reserved_smem_offset_begin":
                return np.array(0)
        one = np.uint64(1) << lane.astype(np.uint64)
        below = one - np.uint64(1)
        full = np.uint64(0xFFFFFFFF)
        masks = {"eq": one, "le": one | below, "lt": below, "ge": full ^ below, "gt": full ^ (one | below)}
        return masks[name.removeprefix("lanemask_")]

    def symbol(self, name: str, offset: int) -> np.ndarray:
        """The address of a variable or parameter, for every CTA."""
        launch = self.launch
        if name in launch.shared_symbols:
            rank = (np.arange(self.ctas) % self.cluster_size).reshape(1, -1, 1).astype(np.uint64)
            return (rank << np.uint64(SHARED_RANK_SHIFT)) + np.uint64(launch.shared_symbols[name] + offset)
        if name in launch.addresses:
            return np.array((launch.addresses[name] + offset) & (1 << 64) - 1, np.uint64)
        raise EmulationError(f"the module declares no variable or parameter {name!r}")


@dataclass(slots=True)
class Launch:
    """Everything about one launch that does not depend on which CTAs are resident."""

    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int
    shared_bytes: int
    local_bytes: int
    shared_symbols: dict[str, int]
    addresses: dict[str, int]
    memory: GlobalMemory
    config: Config
    run: Run
    order: list[tuple[int, int, int]]
    keep: list[Any]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


def launch_module(
    module: ptx.Module,
    entry: str | None = None,
    *,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int] | None = None,
    shared: int = 0,
    params: Sequence[bytes] = (),
    allocations: Sequence[Allocation] = (),
    config: Config | None = None,
    keep: Sequence[Any] = (),
) -> Run:
    """Run a kernel.

    grid, block, cluster: up to three dimensions. shared: bytes of dynamic shared memory. params: the bytes of every
    parameter.
    allocations: the global memory that the kernel may touch. keep: objects that own that memory. Raises the errors of
    errors.py.
    """
    began = time.perf_counter()
    config = config or Config()
    program = decode(module, entry, config.races)
    for code in program.blocks.values():
        code.warps = 0
    kernel = program.entry
    grid3, block3 = _three("grid", grid), _three("block", block)
    cluster3 = _three("cluster", cluster or kernel.reqnctapercluster or (1, 1, 1))
    _check_geometry(kernel, grid3, block3, cluster3)
    shared_symbols, static = _shared_layout(module, kernel)
    addresses: dict[str, int] = {}
    owned: list[Allocation] = []
    held: list[Any] = list(keep)
    _place_params(kernel, params, addresses, owned, held)
    _place_globals(module, kernel, addresses, owned, held)
    local_bytes = _place_locals(kernel, addresses)
    run = Run(kernel.name, grid3, cluster3, block3, static + shared)
    launch = Launch(
        program, grid3, block3, cluster3, shared, static + shared, local_bytes, shared_symbols, addresses,
        GlobalMemory([*allocations, *owned]), config, run, _launch_order(grid3, cluster3), held,
    )  # fmt: skip
    total = len(launch.order)
    resident = _resident(launch, total)
    machine: Machine | None = None
    with np.errstate(all="ignore"), one_thread():
        for first in range(0, total, resident):
            ctas = min(resident, total - first)
            if machine is None or machine.ctas != ctas:
                machine = Machine(launch, ctas)
            machine.start(first)
            try:
                machine.scheduler.run(first, total)
                if machine.check is not None:
                    machine.check.finish()
            except EmulationError as error:
                error.findings = run.findings
                raise
            for state in machine.cta_state:
                for check in state.get("at exit", ()):
                    check()
            run.ticks = machine.tick
        if machine is not None:
            machine.files.release()
    run.events.sort(
        key=lambda e: e.t
    )  # the bundles of a round take their turns one after another, but at the same time
    run.instructions = _count(program)
    run.seconds = time.perf_counter() - began
    return run


def _three(name: str, value: Sequence[int]) -> tuple[int, int, int]:
    dims = [int(v) for v in value] + [1, 1, 1]
    if len(value) > 3 or min(dims) < 1:
        raise ValueError(f"{name}={tuple(value)}: needs one to three positive numbers")
    return dims[0], dims[1], dims[2]


def _check_geometry(kernel: ptx.Entry, grid: tuple[int, ...], block: tuple[int, ...], cluster: tuple[int, ...]) -> None:
    threads = block[0] * block[1] * block[2]
    if threads > 1024:
        raise ValueError(f"block={block} has {threads} threads: at most 1024")
    if kernel.reqntid and _three("reqntid", kernel.reqntid) != block:
        raise ValueError(f"block={block}, but {kernel.name} was compiled for .reqntid {kernel.reqntid}")
    if (
        kernel.reqnctapercluster
        and kernel.reqnctapercluster[0]
        and _three("cluster", kernel.reqnctapercluster) != cluster
    ):
        raise ValueError(
            f"cluster={cluster}, but {kernel.name} was compiled for .reqnctapercluster {kernel.reqnctapercluster}"
        )
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise ValueError(f"grid={grid} is no multiple of cluster={cluster}")


def _shared_layout(module: ptx.Module, kernel: ptx.Entry) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables (extern ones last, all at the same place) and the bytes of the static ones."""
    variables = [v for v in (*module.variables.values(), *kernel.variables.values()) if v.space == "shared"]
    offsets, at = {}, SHARED_RESERVED
    for v in variables:
        if v.size:
            at = -(-at // v.align) * v.align
            offsets[v.name] = at
            at += v.size
    dynamic = [v for v in variables if not v.size]
    if dynamic:
        align = max(16, *(v.align for v in dynamic))
        at = -(-at // align) * align
        offsets |= {v.name: at for v in dynamic}
    return offsets, at - SHARED_RESERVED


def _place(
    name: str, data: bytes | bytearray, align: int, addresses: dict, owned: list, held: list, writable: bool
) -> int:
    buffer = np.zeros(len(data) + align, np.uint8)
    start = -buffer.ctypes.data % align
    buffer[start : start + len(data)] = np.frombuffer(bytes(data), np.uint8)
    held.append(buffer)
    addresses[name] = buffer.ctypes.data + start
    owned.append(Allocation(name, addresses[name], len(data), writable))
    return addresses[name]


def _place_params(kernel: ptx.Entry, params: Sequence[bytes], addresses: dict, owned: list, held: list) -> None:
    if len(params) != len(kernel.params):
        raise ValueError(f"{kernel.name} takes {len(kernel.params)} parameters, {len(params)} were given")
    data = bytearray(kernel.param_bytes)
    for value, p in zip(params, kernel.params.values(), strict=True):
        if len(value) != p.size:
            raise ValueError(f"parameter {p.name} has {p.size} bytes, {len(value)} were given")
        data[p.offset : p.offset + p.size] = value
    base = _place(f"the parameters of {kernel.name}", data, 256, addresses, owned, held, False)
    addresses |= {p.name: base + p.offset for p in kernel.params.values()}


def _place_globals(module: ptx.Module, kernel: ptx.Entry, addresses: dict, owned: list, held: list) -> None:
    """Module-scope variables. Each launch gets them afresh, with their initial values."""
    variables = [v for v in (*module.variables.values(), *kernel.variables.values()) if v.space in ("global", "const")]
    for v in variables:
        _place(
            v.name,
            v.init if v.init is not None else bytes(v.size),
            max(v.align, 16),
            addresses,
            owned,
            held,
            v.space == "global",
        )
    where = {a.name: a for a in owned}
    for v in variables:
        for offset, symbol, addend in v.refs:
            if symbol in addresses:
                where[v.name].bytes[offset : offset + 8] = np.frombuffer(
                    (addresses[symbol] + addend).to_bytes(8, "little"), np.uint8
                )


def _place_locals(kernel: ptx.Entry, addresses: dict) -> int:
    at = 0
    for v in kernel.variables.values():
        if v.space in ("local", "param"):
            at = -(-at // v.align) * v.align
            addresses[v.name] = at
            at += v.size
    return -(-at // 16) * 16


def _launch_order(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """All CTAs, cluster by cluster (x fastest), so that the CTAs of a cluster are neighbours, by rank."""
    clusters = [range(0, g, c) for g, c in zip(grid, cluster, strict=True)]
    return [
        (x + i, y + j, z + k)
        for z in clusters[2] for y in clusters[1] for x in clusters[0]
        for k in range(cluster[2]) for j in range(cluster[1]) for i in range(cluster[0])
    ]  # fmt: skip


def _resident(launch: Launch, total: int) -> int:
    if launch.config.max_resident_ctas is not None:
        limit = launch.config.max_resident_ctas
    else:
        lanes = -(-launch.threads // 32) * 32
        registers = sum(count * max(bits // 8, 1) for bits, count in launch.program.slots.items()) * lanes
        tmem = 128 * 512 * 4
        shared = launch.shared_bytes * (10 if launch.config.races else 1)  # the checker keeps a shadow of it
        limit = min(MAX_RESIDENT, MEMORY_BUDGET // (registers + shared + tmem + lanes * launch.local_bytes))
    size = launch.cluster_size
    return min(total, max(limit // size, 1) * size)


def _count(program: Program) -> Counter[str]:
    """Warp instructions by opcode; the blocks count their executions, and start from zero again."""
    counts: Counter[str] = Counter()
    for block in program.blocks.values():
        if block.warps:
            for op in program.ops[block.start : block.end]:
                counts[op.ins.opcode] += block.warps
            if block.last is not None:
                counts[block.last.ins.opcode] += block.warps
            block.warps = 0
    return counts
