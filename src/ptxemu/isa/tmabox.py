"""The bulk tensor copy's data movement: one box between a global tensor and shared memory, without the machine.

Sources: PTX ISA "Tiled Mode" (5.5.3: bounding box, traversal stride, out of boundary access), "Swizzling Modes"
(5.5.7). What the text leaves open was seen on an H200 (tests/ptxemu/data/tma.json holds the copies,
tests/gpu/record_tma.py makes them): the NaN that fills, where rows narrower than the swizzle go, how far a store
reaches past a ragged row, which coordinates fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxemu.errors import IllegalInstruction, MemoryFault
from ptxemu.isa.swizzle import Swizzle
from ptxemu.isa.tensormap import TensorMap

Bytes = NDArray[np.uint8]

# memory(address, length) -> that range of global memory as a writable uint8 array; raises MemoryFault outside of it.
GlobalWindow = Callable[[int, int], Bytes]

# The "OOB-NaN" of PTX ISA 5.5.3.3: this 16-bit pattern, repeated.
OOB_NAN = 0x7FF7
# A copy moves whole chunks of this many bytes, and box and coordinates must fall on their boundaries.
CHUNK = 16
# Shared-memory addresses of tensor copies are multiples of this.
ALIGNMENT = 128


def check(tensor: TensorMap, coords: Sequence[int], address: int, *, store: bool) -> None:
    """The rules that a copy must keep.

    coords: the box's corner, innermost first.  address: of the box in shared memory.
    IllegalInstruction: the box does not start on a 16-byte boundary of its row (PTX ISA 5.5.3.1), or a store's corner
    is negative (9.7.9.27.1.1). MemoryFault: the shared-memory address is not a multiple of 128.
    """
    if len(coords) != tensor.rank:
        raise IllegalInstruction(f"{len(coords)} coordinates for a tensor map of rank {tensor.rank}")
    if address % ALIGNMENT:
        raise MemoryFault(
            f"bulk tensor copy at shared-memory address {address:#x}: must be a multiple of {ALIGNMENT} bytes"
        )
    if tensor.wide == tensor.itemsize and coords[0] * tensor.itemsize % CHUNK:
        raise IllegalInstruction(
            f"innermost coordinate {coords[0]} of {tensor.element}: the box starts {coords[0] * tensor.itemsize} bytes"
            f" into the row, must be a multiple of {CHUNK}"
        )
    if store and min(coords) < 0:
        raise IllegalInstruction(f"a bulk tensor store at coordinates {list(coords)}: they must not be negative")


def in_bounds(tensor: TensorMap, coords: Sequence[int]) -> tuple[list[slice], list[int]]:
    """Which part of the box lies inside the tensor.

    coords: the box's corner, innermost first, may be negative or past the end.
    Returns, per dimension, the slice of box positions inside the tensor, and the tensor index of the slice's first.
    """
    inside, first = [], []
    for i, (c, size, n) in enumerate(zip(coords, tensor.sizes, tensor.smem_box, strict=True)):
        step = tensor.element_strides[i] if i else 1
        lo = min(n, max(0, -(c // step)))
        hi = min(n, max(lo, -((c - size) // step)))
        inside.append(slice(lo, hi))
        first.append(c + lo * step)
    return inside, first


def box_shape(tensor: TensorMap) -> tuple[int, ...]:
    """The dense box as bytes: outermost dimension first, the innermost in bytes."""
    shape = tensor.smem_box
    return (*reversed(shape[1:]), shape[0] * tensor.itemsize)


def window(
    tensor: TensorMap, coords: Sequence[int], memory: GlobalWindow, *, whole_chunks: bool
) -> tuple[tuple[slice, ...], Bytes] | None:
    """The part of the box that lies inside the tensor: where in the box, and a byte view of global memory of that
    shape, outermost dimension first and the innermost in bytes. None when nothing does.

    whole_chunks: round the innermost dimension up to 16 bytes.
    """
    inside, first = in_bounds(tensor, coords)
    shape = [s.stop - s.start for s in inside]
    if min(shape) == 0:
        return None
    item = tensor.itemsize
    start, stop = inside[0].start * item, inside[0].stop * item
    if whole_chunks:
        stop = min(-(-stop // CHUNK) * CHUNK, tensor.smem_box[0] * item)
    steps = [
        stride * e for stride, e in zip(tensor.strides[1:], tensor.element_strides[1:], strict=True)
    ]  # dimension 0 has no traversal stride
    base = tensor.address + sum(f * s for f, s in zip(first, tensor.strides, strict=True))
    length = sum((n - 1) * s for n, s in zip(shape[1:], steps, strict=True)) + stop - start
    view = np.lib.stride_tricks.as_strided(
        memory(base, length), shape=(*reversed(shape[1:]), stop - start), strides=(*reversed(steps), 1)
    )
    return (*reversed(inside[1:]), slice(start, stop)), view


def gather(tensor: TensorMap, coords: Sequence[int], memory: GlobalWindow) -> Bytes:
    """The box at coords as dense bytes, out-of-bounds elements filled. Shape (box_bytes,)."""
    full = box_shape(tensor)
    found = window(tensor, coords, memory, whole_chunks=False)
    data = None
    if found is not None:
        data = np.ascontiguousarray(found[1])
        if tensor.tf32:
            data = to_tf32(data.view("<u4")).view(np.uint8)
        if data.shape == full:
            return spread(tensor, data.reshape(-1))
    box = np.zeros(full, np.uint8)
    if tensor.fill == "nan":
        box.reshape(-1).view("<u2")[:] = OOB_NAN
    if found is not None and data is not None:
        box[found[0]] = data
    return spread(tensor, box.reshape(-1))


def spread(tensor: TensorMap, box: Bytes) -> Bytes:
    """A dense box as it lies in shared memory: elements of 4 and 6 bits get their padding, sixteen to 16 bytes (PTX ISA
    5.5.1.1.1). What the padding holds is not defined; here every bit is set.
    """
    if tensor.wide == tensor.itemsize:
        return box
    items = box.reshape(-1, tensor.itemsize)
    padded = np.full((len(items), tensor.wide), 0xFF, np.uint8)
    padded[:, : tensor.itemsize] = items
    return padded.reshape(-1)


def squeeze(tensor: TensorMap, box: Bytes) -> Bytes:
    """The way back (type .b6p2x16): of sixteen bytes the six low bits each, packed."""
    if tensor.wide == tensor.itemsize:
        return box
    if tensor.element == "b4x16_p64":
        raise IllegalInstruction("a bulk tensor store of .b4x16_p64: the type is for loads only (PTX ISA 9.7.9.25.5.1)")
    six = (box.reshape(-1, 4).astype(np.uint32) & np.uint32(63)) << np.arange(0, 24, 6, dtype=np.uint32)
    words = np.bitwise_or.reduce(six, axis=1).astype("<u4")
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 4)[:, :3]).reshape(-1)


def scatter(tensor: TensorMap, coords: Sequence[int], memory: GlobalWindow, box: Bytes) -> None:
    """Write the dense box to the tensor at coords; what lies out of bounds is dropped.

    The unit stores whole 16-byte chunks: where a row's bytes are no multiple of 16, up to 14 bytes behind the row's
    last element are written too (into the padding that the row stride must leave, as strides are multiples of 16).
    """
    found = window(tensor, coords, memory, whole_chunks=True)
    if found is not None:
        found[1][...] = squeeze(tensor, box).reshape(box_shape(tensor))[found[0]]


def to_tf32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """FP32 bit patterns rounded to TF32 as the copy unit does it: to nearest, ties to even; every NaN is 0x7fffe000."""
    wide = x.astype(np.uint64)
    rounded = ((wide + 0xFFF + ((wide >> 13) & 1)) & 0xFFFFE000).astype(np.uint32)
    return np.where((x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint32(0x7FFFE000), rounded)


def pitch(inner: int, swizzle: Swizzle) -> int:
    """Bytes from one row of the box to the next in shared memory. inner: bytes of the box's innermost dimension.

    Without a swizzle rows are packed; with one, every row takes a whole swizzle span.
    """
    return swizzle.span or inner


@lru_cache(maxsize=4096)
def _chunks(phase: int, rows: int, inner: int, swizzle: Swizzle) -> NDArray[np.intp]:
    """Shared-memory 16-byte chunk that box chunk i goes to, relative to the pattern's start. phase: dst modulo 1024."""
    row = phase + np.arange(rows, dtype=np.int64)[:, None] * pitch(inner, swizzle)
    return np.asarray(swizzle(row + np.arange(0, inner, CHUNK)) // CHUNK, dtype=np.intp).reshape(-1)


def footprint(length: int, inner: int, swizzle: Swizzle) -> int:
    """Bytes of shared memory from a box's address to its end, gaps included."""
    return length // inner * pitch(inner, swizzle)


def _swizzled(shared: Bytes, address: int, length: int, inner: int, swizzle: Swizzle) -> tuple[NDArray, NDArray]:
    """16-byte chunks of shared memory from the pattern's start on, and the box's chunks among them."""
    phase = address % 1024
    index = _chunks(phase, length // inner, inner, swizzle)
    start = address - phase
    end = start + CHUNK * (int(index.max()) + 1)
    # complex128 stands for "16 bytes that move together": indexing copies them bit for bit.
    return shared[start:end].view(np.complex128), index


def put(shared: Bytes, address: int, box: Bytes, inner: int, swizzle: Swizzle) -> None:
    """Write a dense box into shared memory at `address` (a multiple of 16), swizzled on absolute addresses.

    shared: shape (size,), indexed by shared-memory address.  inner: bytes of the box's innermost dimension.
    """
    if not swizzle.bits:
        shared[address : address + len(box)] = box
        return
    chunks, index = _swizzled(shared, address, len(box), inner, swizzle)
    chunks[index] = box.view(np.complex128)


def take(shared: Bytes, address: int, length: int, inner: int, swizzle: Swizzle) -> Bytes:
    """Read a dense box of `length` bytes out of shared memory: the inverse of put. A copy."""
    if not swizzle.bits:
        return shared[address : address + length].copy()
    chunks, index = _swizzled(shared, address, length, inner, swizzle)
    return chunks[index].view(np.uint8)
