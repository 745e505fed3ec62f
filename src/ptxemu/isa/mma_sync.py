"""The warp's own matrix product: mma.sync of 16-bit floats and TF32.

PTX ISA "mma", "Matrix Fragments for mma.m16n8k8", "... k16", "... k4". Numerics as in mma.py: exact products, summed in
FP32 in an order that the ISA leaves open. Sparse, integer, FP8 and FP64 forms are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Decode, instruction
from .fragments import a_matrix, accumulator, accumulator_registers, b_matrix
from .mma import to_float

TF32_BITS = np.uint32(0xFFFFE000)  # the 13 low bits of an FP32 register are not part of a TF32 number


def tf32_matrix(registers: NDArray[np.uint32], rows: int) -> NDArray[np.float32]:
    """A (rows = 16) or B (rows = 8, by n) of TF32 elements: registers (R, ..., 32) -> (..., rows, k).

    Lane l holds k = l % 4 of row l / 4; A's registers go down the rows first.
    """
    x = np.moveaxis((registers & TF32_BITS).view(np.float32), 0, -2)  # (..., r, 32)
    *outer, r, _ = x.shape
    down = rows // 8
    x = x.reshape(*outer, r // down, down, 8, 4)  # k / 4, row / 8, row % 8, k % 4
    n = len(outer)
    return x.transpose(*range(n), n + 1, n + 2, n, n + 3).reshape(*outer, rows, 4 * (r // down))


@instruction("mma.sync.aligned", converge=True)
def mma(d: Decode) -> Callable[[Any], None]:
    """PTX ISA "mma": D = A B + C, a 16 x 8 tile by one warp. A by rows, B by columns."""
    shape = d.mods.one_of("m16n8k16", "m16n8k8", "m16n8k4")
    d.mods.one_of("row")
    d.mods.one_of("col")
    d_kind = d.mods.one_of("f32", "f16")
    a_kind = d.mods.one_of("f16", "bf16", "tf32")
    b_kind = d.mods.one_of("f16", "bf16", "tf32")
    c_kind = d.mods.one_of("f32", "f16")
    k = int(shape.removeprefix("m16n8k"))
    if a_kind != b_kind or d_kind != c_kind or (d_kind == "f16" and a_kind != "f16"):
        raise d.unsupported("the types of A and B, and of C and D, must be the same; FP16 sums take FP16 operands")
    if k not in ((4, 8) if a_kind == "tf32" else (8, 16)):
        raise d.unsupported(f"there is no .{shape} of .{a_kind}")
    of, _a, _b, _c = (d.items(x) for x in d.ops)
    size = 4 if a_kind == "tf32" else 2
    want = (4 if d_kind == "f32" else 2, k * size // 8, k * size // 16, 4 if c_kind == "f32" else 2)
    if tuple(len(x) for x in (of, _a, _b, _c)) != want:
        raise d.unsupported(f"needs {want} registers for D, A, B and C")
    a, b, c = ([d.read(x, "u32") for x in xs] for xs in (_a, _b, _c))
    targets = [d.write(x, "u32") for x in of]

    def gather(w: Any, slots: list[int]) -> NDArray[np.uint32]:
        return np.stack([np.broadcast_to(w.u32[s], w.shape) for s in slots])

    def run(w: Any) -> None:
        if a_kind == "tf32":
            left, right = tf32_matrix(gather(w, a), 16), tf32_matrix(gather(w, b), 8)
        else:
            left, right = to_float(a_matrix(gather(w, a)), a_kind), to_float(b_matrix(gather(w, b)), b_kind)
        total = left @ np.swapaxes(right, -1, -2) + accumulator(gather(w, c), c_kind).astype(np.float32)
        for target, value in zip(targets, accumulator_registers(total, d_kind), strict=True):
            w.to.u32[target][...] = value

    return run
