"""The bulk copy unit (TMA): tensor copies, plain bulk copies, bulk groups, prefetches.

PTX ISA 9.7.9.25.4 "Bulk copy", 9.7.9.27.1 "Tensor copy", 9.7.9.27.2 "Bulk and tensor copy completion instructions". A
copy is issued by one thread and done later by the unit (engine "tma"): the data move when the unit gets to it, not at
issue. Loads report to an mbarrier with complete_tx of all the box's bytes, out-of-bounds elements included. Stores
belong to bulk groups: the unit first reads shared memory (what `wait_group.read` waits for), later the data are in
global memory (`wait_group`). What moves where is tmabox.py's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ptx
from ..errors import IllegalInstruction, MemoryFault
from ..machine import AsyncOp, Blocked, Machine, Wait, Warps
from ..memory import SHARED_WINDOW, WINDOW_BITS
from . import Decode, instruction, tmabox
from .tensormap import TensorMap

SHARED_STATES = ("shared::cluster", "shared::cta")


# ------------------------------------------------------------------------------------------------------------ operands


def address_reader(d: Decode, operand: ptx.Operand, *, shared: bool) -> Callable[[Warps, tuple], int]:
    """A function (bundle, lane) -> address of `[base + offset]`. shared: as a shared-space address, generic ones
    converted.
    """
    view, slot, offset = d.address(operand)
    if not shared:
        return lambda w, at: int(getattr(w, view)[slot][at]) + offset
    if view == "u32":
        return lambda w, at: (int(w.u32[slot][at]) + offset) & 0xFFFF_FFFF

    def read(w: Warps, at: tuple) -> int:
        value = int(w.u64[slot][at]) + offset
        if value >> 32 and value & WINDOW_BITS != SHARED_WINDOW:
            raise MemoryFault(f"{d.ins.opcode}: {value:#x} is no address of shared memory")
        return value & 0xFFFF_FFFF

    return read


def origin(d: Decode, warp: int) -> dict[str, Any]:
    """What every event of a unit says: who asked for the work, and where in the program."""
    return {"warp": warp, "ptx_line": d.ins.line, "source": str(d.ins.source) if d.ins.source else None}


def tensor_operand(d: Decode, operand: ptx.Operand, rank: int) -> Callable[[Warps, tuple], tuple[int, list[int]]]:
    """A function (bundle, lane) -> (address of the tensor map, coordinates) of `[map, {c0, c1, ...}]`."""
    if not isinstance(operand, ptx.Addr) or len(operand.more) != 1:
        raise d.unsupported("the tensor operand must be [map, {coordinates}]")
    view, slot, offset = d.address(operand)
    items = d.items(operand.more[0])
    if len(items) != rank:
        raise d.unsupported(f"{len(items)} coordinates in a {rank}-D copy")
    slots = [d.read(item, "s32") for item in items]

    def read(w: Warps, at: tuple) -> tuple[int, list[int]]:
        return int(getattr(w, view)[slot][at]) + offset, [int(w.s32[c][at]) for c in slots]

    return read


def tensor_at(m: Machine, address: int) -> TensorMap:
    """The tensor map that lies at a generic address."""
    if address % 64:
        raise MemoryFault(f"tensor map at {address:#x}: must be a multiple of 64")
    return TensorMap.decode(m.memory.view(address, 128, np.uint8, what="tensor map").tobytes())


def _global_window(m: Machine, what: str, write: bool) -> tmabox.GlobalWindow:
    return lambda address, nbytes: m.memory.view(address, nbytes, np.uint8, write=write, what=what)


def _rank(d: Decode) -> int:
    return int(d.mods.one_of("1d", "2d", "3d", "4d", "5d")[0])


def tiled(d: Decode, rank: int) -> bool:
    """Whether the copy is of four single rows: .tile::gather4 or .tile::scatter4. im2col is refused by name."""
    mode = d.mods.starting("im2col")
    if mode:
        raise d.unsupported(f"the mode .{mode} is not emulated, only .tile, .tile::gather4 and .tile::scatter4")
    d.mods.flag("tile")
    rows = d.mods.flag("tile::gather4", "tile::scatter4")
    if rows and rank != 2:
        raise d.unsupported("gather4 and scatter4 are for tensors of two dimensions")
    return rows


def boxes_of(tensor: TensorMap, coords: list[int], rows: bool, offset: int, *, store: bool) -> list[list[int]]:
    """The corners, counted in items, of the boxes that a copy is made of: one, or the four rows of gather4 and
    scatter4 (PTX ISA 5.5.3.4). They lie one behind the other in shared memory.
    """
    if rows and tensor.box[1:] != (1,):
        raise IllegalInstruction(
            f"gather4 and scatter4 need a box of one row, this tensor map has {list(tensor.smem_box)}"
        )
    corners = [[coords[0], row] for row in coords[1:]] if rows else [coords]
    found = [tensor.items(c) for c in corners]
    for corner in found:
        tmabox.check(tensor, corner, offset, store=store)
    return found


def _multicast(cta: int, m: Machine, mask: int) -> list[int]:
    """Resident CTAs that a 16-bit ctaMask names, in rank order."""
    ranks = [r for r in range(16) if mask >> r & 1]
    if not ranks or ranks[-1] >= m.cluster_size:
        raise IllegalInstruction(f"ctaMask {mask:#06x} names CTAs outside of the cluster of {m.cluster_size}")
    return [m.peer(cta, r) for r in ranks]


# --------------------------------------------------------------------------------------------------------- bulk groups


@dataclass(slots=True)
class Group:
    """One bulk async-group: how many of its copies have yet to read their source, and how many have yet to finish."""

    reading: int = 0
    writing: int = 0


@dataclass(slots=True)
class BulkGroups:
    """The bulk async-groups of one thread (PTX ISA 9.7.9.25.1.1): one open, and the committed ones in order."""

    open: Group = field(default_factory=Group)
    committed: deque[Group] = field(default_factory=deque)

    def outstanding(self, read: bool) -> int:
        """Committed groups that are not done; read: not done reading."""
        while self.committed and not self.committed[0].writing:
            self.committed.popleft()
        if not read:
            return len(self.committed)
        # Groups complete in order: count from the oldest that still reads.
        for i, group in enumerate(self.committed):
            if group.reading:
                return len(self.committed) - i
        return 0


def _groups(m: Machine, cta: int) -> dict[tuple[int, int], BulkGroups]:
    """The bulk groups of a CTA's threads, by (warp, lane)."""
    return m.cta_state[cta].setdefault("bulk groups", {})


@dataclass(slots=True)
class _Store:
    """A copy out of shared memory as a member of the open bulk groups of its threads: all of one warp, and all of
    them want the same."""

    groups: list[Group] = field(default_factory=list)

    def join(self, m: Machine, t: Any) -> None:
        """Thread t stores the same."""
        group = _groups(m, t.cta).setdefault((t.warp, t.lane), BulkGroups()).open
        group.reading += 1
        group.writing += 1
        self.groups.append(group)


def _submit_store(
    m: Machine, d: Decode, t: Any, read: Callable[[], Any], write: Callable[[Any], None], name: str, data: dict
) -> _Store:
    """A copy out of shared memory as a member of the thread's open bulk group: first its read, then its write."""
    store = _Store()
    store.join(m, t)
    key = ("bulk groups", t.cta, t.warp)
    unit: dict[str, Any] = {"engine": "tma", "cta": t.cta, "ins": d.ins, "data": data, "warp": t.warp, "lane": t.lane}

    def written(held: Any) -> None:
        write(held)
        for group in store.groups:
            group.writing -= 1
        m.wake(key)

    def do_read() -> None:
        held = read()
        for group in store.groups:
            group.reading -= 1
        m.wake(key)
        m.submit(AsyncOp(run=lambda: written(held), name=f"{name} write", **unit))

    m.submit(AsyncOp(run=do_read, name=name, **unit))
    return store


@instruction("cp.async.bulk.commit_group")
def commit_group(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.27.2.1 cp.async.bulk.commit_group: the thread's open copies become a group."""

    def run(w: Warps) -> None:
        for t in w.threads():
            own = _groups(w.machine, t.cta).get((t.warp, t.lane))
            if own is not None and own.open.writing:
                own.committed.append(own.open)
                own.open = Group()

    return run


@instruction("cp.async.bulk.wait_group", blocking=True)
def wait_group(d: Decode) -> Callable[[Warps], list[Blocked] | None]:
    """PTX ISA 9.7.9.27.2.2 cp.async.bulk.wait_group{.read} N: wait until at most N of the thread's latest groups are
    not done.
    """
    read = d.mods.flag("read")
    limit = d.ops[0]
    if not isinstance(limit, ptx.Imm):
        raise d.unsupported("the number of groups must be a literal")
    n = int(limit.value)

    def run(w: Warps) -> list[Blocked] | None:
        m = w.machine
        waiting: dict[tuple[int, int], int] = {}
        for cta in set(w.cta.ravel().tolist()):
            for (warp, _), own in _groups(m, cta).items():
                left = own.outstanding(read)
                if left > n:
                    waiting[cta, warp] = max(left, waiting.get((cta, warp), 0))
        if not waiting:
            return None
        blocked = {}
        for t in w.threads():
            left = waiting.get((t.cta, t.warp), 0)
            mine = _groups(m, t.cta).get((t.warp, t.lane)) if left else None
            if mine is not None and mine.outstanding(read) > n:
                what = "to be read from shared memory" if read else "to be complete"
                text = f"cp.async.bulk groups of warp {t.warp}: {left} outstanding, waits for at most {n}, {what}"
                reason = Wait(key=("bulk groups", t.cta, t.warp), text=text, retry=True)
                blocked[t.cta, t.warp] = Blocked(cta=t.cta, warp=t.warp, reason=reason)
        return list(blocked.values()) or None

    return run


# ------------------------------------------------------------------------------------------------------- tensor copies


@instruction("cp.async.bulk.tensor")
def tensor_copy(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.27.1.2 cp.async.bulk.tensor, tiled mode, both directions. With .cta_group::2 a load may report
    to the barrier of the other CTA of the destination's pair.
    """
    rank = _rank(d)
    rows = tiled(d, rank)
    destination = d.mods.one_of(*SHARED_STATES, "global")
    source = d.mods.one_of(*SHARED_STATES, "global")
    if destination == "global":
        if source != "shared::cta":
            raise d.unsupported(f"no copy from .{source} to .global")
        return _tensor_store(d, rank, rows)
    if source != "global":
        raise d.unsupported(f"no tensor copy from .{source} to .{destination}")
    return _tensor_load(d, rank, rows, destination)


def _tensor_load(d: Decode, rank: int, rows: bool, destination: str) -> Callable[[Warps], None]:
    d.mods.one_of("mbarrier::complete_tx::bytes")
    multicast = d.mods.flag("multicast::cluster")
    pair = d.mods.one_of("cta_group::1", "cta_group::2", default="cta_group::1") == "cta_group::2"
    d.mods.flag("L2::cache_hint")  # a hint: it changes no result
    to = address_reader(d, d.ops[0], shared=True)
    operand = tensor_operand(d, d.ops[1], 5 if rows else rank)
    barrier = address_reader(d, d.ops[2], shared=True)
    mask = d.read(d.ops[3], "u16") if multicast else None

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            at = t.at
            map_address, coords = operand(w, at)
            tensor = tensor_at(m, map_address)
            owner, offset = m.shared.locate(t.cta, to(w, at))
            bar_owner, bar_offset = m.shared.locate(t.cta, barrier(w, at))
            boxes = boxes_of(tensor, coords, rows, offset, store=False)
            if destination == "shared::cta" and owner != t.cta:
                raise IllegalInstruction(f"{d.ins.opcode}: the destination lies in another CTA's shared memory")
            same = (m.rank(owner) ^ m.rank(bar_owner)) < 2 if pair else owner == bar_owner
            if not same:
                raise IllegalInstruction(
                    f"{d.ins.opcode}: the mbarrier is in CTA rank {m.rank(bar_owner)}, the destination in rank"
                    f" {m.rank(owner)}; only .cta_group::2 may signal the other CTA of a pair"
                )
            owners = [owner] if mask is None else _multicast(t.cta, m, int(w.u16[mask][at]))
            # With .cta_group::2 every signal goes to the CTA of each pair that has the parity of the barrier's own.
            signals = [m.peer(o, m.rank(o) & ~1 | m.rank(bar_owner) & 1) if pair else o for o in owners]
            data: dict[str, Any] = {}
            if m.tracing:
                data = {
                    **origin(d, t.warp),
                    "bytes": tensor.box_bytes * len(boxes),
                    "tensor": m.memory.find(tensor.address).name,
                    "coords": coords,
                    "box": list(tensor.smem_box),
                    "offset": offset,
                    "barrier": bar_offset,
                    "swizzle": tensor.swizzle.name,
                }
            job = _Load(m, tensor, boxes, owners, offset, signals, bar_offset)
            m.submit(
                AsyncOp(
                    engine="tma", cta=t.cta, run=job, name="TMA load", ins=d.ins, data=data, warp=t.warp, lane=t.lane
                )
            )

    return run


@dataclass(slots=True)
class _Load:
    """A tensor load on its way: reads global memory and writes shared memory when it is run."""

    machine: Machine
    tensor: TensorMap
    boxes: list[list[int]]
    owners: list[int]
    offset: int
    signals: list[int]
    barrier: int

    def __call__(self) -> None:
        m, tensor = self.machine, self.tensor
        window = _global_window(m, "TMA load", write=False)
        for coords in self.boxes if m.check is not None else ():
            m.check.tensor(tensor, coords, write=False)  # type: ignore[union-attr]
        parts = [tmabox.gather(tensor, coords, window) for coords in self.boxes]
        box = parts[0] if len(parts) == 1 else np.concatenate(parts)
        inner = tensor.inner
        size = tmabox.footprint(len(box), inner, tensor.swizzle)
        for owner, signal in zip(self.owners, self.signals, strict=True):
            m.shared.view(owner, self.offset, size, np.uint8)  # bounds
            if m.check is not None:
                m.check.box(owner, self.offset, len(box), inner, tensor.swizzle, write=True)
            tmabox.put(m.shared.bytes[owner], self.offset, box, inner, tensor.swizzle)
            m.mbarrier_complete_tx(signal, m.rank(signal) << 24 | self.barrier, len(box))


# What a tensor store makes of the box in global memory: (tensor, corner, window onto global memory, box).
Deposit = Callable[[TensorMap, list[int], tmabox.GlobalWindow, tmabox.Bytes], None]


def _tensor_store(
    d: Decode, rank: int, rows: bool, deposit: Deposit = tmabox.scatter, name: str = "TMA store"
) -> Callable[[Warps], None]:
    d.mods.one_of("bulk_group")
    d.mods.flag("L2::cache_hint")
    operand = tensor_operand(d, d.ops[0], 5 if rows else rank)
    source = address_reader(d, d.ops[1], shared=True)
    registers = [(f"u{bits}", slot) for bits, slot in d.reads]

    def run(w: Warps) -> None:
        m = w.machine
        # A warp whose lanes all store the same box (the chip issues that once) need not do it 32 times, unless each
        # of them may be seen by itself.
        once = m.agents.in_step and not m.tracing and m.observer is None and m.check is None
        once = once and all(lanes_agree(getattr(w, view)[slot], w.mask) for view, slot in registers)
        store: _Store | None = None
        warp = (-1, -1)
        for t in w.threads():
            if once and store is not None and (t.cta, t.warp) == warp:
                store.join(m, t)
                continue
            warp = t.cta, t.warp
            map_address, coords = operand(w, t.at)
            tensor = tensor_at(m, map_address)
            owner, offset = m.shared.locate(t.cta, source(w, t.at))
            if owner != t.cta:
                raise IllegalInstruction(f"{d.ins.opcode}: the source lies in another CTA's shared memory")
            boxes = boxes_of(tensor, coords, rows, offset, store=True)
            nbytes = tensor.box_bytes * len(boxes)

            def read(tensor=tensor, owner=owner, offset=offset, nbytes=nbytes):
                inner = tensor.inner
                m.shared.view(owner, offset, tmabox.footprint(nbytes, inner, tensor.swizzle), np.uint8)
                if m.check is not None:
                    m.check.box(owner, offset, nbytes, inner, tensor.swizzle, write=False)
                return tmabox.take(m.shared.bytes[owner], offset, nbytes, inner, tensor.swizzle)

            def write(box, tensor=tensor, boxes=boxes):
                window = _global_window(m, name, write=True)
                for corner, part in zip(boxes, box.reshape(len(boxes), -1), strict=True):
                    if m.check is not None:
                        m.check.tensor(tensor, corner, write=True)
                    deposit(tensor, corner, window, part)

            data: dict[str, Any] = {}
            if m.tracing:
                data = {
                    **origin(d, t.warp),
                    "bytes": nbytes,
                    "tensor": m.memory.find(tensor.address).name,
                    "coords": coords,
                    "box": list(tensor.smem_box),
                    "offset": offset,
                }
            store = _submit_store(m, d, t, read, write, name, data)

    return run


def lanes_agree(values: np.ndarray, mask: np.ndarray | None) -> bool:
    """Whether the active lanes of every warp hold the same value as its first lane."""
    differ = values != values[..., :1]
    return not (differ if mask is None else differ & mask).any()


# ---------------------------------------------------------------------------------------------------- plain bulk copies


def _bulk_size(what: str, *numbers: int) -> None:
    """Addresses and size of a bulk copy are multiples of 16 (PTX ISA 9.7.9.25.4.1)."""
    for number in numbers:
        if number % 16:
            raise MemoryFault(f"{what}: {number:#x} must be a multiple of 16 (addresses and size)")


@instruction("cp.async.bulk")
def bulk_copy(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.25.4.1 cp.async.bulk: a run of bytes between global and shared memory, or to another CTA's."""
    destination = d.mods.one_of(*SHARED_STATES, "global")
    source = d.mods.one_of(*SHARED_STATES, "global")
    to = address_reader(d, d.ops[0], shared=destination != "global")
    start = address_reader(d, d.ops[1], shared=source != "global")
    size = d.read(d.ops[2], "u32")
    if destination == "global":
        return _bulk_store(d, to, start, size)
    d.mods.one_of("mbarrier::complete_tx::bytes")
    multicast = d.mods.flag("multicast::cluster")
    d.mods.flag("L2::cache_hint")
    barrier = address_reader(d, d.ops[3], shared=True)
    mask = d.read(d.ops[4], "u16") if multicast else None

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            at, nbytes = t.at, int(w.u32[size][t.at])
            owner, offset = m.shared.locate(t.cta, to(w, at))
            bar_owner, bar_offset = m.shared.locate(t.cta, barrier(w, at))
            address = start(w, at)
            _bulk_size(d.ins.opcode, offset, address, nbytes)
            if owner != bar_owner:
                raise IllegalInstruction(f"{d.ins.opcode}: mbarrier and destination lie in different CTAs")
            owners = [owner] if mask is None else _multicast(t.cta, m, int(w.u16[mask][at]))

            def job(t=t, owners=owners, offset=offset, address=address, nbytes=nbytes, bar_offset=bar_offset):
                if source == "global":
                    if m.check is not None:
                        m.check.global_bytes(address, nbytes, write=False)
                    data = m.memory.view(address, nbytes, np.uint8, what="bulk load")
                else:
                    own, begin = m.shared.locate(t.cta, address)
                    data = m.shared.view(own, begin, nbytes, np.uint8)
                    if m.check is not None:
                        m.check.run_of_bytes(own, begin, nbytes, write=False)
                for o in owners:
                    if m.check is not None:
                        m.check.run_of_bytes(o, offset, nbytes, write=True)
                    m.shared.view(o, offset, nbytes, np.uint8)[:] = data
                    m.mbarrier_complete_tx(o, m.rank(o) << 24 | bar_offset, nbytes)

            data = {**origin(d, t.warp), "bytes": nbytes, "offset": offset, "barrier": bar_offset} if m.tracing else {}
            m.submit(
                AsyncOp(
                    engine="tma", cta=t.cta, run=job, name="bulk copy", ins=d.ins, data=data, warp=t.warp, lane=t.lane
                )
            )

    return run


# What a bulk store makes of bytes in global memory: (view of them, the bytes read, the .cp_mask).
Put = Callable[[np.ndarray, np.ndarray, int], None]


def _put(there: np.ndarray, data: np.ndarray, mask: int) -> None:
    if mask == 0xFFFF:
        there[:] = data
    else:
        np.copyto(there, data, where=np.resize(np.array([mask >> i & 1 for i in range(16)], np.bool_), len(data)))


def _bulk_store(
    d: Decode, to: Callable, start: Callable, size: int, put: Put = _put, name: str = "bulk store"
) -> Callable[[Warps], None]:
    d.mods.one_of("bulk_group")
    hint = d.mods.flag("L2::cache_hint")
    masked = d.mods.flag("cp_mask")
    mask_slot = d.read(d.ops[3 + hint], "u16") if masked else None

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            nbytes = int(w.u32[size][t.at])
            address = to(w, t.at)
            owner, offset = m.shared.locate(t.cta, start(w, t.at))
            _bulk_size(d.ins.opcode, offset, address, nbytes)

            def read(owner=owner, offset=offset, nbytes=nbytes):
                if m.check is not None:
                    m.check.run_of_bytes(owner, offset, nbytes, write=False)
                return m.shared.view(owner, offset, nbytes, np.uint8).copy()

            mask = 0xFFFF if mask_slot is None else int(w.u16[mask_slot][t.at])

            def write(data, address=address, mask=mask):
                if m.check is not None:
                    m.check.global_bytes(address, len(data), write=True)
                put(m.memory.view(address, len(data), np.uint8, write=True, what=name), data, mask)

            event = {**origin(d, t.warp), "bytes": nbytes, "offset": offset} if m.tracing else {}
            _submit_store(m, d, t, read, write, name, event)

    return run


# ---------------------------------------------------------------------------------------------------------- prefetches


@instruction("prefetch.tensormap", "prefetch.param.tensormap", "prefetch.const.tensormap")
def prefetch_tensormap(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA "prefetch" with .tensormap: brings a tensor map nearer. Here: checks that one lies there."""
    place = address_reader(d, d.ops[0], shared=False)

    def run(w: Warps) -> None:
        for address in {place(w, t.at) for t in w.threads()}:
            tensor_at(w.machine, address)

    return run


@instruction("cp.async.bulk.prefetch.tensor")
def prefetch_tensor(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.27.1.4 cp.async.bulk.prefetch.tensor: brings a box into L2. No effect here but the rules."""
    rank = _rank(d)
    d.mods.one_of("L2")
    d.mods.one_of("global")
    rows = tiled(d, rank)
    d.mods.flag("L2::cache_hint")
    operand = tensor_operand(d, d.ops[0], 5 if rows else rank)

    def run(w: Warps) -> None:
        for t in w.threads():
            address, coords = operand(w, t.at)
            boxes_of(tensor_at(w.machine, address), coords, rows, 0, store=False)

    return run


@instruction("cp.async.bulk.prefetch")
def prefetch_bulk(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.25.4.3 cp.async.bulk.prefetch: brings bytes into L2. No effect here but the rules."""
    d.mods.one_of("L2")
    d.mods.one_of("global")
    d.mods.flag("L2::cache_hint")
    place = address_reader(d, d.ops[0], shared=False)
    size = d.read(d.ops[1], "u32")

    def run(w: Warps) -> None:
        for t in w.threads():
            _bulk_size(d.ins.opcode, place(w, t.at), int(w.u32[size][t.at]))

    return run
