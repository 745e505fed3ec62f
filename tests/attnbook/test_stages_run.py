"""Stages 2 to 7 on the emulator: right under the rule, and bit for bit what stage 1 computes.

These stages move work and waits about; none changes a number. So stage 1 is held against the oracle on every input
family (test_s01_run.py), and the others against the oracle on a few and against stage 1 on all of them.
"""

import functools
import importlib
import re

import pytest

torch = pytest.importorskip("torch")

import ptxemu  # noqa: E402
from attnbook.inputs import INPUT_FAMILIES  # noqa: E402
from attnbook.ladder import LADDER  # noqa: E402
from attnbook.mutate import waits  # noqa: E402
from attnbook.reference import check, poison  # noqa: E402

compile_module = importlib.import_module("attnbook.compile")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
STAGES = [stage.number for stage in LADDER.implemented if stage.machine == "blackwell" and 2 <= stage.number <= 7]
ANY_LENGTH = [number for number in STAGES if number >= 7]
DENSE = [name for name, family in INPUT_FAMILIES.items() if not family.causal]


def run(number, q, k, v, scale=None, lse=True, ptx=None, **options):
    """(o, lse, Run) of a stage on the emulator."""
    dtype = next(name for name, t in DTYPES.items() if t is q.dtype)
    kernel = compile_module.compile(number, compile_module.Problem(dtype=dtype, lse=lse))
    o, out = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[0], q.shape[2], q.shape[1]) if lse else None
    poison(o)
    if lse:
        poison(out)
    arguments = kernel.arguments(q, k, v, o, out, q.shape[-1] ** -0.5 if scale is None else scale)
    result = ptxemu.launch(kernel.fn, *arguments, config=ptxemu.Config(**options), ptx=ptx)
    return o, out, result


def same(a, b):
    """Bit for bit, NaN included."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@functools.cache
def by_stage_1(family, batch, heads, seqlen, dtype="bf16"):
    q, k, v = INPUT_FAMILIES[family](batch, heads, seqlen, dtype=DTYPES[dtype], seed=5)
    return q, k, v, *run(1, q, k, v)[:2]


@pytest.mark.parametrize("number", STAGES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tiles", [1, 3])
def test_right(number, dtype, tiles):
    """Odd numbers of tiles: the second Q tile of the last CTA is beyond the end."""
    q, k, v, o1, lse1 = by_stage_1("rising_max", 1, 1, 128 * tiles, dtype)
    o, lse, result = run(number, q, k, v)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)
    assert same(o, o1) and same(lse, lse1) and not result.findings


@pytest.mark.parametrize("number", STAGES)
def test_heads_and_batches_that_differ(number):
    q, k, v, o1, lse1 = by_stage_1("distinct_heads", 2, 2, 256)
    o, lse, _ = run(number, q, k, v)
    assert same(o, o1) and same(lse, lse1)


@pytest.mark.parametrize("family", DENSE)
def test_input_families(family):
    """Every family, each on the stage whose turn it is and on the last one."""
    turn = STAGES[DENSE.index(family) % len(STAGES)]
    q, k, v, o1, lse1 = by_stage_1(family, 1, 1, 256)
    for number in {turn, STAGES[-1]}:
        o, lse, _ = run(number, q, k, v)
        verdict = check(o, lse, q, k, v)
        assert verdict.ok, f"stage {number}: {verdict}"
        assert same(o, o1) and same(lse, lse1), f"stage {number}"


@pytest.mark.parametrize("number", STAGES)
@pytest.mark.parametrize("seed", range(3))
def test_any_schedule_gives_the_same_bits(number, seed):
    q, k, v, o1, lse1 = by_stage_1("mixed_max", 1, 1, 256)
    o, lse, result = run(number, q, k, v, schedule="adversarial", seed=seed)
    assert same(o, o1) and same(lse, lse1) and not result.findings


@pytest.mark.parametrize("number", STAGES)
def test_without_lse_and_with_other_strides(number):
    """q, k and v as slices of one (batch, seqlen, 3, heads, 128) tensor, as a projection layer makes them."""
    q, k, v, o1, _ = by_stage_1("distinct_heads", 2, 2, 256)
    packed = torch.stack([q, k, v], dim=2)
    o, none, _ = run(number, *packed.unbind(2), lse=False)
    assert none is None and same(o, o1)


@pytest.mark.parametrize("number", ANY_LENGTH)
@pytest.mark.parametrize("seqlen", [1, 127, 129, 300, 1000])
def test_any_length(number, seqlen):
    heads = 2 if seqlen < 200 else 1
    q, k, v = INPUT_FAMILIES["rising_max"](1, heads, seqlen, seed=seqlen)
    o, lse, result = run(number, q, k, v)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)
    assert not result.findings


@pytest.mark.parametrize("number", ANY_LENGTH)
def test_keys_beyond_the_end_have_no_weight_at_scale_0(number):
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 130, seed=3)
    o, lse, _ = run(number, q, k, v, scale=0.0)
    verdict = check(o, lse, q, k, v, scale=0.0)
    assert verdict.ok, str(verdict)
    assert torch.allclose(lse, torch.tensor(130.0).log())


@pytest.mark.parametrize("number", ANY_LENGTH)
@pytest.mark.parametrize("seed", range(2))
def test_ragged_under_any_schedule(number, seed):
    q, k, v = INPUT_FAMILIES["mixed_max"](1, 1, 200, seed=7)
    o, lse, _ = run(number, q, k, v)
    o2, lse2, _ = run(number, q, k, v, schedule="adversarial", seed=seed)
    assert same(o, o2) and same(lse, lse2)


# ---- the test of the test: take one wait away, and it must be noticed -----------------------------------------------

WAITS = {  # in the order of the kernel's text, roles from top to bottom
    2: ["q_full", "kv_full", "s_full", "o_full"],
    3: ["q_full", "kv_full", "s_full", "o_full"],
    4: ["kv_empty", "q_full", "kv_full", "p_full", "s_full", "o_full"],
    5: ["kv_empty", "q_full", "kv_full", "p_full", "p_full", "s_full", "o_full"],
    6: ["kv_empty", "kv_empty", "q_full", "kv_full", "kv_full", "p_full", "p_full", "s_full", "o_full"],
    7: ["kv_empty", "kv_empty", "q_full", "kv_full", "kv_full", "p_full", "kv_full", "p_full", "s_full", "o_full"],
}
TRY_WAIT = re.compile(r"mbarrier\.try_wait\.\S+\s+([%\w]+)\s*,[^;]*;")


@pytest.mark.parametrize("number", STAGES)
def test_these_are_all_the_waits(number):
    ptx = compile_module.compile(number).ptx
    assert waits(ptx) == WAITS[number] and len(TRY_WAIT.findall(ptx)) == len(WAITS[number])


@pytest.mark.parametrize(
    ("number", "which"), [(n, i) for n in STAGES for i in range(len(WAITS[n]))], ids=lambda value: str(value)
)
def test_every_single_wait_is_needed(number, which):
    """Some order that the machine allows must give a wrong answer, break a rule or end in a deadlock."""
    q, k, v, o1, lse1 = by_stage_1("normal", 1, 1, 512)
    q, o1, lse1 = q[:, :256], o1[:, :256], lse1[:, :, :256]
    ptx = compile_module.compile(number).ptx
    wait = list(TRY_WAIT.finditer(ptx))[which]
    edited = ptx[: wait.start()] + f"setp.eq.u32 {wait[1]}, 0, 0;" + ptx[wait.end() :]
    for seed in range(16):
        try:
            o, lse, result = run(number, q, k, v, ptx=edited, schedule="adversarial", seed=seed)
        except ptxemu.errors.EmulationError:
            return
        if result.findings or not same(o, o1) or not same(lse, lse1):
            return
    pytest.fail(f"nothing came of leaving out the wait on {WAITS[number][which]}, in 16 schedules")
