"""Lengths that end inside a tile: the rule that the figure draws is the one that the kernel follows."""

from __future__ import annotations

import pytest

import attnbook
from attnbook.compile import stage_module
from attnbook.widgets import tail_mask
from attnbook.widgets.tail import masked_chunks


def mask_stores(seqlen: int) -> int:
    """Stores of a softmax warp into S, all KV tiles together: those of the mask; O's come on top."""
    run = attnbook.run("interleave", seqlen=seqlen).run
    assert run is not None
    count = sum(n for op, n in run.instructions.items() if op.startswith("tcgen05.st") and ".x8." in op)
    return count // len(stage_module("interleave").ROLES["softmax"])


@pytest.mark.parametrize("seqlen", [1, 127, 105])
def test_the_mask_goes_through_the_chunks_of_the_figure(seqlen: int) -> None:
    _, chunks = masked_chunks("interleave", seqlen)
    assert mask_stores(seqlen) == len(chunks)  # one tile: O is not rescaled


def test_a_full_tile_is_not_masked() -> None:
    assert not masked_chunks("interleave", 128)[1]
    assert mask_stores(128) == 0


def test_the_figure_counts_keys_and_rows() -> None:
    steps = tail_mask("interleave").steps
    assert "has 1 key; 127" in steps[0]
    assert "255 are not stored" in steps[0]
    assert "every tile is full" in steps[2]
    assert "512 query rows of all CTAs" in steps[5]
