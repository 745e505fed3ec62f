"""tcgen05 instructions in running kernels: MMA of every layout, allocation, loads and stores, completion, rules."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu
from ptxemu.errors import DeadlockError, IllegalInstruction, MemoryFault, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import (
    K_MAJOR,
    MN_MAJOR,
    decode_smem_descriptor,
    encode_instruction_descriptor,
    encode_smem_descriptor,
)

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
IMAGE = 64 << 10  # bytes of shared memory that the test fills; barrier and TMEM address lie behind
SHARED = IMAGE + 64
BASE = 1024  # shared address of the first byte
SCHEDULES = [
    ptxemu.Config(),
    ptxemu.Config(schedule="adversarial", seed=1),
    ptxemu.Config(schedule="adversarial", seed=2),
]

# 128 threads. Fills shared memory from `image`, allocates all of TMEM, runs `body` and gives it back.
SETUP = """
    .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .pred %p<8>; .reg .b32 %d<64>;
    ld.param.u64 %rd1, [image];
    ld.param.u64 %rd2, [out];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, sm;
    add.u32 %r3, %r2, {image};      // mbarrier
    add.u32 %r4, %r2, {slot}; // where the TMEM address goes
    shr.u32 %r5, %r1, 5;            // warp
    shl.b32 %r6, %r1, 2;
FILL:
    cvt.u64.u32 %rd3, %r6;
    add.u64 %rd3, %rd3, %rd1;
    ld.global.u32 %r7, [%rd3];
    add.u32 %r8, %r6, %r2;
    st.shared.u32 [%r8], %r7;
    add.u32 %r6, %r6, 512;
    setp.lt.u32 %p1, %r6, {image};
    @%p1 bra FILL;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
READY:
    setp.ne.u32 %p3, %r5, 0;
    @%p3 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], {columns};
ALLOCATED:
    fence.proxy.async;
    bar.sync 0;
    ld.shared.u32 %r9, [%r4];       // TMEM address
    shl.b32 %r10, %r5, 21;          // this warp's window
    add.u32 %r11, %r9, %r10;
"""
TEARDOWN = """
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    @%p3 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, {columns};
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
FREED:
    ret;
"""
# Thread 0 issues MMAs; then every thread waits, reads its lane of `n` columns from column `at` and stores it to out.
COMMIT = """
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
ISSUED:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3], 0;
    @!%p4 bra WAIT;
    tcgen05.fence::after_thread_sync;
"""
PARAMS = ".param .u64 image, .param .u64 out"


def read_out(n: int, at: int = 0) -> str:
    """PTX: lane t of columns at.. to row t of out (n a multiple of 8)."""
    lines = [f"mul.lo.u32 %r20, %r1, {4 * n};", "cvt.u64.u32 %rd8, %r20;", "add.u64 %rd8, %rd8, %rd2;"]
    for c in range(0, n, 8):
        regs = ", ".join(f"%d{i}" for i in range(8))
        lines += [f"add.u32 %r21, %r11, {at + c};"]
        lines += [f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{regs}}}, [%r21];", "tcgen05.wait::ld.sync.aligned;"]
        lines += [f"st.global.u32 [%rd8+{4 * (c + i)}], %d{i};" for i in range(8)]
    return "\n".join(lines)


def kernel(body: str, columns: int = 512) -> str:
    text = SETUP.format(image=IMAGE, slot=IMAGE + 16, columns=columns) + body + TEARDOWN.format(columns=columns)
    return f"{HEAD}.visible .entry k({PARAMS})\n{{\n{text}\n}}\n"


def run(
    body: str, image: np.ndarray, out: np.ndarray, config: ptxemu.Config | None = None, columns: int = 512
) -> ptxemu.Run:
    return ptxemu.run_ptx(kernel(body, columns), block=(128,), args=[image, out], shared=SHARED, config=config)


def mma(d: str, a: int | str, b: int, idesc: int, keep: bool, rest: str = "", mods: str = "") -> str:
    """PTX of one MMA with literal descriptors. a: descriptor, or the text of a TMEM operand."""
    first = "%rd10" if isinstance(a, int) else a
    load = f"mov.b64 %rd10, {a};\n" if isinstance(a, int) else ""
    return (
        f"{load}mov.b64 %rd11, {b};\nmov.b32 %r30, {idesc};\nsetp.ne.u32 %p5, {int(keep)}, 0;\n"
        f"tcgen05.mma.cta_group::1.kind::f16{mods} [{d}], {first}, %rd11, %r30, %p5{rest};\n"
    )


def as_bits(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers that are exact in bf16 and fp16, and whose products sum exactly in FP32."""
    return rng.integers(-15, 16, shape).astype(np.float32) / 4


def place(image: np.ndarray, descriptor: int, values: np.ndarray, major: int, kind: str) -> None:
    """Write an operand of K = 16 where its descriptor says."""
    address = decode_smem_descriptor(descriptor).addresses(len(values), major) - BASE
    raw = as_bits(values, kind)
    image[address] = raw & 0xFF
    image[address + 1] = raw >> 8


LAYOUTS = [
    (K_MAJOR, sw.NONE, 128 * 16, 128),
    (K_MAJOR, sw.SWIZZLE_32B, 16, 256),
    (K_MAJOR, sw.SWIZZLE_64B, 16, 512),
    (K_MAJOR, sw.SWIZZLE_128B, 16, 1024),
    (MN_MAJOR, sw.NONE, 128, 256),
    (MN_MAJOR, sw.SWIZZLE_32B, 512, 256),
    (MN_MAJOR, sw.SWIZZLE_64B, 1024, 512),
    (MN_MAJOR, sw.SWIZZLE_128B, 2048, 1024),
]


def layout_id(x: tuple) -> str:
    return f"{'MN' if x[0] else 'K'}-{x[1].name}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_id)
@pytest.mark.parametrize(("m", "n", "kind"), [(128, 128, "bf16"), (128, 24, "f16"), (64, 64, "bf16")])
def test_mma_with_both_operands_in_shared_memory(layout: tuple, m: int, n: int, kind: str) -> None:
    major, swizzle, lbo, sbo = layout
    rng = np.random.default_rng(n)
    image = np.zeros(IMAGE, np.uint8)
    idesc = encode_instruction_descriptor(m, n, a=kind, b=kind, a_major=major, b_major=major)
    body, expected = "@%p2 bra ISSUED;\n", np.zeros((m, n))
    for step in range(2):
        # The second operand pair lies off the 1024-byte boundary where the mode allows it, as advancing along K does.
        shift = 32 * step if major == K_MAJOR and swizzle is sw.SWIZZLE_128B else 0
        a = encode_smem_descriptor(BASE + (step << 14) + shift, lbo, sbo, swizzle)
        b = encode_smem_descriptor(BASE + (step << 14) + (32 << 10) + shift, lbo, sbo, swizzle)
        left, right = small(rng, m, 16), small(rng, n, 16)
        place(image, a, left, major, kind)
        place(image, b, right, major, kind)
        body += mma("%r9", a, b, idesc, step > 0)
        expected += left.astype(np.float64) @ right.astype(np.float64).T
    out = np.zeros((128, n), np.float32)
    run(body + COMMIT + read_out(n), image, out)
    rows = out if m == 128 else out.reshape(4, 32, n)[:, :16].reshape(64, n)
    assert np.array_equal(rows, expected)


def test_a_in_tensor_memory_and_accumulation_into_other_columns() -> None:
    rng = np.random.default_rng(5)
    image = np.zeros(IMAGE, np.uint8)
    left, right = small(rng, 128, 16), small(rng, 64, 16)
    # Rows of A as packed pairs; thread t stores its row of 8 cells to its own lane, columns 256 on.
    packed = np.ascontiguousarray(as_bits(left, "bf16")).view(np.uint32)
    image[: packed.nbytes] = packed.reshape(-1).view(np.uint8)
    b = encode_smem_descriptor(BASE + (32 << 10), 2048, 1024, sw.SWIZZLE_128B)
    place(image, b, right, MN_MAJOR, "bf16")
    idesc = encode_instruction_descriptor(128, 64, b_major=MN_MAJOR)
    regs = ", ".join(f"%d{i}" for i in range(8))
    body = "shl.b32 %r20, %r1, 5;\nadd.u32 %r20, %r20, %r2;\n"
    body += "".join(f"ld.shared.u32 %d{i}, [%r20+{4 * i}];\n" for i in range(8))
    body += f"add.u32 %r21, %r11, 256;\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%r21], {{{regs}}};\n"
    body += "tcgen05.wait::st.sync.aligned;\ntcgen05.fence::before_thread_sync;\nbar.sync 0;\n@%p2 bra ISSUED;\n"
    body += "tcgen05.fence::after_thread_sync;\nadd.u32 %r22, %r9, 64;\n"
    for keep in (False, True):
        body += mma("%r22", "[%r9+256]", b, idesc, keep)
    out = np.zeros((128, 64), np.float32)
    run(body + COMMIT + read_out(64, 64), image, out)
    assert np.array_equal(out, 2 * left.astype(np.float64) @ right.astype(np.float64).T)


def test_half_accumulator_negation_scale_and_disabled_lanes() -> None:
    rng = np.random.default_rng(6)
    image = np.zeros(IMAGE, np.uint8)
    a = encode_smem_descriptor(BASE, 16, 1024, sw.SWIZZLE_128B)
    b = encode_smem_descriptor(BASE + (32 << 10), 16, 1024, sw.SWIZZLE_128B)
    left, right = small(rng, 128, 16), small(rng, 16, 16)
    place(image, a, left, K_MAJOR, "f16")
    place(image, b, right, K_MAJOR, "f16")
    product = left.astype(np.float64) @ right.astype(np.float64).T
    half = encode_instruction_descriptor(128, 16, a="f16", b="f16", d="f16")
    out = np.zeros((128, 16), np.uint32)
    run("@%p2 bra ISSUED;\n" + mma("%r9", a, b, half, False) + COMMIT + read_out(16), image, out)
    assert np.array_equal(out.astype(np.uint16).view(np.float16), product.astype(np.float16))
    full = encode_instruction_descriptor(128, 16, a="f16", b="f16")
    out = np.zeros((128, 16), np.float32)
    body = "@%p2 bra ISSUED;\n" + mma("%r9", a, b, full, False)
    body += mma("%r9", a, b, full | 1 << 13, True, ", 2")  # D = D / 4 - A B
    body += "mov.b32 %d0, 0;\nmov.b32 %d1, 0x80000001;\n"
    body += mma("%r9", a, b, full, False).replace("%p5;", "{%d1, %d0, %d0, %d0}, %p5;")
    run(body + COMMIT + read_out(16), image, out)
    expected = product.copy()
    expected[[0, 31]] = product[[0, 31]] / 4 - product[[0, 31]]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
def test_commit_waits_for_all_mmas_before_it(config: ptxemu.Config) -> None:
    """Twelve MMAs into one tile, then one commit: nobody may see fewer."""
    rng = np.random.default_rng(7)
    image = np.zeros(IMAGE, np.uint8)
    a = encode_smem_descriptor(BASE, 16, 1024, sw.SWIZZLE_128B)
    b = encode_smem_descriptor(BASE + (32 << 10), 16, 1024, sw.SWIZZLE_128B)
    left, right = small(rng, 128, 16), small(rng, 16, 16)
    place(image, a, left, K_MAJOR, "bf16")
    place(image, b, right, K_MAJOR, "bf16")
    idesc = encode_instruction_descriptor(128, 16)
    body = "@%p2 bra ISSUED;\n" + "".join(mma("%r9", a, b, idesc, i > 0) for i in range(12))
    out = np.zeros((128, 16), np.float32)
    run(body + COMMIT + read_out(16), image, out, config)
    assert np.array_equal(out, 12 * left.astype(np.float64) @ right.astype(np.float64).T)


def test_mma_reads_its_operands_when_it_runs_not_when_it_is_issued() -> None:
    """The issuing thread overwrites row 0 of A at once, without waiting: the MMA multiplies the new row."""
    image = np.zeros(IMAGE, np.uint8)
    a = encode_smem_descriptor(BASE, 16, 1024, sw.SWIZZLE_128B)
    place(image, a, np.ones((128, 16), np.float32), K_MAJOR, "bf16")
    clobber = "".join(f"st.shared.u32 [%r2+{4 * i}], 0;\n" for i in range(8))
    body = "@%p2 bra ISSUED;\n" + mma("%r9", a, a, encode_instruction_descriptor(128, 16), False) + clobber + COMMIT
    out = np.zeros((128, 16), np.float32)
    run(body + read_out(16), image, out)
    expected = np.full((128, 16), 16.0)
    expected[0], expected[:, 0] = 0, 0
    assert np.array_equal(out, expected)


def test_a_commit_tracks_only_its_own_thread() -> None:
    """Thread 0 issues the MMAs, thread 32 commits: the barrier opens too early, and TMEM is freed under the MMAs."""
    image = np.zeros(IMAGE, np.uint8)
    a = encode_smem_descriptor(BASE, 16, 1024, sw.SWIZZLE_128B)
    place(image, a, np.ones((128, 16), np.float32), K_MAJOR, "bf16")
    idesc = encode_instruction_descriptor(128, 16)
    mmas = "".join(mma("%r9", a, a, idesc, i > 0) for i in range(12))
    body = f"@%p2 bra OTHER;\n{mmas}OTHER:\nsetp.ne.u32 %p6, %r1, 32;\n@%p6 bra ISSUED;\n" + COMMIT
    with pytest.raises(IllegalInstruction, match=r"MMA .*allocated are none"):
        run(body + read_out(16), image, np.zeros((128, 16), np.float32))


def test_events_of_the_tensor_core() -> None:
    image = np.zeros(IMAGE, np.uint8)
    a = encode_smem_descriptor(BASE, 16, 1024, sw.SWIZZLE_128B)
    idesc = encode_instruction_descriptor(128, 16)
    body = "@%p2 bra ISSUED;\n" + mma("%r9", a, a, idesc, False) + COMMIT
    r = run(body, image, np.zeros(16, np.uint32), ptxemu.Config(trace=True))
    rows = [(e.kind, e.name) for e in r.events if e.row == "tensor"]
    names = ["begin", "end"]
    assert rows[0] == ("mark", "TMEM alloc") and rows[-1] == ("mark", "TMEM dealloc")
    assert rows[1:-1] == [(k, n) for n in ("MMA", "commit") for k in names]
    data = next(e.data for e in r.events if e.name == "MMA")
    assert {k: data[k] for k in ("m", "n", "k", "column", "a_offset", "b_descriptor", "idesc", "accumulate")} == {
        "m": 128, "n": 16, "k": 16, "column": 0, "a_offset": BASE, "b_descriptor": a, "idesc": idesc,
        "accumulate": False,
    }  # fmt: skip


@pytest.mark.parametrize("shape", ["16x64b.x8", "16x128b.x4", "16x256b.x2", "16x32bx2.x8", "32x32b.x8"])
@pytest.mark.parametrize("packed", [False, True])
def test_stores_and_loads_of_every_shape(shape: str, packed: bool) -> None:
    """Each thread stores eight numbers of its own and loads them back; in between nobody else's cells are lost."""
    regs, back = (", ".join(f"%d{i + j}" for i in range(8)) for j in (0, 16))
    split = " 64," if "bx2" in shape else ""
    pack, unpack = (".pack::16b", ".unpack::16b") if packed else ("", "")
    body = "".join(f"mul.lo.u32 %d{i}, %r1, {0x10001 * (i + 3)};\nadd.u32 %d{i}, %d{i}, {i};\n" for i in range(8))
    body += f"tcgen05.st.sync.aligned.{shape}{unpack}.b32 [%r11],{split} {{{regs}}};\ntcgen05.wait::st.sync.aligned;\n"
    load_split = ", 64" if split else ""
    body += (
        f"tcgen05.ld.sync.aligned.{shape}{pack}.b32 {{{back}}}, [%r11]{load_split};\ntcgen05.wait::ld.sync.aligned;\n"
    )
    body += "shl.b32 %r20, %r1, 5;\ncvt.u64.u32 %rd8, %r20;\nadd.u64 %rd8, %rd8, %rd2;\n"
    body += "".join(f"st.global.u32 [%rd8+{4 * i}], %d{16 + i};\n" for i in range(8))
    out = np.zeros((128, 8), np.uint32)
    r = run(body, np.zeros(IMAGE, np.uint8), out)
    t, i = np.arange(128, dtype=np.uint32)[:, None], np.arange(8, dtype=np.uint32)[None, :]
    assert np.array_equal(out, t * (0x10001 * (i + 3)) + i)
    assert not r.findings


def test_one_shape_read_as_another() -> None:
    """What 32x32b stores, 16x256b sees by its own pattern: rows t/4 (+8), columns 2 (t%4)."""
    regs = ", ".join(f"%d{i}" for i in range(8))
    body = "".join(f"mul.lo.u32 %d{i}, %r1, 8;\nadd.u32 %d{i}, %d{i}, {i};\n" for i in range(8))
    body += f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r11], {{{regs}}};\ntcgen05.wait::st.sync.aligned;\n"
    body += "add.u32 %r21, %r11, 0x100000;\n"  # the upper sixteen lanes of the window
    body += "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%d16, %d17, %d18, %d19}, [%r21];\n"
    body += "tcgen05.wait::ld.sync.aligned;\n"
    body += "shl.b32 %r20, %r1, 4;\ncvt.u64.u32 %rd8, %r20;\nadd.u64 %rd8, %rd8, %rd2;\n"
    body += "".join(f"st.global.u32 [%rd8+{4 * i}], %d{16 + i};\n" for i in range(4))
    out = np.zeros((128, 4), np.uint32)
    run(body, np.zeros(IMAGE, np.uint8), out)
    t = np.arange(128)
    lane, column = t // 32 * 32 + 16 + t % 32 // 4, 2 * (t % 4)
    assert np.array_equal(
        out,
        np.stack([8 * lane + column, 8 * lane + column + 1, 8 * (lane + 8) + column, 8 * (lane + 8) + column + 1], 1),
    )


def test_reading_what_nobody_wrote_is_a_finding() -> None:
    out = np.zeros((128, 8), np.uint32)
    r = run(read_out(8), np.zeros(IMAGE, np.uint8), out)
    assert len(r.findings) == 1 and "columns 0-7" in str(r.findings[0])
    assert (out == 0xFFFFFFFF).all()


BAD = {
    "wrong window": (read_out(8).replace("%r11", "%r9"), IllegalInstruction, "lanes 32-63"),
    "outside of the allocation": (read_out(8, 508 - 380), IllegalInstruction, "column 128 is not"),
    "accumulate onto nothing": (
        "@%p2 bra ISSUED;\n"
        + mma("%r9", 1 << 46 | 64, 1 << 46 | 64, encode_instruction_descriptor(128, 16), True)
        + COMMIT,
        IllegalInstruction,
        "nobody has written",
    ),
    "A that nobody wrote": (
        "@%p2 bra ISSUED;\n"
        + mma("%r9", "[%r9+64]", 1 << 46 | 64, encode_instruction_descriptor(128, 16), False)
        + COMMIT,
        IllegalInstruction,
        "reads A from TMEM",
    ),
    "operand outside of shared memory": (
        "@%p2 bra ISSUED;\n"
        + mma("%r9", 1 << 46 | 0x1FFF, 1 << 46 | 64, encode_instruction_descriptor(128, 16), False)
        + COMMIT,
        MemoryFault,
        "outside of shared memory",
    ),
    "D outside of the allocation": (
        "add.u32 %r22, %r9, 120;\n@%p2 bra ISSUED;\n"
        + mma("%r22", 1 << 46 | 64, 1 << 46 | 64, encode_instruction_descriptor(128, 16), False)
        + COMMIT,
        IllegalInstruction,
        "D: TMEM columns 120-135",
    ),
    "bad descriptor": (
        "@%p2 bra ISSUED;\n" + mma("%r9", 64, 1 << 46 | 64, encode_instruction_descriptor(128, 16), False) + COMMIT,
        IllegalInstruction,
        "0b001",
    ),
    "two values of cta_group in one kernel": (
        "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n",
        IllegalInstruction,
        "has used .cta_group::1 before",
    ),
    "sparse": (
        mma("%r9", 64, 64, 0, False).replace("tcgen05.mma", "tcgen05.mma.sp"),
        UnsupportedInstruction,
        "sparse",
    ),
    "shift of a window": (
        "add.u32 %r22, %r9, 0x80000;\ntcgen05.shift.cta_group::1.down [%r22];\n",
        IllegalInstruction,
        "TMEM lane 8",
    ),
    "copy with a bad descriptor": (
        "mov.b64 %rd10, 64;\ntcgen05.cp.cta_group::1.128x256b [%r9], %rd10;\n",
        IllegalInstruction,
        "0b001",
    ),
    "free too much": (
        "@%p3 bra SKIP;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, 64;\nSKIP:\n",
        IllegalInstruction,
        "columns 0-127",
    ),
    "allocate after giving up the right": (
        "@%p3 bra SKIP;\ntcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;\nSKIP:\n",
        IllegalInstruction,
        "relinquish",
    ),
    "too many columns": (
        "@%p3 bra SKIP;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 48;\nSKIP:\n",
        IllegalInstruction,
        "48 columns",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_rules_are_enforced_with_the_place(case: str) -> None:
    body, error, text = BAD[case]
    with pytest.raises(error, match=text) as caught:
        run(body, np.zeros(IMAGE, np.uint8), np.zeros((128, 8), np.uint32), columns=128)
    assert "PTX line" in str(caught.value)


def test_allocation_waits_until_columns_are_free() -> None:
    """Two warps want all of TMEM: the second gets it when the first has given it back."""
    text = f"""{HEAD}.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<9>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    shl.b32 %r3, %r2, 2;
    mov.u32 %r4, sm;
    add.u32 %r4, %r4, %r3;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 512;
    ld.shared.u32 %r5, [%r4];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd2, %rd2, %rd1;
    st.global.u32 [%rd2], %r5;
    DEALLOC
    ret;
}}
"""
    dealloc = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 512;"
    out = np.full(64, 7, np.uint32)
    ptxemu.run_ptx(text.replace("DEALLOC", dealloc), block=(64,), args=[out], shared=64)
    assert not out.any()
    with pytest.raises(DeadlockError, match=r"tcgen05.alloc of 512 columns; allocated are columns 0-511"):
        ptxemu.run_ptx(text.replace("DEALLOC", ""), block=(64,), args=[out], shared=64)


def test_tensor_memory_must_be_given_back() -> None:
    text = f"""{HEAD}.visible .entry k()
{{
    .reg .b32 %r<9>;
    mov.u32 %r4, sm;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 64;
    ret;
}}
"""
    with pytest.raises(IllegalInstruction, match="columns 0-63 still allocated"):
        ptxemu.run_ptx(text, block=(32,), args=[], shared=64)
