"""The GEMM with planted bugs: each is there, each is found under its own name, and none is left when all are mended."""

import pytest

torch = pytest.importorskip("torch")

import ptxemu  # noqa: E402
from attnbook.debug import gemm  # noqa: E402
from attnbook.kernels.blackwell import buggy  # noqa: E402

CHECKED = {"races": True, "on_race": "collect"}


def found(outcome):
    """(kind, space, what, what) of the findings."""
    assert outcome.run is not None, str(outcome)
    return {(x.kind, x.first.space, x.first.what, x.second.what) for x in outcome.run.findings}


def test_it_hangs_on_a_count():
    assert gemm(n=256, k=64).right
    error = gemm(n=384, k=64).error
    assert isinstance(error, ptxemu.DeadlockError) and "arrivals pending 124" in str(error)
    assert gemm(["count"], n=384, k=64).right


def test_a_slot_is_given_back_too_early():
    outcome = gemm(["count", "sums"], n=256, k=256, **CHECKED)
    assert outcome.right and ("race", "shared", "MMA", "TMA load") in found(outcome)


def test_two_sums_alias():
    outcome = gemm(["count", "slot"], n=256, k=128, **CHECKED)
    assert outcome.right and found(outcome) == {("race", "tmem", "tcgen05.ld", "MMA")}
    assert all(x.first.range[2:] == (96, 128) for x in outcome.run.findings)
    assert not gemm(["count", "slot"], n=512, k=256, schedule="adversarial", seed=0).right


def test_nothing_is_left():
    outcome = gemm(buggy.BUGS, n=512, k=128, strict=True, **CHECKED)
    assert outcome.right and not outcome.run.findings


def test_a_bug_that_is_not_there():
    with pytest.raises(ValueError, match="no bug 'phase'"):
        gemm(["phase"])
