"""The plain wgmma GEMM on the emulator, against FP64, with every layout that cute has for 16-bit operands."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cutlass.cute as cute  # noqa: E402
from cutlass.cute.nvgpu import warpgroup  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

import ptxemu  # noqa: E402
from attnbook.kernels.hopper import gemm  # noqa: E402

Kind = warpgroup.SmemLayoutAtomKind
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dlpack(t):
    lead = 0 if t.stride(0) == 1 else 1
    return (
        from_dlpack(t, assumed_align=16)
        .mark_layout_dynamic(leading_dim=lead)
        .mark_compact_shape_dynamic(mode=lead, divisibility=8)
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gemm")
    options = f"--keep-ptx --generate-line-info --gpu-arch sm_90a --dump-dir {directory}"
    kernels = {}

    def get(dtype="bf16", a_kind=Kind.K_SW128, b_kind=Kind.K_SW128):
        key = dtype, a_kind, b_kind
        if key not in kernels:
            a, b = operand(torch.zeros(64, 64), dtype, a_kind), operand(torch.zeros(128, 64), dtype, b_kind)
            c = torch.zeros(64, 128)
            kernels[key] = cute.compile(gemm.Gemm(a_kind, b_kind), dlpack(a), dlpack(b), dlpack(c), options=options)
        return kernels[key]

    return get


def operand(x, dtype, kind):
    """x, contiguous along K or along the rows, as the kind of layout asks."""
    x = x.to(DTYPES[dtype])
    return x if kind.name.startswith("K_") else x.t().contiguous().t()


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
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 64), (192, 256, 192)])
def test_against_fp64(compiled, dtype, m, n, k):
    torch.manual_seed(m + n + k)
    a, b = torch.randn(m, k).to(DTYPES[dtype]), torch.randn(n, k).to(DTYPES[dtype])
    c, result = run(compiled(dtype), a, b)
    assert result.grid == (m // 64, n // 128, 1)
    assert result.instructions["wgmma.mma_async.sync.aligned.m64n128k16.f32." + f"{dtype}.{dtype}".replace("fp", "f")]
    assert worst(c, a, b) < k


@pytest.mark.parametrize(
    ("a_kind", "b_kind"),
    [
        (Kind.K_INTER, Kind.MN_INTER),
        (Kind.K_SW32, Kind.MN_SW32),
        (Kind.K_SW64, Kind.MN_SW64),
        (Kind.K_SW128, Kind.MN_SW128),
        (Kind.MN_INTER, Kind.K_SW64),
        (Kind.MN_SW32, Kind.K_INTER),
        (Kind.MN_SW64, Kind.K_SW128),
        (Kind.MN_SW128, Kind.K_SW32),
    ],
    ids=lambda x: x.name,
)
def test_layouts_of_cute(compiled, a_kind, b_kind):
    """Small integers: every product and sum fits into fp32, so a shifted or transposed chunk cannot hide."""
    torch.manual_seed(7)
    a = operand(torch.randint(-8, 9, (64, 128)), "bf16", a_kind)
    b = operand(torch.randint(-8, 9, (128, 128)), "bf16", b_kind)
    c, result = run(compiled("bf16", a_kind, b_kind), a, b)
    assert torch.equal(c, a.float() @ b.float().T)
    assert not result.findings


def test_one_element_at_a_time_lands_where_it_belongs(compiled):
    """A permutation matrix times numbered rows: C must be B's columns, permuted."""
    order = np.random.default_rng(3).permutation(64)
    a = torch.eye(64)[order].to(torch.bfloat16)
    b = (torch.arange(128 * 64).reshape(128, 64) % 251).to(torch.bfloat16)
    c, _ = run(compiled(), a, b)
    assert torch.equal(c, b.float().T[order])


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_gives_the_same_bits(compiled, seed):
    torch.manual_seed(1)
    a, b = torch.randn(128, 192).bfloat16(), torch.randn(128, 192).bfloat16()
    fair, _ = run(compiled(), a, b)
    other, result = run(compiled(), a, b, schedule="adversarial", seed=seed)
    assert torch.equal(fair, other) and not result.findings


@pytest.mark.parametrize(("shape", "says"), [((100, 128, 64), "m = 100 .* 128"), ((64, 128, 32), "k = 32 .* to 64")])
def test_check(shape, says):
    with pytest.raises(ValueError, match=says):
        gemm.check(*shape)
    gemm.check(64, 256, 64)
