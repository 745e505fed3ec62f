"""The arithmetic of a tiled attention kernel in PyTorch, right and deliberately wrong: the test of the test.

`simulate` walks over KV tiles as the kernels do: scores in fp32, online softmax with base 2, P rounded to 16 bits, O
accumulated in fp32, one rounding at the end. `MUTATIONS` are five mistakes that a kernel could make and that a
careless check lets pass; the rule in `attnbook.reference` must fail every one of them at every size it is used at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from attnbook.inputs import TILE

MUTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "drop_tile": "one KV tile is left out of the answer",
        "short_row_sum": "one KV tile is left out of the row sum",
        "swap_values": "two V tiles change places",
        "wrong_scale": "the softmax scale is 1 % too large",
        "round_twice": "P is rounded, divided by the row sum, and rounded again",
    }
)


def simulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    mutation: str | None = None,
    tile: int = TILE,
) -> tuple[Tensor, Tensor]:
    """o in the type of q and LSE in fp32, as a kernel computes them. Shapes as in `reference.attention_fp64`; dense
    only.

    mutation: None for the right answer, or a name in MUTATIONS. The tile that is dropped or not counted is the middle
    one; those that change places are it and the one before. With a single tile there is nothing to swap: ValueError.
    """
    if mutation is not None and mutation not in MUTATIONS:
        raise ValueError(f"mutation {mutation!r} is not known; take one of: {', '.join(MUTATIONS)}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    factor = scale * math.log2(math.e) * (1.01 if mutation == "wrong_scale" else 1.0)
    group = q.shape[2] // k.shape[2]
    queries, keys, values = (x.float().transpose(1, 2) for x in (q, k, v))
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    key_tiles, value_tiles = list(keys.split(tile, dim=2)), list(values.split(tile, dim=2))
    middle = len(key_tiles) // 2
    if mutation == "swap_values":
        if len(value_tiles) < 2 or len(value_tiles[middle - 1][0, 0]) != len(value_tiles[middle][0, 0]):
            raise ValueError(f"seqlen_kv = {k.shape[1]} has no two whole tiles to swap; take at least {2 * tile}")
        value_tiles[middle - 1], value_tiles[middle] = value_tiles[middle], value_tiles[middle - 1]

    row_max = torch.full(queries.shape[:-1], -math.inf)
    row_sum = torch.zeros(queries.shape[:-1])
    o = torch.zeros(queries.shape)
    for number, (key_tile, value_tile) in enumerate(zip(key_tiles, value_tiles, strict=True)):
        if mutation == "drop_tile" and number == middle:
            continue
        scores = queries @ key_tile.transpose(-1, -2)
        new_max = torch.maximum(row_max, scores.amax(-1))
        rescale = torch.exp2((row_max - new_max) * factor) if number else torch.ones_like(new_max)
        p = torch.exp2(scores * factor - (new_max * factor)[..., None])
        counted = 0.0 if mutation == "short_row_sum" and number == middle else p.sum(-1)
        row_sum = row_sum * rescale + counted
        o = o * rescale[..., None]
        if mutation != "round_twice":
            o = o + p.to(q.dtype).float() @ value_tile
        row_max = new_max
    if mutation == "round_twice":  # needs the row sum first: a second pass over the tiles
        for key_tile, value_tile in zip(key_tiles, value_tiles, strict=True):
            p = torch.exp2((queries @ key_tile.transpose(-1, -2)) * factor - (row_max * factor)[..., None])
            o = o + (p.to(q.dtype).float() / row_sum[..., None]).to(q.dtype).float() @ value_tile
    else:
        o = o / row_sum[..., None]
    lse = (row_max * factor + torch.log2(row_sum)) * math.log(2.0)
    return o.transpose(1, 2).to(q.dtype), lse
