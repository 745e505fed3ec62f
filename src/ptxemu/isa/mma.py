"""The arithmetic of matrix products and where their operands lie: pure functions on byte and cell arrays.

PTX ISA 9.7.16.10.9.1 "tcgen05.mma". Numerics: the products of two floats of at most 11 bits of significand are exact in
FP32. The ISA leaves the order and the precision of the sum open; here one MMA's products are summed by NumPy's FP32
matrix product (with block scales: in FP64, and rounded), then added to D in FP32 (D of type f16: rounded to FP16 at the
end). So D agrees with any order of summation to FP32 rounding, not to the last bit of a GPU. Integers are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import MemoryFault
from .descriptors import K_MAJOR, MMA_K, SmemDescriptor, operand_chunks
from .minifloat import table

Operand = NDArray[np.float32]
TF32_BITS = np.uint32(0xFFFFE000)  # the 13 low bits of an FP32 pattern are not part of a TF32 number


def to_float(raw: NDArray, kind: str) -> Operand:
    """Patterns of elements as FP32, exactly. kind: "f16", "bf16" (uint16), "tf32" (uint32), "u8", "s8", or one of the
    narrow formats of minifloat.py (uint8, in the low bits).
    """
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "tf32":
        return (raw & TF32_BITS).view(np.float32)
    if kind == "u8":
        return raw.astype(np.float32)
    if kind == "s8":
        return raw.view(np.int8).astype(np.float32)
    return table(kind)[raw]


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
    chunks = _chunks(shared, d, rows, major, 2, 32, first, size, name)
    if major == K_MAJOR:
        return chunks.view(np.uint16)
    return chunks.view(np.uint16).reshape(rows // 8, MMA_K, 8).transpose(0, 2, 1).reshape(rows, MMA_K)


def _chunks(
    shared: NDArray[np.uint8],
    d: SmemDescriptor,
    rows: int,
    major: int,
    itemsize: int,
    kbytes: int,
    first: int,
    size: int | None,
    name: str,
) -> NDArray[np.complex128]:
    base, index, top = operand_chunks(d, rows, major, itemsize, kbytes)
    end = len(shared) if size is None else size
    if d.start < first or base + 16 * top > end:
        major_name = "MN" if major else "K"
        raise MemoryFault(
            f"{name}: the operand at shared address {d.start:#x} ({rows} rows, {major_name}-major) reaches"
            f" to {base + 16 * top:#x}, outside of shared memory [{first:#x}, {end:#x}); descriptor {d.value:#018x}"
        )
    # complex128 stands for "16 bytes that move together": indexing copies them bit for bit.
    return shared[base : base + 16 * top].view(np.complex128)[index]


def operand_elements(
    shared: NDArray[np.uint8],
    d: SmemDescriptor,
    rows: int,
    major: int,
    kind: str,
    packed: bool = False,
    *,
    kbytes: int = 32,
    first: int = 0,
    size: int | None = None,
    name: str = "tcgen05.mma",
) -> Operand:
    """An operand of any type from shared memory, as FP32 (rows, K). kind, itemsize: see to_float.

    Formats of 6 and 4 bits lie sixteen to a 16-byte chunk, at its beginning, with padding behind them (PTX ISA
    9.7.16.10.4.4); packed: 4-bit ones two to a byte with no padding (9.7.16.10.4.6). kbytes: bytes of K in a row.
    """
    if kind in ("f16", "bf16"):
        return to_float(operand_bits(shared, d, rows, major, first=first, size=size, name=name), kind)
    itemsize = 4 if kind == "tf32" else 1
    chunks = _chunks(shared, d, rows, major, itemsize, kbytes, first, size, name)
    if kind == "tf32":
        elements: NDArray = chunks.view(np.uint32)
    else:
        elements = chunks.view(np.uint8)
        if packed:
            elements = nibbles(elements)
        elif kind == "e2m1":
            elements = nibbles(elements.reshape(*chunks.shape, 16)[..., :8]).reshape(*chunks.shape[:-1], -1)
        elif kind in ("e2m3", "e3m2"):
            elements = sixes(elements.reshape(*chunks.shape, 16)[..., :12]).reshape(*chunks.shape[:-1], -1)
    if major != K_MAJOR:
        t = 16 // itemsize
        k = kbytes // itemsize
        elements = np.ascontiguousarray(elements.reshape(rows // t, k, t).transpose(0, 2, 1)).reshape(rows, k)
    return to_float(elements, kind)


def nibbles(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes (..., n) as 4-bit elements (..., 2 n), the low half first."""
    return np.stack([x & np.uint8(15), x >> np.uint8(4)], -1).reshape(*x.shape[:-1], -1)


def sixes(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes (..., 3 n) as 6-bit elements (..., 4 n), from the lowest bits up."""
    b = x.reshape(*x.shape[:-1], -1, 3).astype(np.uint32)
    word = b[..., 0] | b[..., 1] << np.uint32(8) | b[..., 2] << np.uint32(16)
    parts = [(word >> np.uint32(6 * i)) & np.uint32(63) for i in range(4)]
    return np.stack(parts, -1).astype(np.uint8).reshape(*x.shape[:-1], -1)


def tmem_elements(cells: NDArray[np.uint32], kind: str, packed: bool = False) -> Operand:
    """A from tensor memory as FP32: cells (m, columns) -> (m, K), the elements of a cell from its lowest bits up.

    6- and 4-bit formats lie in bytes of their own (PTX ISA 9.7.16.10.4.3), 6-bit ones in the low bits, E2M1 in bits 2
    to 5; packed: 4-bit ones two to a byte (9.7.16.10.4.5).
    """
    cells = np.ascontiguousarray(cells)
    if kind == "tf32":
        return to_float(cells, kind)
    if kind in ("f16", "bf16"):
        return to_float(cells.view(np.uint16), kind)
    bytes_ = cells.view(np.uint8)
    if packed:
        bytes_ = nibbles(bytes_)
    elif kind == "e2m1":
        bytes_ = (bytes_ >> np.uint8(2)) & np.uint8(15)
    elif kind in ("e2m3", "e3m2"):
        bytes_ = bytes_ & np.uint8(63)
    return to_float(bytes_, kind)


def unpack_tmem_operand(cells: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """A from tensor memory: 16 elements of K in 8 columns, two to a cell, the low half first. (m, 8) -> (m, 16)."""
    return np.ascontiguousarray(cells).view(np.uint16)


def multiply(a: Operand, b: Operand) -> Operand:
    """A @ B.T for A (m, 16) and B (n, 16): one MMA's products, summed in FP32."""
    return np.asarray(a @ np.ascontiguousarray(b.T))  # the copy is small, and a product without a transpose much faster


def accumulate(
    d: NDArray[np.uint32], product: Operand, kind: str, keep: bool, scale: int = 0, saturate: bool = False
) -> NDArray[np.uint32]:
    """D's cells after one MMA: product, plus D * 2^-scale if keep. d: cells (m, n).  kind: "f32", "f16" in the low
    half, or "s32": exact sums of integers that wrap, or with `saturate` stay in range.
    """
    if kind == "s32":
        total = product.astype(np.int64) + (d.view(np.int32) if keep else 0)
        if saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.uint32)
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
