"""What rounding P costs, and how seldom a lazy rescale fires: the arithmetic behind the chapter on online softmax.

Everything but the rounding in question is done in FP64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

P_TYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8 e4m3": torch.float8_e4m3fn,
}
VALUES = ("random", "all ones", "against us")
SUMS = ("P before rounding", "P after rounding")
ROWS, COLUMNS = 16, 16


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding a normal number to nearest: half the distance from 1 to the next one."""
    return torch.finfo(dtype).eps / 2


@dataclass(frozen=True)
class Cost:
    """Errors of the output from rounding P, the root mean square over ROWS rows.

    of_output: relative to the length of the output row. of_values: relative to sum_j p_j |v_j|, the length it would
    have if no values cancelled. output: what rounding the exact output to bf16 costs, relative to its length.
    """

    of_output: float
    of_values: float
    output: float


@cache
def weights(seqlen: int, seed: int = 0) -> Tensor:
    """exp(s - max) in FP64 for ROWS rows of standard normal scores, (ROWS, seqlen)."""
    scores = torch.randn((ROWS, seqlen), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.exp(scores - scores.amax(-1, keepdim=True))


def cost(kind: str, values: str, sums: str, seqlen: int, seed: int = 0) -> Cost:
    """What rounding P to a type costs the output.

    Args:
        kind: in P_TYPES. values: in VALUES; "against us" takes, for each row, +1 where P was rounded up and -1 where
            it was rounded down, so that no two errors cancel. sums: in SUMS, what the row sum adds up.
    """
    p = weights(seqlen, seed)
    rounded = p.to(torch.float32).to(P_TYPES[kind]).double()
    generator = torch.Generator().manual_seed(seed + 1)
    if values == "random":
        v = torch.randn((1, seqlen, COLUMNS), generator=generator, dtype=torch.float64)
    elif values == "all ones":
        v = torch.ones((1, seqlen, 1), dtype=torch.float64)
    elif values == "against us":
        v = torch.where(rounded > p, 1.0, -1.0)[..., None].double()
    else:
        raise ValueError(f"values = {values!r}: one of {', '.join(VALUES)}")
    total = p.sum(-1, keepdim=True)
    divisor = {SUMS[0]: total, SUMS[1]: rounded.sum(-1, keepdim=True)}[sums]

    def average(weight: Tensor, x: Tensor) -> Tensor:
        return (weight[:, None, :] @ x)[:, 0]

    exact, got = average(p / total, v), average(rounded / divisor, v)
    lengths = average(p / total, v.norm(dim=-1, keepdim=True))[:, 0]
    error = (got - exact).norm(dim=-1)
    back = (exact.to(torch.float32).to(torch.bfloat16).double() - exact).norm(dim=-1)

    def rms(x: Tensor) -> float:
        return float(x.square().mean().sqrt())

    size = exact.norm(dim=-1)
    return Cost(rms(error / size), rms(error / lengths), rms(back / size))


@dataclass(frozen=True)
class Lazy:
    """A row's walk over its tiles with a threshold, in units of log2.

    tile_max: the maximum of each tile. reference: the maximum that P is taken against, after each tile. fires: whether
    the tile caused a rescale (the first never does). largest: the largest P.
    """

    tile_max: NDArray[np.float64]
    reference: NDArray[np.float64]
    fires: NDArray[np.bool_]
    largest: float
    total: float


def lazy_walk(scores: NDArray[np.float64], threshold: float, tile: int = 128) -> Lazy:
    """Walk over a row of scores in log2 units; the reference follows only when it lies `threshold` or more behind."""
    reference, kept, fires, largest, total = -math.inf, [], [], 0.0, 0.0
    parts = scores.reshape(-1, tile)
    for part in parts:
        new = max(reference, float(part.max()))
        fire = new - reference >= threshold if math.isfinite(reference) else True
        fires.append(fire and math.isfinite(reference) and new > reference)
        if fire:
            total *= 2.0 ** (reference - new) if math.isfinite(reference) else 0.0
            reference = new
        kept.append(reference)
        largest = max(largest, float(np.exp2(part - reference).max()))
        total += float(np.exp2(part - reference).sum())
    return Lazy(parts.max(axis=1), np.array(kept), np.array(fires), largest, total)


@cache
def family_scores(family: str, seqlen: int = 1024, seed: int = 0) -> NDArray[np.float64]:
    """Scaled scores of one head in log2 units, (seqlen, seqlen), from the 16-bit inputs of a family."""
    from attnbook.inputs import INPUT_FAMILIES

    q, k, _ = INPUT_FAMILIES[family](1, 1, seqlen, seed=seed)
    qq, kk = q[0, :, 0].double().numpy(), k[0, :, 0].double().numpy()
    return np.asarray(qq @ kk.T) * (q.shape[-1] ** -0.5 * math.log2(math.e))


def warp_share(scores: NDArray[np.float64], threshold: float, tile: int = 128) -> float:
    """The share of tiles after the first in which a warp, 32 rows, has at least one row that rescales."""
    fires = np.array([lazy_walk(row, threshold, tile).fires for row in scores])
    warps = np.asarray(fires.reshape(-1, 32, fires.shape[1]).any(axis=1))
    return float(warps[:, 1:].mean())
