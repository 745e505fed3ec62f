"""Hopper's stage 1 on the emulator, under the project's rule of correctness."""

import pytest

torch = pytest.importorskip("torch")

import cuda.bindings.driver as cuda  # noqa: E402
import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

import ptxemu  # noqa: E402
from attnbook import reference  # noqa: E402
from attnbook.kernels.hopper import h01_baseline as h01  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def arguments(q, k, v, o, lse, scale):
    def tensor(t):
        align = 16 if t.dim() == 4 else 4
        return from_dlpack(t, assumed_align=align).mark_layout_dynamic(leading_dim=t.dim() - 1)

    lse = None if lse is None else tensor(lse)
    return tensor(q), tensor(k), tensor(v), tensor(o), lse, cutlass.Float32(scale), cuda.CUstream(0)


def problem(dtype, batch, seqlen, heads, with_lse=True):
    torch.manual_seed(seqlen)
    q, k, v = (torch.randn(batch, seqlen, heads, 128).to(DTYPES[dtype]) for _ in range(3))
    o = torch.full_like(q, torch.nan)
    return q, k, v, o, torch.full((batch, heads, seqlen), torch.nan) if with_lse else None


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("h01")
    options = f"--keep-ptx --generate-line-info --gpu-arch sm_90a --dump-dir {directory}"
    kernels = {}

    def get(dtype, with_lse=True):
        if (dtype, with_lse) not in kernels:
            args = arguments(*problem(dtype, 1, 128, 1, with_lse), 1.0)
            kernels[dtype, with_lse] = cute.compile(h01.Attention(), *args, options=options)
        return kernels[dtype, with_lse]

    return get


@pytest.mark.parametrize(
    ("dtype", "batch", "seqlen", "heads", "scale"),
    [("bf16", 1, 256, 2, None), ("fp16", 2, 128, 1, 0.3), ("bf16", 1, 128, 1, 0.0)],
)
def test_the_rule(compiled, dtype, batch, seqlen, heads, scale):
    tensors = q, k, v, o, lse = problem(dtype, batch, seqlen, heads)
    run = ptxemu.launch(compiled(dtype), *arguments(*tensors, 128**-0.5 if scale is None else scale))
    assert run.grid == (seqlen // h01.TILE_M, heads, batch) and run.block == (h01.THREADS, 1, 1)
    verdict = reference.check(o, lse, q, k, v, scale=scale)
    assert verdict.ok, verdict
    assert not run.findings


def test_without_lse(compiled):
    tensors = q, k, v, o, _ = problem("bf16", 1, 128, 1, with_lse=False)
    ptxemu.launch(compiled("bf16", False), *arguments(*tensors, 128**-0.5))
    assert reference.check(o, None, q, k, v).ok


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_gives_the_same_bits(compiled, seed):
    results = []
    for config in (ptxemu.Config(), ptxemu.Config(schedule="adversarial", seed=seed)):
        tensors = problem("bf16", 1, 256, 1)
        ptxemu.launch(compiled("bf16"), *arguments(*tensors, 128**-0.5), config=config)
        results.append(tensors[3:])
    (o, lse), (other_o, other_lse) = results
    assert torch.equal(o, other_o) and torch.equal(lse, other_lse)


def test_facts(compiled):
    """Barriers and shared memory as the stage's data say, counted on the way."""
    tensors = problem("bf16", 1, 256, 1)
    run = ptxemu.launch(compiled("bf16"), *arguments(*tensors, 128**-0.5), config=ptxemu.Config(trace=True))
    assert run.shared_bytes == h01.SMEM["kv_full"][0] + 8
    loads = [e for e in run.events if e.row == "tma" and e.name == "TMA load" and e.kind == "end" and e.cta == 0]
    assert sum(e.data["bytes"] for e in loads) == h01.Q_BYTES + 2 * 2 * h01.KV_BYTES
    products = [e for e in run.events if e.row == "tensor" and e.kind == "end" and e.cta == 0]
    assert [e.data["a"] for e in products] == 2 * (8 * ["shared"] + 8 * ["registers"])


@pytest.mark.parametrize(
    ("problem", "says"),
    [((1, 100, 1), "seqlen = 100"), ((1, 128, 1, 64), "head_dim = 64"), ((0, 128, 1), "batch = 0")],
)
def test_check(problem, says):
    with pytest.raises(ValueError, match=says):
        h01.check(*problem)
    h01.check(2, 256, 3)
