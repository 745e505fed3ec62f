"""Moves within a CTA that the tensor core makes: tcgen05.cp (shared to tensor memory) and tcgen05.shift.

PTX ISA 9.7.16.9. Both are asynchronous, in the queue of the MMAs, and complete through tcgen05.commit. With
.cta_group::2 one thread asks for both CTAs of its pair: each copies from its own shared memory, at the addresses of the
descriptor, to its own tensor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ptx
from ..errors import IllegalInstruction, MemoryFault
from ..machine import AsyncOp, Machine, Warps
from ..memory import SHARED_RESERVED
from . import Decode, instruction
from .ctapair import group_of, pair_of, use_group
from .descriptors import K_MAJOR, SmemDescriptor, decode_smem_descriptor, operand_chunks, split_tmem_address
from .mma import nibbles, sixes
from .tcgen05 import outstanding_of
from .tma import origin
from .tmemalloc import tmem_state

# shape -> (rows, bytes of a row)
SHAPES = {"128x256b": (128, 32), "4x256b": (4, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16)}
# what each shape needs
MULTICASTS = {"64x128b": ("warpx2::02_13", "warpx2::01_23"), "32x128b": ("warpx4",)}


def target_lanes(shape: str, multicast: str | None) -> NDArray[np.intp]:
    """The lanes, relative to the address, that each row of the source goes to: (copies, rows).

    .128x256b and .128x128b: row r to lane r. .4x256b: to lane 32 r. .32x128b.warpx4: to every window of 32 lanes.
    .64x128b: to lanes r and r + 64 (.warpx2::02_13), or the first 32 rows to the first two windows and the others to
    the other two (.warpx2::01_23).
    """
    row = np.arange(SHAPES[shape][0])
    if shape == "4x256b":
        return 32 * row[None, :]
    if multicast == "warpx4":
        return np.stack([row + 32 * window for window in range(4)])
    if multicast == "warpx2::02_13":
        return np.stack([row, row + 64])
    if multicast == "warpx2::01_23":
        first = row % 32 + 64 * (row // 32)
        return np.stack([first, first + 32])
    return row[None, :]


def decompress(data: NDArray[np.uint8], source: str | None) -> NDArray[np.uint8]:
    """Rows of 16-byte chunks: sixteen 4- or 6-bit elements and padding become sixteen bytes (PTX ISA 9.7.16.9.1).

    4-bit elements go to bits 2 to 5 of their byte, 6-bit ones to the low bits.
    """
    if source is None:
        return data
    chunks = data.reshape(*data.shape[:-1], -1, 16)
    wide = nibbles(chunks[..., :8]) << np.uint8(2) if source == "b4x16_p64" else sixes(chunks[..., :12])
    return wide.reshape(data.shape)


@dataclass(slots=True)
class _Copy:
    """A tcgen05.cp on its way."""

    machine: Machine
    ctas: tuple[int, ...]
    source: SmemDescriptor
    shape: str
    lanes: NDArray[np.intp]
    column: int
    packed: str | None
    outstanding: list[int]

    def __call__(self) -> None:
        self.outstanding[0] -= 1
        m = self.machine
        rows, nbytes = SHAPES[self.shape]
        # Descriptors speak of groups of eight rows: four of them are half a group.
        base, index, _ = operand_chunks(self.source, max(rows, 8), K_MAJOR, 1, nbytes)
        if rows < 8:
            index = index[:rows]
        top = base + 16 * (int(index.max()) + 1)
        if self.source.start < SHARED_RESERVED or top > m.shared.size:
            raise MemoryFault(
                f"tcgen05.cp: the {rows} rows at shared address {self.source.start:#x} reach to {top:#x}, outside of"
                f" shared memory [{SHARED_RESERVED:#x}, {m.shared.size:#x}); descriptor {self.source.value:#018x}"
            )
        columns = nbytes // 4
        place = (self.lanes[:, :, None], self.column + np.arange(columns))
        for cta in self.ctas:
            state = tmem_state(m, cta)
            state.require(self.column, columns, "tcgen05.cp")
            if m.check is not None:
                m.check.chunks(cta, base, index)
                m.check.cells(cta, np.unique(self.lanes), self.column, columns, write=True)
            data = m.shared.bytes[cta, base:top].view(np.complex128)[index].view(np.uint8)
            m.tmem[cta][place] = decompress(data, self.packed).view(np.uint32)[None]
            state.written[place] = True


@instruction("tcgen05.cp")
def copy(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.9.2 tcgen05.cp: a matrix from shared to tensor memory, by a matrix descriptor (K-major)."""
    group = group_of(d)
    shape = d.mods.one_of(*SHAPES)
    multicast = d.mods.one_of("warpx2::02_13", "warpx2::01_23", "warpx4", default=None)
    allowed = MULTICASTS.get(shape, (None,))
    if multicast not in allowed:
        raise d.unsupported(f".{shape} goes with {' or '.join(f'.{x}' if x else 'no multicast' for x in allowed)}")
    wide = d.mods.one_of("b8x16", default=None)
    packed = d.mods.one_of("b6x16_p32", "b4x16_p64", default=None)
    if (wide is None) != (packed is None):
        raise d.unsupported("decompression needs both .b8x16 and the source format")
    view, slot, offset = d.address(d.ops[0])
    source = d.read(d.ops[1], "u64")
    lanes = target_lanes(shape, multicast)

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            lane, column = split_tmem_address(int(getattr(w, view)[slot][t.at]) + offset & 0xFFFF_FFFF)
            if int(lanes.max()) + lane > 127:
                raise IllegalInstruction(f"tcgen05.cp.{shape} to TMEM lane {lane}: reaches past lane 127")
            what = decode_smem_descriptor(int(w.u64[source][t.at]))

            def job(ctas: tuple[int, ...], outstanding: list[int]) -> Callable[[], None]:
                return _Copy(m, ctas, what, shape, lanes + lane, column, packed, outstanding)  # noqa: B023

            nbytes = SHAPES[shape][0] * SHAPES[shape][1]
            submit(m, d, t, group, job, "TMEM copy", bytes=nbytes, column=column, offset=what.start)

    return run


def submit(
    m: Machine, d: Decode, t: Any, group: int, job: Callable[[tuple[int, ...], list[int]], Callable], name: str,
    **data: Any,
) -> None:  # fmt: skip
    """Put a job of the thread's CTA (or pair) into the queue of the MMAs."""
    use_group(m, t.cta, group, d)
    ctas = (t.cta,) if group == 1 else pair_of(m, t.cta, d)
    outstanding = outstanding_of(m, t.cta, t.warp, t.lane)
    outstanding[0] += 1
    what = {**data, **origin(d, t.warp)} if m.tracing else {}
    run = job(ctas, outstanding)
    m.submit(
        AsyncOp(engine="tensor", cta=t.cta, run=run, name=name, ins=d.ins, queue=ctas[0], data=what, warp=t.warp,
                lane=t.lane)
    )  # fmt: skip


@dataclass(slots=True)
class _Shift:
    """A tcgen05.shift on its way: in each window of 32 lanes, 8 columns of row i + 1 go to row i; row 31 stays."""

    machine: Machine
    ctas: tuple[int, ...]
    column: int
    outstanding: list[int]
    ins: ptx.Instr

    def __call__(self) -> None:
        self.outstanding[0] -= 1
        m, column = self.machine, self.column
        for cta in self.ctas:
            state = tmem_state(m, cta)
            state.require(column, 8, "tcgen05.shift")
            if m.check is not None:
                m.check.cells(cta, slice(0, 128), column, 8, write=True)
            for array in (m.tmem[cta], state.written):
                rows = array.reshape(4, 32, -1)[:, :, column : column + 8]
                rows[:, :-1] = rows[:, 1:].copy()
            state.whole.clear()


@instruction("tcgen05.shift")
def shift(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA 9.7.16.9.3 tcgen05.shift.down: the rows of a matrix of 32 bytes a row move down by one, but the last.

    The ISA does not say where a matrix ends: on a B200 every window of 32 lanes shifts for itself.
    """
    group = group_of(d)
    d.mods.one_of("down")
    view, slot, offset = d.address(d.ops[0])

    def run(w: Warps) -> None:
        m = w.machine
        for t in w.threads():
            lane, column = split_tmem_address(int(getattr(w, view)[slot][t.at]) + offset & 0xFFFF_FFFF)
            if lane % 32:
                raise IllegalInstruction(f"tcgen05.shift at TMEM lane {lane}: must be a multiple of 32")

            def job(ctas: tuple[int, ...], outstanding: list[int], column: int = column) -> Callable[[], None]:
                return _Shift(m, ctas, column, outstanding, d.ins)

            submit(m, d, t, group, job, "TMEM shift", column=column)

    return run
