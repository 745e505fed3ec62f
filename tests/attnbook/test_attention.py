"""`attention()`: what it refuses and how, strides, and where it runs."""

import math

import pytest

torch = pytest.importorskip("torch")

import attnbook  # noqa: E402
from attnbook import attention as package_attribute  # noqa: E402
from attnbook.attention import TMA_ALIGNMENT, _readable_by_tma, execute, problem_of  # noqa: E402
from attnbook.inputs import family  # noqa: E402
from attnbook.ladder import LADDER  # noqa: E402
from attnbook.machine import detect  # noqa: E402
from attnbook.reference import check  # noqa: E402


def qkv(batch=1, seqlen=128, heads=1, head_dim=128, dtype=torch.bfloat16):
    return [torch.ones(batch, seqlen, heads, head_dim, dtype=dtype) for _ in range(3)]


def test_the_package_attribute_is_the_function():
    """Importing the module of the same name must not hide it."""
    import attnbook.compile
    import attnbook.run

    assert attnbook.attention is package_attribute and callable(attnbook.attention)
    assert callable(attnbook.run) and callable(attnbook.compile)
    with pytest.raises(AttributeError, match="cannot be replaced"):
        attnbook.run = None


# ---- bad input -------------------------------------------------------------------------------------------------------

BAD = {
    "no tensor": (lambda q, k, v: ([1.0], k, v), {}, TypeError, ["q is a list", "torch.as_tensor"]),
    "rank": (lambda q, k, v: (q[0], k, v), {}, ValueError, ["q has 3 dimensions", "(128, 1, 128)", "(batch, seqlen"]),
    "fp32": (lambda q, k, v: (q, k.float(), v), {}, ValueError, ["k is torch.float32", "k.to(torch.bfloat16)"]),
    "integers": (lambda q, k, v: (q, k, v.int()), {}, ValueError, ["v is torch.int32"]),
    "two types": (lambda q, k, v: (q, k.half(), v), {}, ValueError, ["torch.float16", "one type"]),
    "empty": (lambda q, k, v: (q[:, :0], k, v), {}, ValueError, ["q is empty", "(1, 0, 1, 128)"]),
    "sparse": (lambda q, k, v: (q.to_sparse(), k, v), {}, ValueError, ["torch.sparse_coo", "to_dense"]),
    "devices": (lambda q, k, v: (q, k.to("meta"), v), {}, ValueError, ["q is on cpu, k on meta", "k.to(q.device)"]),
    "meta": (lambda q, k, v: (x.to("meta") for x in (q, k, v)), {}, ValueError, ["on meta", "q.cpu()"]),
    "batch": (lambda q, k, v: (torch.cat([q, q]), k, v), {}, ValueError, ["differ in batch, 2 and 1"]),
    "k and v": (lambda q, k, v: (q, k, torch.cat([v, v], 1)), {}, ValueError, ["k and v differ", "(1, 256, 1, 128)"]),
    "heads": (lambda q, k, v: (torch.cat([q, q], 2), k, v), {}, ValueError, ["heads, 2 and 1", "repeat_interleave"]),
    "lengths": (lambda q, k, v: (torch.cat([q, q], 1), k, v), {}, ValueError, ["seqlen, 256 and 128", "pad or cut"]),
    "head dims": (lambda q, k, v: (q[..., :64], k, v), {}, ValueError, ["head_dim, 64 and 128", "pad the shorter"]),
    "head dim": (lambda q, k, v: (x[..., :64] for x in (q, k, v)), {}, ValueError, ["head_dim = 64", "128"]),
    "length": (lambda q, k, v: (x[:, :127] for x in (q, k, v)), {"stage": 1}, ValueError, ["seqlen = 127", "128"]),
    "nan scale": (lambda q, k, v: (q, k, v), {"scale": math.nan}, ValueError, ["scale = nan", "0.088388"]),
    "infinite scale": (lambda q, k, v: (q, k, v), {"scale": math.inf}, ValueError, ["scale = inf"]),
    "scale beyond fp32": (lambda q, k, v: (q, k, v), {"scale": 1e39}, ValueError, ["scale = 1e+39", "fp32"]),
    "negative scale": (lambda q, k, v: (q, k, v), {"scale": -1.0, "stage": 1}, ValueError, ["scale = -1.0"]),
    "text scale": (lambda q, k, v: (q, k, v), {"scale": "big"}, TypeError, ["scale = 'big'"]),
    "causal": (lambda q, k, v: (q, k, v), {"causal": True, "stage": 1}, ValueError, ["causal = True", "causal=False"]),
    "gradient": (lambda q, k, v: (q.requires_grad_(), k, v), {}, ValueError, ["no backward", "detach"]),
    "stage": (lambda q, k, v: (q, k, v), {"stage": "swizle"}, KeyError, ["'swizle'", "swizzle"]),
    "unwritten stage": (lambda q, k, v: (q, k, v), {"stage": 22}, ValueError, ["stage 22 (publish_early)"]),
    "device": (lambda q, k, v: (q, k, v), {"device": "cpu"}, ValueError, ["device = 'cpu'", "emulator"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_value_and_the_remedy(name):
    change, options, error, words = BAD[name]
    with pytest.raises(error) as caught:
        attnbook.attention(*change(*qkv()), **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.skipif(detect().gpu is not None, reason="there is a GPU that would run it")
def test_a_gpu_that_is_not_there_cannot_be_asked_for():
    with pytest.raises(ValueError, match=r"needs a Blackwell GPU.*device='emulator'"):
        attnbook.attention(*qkv(), device="gpu")


# ---- where TMA can read ----------------------------------------------------------------------------------------------


def test_packed_tensors_are_not_copied():
    q = torch.zeros(2, 128, 3, 128, dtype=torch.bfloat16)
    assert _readable_by_tma(q) is q


STRIDES = {
    "heads before length": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), False),
    "part of a fused projection": (lambda x: torch.stack([x, x, x], dim=2)[:, :, 1], False),
    "last dimension not contiguous": (lambda x: x.transpose(1, 3).contiguous().transpose(1, 3), True),
    "every second element": (lambda x: torch.stack([x, x], dim=-1)[..., 0], True),
    "address off by two bytes": (lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape), True),
    "row stride not a multiple of 16 bytes": (lambda x: torch.nn.functional.pad(x, (0, 4))[..., :128], True),
    "one row for all": (lambda x: x[:, :1].expand_as(x), True),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name):
    make, copied = STRIDES[name]
    x = make(torch.randn(1, 128, 2, 128, generator=torch.Generator().manual_seed(0)).bfloat16())
    y = _readable_by_tma(x)
    assert (y is not x) == copied and torch.equal(x, y)
    assert y.stride(-1) == 1 and y.data_ptr() % TMA_ALIGNMENT == 0
    assert all(stride * 2 % TMA_ALIGNMENT == 0 for stride in y.stride()[:-1])


def test_answers_do_not_depend_on_strides():
    q, k, v = family("distinct_heads")(1, 2, 128, seed=2)
    expected, expected_lse = attnbook.attention(q, k, v, stage=1, return_lse=True)
    assert check(expected, expected_lse, q, k, v).ok
    for make, _ in STRIDES.values():
        if make is STRIDES["one row for all"][0]:
            continue
        o, lse = attnbook.attention(make(q), make(k), make(v), stage=1, return_lse=True)
        assert torch.equal(o, expected) and torch.equal(lse, expected_lse)


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_scale_and_lse():
    q, k, v = family("normal")(1, 1, 128, dtype=torch.float16, seed=4)
    o = attnbook.attention(q, k, v, scale=0.2)
    assert isinstance(o, torch.Tensor) and o.dtype == torch.float16 and o.shape == q.shape
    assert check(o, None, q, k, v, scale=0.2).ok and not check(o, None, q, k, v).ok
    again, lse = attnbook.attention(q, k, v, scale=0.2, return_lse=True)
    assert torch.equal(o, again) and lse.dtype == torch.float32 and lse.shape == (1, 1, 128)
    assert check(o, lse, q, k, v, scale=0.2).ok


def test_inputs_are_left_alone_and_no_grad_is_enough():
    q, k, v = family("normal")(1, 1, 128)
    copies = [x.clone() for x in (q, k, v)]
    with torch.no_grad():
        attnbook.attention(q.requires_grad_(), k, v)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), copies, strict=True))


@pytest.mark.skipif(detect().gpu is not None, reason="there is a GPU that runs it")
def test_output_is_poisoned_so_that_unwritten_elements_show():
    """Take the stores of O out of the PTX: what comes back is NaN, and the verdict says that it was never written."""
    q, k, v = family("normal")(1, 1, 128)
    problem = problem_of(q, k, v, stage=1)

    def without_stores(ptx):
        lines = [f"// {line}" if "st.global.v4.b32" in line else line for line in ptx.splitlines()]
        return "\n".join(lines)

    done = execute(1, problem, q, k, v, ptx_edit=without_stores)
    assert done.o.isnan().all()
    assert "never written" in check(done.o, None, q, k, v).reason


def test_final_is_the_last_stage_that_is_written():
    q, k, v = family("normal")(1, 1, 256)
    last = LADDER.implemented[-1]
    assert torch.equal(attnbook.attention(q, k, v), attnbook.attention(q, k, v, stage=last.slug))
