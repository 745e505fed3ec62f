"""Exercises of the chapter "The machine"."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add


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


add(
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


add(
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


add(
    Exercise(
        name="machine-bug",
        grade=_grade_transaction,
        solution=lambda: _BUGGY_TRANSACTION.replace("[bar], 16", "[bar], 32"),
        wrong=lambda: _BUGGY_TRANSACTION.replace("[bar], 64", "[bar], 96"),
        text=_BUGGY_TRANSACTION,
    )
)
