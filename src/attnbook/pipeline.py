"""A pipeline in 60 lines of PTX: one thread loads tiles into a ring of slots, a warp adds them up.

Small enough to read whole, real enough to break: the edits in `BREAKS` are the mistakes that a full/empty pipeline
invites. Warp 0 produces (its thread 0), warp 1 consumes. A tile is 32 words, one for each lane of the consumer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import ptxemu

TILES = 6
TILE_BYTES = 128

KERNEL = """\
.version 8.8
.target sm_100a
.address_size 64
.visible .entry pipeline(.param .u64 in, .param .u64 out)
{
    .shared .align 128 .b8 tile[512];          // up to four slots
    .shared .align 8 .b64 full[4];             // the tile is there
    .shared .align 8 .b64 empty[4];            // the slot is free
    .reg .b32 %r<24>; .reg .b64 %rd<8>; .reg .pred %p<8>;
    ld.param.u64 %rd1, [in];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;                       // warp
    mov.u32 %r3, tile;
    mov.u32 %r4, full;
    mov.u32 %r5, empty;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
INIT
    fence.mbarrier_init.release.cluster;       // the copy engine must see them too
READY:
    bar.sync 0;
    mov.u32 %r6, 0;                            // tile
    mov.u32 %r7, 0;                            // slot
    mov.u32 %r8, 0;                            // parity of this lap
    mov.u32 %r9, 0;                            // the sum
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra CONSUME;
    @%p1 bra DONE;
PRODUCE:
    shl.b32 %r10, %r7, 3;
    add.u32 %r11, %r4, %r10;                   // full[slot]
    add.u32 %r12, %r5, %r10;                   // empty[slot]
    shl.b32 %r13, %r7, 7;
    add.u32 %r13, %r3, %r13;                   // tile[slot]
    xor.b32 %r14, %r8, 1;
WAIT_EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r12], %r14;
    @!%p3 bra WAIT_EMPTY;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r11], 128;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r13], [%rd1], 128, [%r11];
    add.u64 %rd1, %rd1, 128;
    add.u32 %r7, %r7, 1;
    setp.eq.u32 %p4, %r7, SLOTS;
    @%p4 xor.b32 %r8, %r8, 1;                  // a lap is over: the other parity
    @%p4 mov.u32 %r7, 0;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p5, %r6, 6;
    @%p5 bra PRODUCE;
    bra DONE;
CONSUME:
    and.b32 %r15, %r1, 31;
    shl.b32 %r16, %r15, 2;
NEXT:
    shl.b32 %r10, %r7, 3;
    add.u32 %r11, %r4, %r10;
    add.u32 %r12, %r5, %r10;
    shl.b32 %r13, %r7, 7;
    add.u32 %r13, %r3, %r13;
    add.u32 %r13, %r13, %r16;
WAIT_FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], %r8;
    @!%p3 bra WAIT_FULL;
    ld.shared.u32 %r17, [%r13];
    add.u32 %r9, %r9, %r17;
    mbarrier.arrive.shared::cta.b64 %rd4, [%r12];
    add.u32 %r7, %r7, 1;
    setp.eq.u32 %p4, %r7, SLOTS;
    @%p4 xor.b32 %r8, %r8, 1;
    @%p4 mov.u32 %r7, 0;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p5, %r6, 6;
    @%p5 bra NEXT;
    cvt.u64.u32 %rd5, %r16;
    add.u64 %rd5, %rd5, %rd2;
    st.global.u32 [%rd5], %r9;
DONE:
    ret;
}
"""


def kernel(slots: int = 2) -> str:
    """The PTX text with a ring of `slots` slots, 1 to 4."""
    if not 1 <= slots <= 4:
        raise ValueError(f"slots = {slots}: the kernel has room for 1 to 4")
    lines = []
    for slot in range(slots):
        lines.append(f"    mbarrier.init.shared::cta.b64 [%r4+{8 * slot}], 1;     // the producer's arrival")
        lines.append(f"    mbarrier.init.shared::cta.b64 [%r5+{8 * slot}], 32;    // one for each reader")
    return KERNEL.replace("INIT\n", "\n".join(lines) + "\n").replace("SLOTS", str(slots))


BREAKS: dict[str, tuple[str, str]] = {
    "nobody waits for full": (
        "    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], %r8;\n    @!%p3 bra WAIT_FULL;\n",
        "",
    ),
    "nobody waits for empty": (
        "    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r12], %r14;\n    @!%p3 bra WAIT_EMPTY;\n",
        "",
    ),
    "the producer starts with the consumer's parity": ("    xor.b32 %r14, %r8, 1;\n", "    mov.b32 %r14, %r8;\n"),
    "one byte count is wrong": ("[%r11], 128;\n    cp", "[%r11], 256;\n    cp"),
    "the slot is freed before it is read": (
        "    ld.shared.u32 %r17, [%r13];\n    add.u32 %r9, %r9, %r17;\n"
        "    mbarrier.arrive.shared::cta.b64 %rd4, [%r12];\n",
        "    mbarrier.arrive.shared::cta.b64 %rd4, [%r12];\n"
        "    ld.shared.u32 %r17, [%r13];\n    add.u32 %r9, %r9, %r17;\n",
    ),
    "empty expects one arrival": ("], 32;", "], 1;"),
}
"""Name -> (text, what stands there instead)."""


def broken(name: str, slots: int = 2) -> str:
    """The PTX text with one of BREAKS."""
    old, new = BREAKS[name]
    text = kernel(slots)
    assert old in text
    return text.replace(old, new)


@dataclass(frozen=True)
class Outcome:
    """What a run came to. kind: "right", "wrong" or the name of the error; message: its first line; findings: races."""

    kind: str
    message: str
    findings: tuple[str, ...] = ()
    run: ptxemu.Run | None = None


def data() -> NDArray[np.uint32]:
    """Tile t is 10^t in every lane, so that a sum shows which tiles were added."""
    return np.repeat(10 ** np.arange(TILES, dtype=np.uint32), 32).astype(np.uint32)


def run(text: str, *, seed: int | None = None, races: bool = False, trace: bool = False) -> Outcome:
    """Run a pipeline in the emulator.

    Args:
        seed: None for the fair schedule, else an adversarial one. races: look for races, collect what is found.
    """
    out = np.zeros(32, np.uint32)
    config = ptxemu.Config(
        schedule="fair" if seed is None else "adversarial",
        seed=seed or 0,
        races=races,
        on_race="collect",
        trace=trace,
        max_steps=20_000,
    )
    try:
        result = ptxemu.run_ptx(text, block=(64, 1, 1), args=[data(), out], config=config)
    except ptxemu.EmulationError as error:
        found = tuple(str(f) for f in getattr(error, "findings", ()))
        return Outcome(type(error).__name__, str(error), found)
    findings = tuple(str(f) for f in result.findings)
    if (out == 111_111).all():
        return Outcome("right", "every lane has 111111", findings, result)
    lane = int(np.argmax(out != 111_111))
    return Outcome("wrong", f"lane {lane} has {out[lane]}, not 111111", findings, result)
