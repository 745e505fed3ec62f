"""`attnbook.run` against the oracle: every stage that is written, in both types, over the input families in turn.

The stages' own tests go through all families; this one asks, stage by stage, for what a user types.
"""

import json

import pytest

torch = pytest.importorskip("torch")

import attnbook  # noqa: E402
from attnbook.inputs import INPUT_FAMILIES  # noqa: E402
from attnbook.ladder import LADDER  # noqa: E402
from attnbook.mutate import drop_wait  # noqa: E402

DENSE = [name for name, found in INPUT_FAMILIES.items() if not found.causal]
SHAPES = [(1, 1, 128), (1, 2, 256), (2, 3, 128), (1, 1, 384)]
STAGES = [stage.number for stage in LADDER.implemented]


def turn(number, dtype):
    """Shape and family for a stage and a type: all of them come round over the stages."""
    at = 2 * STAGES.index(number) + (dtype == "fp16")
    return SHAPES[at % len(SHAPES)], DENSE[(5 * at) % len(DENSE)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("number", STAGES)
def test_stage_is_right(number, dtype):
    (batch, heads, seqlen), family = turn(number, dtype)
    result = attnbook.run(number, batch, heads, seqlen, dtype=dtype, family=family, seed=11, lse=True)
    assert result.verdict.ok, f"{family} {batch, heads, seqlen}: {result.verdict}"
    assert result.verdict.rows == batch * heads * seqlen and result.verdict.lse_error is not None
    assert result.run is None or not result.run.findings


@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_first_stage_on_every_family(family, dtype):
    result = attnbook.run(1, heads=2, seqlen=256, dtype=dtype, family=family, seed=12, lse=True)
    assert result.verdict.ok, result.verdict


@pytest.mark.parametrize("number", [n for n in STAGES if n >= 7])
@pytest.mark.parametrize("seqlen", [127, 129, 255, 257])
def test_lengths_off_the_tile_by_one(number, seqlen):
    result = attnbook.run(number, 1, 1, seqlen, family="outlier_last", seed=13, lse=True)
    assert result.verdict.ok, result.verdict


@pytest.mark.parametrize("scale", [0.0, 0.02, 0.5])
def test_another_scale(scale):
    result = attnbook.run(1, seqlen=256, scale=scale, lse=True)
    assert result.verdict.ok, result.verdict


def test_a_wrong_scale_is_seen():
    """The verdict is about the kernel's answer: hold it against another scale and it fails."""
    from attnbook.reference import check

    result = attnbook.run(1, seqlen=256)
    assert not check(result.o, None, result.q, result.k, result.v, scale=1.01 * 128**-0.5).ok


def test_result_tells_what_happened():
    result = attnbook.run("baseline", heads=2, seqlen=256, lse=True, trace=True, seed=5)
    text = result.report()
    assert str(result) == text
    for words in (
        "stage         1, Baseline: sm_100a",
        "heads 2, seqlen 256",
        "seed 5",
        "4 CTAs of 128 threads",
        "right",
    ):
        assert words in text, text
    names = {event.name for event in result.trace.events}
    assert {"softmax", "wait", "MMA"} <= names
    assert result.trace.to_json()
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["verdict"]["ok"] is True and plain["stage"]["slug"] == "baseline"
    assert plain["emulation"]["warp_instructions"] == result.run.warp_instructions
    assert "not GPU time" in plain["seconds"]["of"]


def test_no_events_without_asking():
    with pytest.raises(ValueError, match="trace=True"):
        _ = attnbook.run(1, seqlen=128).trace


def test_adversarial_schedules_give_the_same_bits():
    fair = attnbook.run(1, seqlen=128, seed=1)
    for seed in range(3):
        other = attnbook.run(1, seqlen=128, seed=1, schedule="adversarial", schedule_seed=seed)
        assert torch.equal(fair.o, other.o)


def test_an_edited_kernel_is_run_and_judged():
    from ptxemu import EmulationError

    try:
        verdict = attnbook.run(1, seqlen=256, ptx_edit=drop_wait("s_full")).verdict
    except EmulationError:
        return
    assert not verdict.ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seqlen": 0}, "seqlen = 0; it must be a whole number"),
        ({"heads": -2}, "heads = -2"),
        ({"batch": 1.5}, "batch = 1.5"),
        ({"dtype": "fp8"}, "dtype = 'fp8' is none of bf16, fp16"),
        ({"family": "gauss"}, "take one of: normal"),
        ({"family": "masked_rows"}, "needs a causal kernel"),
        ({"schedule": "slow"}, "schedule='slow'"),
        ({"device": "gpu", "trace": True}, "are the emulator's"),
    ],
)
def test_bad_settings_are_refused(options, words):
    with pytest.raises(ValueError) as error:
        attnbook.run(1, **options)
    assert words in str(error.value)
