"""FlashAttention-4's forward for sm_100, unmodified from PyPI: right on the emulator under the project's rule."""

import pytest

pytestmark = pytest.mark.peers


def instructions(answer, name):
    """How many warp instructions have an opcode that contains these words."""
    return sum(n for opcode, n in answer["instructions"].items() if all(word in opcode for word in name.split()))


@pytest.fixture
def forward(worker):
    def run(**case):
        answer = worker("flash_attention", "sm_100a")("forward", **case)
        assert answer["ok"], answer["verdict"]
        assert answer["findings"] == []
        assert instructions(answer, "tcgen05.mma") > 0
        return answer

    return run


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
@pytest.mark.parametrize("batch, seqlen, heads", [(1, 512, 1), (2, 300, 2)])
def test_right(forward, dim, causal, batch, seqlen, heads):
    """Whole tiles, and a length that is no multiple of the tile. The dense kernel is persistent: two CTAs do it all."""
    answer = forward(dim=dim, causal=causal, batch=batch, seqlen=seqlen, heads=heads)
    tiles = -(-seqlen // 256) * heads * batch
    assert answer["grid"][0] * answer["grid"][1] * answer["grid"][2] == (tiles if causal else min(tiles, 2))


@pytest.mark.parametrize("batch, seqlen, heads", [(1, 1024, 1), (1, 700, 2)])
def test_pairs_of_ctas(forward, batch, seqlen, heads):
    """MMAs over two CTAs, whose commits signal both."""
    answer = forward(pair=True, batch=batch, seqlen=seqlen, heads=heads)
    assert answer["cluster"] == [2, 1, 1]
    assert instructions(answer, "tcgen05.mma cta_group::2") > 0
    assert instructions(answer, "tcgen05.commit multicast") > 0


@pytest.mark.parametrize("causal, pack", [(False, True), (True, False)], ids=["dense-packed", "causal-apart"])
def test_grouped_query_attention(forward, causal, pack):
    """Four query heads share a KV head; packed, a tile of queries holds all four."""
    forward(causal=causal, group=4, pack=pack, heads=8, seqlen=200)


@pytest.mark.parametrize("case", [{"causal": True}, {"pair": True, "seqlen": 512}], ids=["causal", "pair"])
def test_in_any_order(forward, case):
    """Under another order of warps and units, the same answer."""
    forward(schedule="adversarial", seed=1, **case)
