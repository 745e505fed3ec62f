"""Inputs that bite: random q, k, v of a kind that breaks a particular mistake, by name and seed.

    q, k, v = INPUT_FAMILIES["rising_max"](batch=1, heads=2, seqlen=512, dtype=torch.bfloat16, seed=0)

gives tensors (batch, seqlen, heads, head_dim). The same arguments give the same tensors on every machine: they are
drawn on the CPU in fp32 and rounded once. Importing this module does not import PyTorch, so that the command line can
list the names.

Several families steer the scores: two elements of q and k are taken out of the noise, and their product puts every
key at a *level*, the number of log2 units (score · scale · log2 e) that the key stands above the noise. Two elements
of k, because a 16-bit number alone would miss the level by up to 0.4 %; the second one holds the rounding error of
the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TILE = 128  # keys in a KV tile of every kernel of the ladder
LAZY_THRESHOLD = 8.0  # log2 units by which the maximum must grow before stage 11 and FlashAttention-4 rescale O
LEVER = 8.0  # the element of q that the levels in k are multiplied by


@dataclass
class Draw:
    """What a family is asked for, and the noise it starts from: fp32 on the CPU, (batch, seqlen, heads, head_dim)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dtype: torch.dtype  # what the result will be rounded to
    scale: float
    tile: int
    generator: torch.Generator

    @property
    def tiles(self) -> int:
        """How many KV tiles there are; a ragged last one counts."""
        return -(-self.k.shape[1] // self.tile)

    def tile_of_key(self) -> torch.Tensor:
        """The number of the tile that each key lies in, (seqlen_kv,)."""
        import torch

        return torch.arange(self.k.shape[1]) // self.tile

    def some_key(self, tile: int) -> int:
        """A key of that tile, drawn from the seed."""
        import torch

        first = tile * self.tile
        last = min(first + self.tile, self.k.shape[1])
        return int(torch.randint(first, last, (), generator=self.generator))

    def set_levels(self, levels: torch.Tensor, *, sign_of_row: torch.Tensor | None = None) -> None:
        """Put key j at `levels[j]` log2 units: q[..., :2] · k[..., :2] · scale · log2(e) = level, to 16 bits."""
        import torch

        wanted = (levels / (LEVER * self.scale * math.log2(math.e))).double()
        coarse = wanted.to(self.dtype).double()
        fine = (wanted - coarse).to(self.dtype).double()
        self.k[..., 0] = coarse.float()[:, None]
        self.k[..., 1] = fine.float()[:, None]
        sign = torch.ones(self.q.shape[1]) if sign_of_row is None else sign_of_row
        self.q[..., :2] = (LEVER * sign)[:, None, None]


@dataclass(frozen=True)
class Family:
    """A named kind of input. Call it for tensors.

    name     what the command line calls it
    bites    the mistake that this input shows
    shape    changes a Draw in place
    causal   the family only makes sense under a causal mask
    """

    name: str
    bites: str
    shape: Callable[[Draw], None]
    causal: bool = False

    def __call__(
        self,
        batch: int,
        heads: int,
        seqlen: int,
        *,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        scale: float | None = None,
        heads_kv: int | None = None,
        seqlen_kv: int | None = None,
        head_dim: int = 128,
        tile: int = TILE,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q (batch, seqlen, heads, head_dim); k and v (batch, seqlen_kv, heads_kv, head_dim); `dtype`, bf16 if None.

        scale: the softmax scale that the answer will be computed with (1/sqrt(head_dim)); the levels are set for it.
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        shape_kv = (batch, seqlen if seqlen_kv is None else seqlen_kv, heads_kv or heads, head_dim)
        draw = Draw(
            q=torch.randn((batch, seqlen, heads, head_dim), generator=generator),
            k=torch.randn(shape_kv, generator=generator),
            v=torch.randn(shape_kv, generator=generator),
            dtype=dtype or torch.bfloat16,
            scale=scale or head_dim**-0.5,
            tile=tile,
            generator=generator,
        )
        self.shape(draw)
        return draw.q.to(draw.dtype), draw.k.to(draw.dtype), draw.v.to(draw.dtype)


_FAMILIES: dict[str, Family] = {}


def _family(bites: str, *, causal: bool = False) -> Callable[[Callable[[Draw], None]], Callable[[Draw], None]]:
    def add(shape: Callable[[Draw], None]) -> Callable[[Draw], None]:
        name = shape.__name__.removeprefix("_")
        _FAMILIES[name] = Family(name, bites, shape, causal)
        return shape

    return add


@_family("standard normal q, k, v: a tile dropped, swapped or miscounted")
def _normal(draw: Draw) -> None:
    pass


@_family("the maximum grows by about 10 log2 units with every KV tile: every rescale fires")
def _rising_max(draw: Draw) -> None:
    draw.k *= 0.5
    draw.set_levels(10.0 * draw.tile_of_key())


@_family("the maximum falls by about 3 log2 units with every KV tile: no rescale after the first tile")
def _falling_max(draw: Draw) -> None:
    draw.k *= 0.5
    draw.set_levels(-3.0 * draw.tile_of_key())


@_family("the maximum rises in even rows and falls in odd ones: the lanes of a warp disagree about the rescale")
def _mixed_max(draw: Draw) -> None:
    import torch

    draw.k *= 0.5
    sign = 1.0 - 2.0 * (torch.arange(draw.q.shape[1]) % 2)
    draw.set_levels(10.0 * (draw.tile_of_key() - (draw.tiles - 1) / 2), sign_of_row=sign)


def _peaks(draw: Draw, growth: float) -> None:
    """One key of each tile stands exactly at 0 (first tile) or `growth` (the others); the rest stay 4 below it."""
    draw.k *= 0.4
    levels = growth * (draw.tile_of_key() > 0) - 4.0
    for tile in range(draw.tiles):
        key = draw.some_key(tile)
        draw.k[:, key] = 0.0
        levels[key] += 4.0
    draw.set_levels(levels)


@_family("the maximum grows once, by 7.9 log2 units, just under the threshold of a lazy rescale: P reaches 2^7.9")
def _just_under(draw: Draw) -> None:
    _peaks(draw, LAZY_THRESHOLD - 0.1)


@_family("the maximum grows once, by 8.1 log2 units, just over the threshold of a lazy rescale")
def _just_over(draw: Draw) -> None:
    _peaks(draw, LAZY_THRESHOLD + 0.1)


@_family("all scores of a row are equal: P is 1 everywhere, O is the mean of V, LSE is the score plus log(seqlen)")
def _equal(draw: Draw) -> None:
    draw.k[:] = draw.k[:, :1].clone()


def _outlier(draw: Draw, tile: int) -> None:
    """One key 12 log2 units above the rest: most of every row's weight, and not all of it."""
    import torch

    key = draw.some_key(tile)
    draw.k[:, key] = 0.0
    levels = torch.zeros(draw.k.shape[1])
    levels[key] = 12.0
    draw.set_levels(levels)


@_family("one outlier key in the first tile: later tiles must not disturb it")
def _outlier_first(draw: Draw) -> None:
    _outlier(draw, 0)


@_family("one outlier key in a middle tile: rescaled once, then kept")
def _outlier_middle(draw: Draw) -> None:
    _outlier(draw, draw.tiles // 2)


@_family("one outlier key in the last tile: the last rescale and the row sum after it")
def _outlier_last(draw: Draw) -> None:
    _outlier(draw, draw.tiles - 1)


@_family("q and k scaled by 2^-10: all scores near zero, subnormal inputs in fp16")
def _tiny(draw: Draw) -> None:
    draw.q *= 2.0**-10
    draw.k *= 2.0**-10


@_family("q and k scaled by 2^6: scores in the thousands, one key takes the row, exp underflows for the rest")
def _huge(draw: Draw) -> None:
    draw.q *= 2.0**6
    draw.k *= 2.0**6


@_family("one row of v is a thousand times the others: a wrong weight on one key shows at once")
def _huge_value_row(draw: Draw) -> None:
    draw.v[:, draw.some_key(draw.tiles // 2)] *= 2.0**10


@_family("every head of every batch has its own mean in v and its own spread in q: a mixed-up head or batch shows")
def _distinct_heads(draw: Draw) -> None:
    import torch

    batch, _, heads, _ = draw.v.shape
    number = torch.arange(batch * heads, dtype=torch.float32).reshape(batch, 1, heads, 1)
    draw.v += number - (batch * heads - 1) / 2
    draw.q *= torch.linspace(0.5, 1.5, draw.q.shape[2])[:, None]


@_family("one row of q in each head holds a NaN: that row must be NaN, and no other")
def _nan_query(draw: Draw) -> None:
    row = draw.q.shape[1] // 3
    draw.q[:, row, :, 5] = math.nan


@_family("more queries than keys under a causal mask: the first rows see no key at all", causal=True)
def _masked_rows(draw: Draw) -> None:
    if draw.q.shape[1] <= draw.k.shape[1]:
        rows, keys = draw.q.shape[1], draw.k.shape[1]
        raise ValueError(f"masked_rows: seqlen {rows} with seqlen_kv {keys} masks no row; take seqlen_kv below {rows}")


INPUT_FAMILIES: Mapping[str, Family] = MappingProxyType(_FAMILIES)


def family(name: str) -> Family:
    """The family of that name; ValueError with the names there are, otherwise."""
    try:
        return INPUT_FAMILIES[name]
    except KeyError:
        raise ValueError(f"input family {name!r} is not known; take one of: {', '.join(INPUT_FAMILIES)}") from None
