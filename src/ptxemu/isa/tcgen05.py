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
from . import Decode, blockscale, instruction, mmabatch
from . import mma as arithmetic
from .bits import bits
from .common import extremum32
from .ctapair import aligned, group_of, pair_of, use_group
from .descriptors import (
    KINDS,
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
    tensor memory; descriptors and addresses hold for each CTA's own memories.  scales: block scales.  collector: which
    buffer ("a", or "b0" to "b3" of .ws) and what for.  stationary: .ws, with the columns of B that are taken for zeros
    and the number of its first column.
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
    scales: blockscale.Scales | None = None
    collector: tuple[str, str] = ("a", "discard")
    stationary: bool = False
    zeros: NDArray[np.bool_] | None = None
    first: int = 0

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
        plain = i.kind == "f16" and i.m == 128 and i.d == "f32" and not self.stationary
        if plain and len(self.ctas) == 1 and not self.scale and not self.disabled and self.collector[1] == "discard":
            jobs = mmabatch.alike(self)
            if len(jobs) > 1 and mmabatch.run(jobs):
                for job in jobs:
                    job.done = True
                    collectors(job.machine, job.ctas).pop("a", None)
                return
        self.alone()

    def alone(self) -> None:
        i, share = self.shape, len(self.ctas)
        # Each CTA of a pair holds half of B's columns, in order; both multiply with all of them.
        buffer, use = self.collector
        of_b = buffer != "a"

        def columns_of_b(cta: int) -> NDArray[np.float32]:
            return self.shared_operand(cta, self.b, i.n // share + i.shift, i.b_major, i.b)

        halves = [self.collected(columns_of_b, cta, 0, of_b) for cta in self.ctas]
        b = halves[0] if share == 1 else np.concatenate(halves)
        if self.stationary:
            b = b[self.first : self.first + i.n]
            if self.zeros is not None:
                b = np.where(self.zeros[:, None], np.float32(0), b)
        for cta in self.ctas:
            # How many parts of the lanes hold a part of D's columns each: see two_by_two.
            parts = 128 // i.m if self.stationary else 2 if share == 2 and i.m == 128 else 1
            height, width = i.m // share, i.n // parts
            for part in range(parts):
                rows: Any = accumulator_lanes(height, self.lane)
                if parts > 1:
                    rows = slice(height * part, height * part + height)

                def rows_of_a(cta: int, rows: Any = rows, height: int = height) -> NDArray[np.float32]:
                    return self.left(cta, height, rows)

                a = self.collected(rows_of_a, cta, part, not of_b)
                columns = slice(width * part, width * part + width)
                self.store(cta, rows, self.column, a, b[columns], part, parts)
        if use in ("lastuse", "discard"):
            collectors(self.machine, self.ctas).pop(buffer, None)

    def collected(self, read: Callable[[int], NDArray], cta: int, part: int, mine: bool) -> NDArray:
        """An operand, read from memory or from its collector buffer. mine: the buffer is this operand's."""
        buffer, use = self.collector
        if not mine or use == "discard":
            return read(cta)
        held = collectors(self.machine, self.ctas)
        what = (self.shape.m, self.shape.n, self.shape.k, self.shape.a, self.shape.b)
        if use == "fill":
            data = read(cta)
            if buffer not in held or held[buffer].ins is not self:
                held[buffer] = Collected(self, what, {})
            held[buffer].data[cta, part] = data
            return data
        found = held.get(buffer)
        if found is None or found.what != what:
            state = "nothing" if found is None else f"an operand of an MMA of (M, N, K, A, B) = {found.what}"
            raise IllegalInstruction(
                f"tcgen05.mma with .collector::{buffer}::{use}: the buffer holds {state}; it needs a .fill before, by"
                f" an MMA of {what}, and no .discard or .lastuse since"
            )
        return found.data[cta, part]

    def shared_operand(self, cta: int, d: SmemDescriptor, rows: int, major: int, kind: str) -> NDArray[np.float32]:
        i, shared = self.shape, self.machine.shared
        if self.machine.check is not None:
            self.machine.check.operand(cta, d, rows, major, i.itemsize, i.kbytes)
        return arithmetic.operand_elements(
            shared.bytes[cta], d, rows, major, kind, i.kind.startswith("mxf4"), kbytes=i.kbytes,
            first=SHARED_RESERVED, size=shared.size,
        )  # fmt: skip

    def left(self, cta: int, m: int, rows: Any) -> NDArray[np.float32]:
        """A's rows of one CTA. rows: their lanes, where A lies in tensor memory."""
        i = self.shape
        if isinstance(self.a, SmemDescriptor):
            return self.shared_operand(cta, self.a, m, i.a_major, i.a)
        state = tmem_state(self.machine, cta)
        column, n = self.a[1], i.kbytes // 4
        at = (rows, slice(column, column + n))
        state.require(column, n, "tcgen05.mma, A")
        if self.machine.check is not None:
            self.machine.check.cells(cta, rows, column, n, write=False)
        if not state.is_written(rows, column, n):
            raise IllegalInstruction(
                f"tcgen05.mma reads A from TMEM columns {column}-{column + n - 1}{self.whose(cta)}, which nobody has"
                " written"
            )
        return arithmetic.tmem_elements(self.machine.tmem[cta][at], i.a, i.kind.startswith("mxf4"))

    def whose(self, cta: int) -> str:
        return f" of CTA {self.machine.cta_name(cta)}" if len(self.ctas) == 2 else ""

    def store(
        self,
        cta: int,
        rows: Any,
        column: int,
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        part: int,
        parts: int,
    ) -> None:
        """D[rows, column...] of one CTA = a b^T (+ D).

        parts: D of fewer than 128 rows may take all lanes, part 0 of them for the first columns of D, part 1 for the
        next: layouts B (M = 128 over a pair), E and G (.ws with M = 64 and 32; PTX ISA 9.7.16.10.5). Each part of the
        lanes multiplies with A of its own lanes, so that A in tensor memory has to be there once for each.
        """
        i, cells = self.shape, self.machine.tmem[cta]
        state = tmem_state(self.machine, cta)
        n = len(b)
        if i.a_negate != i.b_negate:
            a = -a
        product = self.scaled(cta, a, b, part, parts) if self.scales is not None else arithmetic.multiply(a, b)
        at: tuple[Any, slice] = (rows, slice(column, column + n))
        state.require(column, n, "tcgen05.mma, D")
        if self.machine.check is not None:
            self.machine.check.cells(cta, rows, column, n, write=True)
        if self.keep and not state.is_written(rows, column, n):
            raise IllegalInstruction(
                f"tcgen05.mma accumulates onto TMEM columns {column}-{column + n - 1}{self.whose(cta)}, which nobody"
                " has written (enable-input-d must be false in the first MMA of a tile)"
            )
        result = arithmetic.accumulate(cells[at], product, i.d, self.keep, self.scale, i.saturate)
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

    def scaled(
        self, cta: int, a: NDArray[np.float32], b: NDArray[np.float32], part: int, parts: int
    ) -> NDArray[np.float32]:
        """The product with block scales. Two parts of the lanes: each has the factors of its own columns of B."""
        i, m = self.shape, self.machine
        assert self.scales is not None
        s, cells, state = self.scales, m.tmem[cta], tmem_state(m, cta)
        count = i.k // s.block

        def tell(lanes: slice, column: int, n: int) -> None:
            if m.check is not None:
                m.check.cells(cta, lanes, column, n, write=False)

        every = (0, 1, 2, 3)
        own = every if parts == 1 else (2 * part, 2 * part + 1)
        of_a = blockscale.factors(cells, state, own, s.a, len(a), count, i.a_scale, i.scale, "A", tell)
        of_b = blockscale.factors(cells, state, own, s.b, len(b), count, i.b_scale, i.scale, "B", tell)
        return blockscale.multiply(a, b, of_a, of_b)


@dataclass(slots=True)
class Collected:
    """What a collector buffer holds: the MMA that filled it, shapes and types, and the operand by CTA and part."""

    ins: _Mma
    what: tuple
    data: dict[tuple[int, int], NDArray[np.float32]]


def collectors(m: Machine, ctas: tuple[int, ...]) -> dict[str, Collected]:
    """The collector buffers of a CTA or a pair, by name: "a", "b0" to "b3"."""
    return m.cta_state[ctas[0]].setdefault("collectors", {})


@instruction("tcgen05.mma", "tcgen05.mma.ws")
def mma(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.10.9.1 tcgen05.mma, 9.7.16.10.9.3 tcgen05.mma.ws, dense: D = A B^T (+ D). One thread issues it for
    the whole CTA, or with .cta_group::2 for both CTAs of its pair.
    """
    stationary = d.name == "tcgen05.mma.ws"
    if d.mods.flag("sp"):
        raise d.unsupported("the sparse form .sp is not emulated")
    kind = (d.mods.starting("kind::") or "").removeprefix("kind::")
    if kind not in KINDS:
        raise d.unsupported(f"does not know .kind::{kind}; it knows {', '.join(KINDS)}")
    scaled = KINDS[kind].scaled
    if d.mods.flag("block_scale") != scaled:
        raise d.unsupported(f".kind::{kind} {'needs' if scaled else 'has no'} .block_scale")
    if stationary and scaled:
        raise d.unsupported(f"there is no .ws form of .kind::{kind}")
    block = blockscale.block_of(d, kind) if scaled else 0
    group = group_of(d)
    if stationary and group == 2:
        raise d.unsupported("the .ws form is for .cta_group::1 only")
    if d.mods.flag("ashift"):
        raise d.unsupported(".ashift: the ISA does not say whether A is shifted in tensor memory, too")
    collector = _collector(d, stationary)

    ops = list(d.ops)
    d_view, d_slot, d_offset = d.address(ops[0])
    a_in_tmem = isinstance(ops[1], ptx.Addr)
    if a_in_tmem:
        a_view, a_slot, a_offset = d.address(ops[1])
    else:
        a_view, a_slot, a_offset = "u64", d.read(ops[1], "u64"), 0
    b_slot, i_slot = d.read(ops[2], "u64"), d.read(ops[3], "u32")
    rest = ops[4:]
    scale_operands = [d.address(rest.pop(0)) for _ in range(2)] if scaled else []
    disabled: list[int] = []
    if rest and isinstance(rest[0], ptx.Vec):
        if scaled or stationary:
            raise d.unsupported("disable-output-lane is not for block scales or .ws")
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
    scale, mask_slot = 0, None
    if rest and stationary:
        mask_slot = d.read(rest.pop(0), "u64")
    elif rest:
        literal = rest.pop(0)
        if kind not in ("f16", "tf32"):
            raise d.unsupported("scale-input-d is for .kind::f16 and .kind::tf32 only")
        if not isinstance(literal, ptx.Imm) or not 0 <= int(literal.value) <= 15:
            raise d.unsupported("scale-input-d must be a literal in 0..15")
        scale = int(literal.value)
    if rest:
        raise d.unsupported(f"{len(rest)} more operands than it has")

    def operands(i_value: int, d_value: int, a_value: int, b_value: int) -> tuple:
        """Shape, lane and column of D, A and B, from the values of the registers."""
        shape = decode_instruction_descriptor(i_value, group, kind, stationary)
        lane, column = split_tmem_address(d_value & 0xFFFF_FFFF)
        if scaled:
            blockscale.check(shape, block)
        if group == 1 and not stationary:
            accumulator_lanes(shape.m, lane)
        elif lane:
            raise IllegalInstruction(
                f"tcgen05.mma: D at TMEM lane {lane}; for a CTA pair and for .ws it must be lane 0"
            )
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
            check_supported(a, shape.a_major, shape.itemsize, shape.kbytes)
        b = decode_smem_descriptor(b_value)
        check_supported(b, shape.b_major, shape.itemsize, shape.kbytes)
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
            outstanding = outstanding_of(m, t.cta, t.warp, t.lane)
            outstanding[0] += 1
            job = _Mma(m, ctas, shape, a, b, lane, column, keep, scale, mask, outstanding, d.ins)
            job.collector, job.stationary = collector, stationary
            if scaled:
                where = [int(getattr(w, view)[slot][at]) + offset for view, slot, offset in scale_operands]
                job.scales = blockscale.Scales(
                    blockscale.column_of(where[0], "A"), blockscale.column_of(where[1], "B"), block
                )
            if mask_slot is not None:
                job.zeros, job.first = zero_columns(int(w.u64[mask_slot][at]), shape.m, shape.n)
                if job.first > shape.shift:
                    raise IllegalInstruction(
                        f"tcgen05.mma.ws: the zero-column mask shifts by {job.first}, the instruction descriptor allows"
                        f" a maximum shift of {shape.shift}"
                    )
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


def _collector(d: Decode, stationary: bool) -> tuple[str, str]:
    """(buffer, use) of .collector::buffer::use; the last colon may be single, as the ISA's example has it."""
    found = d.mods.starting("collector::")
    if found is None:
        return ("b0" if stationary else "a"), "discard"
    buffer, _, use = found.removeprefix("collector::").partition(":")
    use = use.removeprefix(":")
    if buffer not in (("b0", "b1", "b2", "b3") if stationary else ("a",)):
        raise d.unsupported(f"has no collector buffer {buffer}")
    if use not in ("fill", "use", "lastuse", "discard"):
        raise d.unsupported(f"does not know .{found}")
    return buffer, use


def zero_columns(descriptor: int, m: int, n: int) -> tuple[NDArray[np.bool_] | None, int]:
    """(columns of B that are taken for zeros, the first column used) of a zero-column mask descriptor (PTX ISA
    9.7.16.4.3, table 45).

    In each of 1, 2 or 4 parts of the columns (M = 128, 64, 32) runs of "use span" + 1 columns that are used and "skip
    span" + 1 that are not take turns, as all of the ISA's examples have it (the table of the fields says it the other
    way round). "First span" says which comes first, "start count" how many columns of it are left out.
    """
    first = bits(descriptor, 61, 56)
    most = 16 if m == 32 else 32
    if first > most:
        raise IllegalInstruction(f"zero-column mask {descriptor:#018x}: a shift of {first} columns, at most {most}")
    if not bits(descriptor, 39, 39):
        return None, first
    parts = 128 // m
    skip, use = bits(descriptor, 47, 40) + 1, bits(descriptor, 55, 48) + 1
    masks = []
    for part in range(parts):
        start, ones = bits(descriptor, 8 * part + 7, 8 * part), bits(descriptor, 32 + part, 32 + part)
        place = (np.arange(n // parts) + start + (use if ones else 0)) % (skip + use)
        masks.append(place >= use)
    return np.concatenate(masks), first


def outstanding_of(m: Machine, cta: int, warp: int, lane: int) -> list[int]:
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
        "k": i.k,
        "mma_kind": i.kind,
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
            queue = first if outstanding_of(m, t.cta, t.warp, t.lane)[0] else None
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


@instruction("tcgen05.mma.sp", "tcgen05.mma.ws.sp")
def sparse(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.10.9.2 tcgen05.mma.sp, 9.7.16.10.9.4 tcgen05.mma.ws.sp: refused."""
    raise d.unsupported("the sparse form is not emulated")


# -------------------------------------------------------------------------------------------------------- loads, stores

REPEATS = {f"x{1 << i}": 1 << i for i in range(8)}


def _shape(d: Decode, pack: str, address_at: int, reduces: bool = False) -> tuple[Any, tuple[str, int, int]]:
    """Fragment and address operand of a load or store."""
    aligned(d)
    shapes = ("32x32b", "16x32bx2") if reduces else ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
    shape = d.mods.one_of(*shapes)
    repeat = REPEATS[d.mods.one_of(*REPEATS)]
    if reduces and repeat == 1:
        raise d.unsupported("a reduction needs .x2 or more")
    packed = not reduces and d.mods.flag(pack)
    if not reduces:
        d.mods.one_of("b32")
    split = 0
    if shape == "16x32bx2":
        literal = d.ops[address_at + 1]
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


@instruction("tcgen05.ld", "tcgen05.ld.red", converge=True)
def load(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.8.3 tcgen05.ld: cells of the warp's window of tensor memory to registers. tcgen05.ld.red (sm_103)
    also gives the smallest or largest of each thread's values.
    """
    reduces = d.name == "tcgen05.ld.red"
    reduction = _reduction(d) if reduces else None
    f, address = _shape(d, "pack::16b", 2 if reduces else 1, reduces)
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
        if reduction is not None:
            reduction(w, out)

    return run


def _reduction(d: Decode) -> Callable[[Warps, NDArray[np.uint32]], None]:
    """The second result of tcgen05.ld.red: .min or .max over a thread's registers of .u32, .s32 or .f32 (.abs; .NaN: a
    NaN wins, else it loses against a number; -0 is less than +0).
    """
    op = d.mods.one_of("min", "max")
    absolute, nan_wins = d.mods.flag("abs"), d.mods.flag("NaN")
    type_ = d.mods.one_of("f32", "u32", "s32")
    if type_ != "f32" and (absolute or nan_wins):
        raise d.unsupported(".abs and .NaN are for .f32")
    target = d.write(d.ops[1], "u32")

    def run(w: Warps, values: NDArray[np.uint32]) -> None:
        if type_ == "f32":
            w.to.u32[target][...] = extremum32(values, op, absolute, nan_wins)
        else:
            typed = values.view(np.int32 if type_ == "s32" else np.uint32)
            w.to.u32[target][...] = (np.min if op == "min" else np.max)(typed, axis=0).view(np.uint32)

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
