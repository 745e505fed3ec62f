"""The recorded mutation benches: of the kernels as they are, every survivor explained, and a few run again."""

import json

import pytest

pytest.importorskip("torch")

from attnbook import mutations
from ptxemu.mutate import bench_text, digest_of, mutants

RECORDED = mutations.recorded()
OURS = [name for name in RECORDED if name in mutations.SUBJECTS]


def test_what_is_recorded():
    assert {"s01", "gemm_ws"} <= set(OURS)
    assert set(mutations.explanations()) <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_complete_and_explained(name):
    assert mutations.load(name).complete, f"python -m attnbook.mutations {name} goes on where it stopped"
    assert mutations.unexplained(name) == ([], []), f"{name}: mend book/results/mutations/survivors.json"


AGAIN = {
    "s01": ["wait/1 drop", "fence.proxy/0 drop"],
    "gemm_ws": ["wait/1 drop", "arrive/0 drop", "fence::after/2 drop"],
}


@pytest.mark.parametrize("name", OURS)
def test_of_the_kernel_as_it_is(name):
    text, runner = mutations.SUBJECTS[name].build()
    table = mutations.load(name)
    assert table.digest == digest_of(text), f"the kernel has changed: python -m attnbook.mutations {name}"
    for before in (r for r in table.results if r.name in AGAIN.get(name, [])):
        again = bench_text(text, runner, seeds=(), only=lambda m, n=before.name: m.name == n, progress=None).results[0]
        assert (again.verdict, again.lines, again.missing) == (before.verdict, before.lines, before.missing), (
            before.name
        )


def test_an_edit_keeps_the_lines_and_knows_its_text():
    text, _ = mutations.SUBJECTS["gemm_ws"].build()
    for mutant in mutants(text):
        edited = mutant.apply(text)
        assert edited != text and edited.count("\n") == text.count("\n")
    with pytest.raises(ValueError, match="another PTX text"):
        mutant.apply(edited)


def test_the_command(capsys):
    assert mutations.main(["--list", "gemm_ws"]) == 0
    listed = capsys.readouterr().out
    assert "wait/0 drop" in listed and "gemm_ws.py:" in listed
    with pytest.raises(SystemExit):
        mutations.main(["s99"])
    assert "s99" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done():
    text, runner = mutations.SUBJECTS["gemm_ws"].build()
    done = []

    def stop(table):
        done.append(json.dumps(table.to_dict()))
        raise KeyboardInterrupt

    table = bench_text(text, runner, seeds=(), strict=False, each=stop, progress=None)
    assert done and len(table.results) == 1 and not table.complete
    assert "were not run" in str(table)
    last = mutations.load("gemm_ws")
    last.results = last.results[-1:]
    assert last.results[0].verdict == "survivor"
    last.results[0].by = "reached"
    table = bench_text(text, runner, seeds=(), strict=False, each=stop, progress=None, resume=last)
    assert [r.name for r in table.results] == ["init/0 count + 1", last.results[0].name]
