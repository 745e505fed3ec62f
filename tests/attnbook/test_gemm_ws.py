"""The warp-specialised tcgen05 GEMM on the emulator, against FP64."""

import pytest

torch = pytest.importorskip("torch")

import cutlass.cute as cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

import ptxemu  # noqa: E402
from attnbook.kernels.blackwell import gemm_ws  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dlpack(t):
    return (
        from_dlpack(t, assumed_align=16)
        .mark_layout_dynamic(leading_dim=1)
        .mark_compact_shape_dynamic(mode=1, divisibility=8)
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gemm_ws")
    options = f"--keep-ptx --generate-line-info --gpu-arch sm_100a --dump-dir {directory}"
    kernels = {}

    def get(dtype):
        if dtype not in kernels:
            a, b, c = (torch.zeros(128, 128, dtype=t) for t in (DTYPES[dtype], DTYPES[dtype], torch.float32))
            kernels[dtype] = cute.compile(gemm_ws.Gemm(), dlpack(a), dlpack(b), dlpack(c), options=options)
        return kernels[dtype]

    return get


def run(fn, a, b, **options):
    c = torch.full((a.shape[0], b.shape[0]), torch.nan)
    result = ptxemu.launch(fn, dlpack(a), dlpack(b), dlpack(c), config=ptxemu.Config(**options))
    return c, result


def worst(c, a, b) -> float:
    """The largest error of an element of C over the sum of |a||b| that it was summed from, in units of 2^-24."""
    exact = a.double() @ b.double().T
    scale = a.double().abs() @ b.double().abs().T
    return float(((c.double() - exact).abs() / scale).max()) * 2**24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (256, 384, 192), (128, 640, 128)])
def test_against_fp64(compiled, dtype, m, n, k):
    """One tile of C and one of k; fewer tiles than places for them; more, so that both places are used again."""
    torch.manual_seed(m + n + k)
    a, b = torch.randn(m, k).to(DTYPES[dtype]), torch.randn(n, k).to(DTYPES[dtype])
    c, result = run(compiled(dtype), a, b)
    assert result.grid == (m // 128, 1, 1) and result.block == (gemm_ws.THREADS, 1, 1)
    assert worst(c, a, b) < k


def test_small_integers_are_exact(compiled):
    """Every product and sum fits into fp32, so nothing may differ at all: a transposed or shifted tile cannot hide."""
    torch.manual_seed(0)
    a, b = (torch.randint(-8, 9, (256, 256)).to(torch.bfloat16) for _ in range(2))
    c, _ = run(compiled("bf16"), a, b)
    assert torch.equal(c, a.float() @ b.float().T)


@pytest.mark.parametrize("seed", range(2))
def test_any_schedule_gives_the_same_bits_and_no_race(compiled, seed):
    torch.manual_seed(1)
    a, b = torch.randn(128, 128).bfloat16(), torch.randn(384, 128).bfloat16()
    fair, checked = run(compiled("bf16"), a, b, races=True, strict=True)
    other, result = run(compiled("bf16"), a, b, schedule="adversarial", seed=seed, races=True, strict=True)
    assert torch.equal(fair, other) and not checked.findings and not result.findings
