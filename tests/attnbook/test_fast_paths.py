"""What makes the emulator fast changes nothing that can be seen: stages with and without it, to the last bit.

Without: every instruction by itself, the MMAs of every CTA by themselves, all registers in fresh memory.
"""

import importlib

import pytest

torch = pytest.importorskip("torch")

import ptxemu  # noqa: E402
from attnbook.inputs import INPUT_FAMILIES  # noqa: E402
from attnbook.reference import poison  # noqa: E402
from ptxemu import fuse, program  # noqa: E402
from ptxemu.isa import mmabatch  # noqa: E402
from ptxemu.registers import RegisterFiles  # noqa: E402

compile_module = importlib.import_module("attnbook.compile")


def by_themselves(decoded, ops, length):
    cuts = [range(i, min(i + length, len(ops))) for i in range(0, len(ops), length)]
    return [fuse.Fused([ops[i].full for i in cut], list(cut), [ops[i].masked for i in cut], list(cut)) for cut in cuts]


def seen(number, ptx, **config):
    """All that a run shows, but for how long it took."""
    kernel = compile_module.compile(number, compile_module.Problem(dtype="bf16", lse=True))
    q, k, v = INPUT_FAMILIES["rising_max"](1, 1, 384, dtype=torch.bfloat16, seed=3)
    o, lse = torch.empty_like(q), torch.empty(1, 1, 384)
    poison(o)
    poison(lse)
    arguments = kernel.arguments(q, k, v, o, lse, q.shape[-1] ** -0.5)
    run = ptxemu.launch(kernel.fn, *arguments, config=ptxemu.Config(**config), ptx=ptx)
    conflicts = {line: (c.accesses, c.wavefronts, c.ideal) for line, c in run.bank_conflicts.items()}
    events = [(e.t, e.cta, e.row, e.kind, e.name, e.data) for e in run.events]
    bits = [t.contiguous().view(torch.uint8).numpy().tobytes() for t in (o, lse)]
    return {
        "bits": bits, "instructions": run.instructions, "ticks": run.ticks, "conflicts": conflicts, "events": events,
        "findings": run.findings,
    }  # fmt: skip


@pytest.mark.parametrize("number", [1, 7])
@pytest.mark.parametrize(
    "config",
    [{}, {"trace": True}, {"schedule": "adversarial", "seed": 5}],
    ids=["fair", "traced", "adversarial"],
)
def test_nothing_changes(number, config, monkeypatch):
    fast = seen(number, None, **config)
    again = seen(number, None, **config)  # in registers that hold what the first run left
    with monkeypatch.context() as patch:
        patch.setattr(program, "fuse", by_themselves)
        patch.setattr(mmabatch, "alike", lambda job: [job])
        patch.setattr(RegisterFiles, "KEPT", -1)
        text = compile_module.compile(number, compile_module.Problem(dtype="bf16", lse=True)).fn.__ptx__
        slow = seen(number, f"{text}\n// another text, so that it is decoded again: {config}\n", **config)
    for what, value in slow.items():
        assert fast[what] == value, what
        assert again[what] == value, what
