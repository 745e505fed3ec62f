"""CuTe layouts of a stage as data: traced once without a GPU, then evaluated in NumPy at any coordinate.

A layout of the DSL says its shape, stride and swizzle while it is traced under @cute.jit; that is all there is to it.
Tests hold the NumPy evaluation against the DSL's own at random coordinates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnbook.figures.budget import stage_number
from ptxemu.isa import swizzle as sw

Shape = int | tuple[Any, ...]
ITEM = 2  # bytes of a bf16 or fp16 element


def index(coordinate: Any, shape: Shape, stride: Shape) -> Any:
    """The offset of a coordinate in a layout, as CuTe defines it: a flat coordinate of a nested mode is split
    colexicographically. Works on integers and on NumPy arrays alike."""
    if isinstance(shape, tuple):
        assert isinstance(stride, tuple)
        if isinstance(coordinate, tuple):
            return sum(index(c, s, d) for c, s, d in zip(coordinate, shape, stride, strict=True))
        total: Any = 0
        for s, d in zip(shape[:-1], stride[:-1], strict=True):
            n = size(s)
            total = total + index(coordinate % n, s, d)
            coordinate = coordinate // n
        return total + index(coordinate, shape[-1], stride[-1])
    return coordinate * stride


def size(shape: Shape) -> int:
    """The number of coordinates of a shape."""
    if isinstance(shape, tuple):
        n = 1
        for s in shape:
            n *= size(s)
        return n
    return shape


@dataclass(frozen=True)
class Operand:
    """A tile in shared memory as the tensor core reads it: ((rows, 16), 1, steps).

    name: Q, K, P or V. text: the DSL's own print of the layout.
    major: "K" (the summed dimension is contiguous) or "MN".
    rows_are, sum_is: what the two axes mean. swizzle: Swizzle<B, M, S> in units of bytes.
    """

    name: str
    text: str
    shape: Shape
    stride: Shape
    swizzle: sw.Swizzle
    major: str
    rows_are: str
    sum_is: str

    def offset(self, row: ArrayLike, k: ArrayLike) -> NDArray[np.int64]:
        """Byte offset in the tile of element (row, k): row runs over M or N, k over the summed dimension."""
        r, c = np.asarray(row, dtype=np.int64), np.asarray(k, dtype=np.int64)
        element = index(((r, c % 16), 0, c // 16), self.shape, self.stride)
        return np.asarray(self.swizzle(np.asarray(element) * ITEM))

    @property
    def rows(self) -> int:
        assert isinstance(self.shape, tuple)
        return size(self.shape[0][0])

    @property
    def steps(self) -> int:
        assert isinstance(self.shape, tuple)
        return size(self.shape[2])

    @property
    def lbo(self) -> int:
        """Leading dimension byte offset of an unswizzled operand: K-major, 8 columns on; MN-major, 8 keys on."""
        return int(self.offset(0, 8))

    @property
    def sbo(self) -> int:
        """Stride dimension byte offset of an unswizzled operand: 8 rows on."""
        return int(self.offset(8, 0))


def parse_swizzle(text: str) -> sw.Swizzle:
    """The swizzle in a printed layout, "S<B,M,S> o 0 o ...", for 16-bit elements; M and S count element bits."""
    m = re.match(r"S<(\d+),(\d+),(\d+)>", text)
    if m is None or int(m[1]) == 0:
        return sw.NONE
    b, base, shift = (int(x) for x in m.groups())
    for known in sw.ALL:
        if (known.bits, known.base, known.shift) in ((b, base, shift), (b, base + 1, shift)):
            return known
    raise ValueError(f"layout {text}: no shared-memory swizzle of the PTX ISA is Swizzle<{b},{base},{shift}>")


OPERANDS = {
    "Q": ("q_smem_layout", "K", "query rows", "head dimension"),
    "K": ("k_smem_layout", "K", "keys", "head dimension"),
    "P": ("p_smem_layout", "K", "query rows", "keys"),
    "V": ("v_smem_layout", "MN", "head dimension", "keys"),
}


def operands(stage: Any = 1) -> dict[str, Operand]:
    """The shared-memory operands of a stage by name, from the layout functions of its kernel."""
    return _operands(stage_number(stage))


@cache
def _operands(number: int) -> dict[str, Operand]:
    import cutlass
    import cutlass.cute as cute

    from attnbook.compile import stage_module

    module = stage_module(number)
    found: dict[str, tuple[str, Shape, Shape]] = {}
    functions = {name: getattr(module, f) for name, (f, *_) in OPERANDS.items() if hasattr(module, f)}

    @cute.jit
    def probe() -> None:
        for name, function in functions.items():
            layout = function(cutlass.BFloat16)
            found[name] = (str(layout), layout.outer.shape, layout.outer.stride)

    probe()
    return {
        name: Operand(name, text, shape, stride, parse_swizzle(text), *OPERANDS[name][1:])
        for name, (text, shape, stride) in found.items()
    }


def operand_offset(stage: Any, name: str, row: int, k: int) -> int:
    """Byte offset of one element in an operand's tile, by the kernel's own layout.

    name: Q, K, P or V. row: query row (Q, P), key (K) or head-dim index (V). k: head-dim index (Q, K) or key (P, V).
    """
    found = operands(stage)
    if name not in found:
        raise ValueError(f"operand {name!r}: stage {stage_number(stage)} keeps {', '.join(found)} in shared memory")
    if not (0 <= row < found[name].rows and 0 <= k < 16 * found[name].steps):
        raise ValueError(f"({row}, {k}) is not in the {found[name].rows} x {16 * found[name].steps} tile of {name}")
    return int(found[name].offset(row, k))


@cache
def k_major_tile(kind: str, rows: int = 128, columns: int = 128) -> tuple[str, NDArray[np.int64]]:
    """Byte offsets of a (rows, columns) 16-bit tile tiled from one of the DSL's K-major atoms, and the layout's print.

    kind: "INTER" (no swizzle), "SW32", "SW64" or "SW128".
    """
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import tcgen05

    found: list[tuple[str, Shape, Shape]] = []

    @cute.jit
    def probe() -> None:
        atom = tcgen05.make_smem_layout_atom(getattr(tcgen05.SmemLayoutAtomKind, f"K_{kind}"), cutlass.BFloat16)
        layout = cute.tile_to_shape(atom, (rows, columns), order=(0, 1))
        found.append((str(layout), layout.outer.shape, layout.outer.stride))

    probe()
    text, shape, stride = found[0]
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    linear = np.asarray(index((r, c), shape, stride)) * ITEM
    return text, np.asarray(parse_swizzle(text)(linear))


def wavefronts(addresses: Sequence[int] | NDArray[np.int64], nbytes: int) -> list[list[int]]:
    """Which lanes of a warp access go together: one list of lanes for each shared-memory wavefront.

    addresses: byte address of each lane; nbytes: 4, 8 or 16 a lane. A warp's wide access goes in passes of 128 bytes
        (16
    bytes a lane: 8 lanes a pass); inside a pass, lanes that want different words of one bank wait for one another.
    """
    lanes = len(addresses)
    group = max(1, min(lanes, 128 // nbytes))
    out: list[list[int]] = []
    for first in range(0, lanes, group):
        waiting = list(range(first, min(first + group, lanes)))
        while waiting:
            taken: dict[int, int] = {}
            now, later = [], []
            for lane in waiting:
                words = [int(addresses[lane]) // 4 + i for i in range(nbytes // 4)]
                if all(taken.get(w % 32, w) == w for w in words):
                    taken.update((w % 32, w) for w in words)
                    now.append(lane)
                else:
                    later.append(lane)
            out.append(now)
            waiting = later
    return out
