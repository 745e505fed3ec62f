"""FlashAttention-4's forward for sm_90, unmodified from PyPI: right on the emulator under the project's rule."""

import pytest

pytestmark = pytest.mark.peers


@pytest.fixture
def forward(worker):
    def run(**case):
        answer = worker("flash_attention", "sm_90a")("forward", **case)
        assert answer["ok"], answer["verdict"]
        assert answer["findings"] == []
        opcodes = " ".join(answer["instructions"])
        assert "wgmma.mma_async" in opcodes and "setmaxnreg" in opcodes
        return answer

    return run


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
@pytest.mark.parametrize("batch, seqlen, heads", [(1, 384, 1), (2, 300, 2)])
def test_right(forward, dim, causal, batch, seqlen, heads):
    """P is the A operand of the second product and comes from registers."""
    forward(dim=dim, causal=causal, batch=batch, seqlen=seqlen, heads=heads)


def test_grouped_query_attention(forward):
    forward(causal=True, group=4, heads=4, seqlen=200)


def test_fp16(forward):
    forward(dtype="fp16", seqlen=256)


def test_in_any_order(forward):
    """Under another order of warps and units, the same answer."""
    forward(causal=True, schedule="adversarial", seed=1)
