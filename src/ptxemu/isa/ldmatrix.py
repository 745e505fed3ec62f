"""Matrices of 8 x 8 16-bit elements between shared memory and the registers of a warp.

PTX ISA "ldmatrix", "stmatrix", "movmatrix". Lane l holds the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; with
.trans, of column l / 4. The shapes with 8-bit and narrower elements (.m16n16, .m8n16, .m16n8) are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ptx
from . import Decode, instruction
from .fragments import halves, join, pack, split
from .memory import SHARED, address_of

Run = Callable[[Any], None]


def _shape(d: Decode, data: ptx.Operand) -> tuple[int, bool, tuple[ptx.Operand, ...]]:
    """(matrices, transposed, registers) of ldmatrix and stmatrix."""
    other = d.mods.one_of("m8n8", "m16n16", "m8n16", "m16n8")
    if other != "m8n8":
        raise d.unsupported(f"the shape .{other} (elements of 8 bits and less); only .m8n8 with .b16 is emulated")
    count = int(d.mods.one_of("x1", "x2", "x4")[1:])
    trans = d.mods.flag("trans")
    d.mods.flag("shared", "shared::cta")
    d.mods.one_of("b16")
    registers = d.items(data)
    if len(registers) != count:
        raise d.unsupported(f"{len(registers)} registers for {count} matrices")
    return count, trans, registers


def _rows(w: Any, where: np.ndarray, count: int, write: bool) -> tuple[np.ndarray, np.ndarray]:
    """All 16-byte rows of shared memory, and which of them lanes 0 to 8 count - 1 mean: shape (warps, CTAs, 8 count).

    Inactive lanes and those past 8 count do not take part.
    """
    mask = w.mask
    if count < 4:
        mask = np.broadcast_to(np.arange(32) < 8 * count, w.shape) & w.active()
    array, rows = SHARED.rows(w, np.broadcast_to(where, w.shape), mask, 8, 2, write)
    return array, rows[..., : 8 * count]


@instruction("ldmatrix.sync.aligned", converge=True)
def ldmatrix(d: Decode) -> Run:
    """PTX ISA "ldmatrix": lanes 8 i to 8 i + 7 hold the addresses of the rows of matrix i; register i gets it."""
    count, trans, registers = _shape(d, d.ops[0])
    address = address_of(d, d.ops[1], SHARED)
    targets = [d.write(x, "u32") for x in registers]

    def run(w: Any) -> None:
        array, rows = _rows(w, address(w), count, False)
        data = np.ascontiguousarray(array[rows]).view(np.uint16).reshape(*w.shape[:2], count, 8, 8)
        if trans:
            data = np.swapaxes(data, -1, -2)
        found = pack(split(data)[..., 0, 0, :, :])
        for i, target in enumerate(targets):
            w.to.u32[target][...] = found[..., i, :]

    return run


@instruction("stmatrix.sync.aligned", converge=True)
def stmatrix(d: Decode) -> Run:
    """PTX ISA "stmatrix": the opposite of ldmatrix. Where rows overlap, the last one written wins (any may)."""
    count, trans, registers = _shape(d, d.ops[1])
    address = address_of(d, d.ops[0], SHARED)
    sources = [d.read(x, "u32") for x in registers]

    def run(w: Any) -> None:
        w.machine.progress += 1
        array, rows = _rows(w, address(w), count, True)
        data = np.stack([join(halves(w.u32[s])[..., None, None, :, :]) for s in sources], axis=2)
        if trans:
            data = np.swapaxes(data, -1, -2)
        values = np.ascontiguousarray(data).view(np.uint64).reshape(*w.shape[:2], 8 * count, 2)
        if w.mask is None:
            array[rows] = values
        else:
            on = w.mask[..., : 8 * count]
            array[rows[on]] = values[on]

    return run


@instruction("movmatrix.sync.aligned", converge=True)
def movmatrix(d: Decode) -> Run:
    """PTX ISA "movmatrix": transpose an 8 x 8 matrix of 16-bit elements across the lanes of a warp."""
    d.mods.one_of("m8n8")
    d.mods.one_of("trans")
    d.mods.one_of("b16")
    target, source = d.write(d.ops[0], "u32"), d.read(d.ops[1], "u32")

    def run(w: Any) -> None:
        matrix = join(halves(w.u32[source])[..., None, None, :, :])
        w.to.u32[target][...] = pack(split(np.swapaxes(matrix, -1, -2))[..., 0, 0, :, :])

    return run
