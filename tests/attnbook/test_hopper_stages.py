"""The stages of the Hopper ladder on the emulator: the rule, any schedule, and the facts that the modules state."""

from functools import cache

import pytest

torch = pytest.importorskip("torch")

import ptxemu  # noqa: E402
from attnbook import reference  # noqa: E402
from attnbook.compile import Problem, compile, stage_module  # noqa: E402
from attnbook.inputs import family  # noqa: E402
from attnbook.ladder import HOPPER, LADDER  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# stage: (batch, seqlen, heads, heads of K and V, head dimension, dtype, causal)
CASES = {
    2: [(1, 256, 1, 1, 128, "bf16", False)],
    3: [(1, 256, 1, 1, 128, "bf16", False)],
    4: [(1, 256, 1, 1, 128, "bf16", False)],
    5: [(1, 384, 1, 1, 128, "bf16", False)],
    6: [(1, 384, 1, 1, 128, "bf16", False)],
    7: [(1, 384, 1, 1, 128, "bf16", False)],
    8: [(1, 300, 1, 1, 128, "bf16", False)],
    9: [(1, 161, 2, 2, 128, "bf16", False)],
    10: [(2, 300, 1, 1, 128, "bf16", True), (1, 193, 1, 1, 128, "bf16", False)],
    11: [(1, 260, 4, 2, 64, "fp16", True), (1, 80, 2, 1, 128, "bf16", False)],
}


@cache
def compiled(number, dtype="bf16", causal=False, head_dim=128):
    return compile(HOPPER[number], Problem(1, 1, 256, head_dim, dtype, causal))


def launch(kernel, tensors, head_dim=128, **config):
    *qkv, o, lse = tensors
    return ptxemu.launch(kernel.fn, *kernel.arguments(*qkv, o, lse, head_dim**-0.5), config=ptxemu.Config(**config))


def problem(batch, seqlen, heads, kv_heads=None, head_dim=128, dtype="bf16"):
    torch.manual_seed(seqlen)
    q = torch.randn(batch, seqlen, heads, head_dim).to(DTYPES[dtype])
    k, v = (torch.randn(batch, seqlen, kv_heads or heads, head_dim).to(DTYPES[dtype]) for _ in range(2))
    return q, k, v, torch.full_like(q, torch.nan), torch.full((batch, heads, seqlen), torch.nan)


@pytest.mark.parametrize(("number", "case"), [(n, case) for n, cases in CASES.items() for case in cases])
def test_the_rule(number, case):
    batch, seqlen, heads, kv_heads, head_dim, dtype, causal = case
    q, k, v, o, lse = tensors = problem(batch, seqlen, heads, kv_heads, head_dim, dtype)
    run = launch(compiled(number, dtype, causal, head_dim), tensors, head_dim)
    k, v = (x.repeat_interleave(heads // kv_heads, dim=2) for x in (k, v))
    verdict = reference.check(o, lse, q, k, v, causal=causal)
    assert verdict.ok, verdict
    assert not run.findings
    assert run.block == (HOPPER_MODULES[number].THREADS, 1, 1)


HOPPER_MODULES = {stage.number: stage_module(stage) for stage in HOPPER.implemented}


@pytest.mark.parametrize("number", sorted(CASES))
def test_what_the_module_states(number):
    kernel, module = compiled(number), HOPPER_MODULES[number]
    assert kernel.arch == "sm_90a" and kernel.kernel_name.startswith(f"h{number:02d}_")
    assert kernel.spills == 0 and kernel.stack_bytes == 0
    assert kernel.registers * module.THREADS <= 65536
    assert kernel.shared_bytes == max(offset + size for offset, size in module.SMEM.values())
    assert {"q_full"} <= module.BARRIERS.keys() <= module.SMEM.keys()


@pytest.mark.parametrize("number", [7, 10])
def test_any_schedule_gives_the_same_bits(number):
    """The two with most synchronisation: named barriers, and tiles that are handed back unread."""
    causal = "causal" in HOPPER[number].features
    answers = []
    for config in ({}, {"schedule": "adversarial", "seed": 1}, {"schedule": "adversarial", "seed": 2}):
        tensors = problem(1, 256, 1)
        launch(compiled(number, causal=causal), tensors, **config)
        answers.append(tensors[3:])
    assert all(torch.equal(a, b) for one in answers[1:] for a, b in zip(answers[0], one, strict=True))


@pytest.mark.parametrize("name", ["rising_max", "just_under", "just_over", "huge"])
def test_maxima_that_move(name):
    """Rescales that always fire, that just do not, and that just do; the tiles are walked from the last key on."""
    q, k, v = family(name)(1, 1, 256, dtype=torch.bfloat16)
    k, v = k.flip(1), v.flip(1)
    o, lse = torch.full_like(q, torch.nan), torch.full((1, 1, 256), torch.nan)
    launch(compiled(9), (q, k, v, o, lse))
    verdict = reference.check(o, lse, q, k, v)
    assert verdict.ok, verdict


def test_the_ladder_of_hopper():
    assert [stage.number for stage in HOPPER] == list(range(1, len(HOPPER) + 1))
    assert LADDER["h3"] is HOPPER[3] and LADDER["h3"].name == "h3" and LADDER[3].name == "3"
    assert HOPPER["final"].machine == "hopper" and LADDER["final"].machine == "blackwell"
    assert HOPPER[8].previous == 6 and "pingpong" not in HOPPER[8].features
    with pytest.raises(ValueError, match="sm_100a"):
        compile(HOPPER[2], Problem(), arch="sm_100a")


@pytest.mark.parametrize(
    ("number", "arguments", "options", "says"),
    [
        (4, (1, 100, 1), {}, "seqlen = 100"),
        (9, (1, 100, 1), {"causal": True}, "causal"),
        (10, (1, 100, 1, 64), {}, "head_dim = 64"),
        (11, (1, 100, 1, 96), {}, "head_dim = 96"),
        (11, (1, 0, 1), {}, "seqlen = 0"),
        (11, (0, 5, 1), {}, "batch = 0"),
    ],
)
def test_what_a_stage_refuses(number, arguments, options, says):
    with pytest.raises(ValueError, match=says):
        HOPPER_MODULES[number].check(*arguments, **options)
