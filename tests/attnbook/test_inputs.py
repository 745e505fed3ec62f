"""The inputs do what their names say, and are the same every time."""

import math

import pytest
import torch

from attnbook.inputs import INPUT_FAMILIES, TILE, family

DENSE = [name for name, found in INPUT_FAMILIES.items() if not found.causal]


def tile_maxima(name: str, tiles: int, dtype: torch.dtype, seed: int = 0, scale: float = 128**-0.5) -> torch.Tensor:
    """(batch, heads, queries, tiles): the largest score of every KV tile, in log2 units, FP64."""
    q, k, _ = family(name)(1, 2, tiles * TILE, dtype=dtype, seed=seed, scale=scale)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * scale * math.log2(math.e)
    return scores.unflatten(-1, (tiles, TILE)).amax(-1)


@pytest.mark.parametrize("name", DENSE)
def test_the_same_arguments_give_the_same_numbers(name):
    first = family(name)(2, 3, 256, seed=5)
    again = family(name)(2, 3, 256, seed=5)
    other = family(name)(2, 3, 256, seed=6)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.dtype == torch.bfloat16 and a.shape == (2, 256, 3, 128)
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        assert not torch.equal(a.nan_to_num(7.0), c.nan_to_num(7.0))


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_numbers_are_finite_but_the_one_that_is_not_meant_to_be(name, dtype):
    q, k, v = family(name)(1, 2, 384, dtype=dtype)
    assert k.isfinite().all() and v.isfinite().all()
    assert int(q.isnan().sum()) == (2 if name == "nan_query" else 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [128**-0.5, 0.25])
def test_rising_maximum_outgrows_the_lazy_threshold_with_every_tile(dtype, scale):
    growth = tile_maxima("rising_max", 8, dtype, scale=scale).diff(dim=-1)
    assert growth.amin() > 8.0 if scale < 0.1 else growth.amin() > 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_falling_maximum_never_grows(dtype):
    maxima = tile_maxima("falling_max", 8, dtype)
    assert (maxima[..., 1:] < maxima[..., :1]).all()


def test_mixed_maximum_rises_in_even_rows_and_falls_in_odd_ones():
    growth = tile_maxima("mixed_max", 4, torch.bfloat16).diff(dim=-1)
    assert growth[:, :, 0::2].amin() > 0.0 > growth[:, :, 1::2].amax()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "low", "high"), [("just_under", 7.85, 8.0), ("just_over", 8.0, 8.15)])
def test_growth_stands_on_the_right_side_of_the_threshold(name, low, high, dtype):
    for seed in range(4):
        maxima = tile_maxima(name, 8, dtype, seed=seed)
        growth = maxima.cummax(dim=-1).values[..., 1:] - maxima[..., :1]
        assert low < growth.amin() and growth.amax() < high


def test_equal_scores_are_equal_to_the_last_bit():
    q, k, _ = family("equal")(1, 2, 256)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double())
    assert torch.equal(scores.amin(-1), scores.amax(-1))


@pytest.mark.parametrize(("name", "tile"), [("outlier_first", 0), ("outlier_middle", 2), ("outlier_last", 3)])
def test_outlier_carries_most_of_every_row_from_its_tile(name, tile):
    q, k, _ = family(name)(1, 2, 4 * TILE)
    weights = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).mul(128**-0.5).softmax(-1)
    share, key = weights.max(dim=-1)
    assert (key // TILE == tile).all()
    assert share.amin() > 0.5 and share.amax() < 0.99


def test_distinct_heads_differ_in_mean_and_spread():
    q, _, v = family("distinct_heads")(2, 3, 256)
    means = v.double().mean(dim=(1, 3)).flatten()
    assert torch.allclose(means.diff(), torch.ones(5, dtype=torch.float64), atol=0.05)
    spread = q.double().std(dim=(0, 1, 3))
    assert (spread.diff() > 0.3).all()


def test_masked_rows_needs_more_queries_than_keys():
    with pytest.raises(ValueError, match="seqlen_kv below 256"):
        family("masked_rows")(1, 1, 256)
    q, k, _ = family("masked_rows")(1, 1, 256, seqlen_kv=128)
    assert q.shape[1] == 256 and k.shape[1] == 128


def test_unknown_family_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'gauss' is not known; take one of: normal, rising_max"):
        family("gauss")
