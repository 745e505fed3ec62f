"""The Hopper stages on a Hopper GPU, under the rule: every input family, odd lengths, repeated runs bit for bit.

The kernels come packed (tests/gpu/pack_hopper.py) from the folder that ATTNBOOK_PACKED names; where that is not set
they are compiled here, which needs the CuTe-DSL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

HOPPER_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HOPPER_GPU, reason="needs a Hopper GPU (compute capability 9.0) and PyTorch with CUDA"),
]

ODD_LENGTHS = (1, 63, 64, 65, 79, 80, 81, 191, 192, 193, 257, 1000)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Packed stages by name."""
    from bench_hopper import Packed

    folder = os.environ.get("ATTNBOOK_PACKED")
    if folder is None:
        pytest.importorskip("cutlass", reason="no ATTNBOOK_PACKED, and no CuTe-DSL to compile with")
        from pack_hopper import pack_stages

        folder = tmp_path_factory.mktemp("packed")
        pack_stages(folder)
    found = {path.stem: Packed(path) for path in sorted(Path(folder).glob("h[0-9][0-9]_*.json"))}
    assert found, f"no packed stages in {folder}"
    return found


def judge(kernel, q, k, v):
    """The verdict on one launch, and whether two more gave the same bits."""
    from attnbook import reference

    batch, seqlen, heads, head_dim = q.shape
    there = [x.cuda() for x in (q, k, v)]
    o, lse = torch.empty_like(there[0]), torch.empty((batch, heads, seqlen), device="cuda")
    go = kernel.prepare(*there, o, lse, head_dim**-0.5)
    seen = []
    for _ in range(3):
        o.fill_(torch.nan)
        lse.fill_(torch.nan)
        torch.cuda.synchronize()
        go()
        torch.cuda.synchronize()
        seen.append((o.cpu(), lse.cpu()))
    same = all(torch.equal(a, b) for one in seen[1:] for a, b in zip(seen[0], one, strict=True))
    return reference.check(*seen[0], q, k, v, causal=kernel.causal), same


def test_every_family(kernels):
    from attnbook.inputs import INPUT_FAMILIES

    wrong = []
    for name, kernel in kernels.items():
        for family in INPUT_FAMILIES.values():
            if family.name in ("nan_query", "masked_rows"):
                continue  # NaN is no number to compare three times; rows that see no key need two lengths
            verdict, same = judge(kernel, *family(2, 2, 512, dtype=torch.bfloat16))
            if not (verdict.ok and same):
                wrong.append(f"{name}, {family.name}: {verdict}, same bits: {same}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seqlen", ODD_LENGTHS)
def test_any_length(kernels, seqlen):
    from attnbook.inputs import family

    wrong = []
    for name, kernel in kernels.items():
        if int(name[1:3]) < 8:
            continue  # these take multiples of 128 only
        verdict, same = judge(kernel, *family("normal")(2, 3, seqlen, dtype=torch.bfloat16, seed=seqlen))
        if not (verdict.ok and same):
            wrong.append(f"{name}: {verdict}, same bits: {same}")
    assert not wrong, "\n".join(wrong)
