"""The arithmetic of tcgen05.mma kind::f16 and where its operands lie: pure functions on byte and cell arrays.

PTX ISA 9.7.16.10.9.1 "tcgen05.mma". Numerics: the products of two 16-bit floats are exact in FP32. The ISA leaves the
order and the precision of the sum open; here one MMA's 16 products are summed by NumPy's FP32 matrix product, then
added to D in FP32 (D of type f16: rounded to FP16 at the end). So D agrees with any order of summation to FP32
rounding, not to the last bit of a GPU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import MemoryFault
from .descriptors import K_MAJOR, MMA_K, SmemDescriptor, chunk_indices

Operand = NDArray[np.float32]


def to_float(raw: NDArray[np.uint16], kind: str) -> Operand:
    """16-bit patterns as FP32, exactly. kind: "f16" or "bf16"."""
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def operand_bits(
    shared: NDArray[np.uint8],
    d: SmemDescriptor,
    rows: int,
    major: int,
    *,
    first: int = 0,
    size: int | None = None,
    name: str = "tcgen05.mma",
) -> NDArray[np.uint16]:
    """An operand of K = 16 from shared memory, by its descriptor. Shape (rows, 16), K the second axis.

    shared: one CTA's shared memory, indexed by byte address.  rows: M of A, N of B.  first, size: the bytes that may be
    read.  name: the instruction, for the fault.  MemoryFault: the tile reaches outside of them.
    """
    phase = d.start % 1024
    index, top = chunk_indices(phase, d.lbo, d.sbo, d.swizzle, rows, major)
    base = d.start - phase
    end = len(shared) if size is None else size
    if d.start < first or base + 16 * top > end:
        major_name = "MN" if major else "K"
        raise MemoryFault(
            f"{name}: the operand at shared address {d.start:#x} ({rows} rows, {major_name}-major) reaches"
            f" to {base + 16 * top:#x}, outside of shared memory [{first:#x}, {end:#x}); descriptor {d.value:#018x}"
        )
    # complex128 stands for "16 bytes that move together": indexing copies them bit for bit.
    chunks = shared[base : base + 16 * top].view(np.complex128)[index]
    if major == K_MAJOR:
        return chunks.view(np.uint16)
    return chunks.view(np.uint16).reshape(rows // 8, MMA_K, 8).transpose(0, 2, 1).reshape(rows, MMA_K)


def unpack_tmem_operand(cells: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """A from tensor memory: 16 elements of K in 8 columns, two to a cell, the low half first. (m, 8) -> (m, 16)."""
    return np.ascontiguousarray(cells).view(np.uint16)


def multiply(a: Operand, b: Operand) -> Operand:
    """A @ B.T for A (m, 16) and B (n, 16): one MMA's products, summed in FP32."""
    return np.asarray(a @ np.ascontiguousarray(b.T))  # the copy is small, and a product without a transpose much faster


def accumulate(d: NDArray[np.uint32], product: Operand, kind: str, keep: bool, scale: int = 0) -> NDArray[np.uint32]:
    """D's cells after one MMA: product, plus D * 2^-scale if keep. d: cells (m, n).  kind: "f32", or "f16" in the low
    half.
    """
    if keep:
        old = (
            d.view(np.float32) if kind == "f32" else (d & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
        )
        if scale:
            old = old * np.float32(2.0**-scale)
        product = old + product
    if kind == "f32":
        return product.view(np.uint32)
    return product.astype(np.float16).view(np.uint16).astype(np.uint32)
