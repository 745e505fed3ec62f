"""Stage 1 on the emulator, against the FP64 oracle and the error rule, on inputs made to break it."""

import functools
import importlib
import re

import pytest

torch = pytest.importorskip("torch")

import ptxemu  # noqa: E402
from attnbook.inputs import INPUT_FAMILIES  # noqa: E402
from attnbook.mutate import drop_wait  # noqa: E402
from attnbook.reference import attention_fp64, check, poison  # noqa: E402

compile_module = importlib.import_module("attnbook.compile")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DENSE = [name for name, family in INPUT_FAMILIES.items() if not family.causal]


def run(q, k, v, scale=None, lse=True, ptx=None, **options):
    """(o, lse, Run) of stage 1 on the emulator."""
    dtype = next(name for name, t in DTYPES.items() if t is q.dtype)
    kernel = compile_module.compile(1, compile_module.Problem(dtype=dtype, lse=lse))
    o, out = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[0], q.shape[2], q.shape[1]) if lse else None
    poison(o)
    if lse:
        poison(out)
    arguments = kernel.arguments(q, k, v, o, out, q.shape[-1] ** -0.5 if scale is None else scale)
    result = ptxemu.launch(kernel.fn, *arguments, config=ptxemu.Config(**options), ptx=ptx)
    return o, out, result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_normal(dtype, tiles):
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 128 * tiles, dtype=DTYPES[dtype], seed=tiles)
    o, lse, result = run(q, k, v)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)
    assert result.grid == (tiles, 1, 1) and not result.findings


@pytest.mark.parametrize("name", DENSE)
def test_input_families(name):
    q, k, v = INPUT_FAMILIES[name](1, 1, 384, seed=5)
    o, lse, _ = run(q, k, v)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)


def test_heads_and_batches_that_differ():
    q, k, v = INPUT_FAMILIES["distinct_heads"](2, 3, 256, seed=7)
    o, lse, result = run(q, k, v)
    assert result.grid == (2, 3, 2)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("scale", [0.0, 2.0**-10, 1.0, 64.0])
def test_scales(scale):
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 256, seed=11)
    o, lse, _ = run(q, k, v, scale=scale)
    verdict = check(o, lse, q, k, v, scale=scale)
    assert verdict.ok, str(verdict)


def test_lse_is_optional():
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 128, seed=13)
    with_lse, _, _ = run(q, k, v)
    without, none, _ = run(q, k, v, lse=False)
    assert none is None and torch.equal(with_lse, without)


def test_strides_that_are_not_the_packed_ones():
    """q, k and v as slices of one (batch, seqlen, 3, heads, 128) tensor, as a projection layer makes them."""
    torch.manual_seed(17)
    packed = torch.randn(2, 128, 3, 2, 128).bfloat16()
    q, k, v = packed.unbind(2)
    o, lse, _ = run(q, k, v)
    verdict = check(o, lse, q, k, v)
    assert verdict.ok, str(verdict)


@functools.cache
def fair_run():
    q, k, v = INPUT_FAMILIES["rising_max"](1, 1, 256, seed=19)
    return q, k, v, run(q, k, v)


@pytest.mark.parametrize("seed", range(8))
def test_any_schedule_gives_the_same_bits(seed):
    q, k, v, (o, lse, _) = fair_run()
    o2, lse2, result = run(q, k, v, schedule="adversarial", seed=seed)
    assert torch.equal(o, o2) and torch.equal(lse, lse2) and not result.findings


def test_what_a_tile_costs():
    """The warp instructions of one more KV tile: the number that the chapter quotes must not drift unseen."""
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 512, seed=23)
    counts = [run(q[:, :128], k[:, :n], v[:, :n])[2].warp_instructions for n in (256, 384, 512)]
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert 4 * 1000 < counts[1] - counts[0] < 4 * 2500


def test_oracle_itself():
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 128, seed=29)
    o, _ = attention_fp64(q, k, v)
    s = torch.einsum("qd,kd->qk", q[0, :, 0].double(), k[0, :, 0].double()) / 128**0.5
    assert torch.allclose(o[0, :, 0], s.softmax(-1) @ v[0, :, 0].double())


# ---- the test of the test: take one piece of synchronisation away, and it must be noticed ---------------------------


def without_bar_sync(number):
    """An edit of the PTX that drops the CTA barrier with that number: 0 after setup, 1 before P V, 2 before dealloc."""

    def edit(ptx):
        found = list(re.finditer(r"bar\.sync\s+0;", ptx))
        assert len(found) == 3
        return ptx[: found[number].start()] + ptx[found[number].end() :]

    return edit


EDITS = {f"wait on {name}": drop_wait(name) for name in ("q_full", "kv_full", "s_full", "o_full")}
EDITS |= {f"CTA barrier {number}": without_bar_sync(number) for number in range(3)}


@pytest.mark.parametrize("name", EDITS)
def test_every_wait_and_barrier_is_needed(name):
    """Some order that the machine allows must give a wrong answer or break a rule."""
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 384, seed=31)
    edited = EDITS[name](compile_module.compile(1).ptx)
    for seed in range(8):
        try:
            o, lse, result = run(q, k, v, ptx=edited, schedule="adversarial", seed=seed)
        except ptxemu.errors.EmulationError:
            return
        if result.findings or not check(o, lse, q, k, v).ok:
            return
    pytest.fail(f"nothing came of leaving out the {name}, in 8 schedules")


def test_ranges_nest_as_declared():
    """Every warp opens and closes the phases in order; max, rescale and exp lie inside softmax."""
    kernel = compile_module.compile(1, iket=True)
    q, k, v = INPUT_FAMILIES["normal"](1, 1, 256, seed=37)
    o, lse = torch.empty_like(q), torch.empty(1, 1, 256)
    arguments = kernel.arguments(q, k, v, o, lse, 128**-0.5)
    result = ptxemu.launch(kernel.fn, *arguments, config=ptxemu.Config(trace=True))
    assert check(o, lse, q, k, v).ok
    tile = ["load", "qk", "softmax", "softmax/max", "softmax/rescale", "softmax/exp", "pv"]
    expected = ["setup", "load", *tile, *tile, "epilogue"]
    for cta in (0, 1):
        for warp in range(4):
            open_ranges, seen = [], []
            for event in result.events:
                if (event.cta, event.row) != (cta, f"warp{warp}") or event.name not in kernel.stage.RANGES:
                    continue
                if event.kind == "begin":
                    open_ranges.append(event.name)
                    seen.append("/".join(open_ranges))
                else:
                    assert open_ranges.pop() == event.name
            assert seen == expected and not open_ranges
