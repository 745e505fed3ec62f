"""Reductions of the bulk copy unit: cp.reduce.async.bulk and cp.reduce.async.bulk.tensor.

PTX ISA 9.7.9.25.4.2, 9.7.9.25.5.3. Like bulk stores, but each element is combined with what lies at the destination
when the write is made. Destinations are global memory, or the shared memory of another CTA of the cluster (reported to
an mbarrier).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import IllegalInstruction
from ..machine import AsyncOp, Warps
from . import Decode, instruction, tmabox
from .reductions import TYPES, combine, itemsize
from .tensormap import TensorMap
from .tma import SHARED_STATES, _bulk_size, _bulk_store, _rank, _tensor_store, address_reader, origin, tiled

OPERATIONS = tuple(TYPES)
# Into the shared memory of another CTA.
SHARED_TYPES = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip


def _apply(op: str, kind: str, there: np.ndarray, data: np.ndarray) -> None:
    """Combine bytes with bytes in place. f32 sums flush subnormal numbers, as the ISA says of this instruction."""
    dtype = f"u{itemsize(kind)}"
    old = np.ascontiguousarray(there).view(dtype)
    new = combine(op, kind, old, np.ascontiguousarray(data).view(dtype), ftz=True)
    there[...] = np.ascontiguousarray(new).view(np.uint8).reshape(there.shape)


@instruction("cp.reduce.async.bulk")
def bulk_reduce(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.25.4.2 cp.reduce.async.bulk: an array in shared memory, element by element into another array."""
    destination, source = d.mods.one_of("shared::cluster", "global"), d.mods.one_of(*SHARED_STATES)
    if source != "shared::cta":
        raise d.unsupported(f"no reduction from .{source}")
    op = d.mods.one_of(*OPERATIONS)
    noftz = d.mods.flag("noftz")
    kind = d.mods.one_of("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
    allowed = TYPES if destination == "global" else SHARED_TYPES
    if kind not in allowed[op]:
        raise d.unsupported(f".{op} of .{kind} to .{destination} does not exist")
    if noftz != (op == "add" and kind in ("f16", "bf16")):
        raise d.unsupported(".noftz goes with .add of .f16 and .bf16, which need it")
    to = address_reader(d, d.ops[0], shared=destination != "global")
    start = address_reader(d, d.ops[1], shared=True)
    size = d.read(d.ops[2], "u32")
    if destination == "global":

        def put(there: np.ndarray, data: np.ndarray, mask: int) -> None:
            _apply(op, kind, there, data)

        return _bulk_store(d, to, start, size, put, "bulk reduction")
    d.mods.one_of("mbarrier::complete_tx::bytes")
    barrier = address_reader(d, d.ops[3], shared=True)

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            nbytes = int(w.u32[size][t.at])
            owner, offset = m.shared.locate(t.cta, to(w, t.at))
            own, begin = m.shared.locate(t.cta, start(w, t.at))
            bar_owner, bar_offset = m.shared.locate(t.cta, barrier(w, t.at))
            _bulk_size(d.ins.opcode, offset, begin, nbytes)
            if owner != bar_owner:
                raise IllegalInstruction(f"{d.ins.opcode}: mbarrier and destination lie in different CTAs")

            def job(owner=owner, offset=offset, own=own, begin=begin, nbytes=nbytes, bar=bar_offset):
                if m.check is not None:
                    m.check.run_of_bytes(own, begin, nbytes, write=False)
                    m.check.run_of_bytes(owner, offset, nbytes, write=True)
                there = m.shared.view(owner, offset, nbytes, np.uint8)
                _apply(op, kind, there, m.shared.view(own, begin, nbytes, np.uint8))
                m.mbarrier_complete_tx(owner, m.rank(owner) << 24 | bar, nbytes)

            data = {**origin(d, t.warp), "bytes": nbytes, "offset": offset, "barrier": bar_offset} if m.tracing else {}
            m.submit(
                AsyncOp(engine="tma", cta=t.cta, run=job, name="bulk reduction", ins=d.ins, data=data, warp=t.warp,
                        lane=t.lane)
            )  # fmt: skip

    return run


def type_in(tensor: TensorMap, op: str) -> str:
    """The type of the elements of a tensor for a reduction. IllegalInstruction: they do not go with the operation."""
    element = tensor.element.removesuffix(".ftz")
    kind = f"b{8 * tensor.itemsize}" if op in ("and", "or", "xor") and element[0] in "us" else element
    if kind not in TYPES[op] or tensor.group > 1 or (op == "add" and kind == "f64"):
        raise IllegalInstruction(f"cp.reduce.async.bulk.tensor.{op} on a tensor of {tensor.element}: does not exist")
    return kind


@instruction("cp.reduce.async.bulk.tensor")
def tensor_reduce(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.9.25.5.3 cp.reduce.async.bulk.tensor: a box in shared memory, element by element into a tensor."""
    rank = _rank(d)
    rows = tiled(d, rank)
    if rows:
        raise d.unsupported("gather4 and scatter4 have no reduction")
    d.mods.one_of("global")
    d.mods.one_of("shared::cta")
    op = d.mods.one_of(*OPERATIONS)

    def deposit(tensor: TensorMap, coords: list[int], memory: tmabox.GlobalWindow, box: tmabox.Bytes) -> None:
        kind = type_in(tensor, op)
        found = tmabox.window(tensor, coords, memory, whole_chunks=False)
        if found is not None:
            _apply(op, kind, found[1], box.reshape(tmabox.box_shape(tensor))[found[0]])

    return _tensor_store(d, rank, False, deposit, "TMA reduction")
