"""The exercises of the chapters, their solutions, wrong answers and open ones; the edits of PTX they use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import attnbook
from attnbook import exercises, mutate

BOOK = Path(__file__).parents[2] / "book"


@pytest.mark.parametrize("name", sorted(exercises.EXERCISES))
def test_the_solution_is_right_and_a_wrong_answer_is_not(name: str) -> None:
    exercise = exercises.EXERCISES[name]
    right = exercises.check(name, exercise.solution())
    assert right.status == "right", right
    wrong = exercises.check(name, exercise.wrong())
    assert wrong.status == "wrong", wrong
    assert str(exercise.solution()) not in wrong.message  # a hint, not the answer


@pytest.mark.parametrize("answer", [None, (None, None), (None, 128)])
def test_no_answer_is_neither(answer: object) -> None:
    outcome = exercises.check("machine-descriptor", answer)
    assert outcome.status == "open"
    assert not outcome
    assert "bk-check-open" in outcome._repr_html_()


def test_an_unchanged_text_is_no_answer() -> None:
    assert exercises.check("machine-bug", exercises.text("machine-bug")).status == "open"


def test_an_unknown_exercise_is_named() -> None:
    with pytest.raises(KeyError, match="machine-bug"):
        exercises.check("machine-bugs", 1)


def test_chapters_and_exercises_name_each_other() -> None:
    called = set()
    for notebook in BOOK.glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        called |= set(re.findall(r'\bcheck\("([\w-]+)"', code))
    assert called == set(exercises.EXERCISES)


def test_every_solution_in_the_prose_is_right() -> None:
    """The folded solutions quote a call of check: run each as it stands."""
    quoted = []
    for notebook in BOOK.glob("*.ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"])
        quoted += re.findall(r'`(check\("[\w-]+", .+?\))`', text)
    assert len(quoted) == len(exercises.EXERCISES)
    for call in quoted:
        text = exercises.text(call.split('"')[1])
        outcome = eval(call, {"check": exercises.check, "BUGGY": text})
        assert outcome.status == "right", (call, outcome)


def test_a_dropped_wait_is_one_instruction_of_the_named_barrier() -> None:
    ptx = attnbook.compile("baseline").ptx
    assert mutate.waits(ptx) == ["q_full", "kv_full", "s_full", "o_full"]
    edited = mutate.drop_wait("s_full")(ptx)
    assert mutate.waits(edited) == ["q_full", "kv_full", "o_full"]
    changed = [(a, b) for a, b in zip(ptx.splitlines(), edited.splitlines(), strict=True) if a != b]
    assert len(changed) == 1
    assert "try_wait" in changed[0][0]
    with pytest.raises(ValueError, match=r"no_such.*s_full"):
        mutate.drop_wait("no_such")(ptx)
