"""Which element of a matrix each register of each lane holds, for mma.sync, wgmma and ldmatrix: pure functions.

PTX ISA "Matrix Fragments for mma.m16n8k16" (and k8, k4), "Register Fragments for wgmma.mma_async.m64nNk16",
"ldmatrix". All of them are built from one piece: an 8 x 8 matrix of 16-bit elements in which lane l holds the
elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, the first in the low half of its register. 32-bit elements of an
accumulator take two registers instead of the halves of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

U16, U32 = np.uint16, np.uint32


def halves(registers: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Registers (..., 32) as pairs of 16-bit elements (..., 32, 2), the low half first."""
    return np.ascontiguousarray(registers).view(U16).reshape(*registers.shape, 2)


def pack(pairs: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """The opposite of halves: (..., 32, 2) -> (..., 32)."""
    return np.ascontiguousarray(pairs).view(U32)[..., 0]


def join(parts: NDArray) -> NDArray:
    """8 x 8 pieces by row and column, (..., rows / 8, columns / 8, 32, 2) -> the matrix (..., rows, columns)."""
    *outer, i, j, _, _ = parts.shape
    n = len(outer)
    x = parts.reshape(*outer, i, j, 8, 4, 2)
    return x.transpose(*range(n), n, n + 2, n + 1, n + 3, n + 4).reshape(*outer, 8 * i, 8 * j)


def split(matrix: NDArray) -> NDArray:
    """The opposite of join: (..., rows, columns) -> (..., rows / 8, columns / 8, 32, 2)."""
    *outer, rows, columns = matrix.shape
    n = len(outer)
    x = matrix.reshape(*outer, rows // 8, 8, columns // 8, 4, 2)
    return x.transpose(*range(n), n, n + 2, n + 1, n + 3, n + 4).reshape(*outer, rows // 8, columns // 8, 32, 2)


def a_matrix(registers: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """A of 16-bit elements: registers (2 or 4, ..., 32) -> (..., 16, 8 or 16). Register r is the piece in row r % 2,
    column r / 2.
    """
    x = np.moveaxis(halves(registers), 0, -3)  # (..., r, 32, 2)
    *outer, r, _, _ = x.shape
    pieces = x.reshape(*outer, r // 2, 2, 32, 2)
    return join(np.swapaxes(pieces, -4, -3))


def b_matrix(registers: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """B of 16-bit elements, as rows of n: registers (1 or 2, ..., 32) -> (..., 8, 8 or 16)."""
    x = np.moveaxis(halves(registers), 0, -3)
    return join(x[..., None, :, :, :])


def accumulator(registers: NDArray[np.uint32], kind: str) -> NDArray:
    """C or D of one warp: registers (R, ..., 32) -> (..., 16, columns), as FP32 or FP16 numbers.

    kind "f32": R = columns / 2 registers of one element; "f16": columns / 4 registers of two.
    """
    x: NDArray[Any]
    if kind == "f16":
        x = np.moveaxis(halves(registers), 0, -3).view(np.float16)
    else:
        r, *outer, lanes = registers.shape
        pairs = np.ascontiguousarray(registers).view(np.float32).reshape(r // 2, 2, *outer, lanes)
        x = np.moveaxis(np.moveaxis(pairs, 1, -1), 0, -3)
    *outer, pieces, _, _ = x.shape
    return join(np.swapaxes(x.reshape(*outer, pieces // 2, 2, 32, 2), -4, -3))


def accumulator_registers(matrix: NDArray, kind: str) -> NDArray[np.uint32]:
    """The opposite of accumulator: (..., 16, columns) -> registers (R, ..., 32)."""
    x = np.swapaxes(split(matrix), -4, -3)  # (..., columns / 8, 2, 32, 2)
    *outer, n, _, _, _ = x.shape
    x = x.reshape(*outer, 2 * n, 32, 2)
    if kind == "f16":
        return np.moveaxis(pack(x.astype(np.float16).view(U16)), -2, 0)
    pairs = np.moveaxis(np.moveaxis(x, -3, 0), -1, 1)  # (pieces, 2, ..., 32)
    return np.ascontiguousarray(pairs, np.float32).view(U32).reshape(4 * n, *outer, 32)
