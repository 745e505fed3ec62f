"""The book's exercises: a text to work on where there is one, a grader that computes the truth, and a worked solution.

A chapter calls `check(name, answer)`. The grader works the right answer out from the compiled kernel, a CuTe layout or
the emulator; no answer is stored. Every solution is run by the tests, and so is a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any


class Wrong(Exception):
    """The answer is not right; the message says what to look at, and does not give the answer away."""


@dataclass(frozen=True)
class Exercise:
    """One exercise. `grade` returns a sentence of praise that explains, or raises Wrong."""

    name: str
    grade: Callable[[Any], str]
    solution: Callable[[], Any]
    wrong: Callable[[], Any]
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What `check` returns: it prints as a line of text, and in a notebook as a coloured line."""

    status: str  # "open", "right" or "wrong"
    message: str

    def __bool__(self) -> bool:
        return self.status == "right"

    def __str__(self) -> str:
        mark = {"open": "○", "right": "✓", "wrong": "✗"}[self.status]
        return f"{mark} {self.message}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<p class="bk-check bk-check-{self.status}">{escape(str(self))}</p>'


EXERCISES: dict[str, Exercise] = {}


def add(exercise: Exercise) -> None:
    EXERCISES[exercise.name] = exercise


def text(name: str) -> str:
    """The text (code, PTX) that exercise `name` hands to the reader."""
    return _find(name).text


def check(name: str, answer: Any) -> Outcome:
    """Grade `answer` to exercise `name`. None, a tuple with None in it, or the unchanged text is no answer yet."""
    exercise = _find(name)
    parts = answer if isinstance(answer, tuple) else (answer,)
    if any(part is None for part in parts) or (exercise.text and isinstance(answer, str) and answer == exercise.text):
        return Outcome("open", "No answer yet: edit the cell above and run it.")
    try:
        return Outcome("right", exercise.grade(answer))
    except Wrong as wrong:
        return Outcome("wrong", str(wrong))


def _find(name: str) -> Exercise:
    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}; there are {', '.join(sorted(EXERCISES))}")
    return EXERCISES[name]


# The chapters' exercises register themselves.
from attnbook.exercises import (  # noqa: E402, F401
    attention_time,
    feeding,
    layouts,
    machine,
    online_softmax,
    s01,
    s02,
    s03,
    s04,
    s05,
    s06,
    s07,
    waiting,
)
from attnbook.exercises.s01 import mystery  # noqa: E402, F401
