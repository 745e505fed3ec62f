"""The fifth-generation tensor core: MMA, loads and stores of tensor memory, completion. (Allocation: tmemalloc.py.)

PTX ISA 9.7.16. MMAs, copies and commits of a CTA (or of a CTA pair) go into one queue of the engine "tensor" and are
done in order, later than they are issued: an MMA reads its operands when it runs, and a commit arrives on its mbarrier
when everything before it is done. tcgen05.ld and .st take effect at issue; the ISA only promises that after
tcgen05.wait. The pure parts are in descriptors.py (what the bits mean), tmem.py (cells and fragments) and mma.py (the
arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ptx
from ..errors import IllegalInstruction
from ..machine import AsyncOp, Machine, Warps
from ..memory import SHARED_RESERVED
from ..registers import Rows
from . import Decode, instruction, mmabatch
from . import mma as arithmetic
from .ctapair import aligned, group_of, pair_of, use_group
from .descriptors import (
    InstructionDescriptor,
    SmemDescriptor,
    accumulator_lanes,
    check_supported,
    decode_instruction_descriptor,
    decode_smem_descriptor,
    split_tmem_address,
)
from .tma import address_reader, origin
from .tmem import fragment, fragment_written, mark_fragment, read_fragment, write_fragment
from .tmemalloc import tmem_state

# ------------------------------------------------------------------------------------------------------------------ MMA


@dataclass(slots=True)
class _Mma:
    """One MMA on its way. Everything but the data is known at issue; A, B and D are read when it is run.

    ctas: the CTA, or both of a pair, the even one first.  a: a shared-memory descriptor, or the (lane, column) of A in
    tensor memory; descriptors and addresses hold for each CTA's own memories.
    """

    machine: Machine
    ctas: tuple[int, ...]
    shape: InstructionDescriptor
    a: SmemDescriptor | tuple[int, int]
    b: SmemDescriptor
    lane: int
    column: int
    keep: bool
    scale: int
    disabled: int
    outstanding: list[int]
    ins: ptx.Instr
    done: bool = False  # its work was done together with that of another CTA

    def same_as(self, other: _Mma) -> bool:
        """Whether both are the same instruction on the same places."""
        return (
            self.ins is other.ins
            and self is not other
            and (self.a, self.b, self.shape, self.column, self.lane, self.keep)
            == (other.a, other.b, other.shape, other.column, other.lane, other.keep)
        )

    def __call__(self) -> None:
        self.outstanding[0] -= 1
        if self.done:
            return
        i = self.shape
        if len(self.ctas) == 1 and i.m == 128 and i.d == "f32" and not self.scale and not self.disabled:
            jobs = mmabatch.alike(self)
            if len(jobs) > 1 and mmabatch.run(jobs):
                for job in jobs:
                    job.done = True
                return
        self.alone()

    def alone(self) -> None:
        i, share = self.shape, len(self.ctas)
        # Each CTA of a pair holds half of B's columns, in order; both multiply with all of them.
        halves = [self.shared_operand(cta, self.b, i.n // share, i.b_major, i.b) for cta in self.ctas]
        b = halves[0] if share == 1 else np.concatenate(halves)
        for cta in self.ctas:
            if share == 2 and i.m == 128:
                self.two_by_two(cta, b)
            else:
                rows = accumulator_lanes(i.m // share, self.lane)
                self.store(cta, rows, self.column, self.left(cta, i.m // share, rows), b)

    def shared_operand(self, cta: int, d: SmemDescriptor, rows: int, major: int, kind: str) -> NDArray[np.float32]:
        shared = self.machine.shared
        if self.machine.check is not None:
            self.machine.check.operand(cta, d, rows, major)
        raw = arithmetic.operand_bits(shared.bytes[cta], d, rows, major, first=SHARED_RESERVED, size=shared.size)
        return arithmetic.to_float(raw, kind)

    def left(self, cta: int, m: int, rows: Any) -> NDArray[np.float32]:
        """A's rows of one CTA. rows: their lanes, where A lies in tensor memory."""
        i = self.shape
        if isinstance(self.a, SmemDescriptor):
            return self.shared_operand(cta, self.a, m, i.a_major, i.a)
        state = tmem_state(self.machine, cta)
        column = self.a[1]
        at = (rows, slice(column, column + 8))
        state.require(column, 8, "tcgen05.mma, A")
        if self.machine.check is not None:
            self.machine.check.cells(cta, rows, column, 8, write=False)
        if not state.is_written(rows, column, 8):
            raise IllegalInstruction(
                f"tcgen05.mma reads A from TMEM columns {column}-{column + 7}{self.whose(cta)}, which nobody has"
                " written"
            )
        return arithmetic.to_float(arithmetic.unpack_tmem_operand(self.machine.tmem[cta][at]), i.a)

    def whose(self, cta: int) -> str:
        return f" of CTA {self.machine.cta_name(cta)}" if len(self.ctas) == 2 else ""

    def two_by_two(self, cta: int, b: NDArray[np.float32]) -> None:
        """Layout B, M = 128 over a pair (PTX ISA 9.7.16.10.5.2): 64 rows in each CTA, lanes 0-63 hold the first half of
        the columns of D and lanes 64-127 the second. Each half of the lanes multiplies with A of its own lanes, so that
        A in tensor memory has to be there twice.
        """
        half = self.shape.n // 2
        for part in (0, 1):
            rows = slice(64 * part, 64 * part + 64)
            self.store(cta, rows, self.column, self.left(cta, 64, rows), b[part * half : part * half + half])

    def store(self, cta: int, rows: Any, column: int, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """D[rows, column...] of one CTA = a b^T (+ D)."""
        i, cells = self.shape, self.machine.tmem[cta]
        state = tmem_state(self.machine, cta)
        n = len(b)
        product = arithmetic.multiply(a, b)
        if i.a_negate != i.b_negate:
            product = -product
        at: tuple[Any, slice] = (rows, slice(column, column + n))
        state.require(column, n, "tcgen05.mma, D")
        if self.machine.check is not None:
            self.machine.check.cells(cta, rows, column, n, write=True)
        if self.keep and not state.is_written(rows, column, n):
            raise IllegalInstruction(
                f"tcgen05.mma accumulates onto TMEM columns {column}-{column + n - 1}{self.whose(cta)}, which nobody"
                " has written (enable-input-d must be false in the first MMA of a tile)"
            )
        result = arithmetic.accumulate(cells[at], product, i.d, self.keep, self.scale)
        if self.disabled:
            lanes = np.arange(128)[rows]
            on = np.array([not self.disabled >> int(lane) & 1 for lane in lanes])
            if not on.any():
                return
            at = (lanes[on], at[1])
            result = result[on]
        cells[at] = result
        if self.disabled:
            state.written[at] = True
        else:
            state.write(rows, column, n)


@instruction("tcgen05.mma")
def mma(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.10.9.1 tcgen05.mma kind::f16, dense: D = A B^T (+ D). One thread issues it for the whole CTA, or
    with .cta_group::2 for both CTAs of its pair.
    """
    for word in ("sp", "ws"):
        if d.mods.flag(word):
            raise d.unsupported(f"the .{word} form is not emulated")
    kind = d.mods.starting("kind::")
    if kind != "kind::f16":
        raise d.unsupported(f"only .kind::f16 is emulated, not .{kind}")
    group = group_of(d)
    for word in ("block_scale", "ashift", "collector::a::use", "collector::a::lastuse"):
        if d.mods.flag(word):
            raise d.unsupported(f"the .{word} form is not emulated")
    # Filling or discarding the collector buffer changes nothing that can be seen while nobody reads from it.
    d.mods.flag("collector::a::discard", "collector::a::fill")

    ops = list(d.ops)
    d_view, d_slot, d_offset = d.address(ops[0])
    a_in_tmem = isinstance(ops[1], ptx.Addr)
    if a_in_tmem:
        a_view, a_slot, a_offset = d.address(ops[1])
    else:
        a_view, a_slot, a_offset = "u64", d.read(ops[1], "u64"), 0
    b_slot, i_slot = d.read(ops[2], "u64"), d.read(ops[3], "u32")
    rest = ops[4:]
    disabled: list[int] = []
    if rest and isinstance(rest[0], ptx.Vec):
        disabled = [d.read(item, "u32") for item in d.items(rest.pop(0))]
        if len(disabled) != 4 * group:
            raise d.unsupported(
                f"disable-output-lane has {len(disabled)} words where .cta_group::{group} has {4 * group}"
            )
    if not rest:
        raise d.unsupported("the operand enable-input-d is missing")
    enable = rest.pop(0)
    negated = isinstance(enable, ptx.Not)
    keep_slot = d.read(enable.operand if isinstance(enable, ptx.Not) else enable, "pred")
    scale = 0
    if rest:
        literal = rest.pop(0)
        if not isinstance(literal, ptx.Imm) or not 0 <= int(literal.value) <= 15:
            raise d.unsupported("scale-input-d must be a literal in 0..15")
        scale = int(literal.value)
    if rest:
        raise d.unsupported(f"{len(rest)} more operands than it has")

    def operands(i_value: int, d_value: int, a_value: int, b_value: int) -> tuple:
        """Shape, lane and column of D, A and B, from the values of the registers."""
        shape = decode_instruction_descriptor(i_value, group)
        lane, column = split_tmem_address(d_value & 0xFFFF_FFFF)
        if group == 1:
            accumulator_lanes(shape.m, lane)
        elif lane:
            raise IllegalInstruction(f"tcgen05.mma: D at TMEM lane {lane}; for a CTA pair it must be lane 0")
        a: SmemDescriptor | tuple[int, int]
        if a_in_tmem:
            a = split_tmem_address(a_value & 0xFFFF_FFFF)
            if shape.a_major:
                raise IllegalInstruction("tcgen05.mma with A in tensor memory: A must be K-major (transpose A is set)")
            if a[0] != lane:
                raise IllegalInstruction(
                    f"tcgen05.mma: A is at TMEM lane {a[0]}, D at lane {lane}; they must be the same"
                )
        else:
            a = decode_smem_descriptor(a_value)
            check_supported(a, shape.a_major)
        b = decode_smem_descriptor(b_value)
        check_supported(b, shape.b_major)
        return shape, lane, column, a, b

    def run(w: Warps) -> None:
        m = w.machine
        last: tuple | None = None
        for t in w.threads():
            at = t.at
            use_group(m, t.cta, group, d)
            ctas = (t.cta,) if group == 1 else pair_of(m, t.cta, d)
            values = (
                int(w.u32[i_slot][at]),
                int(getattr(w, d_view)[d_slot][at]) + d_offset,
                int(getattr(w, a_view)[a_slot][at]) + a_offset,
                int(w.u64[b_slot][at]),
            )
            if values != last:  # CTAs in step mostly give the same
                shape, lane, column, a, b = operands(*values)
                last = values
            keep = bool(w.pred[keep_slot][at]) != negated
            mask = sum(int(w.u32[s][at]) << 32 * n for n, s in enumerate(disabled))
            if mask and group == 2:
                # The ISA does not say which of the eight words belong to which CTA.
                raise d.unsupported("disable-output-lane is emulated for .cta_group::1 only")
            outstanding = _outstanding(m, t.cta, t.warp, t.lane)
            outstanding[0] += 1
            job = _Mma(m, ctas, shape, a, b, lane, column, keep, scale, mask, outstanding, d.ins)
            data = _mma_data(d, job, t.warp) if m.tracing else {}
            m.submit(
                AsyncOp(
                    engine="tensor",
                    cta=t.cta,
                    run=job,
                    name="MMA",
                    ins=d.ins,
                    queue=ctas[0],
                    data=data,
                    warp=t.warp,
                    lane=t.lane,
                )
            )

    return run


def _outstanding(m: Machine, cta: int, warp: int, lane: int) -> list[int]:
    """How many MMAs of a thread are not done yet (one number, shared by all who count)."""
    threads = m.cta_state[cta].setdefault("mma issued", {})
    found = threads.get((warp, lane))
    if found is None:
        found = threads[warp, lane] = [0]
    return found


def _mma_data(d: Decode, job: _Mma, warp: int) -> dict[str, Any]:
    """What an event says about an MMA."""
    i = job.shape
    if isinstance(job.a, SmemDescriptor):
        a: dict[str, Any] = {"a": "shared", "a_offset": job.a.start, "a_descriptor": job.a.value}
    else:
        a = {"a": "tmem", "a_column": job.a[1]}
    return {
        "m": i.m,
        "n": i.n,
        "k": arithmetic.MMA_K,
        "column": job.column,
        **a,
        "b_offset": job.b.start,
        "b_descriptor": job.b.value,
        "idesc": i.value,
        "accumulate": job.keep,
        "cta_group": len(job.ctas),
        **origin(d, warp),
    }


@instruction("tcgen05.commit")
def commit(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.12.1 tcgen05.commit: the mbarrier gets an arrival when all earlier MMAs of this thread are done.

    A thread without any under way waits for nobody: a commit by another thread than the one that issued the MMAs
    arrives early, here as on a GPU.
    """
    group = group_of(d)
    d.mods.one_of("mbarrier::arrive::one")
    d.mods.flag("shared::cluster")
    multicast = d.mods.flag("multicast::cluster")
    d.mods.one_of("b64")
    barrier = address_reader(d, d.ops[0], shared=True)
    mask = d.read(d.ops[1], "u16") if multicast else None

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            use_group(m, t.cta, group, d)
            first = t.cta if group == 1 else pair_of(m, t.cta, d)[0]
            owner, offset = m.mbarriers.locate(t.cta, barrier(w, t.at))
            owners = [owner]
            if mask is not None:
                ranks = int(w.u16[mask][t.at])
                if not ranks or ranks >> m.cluster_size:
                    raise IllegalInstruction(
                        f"tcgen05.commit: ctaMask {ranks:#06x} in a cluster of {m.cluster_size} CTAs"
                    )
                owners = [m.peer(t.cta, r) for r in range(m.cluster_size) if ranks >> r & 1]

            def arrive(owners: list[int] = owners, offset: int = offset) -> None:
                for o in owners:
                    m.mbarrier_arrive(o, m.rank(o) << 24 | offset)

            data = {"barrier": offset, **origin(d, t.warp)} if m.tracing else {}
            queue = first if _outstanding(m, t.cta, t.warp, t.lane)[0] else None
            m.submit(
                AsyncOp(
                    engine="tensor",
                    cta=t.cta,
                    run=arrive,
                    name="commit",
                    ins=d.ins,
                    queue=queue,
                    data=data,
                    warp=t.warp,
                    lane=t.lane,
                )
            )

    return run


@instruction("tcgen05.cp", "tcgen05.shift", "tcgen05.mma.ws", "tcgen05.mma.sp", "tcgen05.ld.red")
def not_yet(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.9.2 tcgen05.cp, 9.7.16.9.3 tcgen05.shift, and the weight-stationary, sparse and reducing forms."""
    raise d.unsupported("is not emulated")


# -------------------------------------------------------------------------------------------------------- loads, stores

REPEATS = {f"x{1 << i}": 1 << i for i in range(8)}


def _shape(d: Decode, pack: str, address_at: int) -> tuple[Any, tuple[str, int, int]]:
    """Fragment and address operand of a load or store."""
    aligned(d)
    shape = d.mods.one_of("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
    repeat = REPEATS[d.mods.one_of(*REPEATS)]
    packed = d.mods.flag(pack)
    d.mods.one_of("b32")
    split = 0
    if shape == "16x32bx2":
        literal = d.ops[2 if address_at == 1 else 1]
        if not isinstance(literal, ptx.Imm):
            raise d.unsupported("immHalfSplitoff must be a literal")
        split = int(literal.value)
    return fragment(shape, repeat, packed, split), d.address(d.ops[address_at])


def _place(w: Warps, at: tuple, warp: int, address: tuple[str, int, int], lanes: int, opcode: str) -> tuple[int, int]:
    """(lane, column) of a warp's access, checked against its window of tensor memory (PTX ISA 9.7.16.8.1)."""
    view, slot, offset = address
    values = getattr(w, view)[slot][at]
    value = int(values[0])
    if (values != values[0]).any():
        raise IllegalInstruction(f"{opcode}: the lanes of warp {warp} give different TMEM addresses")
    lane, column = split_tmem_address((value + offset) & 0xFFFF_FFFF)
    window = 32 * (warp % 4)
    if lane != window and not (lanes == 16 and lane == window + 16):
        raise IllegalInstruction(
            f"{opcode}: warp {warp} accesses TMEM lanes {lane}-{lane + lanes - 1}, but warp {warp % 4} of a"
            f" warpgroup can only reach lanes {window}-{window + 31}"
        )
    return lane, column


def _whole_warp(w: Warps, at: tuple, warp: int, opcode: str) -> None:
    if w.mask is not None and not w.mask[at].all():
        raise IllegalInstruction(f"{opcode}: only some lanes of warp {warp} execute it; it is .aligned, all 32 must")


def _window(w: Warps, address: tuple[str, int, int]) -> tuple[int, int, int] | None:
    """(first lane, lanes, column) of a .32x32b access of a whole bundle, or None unless its warps all access the same
    columns of their own windows, with no lane missing: the common case, which one NumPy call serves.
    """
    view, slot, offset = address
    w0, w1 = w.key[:2]
    if w.mask is not None or view != "u32" or w0 % 4 + w1 - w0 > 4:
        return None
    values = w.u32[slot]
    column = (int(values[0, 0, 0]) + offset) & 0xFFFF
    # Warp w of a warpgroup gives lane 32 (w % 4), in the upper half of the address.
    if (values != (w.warp % 4 << 21) + column - offset).any():
        return None
    return 32 * (w0 % 4), 32 * (w1 - w0), column


def _cells(w: Warps, window: tuple[int, int, int], columns: int) -> NDArray[np.uint32]:
    """The cells of a bundle's window as a view of shape (columns, warps, CTAs, 32), like registers."""
    lane, lanes, column = window
    cells = w.machine.tmem[w.rect[1], lane : lane + lanes, column : column + columns]
    return cells.reshape(len(cells), lanes // 32, 32, columns).transpose(3, 1, 0, 2)


@instruction("tcgen05.ld", converge=True)
def load(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.8.3 tcgen05.ld: cells of the warp's window of tensor memory to registers."""
    f, address = _shape(d, "pack::16b", 1)
    slots = [d.write(item, "u32") for item in d.items(d.ops[0])]
    if len(slots) != f.registers:
        raise d.unsupported(f"{len(slots)} registers where the shape has {f.registers}")
    opcode, rows, plain = d.ins.opcode, Rows.of(tuple(slots)), f.lanes == 32 and not f.packed

    def run(w: Warps) -> None:
        m = w.machine
        window = _window(w, address) if plain else None
        if window is not None:
            lane, lanes, column = window
            for cta in w.cta.ravel().tolist():
                state = tmem_state(m, cta)
                state.require(column, f.columns, opcode)
                if not state.is_written(slice(lane, lane + lanes), column, f.columns):
                    _unwritten(m, d, cta, w.key[0], lane, column, f.columns)
            out = _cells(w, window, f.columns)
            if w.to is w and rows.step > 0:
                w.u32[rows][...] = out  # type: ignore[index]
                return
        else:
            out = np.empty((f.registers, *w.shape), np.uint32)
            for cta, warp, at in w.each_warp():
                _whole_warp(w, at, warp, opcode)
                lane, column = _place(w, at, warp, address, f.lanes, opcode)
                state = tmem_state(m, cta)
                state.require(column, f.columns, opcode)
                if not fragment_written(state.written, lane, column, f):
                    _unwritten(m, d, cta, warp, lane, column, f.columns)
                out[(slice(None), *at)] = read_fragment(m.tmem[cta], lane, column, f)
        to = w.to.u32
        for slot, values in zip(slots, out, strict=True):
            to[slot][...] = values

    return run


def _unwritten(m: Machine, d: Decode, cta: int, warp: int, lane: int, column: int, columns: int) -> None:
    """Note a load of cells that nobody has written (once for each instruction): what it gets is not defined."""
    if m.check is not None:
        return  # the checked driver has its own words for that
    findings = m.launch.run.findings
    line = d.ins.line
    if any(
        isinstance(x, dict) and x.get("rule") == "uninitialised TMEM" and x.get("ptx_line") == line for x in findings
    ):
        return
    findings.append(
        {
            "rule": "uninitialised TMEM",
            "text": f"{d.ins.opcode} of warp {warp} reads TMEM lanes {lane} on, columns"
            f" {column}-{column + columns - 1}: not all of these cells were written since they were allocated",
            "cta": m.linear(cta),
            "warp": warp,
            "ptx_line": line,
            "source": str(d.ins.source) if d.ins.source else None,
        }
    )


@instruction("tcgen05.st", converge=True)
def store(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.8.4 tcgen05.st: registers to cells of the warp's window of tensor memory."""
    f, address = _shape(d, "unpack::16b", 0)
    slots = [d.read(item, "u32") for item in d.items(d.ops[-1])]
    if len(slots) != f.registers:
        raise d.unsupported(f"{len(slots)} registers where the shape has {f.registers}")
    opcode, rows, plain = d.ins.opcode, Rows.of(tuple(slots)), f.lanes == 32 and not f.packed

    def run(w: Warps) -> None:
        m = w.machine
        window = _window(w, address) if plain else None
        if window is not None:
            lane, lanes, column = window
            for cta in w.cta.ravel().tolist():
                state = tmem_state(m, cta)
                state.require(column, f.columns, opcode)
                state.write(slice(lane, lane + lanes), column, f.columns)
            _cells(w, window, f.columns)[...] = w.u32[rows]  # type: ignore[index]
            return
        data = np.stack([w.u32[slot] for slot in slots])
        for cta, warp, at in w.each_warp():
            _whole_warp(w, at, warp, opcode)
            lane, column = _place(w, at, warp, address, f.lanes, opcode)
            state = tmem_state(m, cta)
            state.require(column, f.columns, opcode)
            write_fragment(m.tmem[cta], lane, column, f, data[(slice(None), *at)])
            mark_fragment(state.written, lane, column, f)

    return run


# ------------------------------------------------------------------------------------------------------ waits and
# fences


@instruction("tcgen05.wait::ld", "tcgen05.wait::st", converge=True)
def wait(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.8.5 tcgen05.wait: earlier loads (or stores) of the thread are done. They are: both take effect at
    issue.
    """
    aligned(d)
    return lambda w: None


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.11.1 tcgen05.fence: orders tcgen05 operations across threads. Here they run in order already."""
    return lambda w: None
