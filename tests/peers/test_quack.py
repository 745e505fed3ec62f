"""Reductions of quack-kernels, unmodified from PyPI: rows shared by a cluster, and vectorised global access."""

import pytest

pytestmark = pytest.mark.peers


@pytest.fixture
def run(worker):
    def right(case, **keywords):
        answer = worker("quack_kernels", "sm_100a")(case, **keywords)
        assert {name: r for name, r in answer.items() if name.endswith("ratio") and not r <= 1.0} == {}
        assert answer["findings"] == []
        return answer

    return right


def has(answer, words):
    return any(all(word in opcode for word in words.split()) for opcode in answer["instructions"])


@pytest.mark.parametrize("online", [True, False], ids=["online", "two-pass"])
def test_softmax_of_a_row_shared_by_a_cluster(run, online):
    """The CTAs of a cluster write their parts into each other's shared memory and count the bytes on an mbarrier."""
    answer = run("softmax", rows=3, n=32768, dtype="bf16", online=online)
    assert answer["cluster"] == [1, 2, 1]
    assert has(answer, "st.async shared::cluster") and has(answer, "mapa")


def test_rmsnorm_of_a_row_shared_by_a_cluster(run):
    answer = run("norm", rows=2, n=65536, dtype="bf16")
    assert answer["cluster"] == [1, 4, 1]
    assert has(answer, "st.async shared::cluster")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_layernorm(run, dtype):
    """Vectors of 128 bits from global memory; 5 rows of tiles that hold more."""
    answer = run("norm", rows=5, n=2048, dtype=dtype, layer=True)
    assert has(answer, "ld.global.v2.b64") and has(answer, "cp.async.ca.shared.global")
    assert has(answer, "st.global.v2.b32" if dtype == "bf16" else "st.global.v2.b64")


def test_cross_entropy_with_its_gradient(run):
    """A row length that is no multiple of the tile: the rest is predicated off."""
    run("cross_entropy", rows=4, n=1000, dtype="bf16")
