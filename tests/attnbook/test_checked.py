"""Every kernel under the checked driver: nothing to find in it, and what one missing instruction makes it find."""

import importlib
import re
from pathlib import PurePath

import pytest

torch = pytest.importorskip("torch")

from attnbook import run  # noqa: E402
from attnbook.cli import main  # noqa: E402
from attnbook.ladder import LADDER  # noqa: E402
from attnbook.mutate import drop_wait  # noqa: E402

compile_module = importlib.import_module("attnbook.compile")
STAGES = [stage.number for stage in LADDER.implemented if stage.machine == "blackwell"]


def checked(stage, edit=None, seqlen=256, schedule=None, seed=0, strict=False):
    """Findings of a run of a stage with its PTX edited."""
    import ptxemu
    from attnbook.attention import execute, problem_of
    from attnbook.inputs import family

    found = LADDER[stage]
    q, k, v = family("normal")(1, 1, seqlen, dtype=torch.bfloat16, seed=0, scale=None)
    problem = problem_of(q, k, v, causal=False, scale=None, lse=True, stage=found)
    config = ptxemu.Config(schedule=schedule or "fair", seed=seed, races=True, strict=strict, on_race="collect")
    done = execute(found, problem, q, k, v, device="emulator", config=config, iket=False, ptx_edit=edit, progress=None)
    return done.run.findings


@pytest.mark.parametrize("stage", STAGES)
def test_clean(stage):
    """Also by the letter of the ISA, and in whatever order things happen."""
    assert [str(x) for x in checked(stage, strict=True)] == []
    if stage in (1, 5):
        assert [str(x) for x in checked(stage, schedule="adversarial", seed=stage, strict=True)] == []


def without(pattern, number):
    """An edit that takes one instruction out: the `number`-th that the pattern finds."""

    def edit(ptx):
        found = list(re.finditer(rf"^\s*(?:@!?%p\d+\s+)?{pattern}[^;]*;", ptx, re.M))
        match = found[number]
        return ptx[: match.start()] + "\n" * match[0].count("\n") + ptx[match.end() :]

    return edit


def sources(found, *names):
    """(what, source file) of both sides of the findings of some kind."""
    return {
        (x.kind, x.missing, x.first.what, x.second.what)
        for x in found
        if x.first
        and x.second
        and all(PurePath(y.source or "").name.split(":")[0] in names for y in (x.first, x.second))
    }


@pytest.mark.parametrize(
    ("stage", "edit", "expected"),
    [
        (1, without(r"fence\.proxy\.async", 0), ("proxy", "fence.proxy.async", "st.shared", "MMA")),
        (1, without(r"tcgen05\.wait::st", 0), ("completion", "tcgen05.wait::st", "tcgen05.st", "MMA")),
        (1, without(r"bar\.sync", 1), ("race", "a barrier or mbarrier", "st.shared", "MMA")),
        (1, without(r"bar\.sync", 2), ("race", "a barrier or mbarrier", "tcgen05.ld", "tcgen05.dealloc")),
        (4, drop_wait("q_full"), ("completion", "a wait on its mbarrier", "TMA load", "MMA")),
        (4, drop_wait("p_full"), ("race", "a barrier or mbarrier", "tcgen05.st", "MMA")),
        (7, without(r"tcgen05\.wait::st", -1), ("completion", "tcgen05.wait::st", "tcgen05.st", "MMA")),
    ],
)
def test_one_instruction_less(stage, edit, expected):
    name = PurePath(LADDER[stage].path).name
    found = sources(checked(stage, edit), name)
    assert expected in found


@pytest.mark.parametrize("fence", ["before_thread_sync", "after_thread_sync"])
def test_fences_that_only_the_letter_asks_for(fence):
    edit = without(rf"tcgen05\.fence::{fence}", 1)
    assert not checked(1, edit)
    found = checked(1, edit, strict=True)
    assert found and all(x.strict and x.missing == f"tcgen05.fence::{fence}" for x in found)


def test_run_and_the_command_line(capsys):
    assert run(1, seqlen=128, races=True, lse=True).run.findings == []
    edited = run(1, seqlen=128, races=True, lse=True, ptx_edit=without(r"fence\.proxy\.async", 0))
    assert {x.kind for x in edited.run.findings} == {"proxy"} and "proxy" in edited.report()
    assert main(["run", "--stage", "1", "--seqlen", "128", "--lse", "--races", "--quiet"]) == 0
    assert "finding" not in capsys.readouterr().out
