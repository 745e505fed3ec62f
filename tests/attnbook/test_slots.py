"""Tiles of K and V in their places, read off traces, and the movable ring made of them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attnbook.figures import slots
from attnbook.figures.traces import stage_trace
from attnbook.widgets import ring_steps


def test_every_stay_goes_through_its_moments_in_order() -> None:
    for stage, places in ((5, ["K", "V"]), (6, ["KV0", "KV1", "KV2"])):
        row = slots.stays(stage_trace(stage, seqlen=512), stage)
        assert [s.name for s in row] == [f"{what}{tile}" for tile in range(4) for what in "KV"]
        assert [s.place for s in row] == [places[t % len(places)] for t in range(8)]
        assert all(s.asked < s.there < s.used < s.done <= s.free for s in row)
        for name in places:
            mine = [s for s in row if s.place == name]
            assert all(a.free < b.asked for a, b in pairwise(mine))


def test_only_the_ring_runs_ahead() -> None:
    """V of tile 1 is asked for before V of tile 0 is read, or not."""
    early = {}
    for stage in (5, 6):
        row = slots.stays(stage_trace(stage, seqlen=512), stage)
        early[stage] = row[3].asked < row[1].used
    assert early == {5: False, 6: True}


def test_the_movable_ring_tells_every_moment() -> None:
    ring = ring_steps(6)
    assert len(ring.steps) == 4 * 8
    assert "token 0, into slot 0" in ring.steps[0]
    assert "kv_empty1" in ring.steps[-1]
    assert all("{" not in s for s in ring.steps)
    assert "{" not in ring.caption


def test_a_stage_without_a_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="take stage 6 on"):
        ring_steps(5)
