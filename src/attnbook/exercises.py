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


def _add(exercise: Exercise) -> None:
    EXERCISES[exercise.name] = exercise


def text(name: str) -> str:
    """The text (code, PTX) that exercise `name` hands to the reader."""
    return _find(name).text


def check(name: str, answer: Any) -> Outcome:
    """Grade `answer` to exercise `name`. None, a tuple of None, or the unchanged text is no answer yet."""
    exercise = _find(name)
    parts = answer if isinstance(answer, tuple) else (answer,)
    if all(part is None for part in parts) or (exercise.text and isinstance(answer, str) and answer == exercise.text):
        return Outcome("open", "No answer yet: edit the cell above and run it.")
    try:
        return Outcome("right", exercise.grade(answer))
    except Wrong as wrong:
        return Outcome("wrong", str(wrong))


def _find(name: str) -> Exercise:
    if name not in EXERCISES:
        raise KeyError(f"no exercise {name!r}; there are {', '.join(sorted(EXERCISES))}")
    return EXERCISES[name]


# ---- The machine ----------------------------------------------------------------------------------------------------


def _first_descriptor() -> Any:
    """The shared-memory descriptor of A in the first tcgen05.mma that the compiled stage 1 executes."""
    from attnbook import figures

    return figures.captured_mma("baseline").a


def _grade_descriptor(answer: Any) -> str:
    descriptor = _first_descriptor()
    if tuple(answer) == (descriptor.sbo, descriptor.lbo):
        raise Wrong("Both numbers are there, in each other's place. Which offset goes from 8 rows to the next 8?")
    if answer[0] != descriptor.lbo:
        raise Wrong(f"LBO = {answer[0]} is not it: how many bytes is one slice of 8 columns, all 128 rows of it?")
    if answer[1] != descriptor.sbo:
        raise Wrong(f"SBO = {answer[1]} is not it: how many bytes are 8 rows of one slice?")
    return f"Right. The compiled kernel passes {descriptor.value:#018x}: LBO {descriptor.lbo}, SBO {descriptor.sbo}."


_add(
    Exercise(
        name="machine-descriptor",
        grade=_grade_descriptor,
        solution=lambda: (2048, 128),
        wrong=lambda: (128, 2048),
    )
)

_ROW = 75
_WINDOW_PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry who_holds_row(.param .u64 out) {
    .shared .align 4 .b32 slot;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
ALLOCATED:
    bar.sync 0;
    ld.shared.b32 %r2, [slot];
    shl.b32 %r3, %r1, 21;                 // lane 32 * warp, in the upper half of the address
    add.u32 %r4, %r2, %r3;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %rd0, [out];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    st.global.b32 [%rd2], %r5;
    bar.sync 0;
    @%p0 bra DONE;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
DONE:
    ret;
}
"""


def _thread_of_row(row: int) -> int:
    """The thread that reads TMEM lane `row`: every thread writes its number into its own lane, and reads it back."""
    import numpy as np

    import ptxemu

    out = np.full(128, -1, dtype=np.int32)
    ptxemu.run_ptx(_WINDOW_PTX, block=(128, 1, 1), args=[out])
    return int(out[row])


def _grade_window(answer: Any) -> str:
    thread = _thread_of_row(_ROW)
    if int(answer[0]) != thread // 32:
        raise Wrong(f"Warp {answer[0]} does not reach row {_ROW}. Each warp has 32 lanes; warp 0 begins at lane 0.")
    if int(answer[1]) != thread % 32:
        raise Wrong(f"The warp is right, the lane {answer[1]} is not: count from the warp's first row.")
    return f"Right: row {_ROW} is TMEM lane {_ROW}, which thread {thread} of the warpgroup reads."


_add(
    Exercise(name="machine-window", grade=_grade_window, solution=lambda: (2, 11), wrong=lambda: (3, 11)),
)

_BUGGY_TRANSACTION = """\
.version 8.8
.target sm_100a
.address_size 64
.visible .entry pay_by_hand() {
    .shared .align 8 .b64 bar;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    .reg .pred %p<3>;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd0, [bar], 64;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 32;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;
READY:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    ret;
}
"""


def _grade_transaction(answer: Any) -> str:
    import ptxemu

    for needed in ("mbarrier.arrive.expect_tx", "mbarrier.complete_tx", "mbarrier.try_wait.parity"):
        if needed not in str(answer):
            raise Wrong(f"The kernel must still announce, pay and wait: {needed} is gone.")
    try:
        run = ptxemu.run_ptx(str(answer), block=(64, 1, 1), args=[], config=ptxemu.Config(trace=True))
    except ptxemu.EmulationError as error:
        raise Wrong(f"It still stops: {str(error).splitlines()[0]}") from None
    flips = [event for event in run.events if event.name == "phase"]
    if len(flips) != 1:
        raise Wrong(f"It ends, but the barrier completed {len(flips)} phases; one load completes one.")
    return "Right: the bytes announced and the bytes paid are equal, and the phase completes once."


_add(
    Exercise(
        name="machine-bug",
        grade=_grade_transaction,
        solution=lambda: _BUGGY_TRANSACTION.replace("[bar], 16", "[bar], 32"),
        wrong=lambda: _BUGGY_TRANSACTION.replace("[bar], 64", "[bar], 96"),
        text=_BUGGY_TRANSACTION,
    )
)


# ---- Stage 1 --------------------------------------------------------------------------------------------------------

_P_ROW, _P_KEY = 37, 91


def _grade_address(answer: Any) -> str:
    from attnbook import figures

    offset = figures.operand_offset("baseline", "P", _P_ROW, _P_KEY)
    if answer == (_P_ROW * 128 + _P_KEY) * 2:
        raise Wrong("That is where it would be in a plain row-major tile. Here 8 columns make a slice of all 128 rows.")
    if answer != offset:
        raise Wrong(f"Not byte {answer}. Whole slices of 8 columns first, then the row, then the column.")
    return f"Right: the kernel's own layout puts P[{_P_ROW}, {_P_KEY}] at byte {offset}."


_add(Exercise(name="s01-address", grade=_grade_address, solution=lambda: 23126, wrong=lambda: (37 * 128 + 91) * 2))


def _rescale_bytes(tiles: int) -> int:
    """Bytes that the rescale of O moves between TMEM and registers in one CTA, counted in an emulated run."""
    import attnbook

    run = attnbook.run("baseline", batch=1, heads=1, seqlen=128 * tiles, seed=0, device="emulator").run
    assert run is not None  # the emulator always leaves one
    stores = sum(n for opcode, n in run.instructions.items() if opcode.startswith("tcgen05.st"))
    ctas = tiles  # one CTA for each 128 queries
    return 2 * stores // ctas * 32 * 8 * 4  # each store is 32 lanes x 8 columns x 4 bytes, and was loaded before


def _grade_rescale(answer: Any) -> str:
    truth = _rescale_bytes(4)
    if answer == truth * 4 // 3:
        raise Wrong("Nearly: is there anything to rescale before the first tile has been added?")
    if answer * 2 == truth:
        raise Wrong("That is one way. O is read, multiplied and written back.")
    if answer != truth:
        raise Wrong(f"Not {answer:,}. O is 128 x 128 in fp32; count how often it is read and written.")
    return f"Right: {truth:,} bytes, counted from the tcgen05.st that the emulator executed."


_add(
    Exercise(
        name="s01-rescale",
        grade=_grade_rescale,
        solution=lambda: 3 * 2 * 128 * 128 * 4,
        wrong=lambda: 4 * 2 * 128 * 128 * 4,
    )
)


def mystery(ptx: str) -> str:
    """Stage 1 with the wait for one barrier removed. Which one? An edit for `attnbook.run(..., ptx_edit=mystery)`."""
    from attnbook import mutate

    return mutate.drop_wait("o_full")(ptx)


def _grade_mystery(answer: Any) -> str:
    import attnbook
    from attnbook import mutate

    ptx = attnbook.compile("baseline").ptx
    names = mutate.waits(ptx)
    if answer not in names:
        raise Wrong(f"{answer!r} is not a barrier of this kernel; it waits on {', '.join(names)}.")
    if mutate.drop_wait(answer)(ptx) != mystery(ptx):
        raise Wrong(f"With the wait for {answer} gone the kernel fails otherwise. Which data is read too early?")
    return f"Right: nobody waits for {answer}, so the last product is read, and its operands overwritten, too early."


_add(Exercise(name="s01-bug", grade=_grade_mystery, solution=lambda: "o_full", wrong=lambda: "kv_full"))
