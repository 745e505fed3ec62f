"""CTA pairs (.cta_group::2) in running kernels: MMA over two CTAs, commit to both, allocation together, TMA signals."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu
from ptxemu.errors import DeadlockError, EmulationError, IllegalInstruction, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import (
    K_MAJOR,
    MN_MAJOR,
    decode_smem_descriptor,
    encode_instruction_descriptor,
    encode_smem_descriptor,
)
from ptxemu.isa.tensormap import tensor_map

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
IMAGE = 64 << 10
BASE = 1024  # shared address of the first byte of the dynamic shared memory
SCHEDULES = [
    ptxemu.Config(),
    ptxemu.Config(schedule="adversarial", seed=1),
    ptxemu.Config(schedule="adversarial", seed=2),
    ptxemu.Config(schedule="adversarial", seed=3),
]
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"

# 128 threads in each of two CTAs. %r1 thread, %r5 warp, %r12 rank; %r2 shared memory, %r3 mbarrier, %r9 TMEM.
TEXT = """
.visible .entry k(.param .u64 image, .param .u64 out, .param .align 64 .b8 map[128])
{{
    .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .pred %p<9>; .reg .b32 %d<64>; .reg .b16 %rs<4>;
    ld.param.u64 %rd1, [image];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r12, %cluster_ctarank;
    mov.u32 %r2, sm;
    add.u32 %r3, %r2, {image};
    add.u32 %r4, %r2, {slot};
    shr.u32 %r5, %r1, 5;
    mul.wide.u32 %rd4, %r12, {image};
    add.u64 %rd1, %rd1, %rd4;
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
    setp.ne.u32 %p3, %r5, 0;
    setp.ne.u32 %p6, %r12, {issuer};
    or.pred %p7, %p2, %p6;          // not the thread that issues
    @%p2 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
READY:
    @%p3 bra ALLOCATED;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r4], 512;
ALLOCATED:
    fence.proxy.async;
    {meet}
    ld.shared.u32 %r9, [%r4];
    shl.b32 %r10, %r5, 21;
    add.u32 %r11, %r9, %r10;
    {body}
    tcgen05.fence::before_thread_sync;
    {meet}
    @%p3 bra FREED;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r9, 512;
FREED:
    ret;
}}
"""
WAIT = """
ISSUED:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r3], 0;
    @!%p4 bra WAIT;
    tcgen05.fence::after_thread_sync;
"""
COMMIT = """
    mov.u16 %rs1, 3;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %rs1;
"""


def kernel(body: str, issuer: int = 0) -> str:
    return HEAD + TEXT.format(image=IMAGE, slot=IMAGE + 16, body=body, meet=MEET, issuer=issuer)


def run(body: str, image: np.ndarray, out: np.ndarray, config: ptxemu.Config | None = None, **kw) -> ptxemu.Run:
    return ptxemu.run_ptx(
        kernel(body, **kw), grid=(2, 1, 1), cluster=(2, 1, 1), block=(128,), args=[image, out, bytes(128)],
        shared=IMAGE + 64, config=config,
    )  # fmt: skip


def read_out(n: int) -> str:
    """PTX: lane t of the first n columns (a multiple of 8) of this CTA to row 128 rank + t of out."""
    lines = ["shl.b32 %r20, %r12, 7;", "add.u32 %r20, %r20, %r1;", f"mul.wide.u32 %rd8, %r20, {4 * n};"]
    lines += ["add.u64 %rd8, %rd8, %rd2;"]
    for c in range(0, n, 8):
        regs = ", ".join(f"%d{i}" for i in range(8))
        lines += [f"add.u32 %r21, %r11, {c};"]
        lines += [f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{regs}}}, [%r21];", "tcgen05.wait::ld.sync.aligned;"]
        lines += [f"st.global.u32 [%rd8+{4 * (c + i)}], %d{i};" for i in range(8)]
    return "\n".join(lines)


def mma(d: str, a: int | str, b: int, idesc: int, keep: bool, rest: str = "") -> str:
    """PTX of one MMA with literal descriptors. a: descriptor, or the text of a TMEM operand."""
    first = "%rd10" if isinstance(a, int) else a
    load = f"mov.b64 %rd10, {a};\n" if isinstance(a, int) else ""
    return (
        f"{load}mov.b64 %rd11, {b};\nmov.b32 %r30, {idesc};\nsetp.ne.u32 %p5, {int(keep)}, 0;\n"
        f"tcgen05.mma.cta_group::2.kind::f16 [{d}], {first}, %rd11, %r30, {rest}%p5;\n"
    )


def bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers that are exact in bf16, and whose products sum exactly in FP32."""
    return rng.integers(-15, 16, shape).astype(np.float32) / 4


def place(image: np.ndarray, descriptor: int, values: np.ndarray, major: int) -> None:
    """Write an operand of K = 16 into one CTA's image, where its descriptor says."""
    address = decode_smem_descriptor(descriptor).addresses(len(values), major) - BASE
    image[address], image[address + 1] = bf16(values) & 0xFF, bf16(values) >> 8


def split(d: np.ndarray) -> np.ndarray:
    """D (M, N) as the pair holds it, by the ISA's layouts A (M = 256) and B (M = 128): (CTA, lane, column)."""
    m, n = d.shape
    if m == 256:
        return d.reshape(2, 128, n)
    # Two CTAs of 64 rows; the lanes' lower half has the first half of the columns.
    return d.reshape(2, 64, 2, n // 2).transpose(0, 2, 1, 3).reshape(2, 128, n // 2)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).T


LAYOUTS = [
    (K_MAJOR, sw.NONE, 128 * 16, 128),
    (K_MAJOR, sw.SWIZZLE_128B, 16, 1024),
    (MN_MAJOR, sw.SWIZZLE_32B, 512, 256),
    (MN_MAJOR, sw.SWIZZLE_128B, 2048, 1024),
]
A_AT, B_AT = BASE, BASE + (32 << 10)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{'MN' if x[0] else 'K'}-{x[1].name}")
@pytest.mark.parametrize(("m", "n", "issuer"), [(256, 128, 0), (256, 256, 1), (128, 128, 1), (128, 256, 0)])
def test_each_cta_brings_its_rows_of_a_and_columns_of_b(layout: tuple, m: int, n: int, issuer: int) -> None:
    major, swizzle, lbo, sbo = layout
    rng = np.random.default_rng(m + n)
    image = np.zeros((2, IMAGE), np.uint8)
    idesc = encode_instruction_descriptor(m, n, a_major=major, b_major=major)
    body, expected = "@%p7 bra ISSUED;\n", np.zeros((m, n))
    for step in range(2):
        a = encode_smem_descriptor(A_AT + (step << 14), lbo, sbo, swizzle)
        b = encode_smem_descriptor(B_AT + (step << 14), lbo, sbo, swizzle)
        left, right = small(rng, m, 16), small(rng, n, 16)
        for rank in range(2):
            place(image[rank], a, np.split(left, 2)[rank], major)
            place(image[rank], b, np.split(right, 2)[rank], major)
        body += mma("%r9", a, b, idesc, step > 0)
        expected += product(left, right)
    columns = n if m == 256 else n // 2
    out = np.zeros((2, 128, columns), np.float32)
    run(body + COMMIT + WAIT + read_out(columns), image, out, issuer=issuer)
    assert np.array_equal(out, split(expected))


def operands(m: int, n: int, seed: int = 0) -> tuple[np.ndarray, int, int, np.ndarray, np.ndarray]:
    """Image with K-major operands of 128B swizzle, both descriptors, and the matrices."""
    rng = np.random.default_rng(seed)
    image = np.zeros((2, IMAGE), np.uint8)
    a, b = (encode_smem_descriptor(at, 16, 1024, sw.SWIZZLE_128B) for at in (A_AT, B_AT))
    left, right = small(rng, m, 16), small(rng, n, 16)
    for rank in range(2):
        place(image[rank], a, np.split(left, 2)[rank], K_MAJOR)
        place(image[rank], b, np.split(right, 2)[rank], K_MAJOR)
    return image, a, b, left, right


@pytest.mark.parametrize("m", [256, 128])
def test_a_in_tensor_memory(m: int) -> None:
    """M = 256: each CTA's own 128 rows. M = 128: each CTA's 64 rows, once in each half of the lanes."""
    n = 64
    image, _, b, left, right = operands(m, n)
    rows = left.reshape(2, -1, 16)
    cells = np.ascontiguousarray(bf16(rows if m == 256 else np.concatenate([rows, rows], 1))).view(np.uint32)
    image[:, : 128 * 32] = cells.reshape(2, -1).view(np.uint8)
    regs = ", ".join(f"%d{i}" for i in range(8))
    body = "shl.b32 %r20, %r1, 5;\nadd.u32 %r20, %r20, %r2;\n"
    body += "".join(f"ld.shared.u32 %d{i}, [%r20+{4 * i}];\n" for i in range(8))
    body += f"add.u32 %r21, %r11, 256;\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%r21], {{{regs}}};\n"
    body += "tcgen05.wait::st.sync.aligned;\ntcgen05.fence::before_thread_sync;\n" + MEET
    body += "@%p7 bra ISSUED;\ntcgen05.fence::after_thread_sync;\n"
    body += mma("%r9", "[%r9+256]", b, encode_instruction_descriptor(m, n), False)
    columns = n if m == 256 else n // 2
    out = np.zeros((2, 128, columns), np.float32)
    run(body + COMMIT + WAIT + read_out(columns), image, out)
    assert np.array_equal(out, split(product(left, right)))


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
@pytest.mark.parametrize("issuer", [0, 1])
def test_a_multicast_commit_tells_both_ctas_that_all_mmas_are_done(config: ptxemu.Config, issuer: int) -> None:
    image, a, b, left, right = operands(256, 32)
    idesc = encode_instruction_descriptor(256, 32)
    body = "@%p7 bra ISSUED;\n" + "".join(mma("%r9", a, b, idesc, i > 0) for i in range(9))
    out = np.zeros((2, 128, 32), np.float32)
    run(body + COMMIT + WAIT + read_out(32), image, out, config, issuer=issuer)
    assert np.array_equal(out, 9 * split(product(left, right)))


def test_a_commit_to_one_cta_leaves_the_other_waiting() -> None:
    image, a, b, *_ = operands(256, 32)
    body = "@%p7 bra ISSUED;\n" + mma("%r9", a, b, encode_instruction_descriptor(256, 32), False)
    out = np.zeros((2, 128, 32), np.float32)
    with pytest.raises(DeadlockError, match=r"CTA 1, warps 0-3: waits on mbarrier 0x10400 of CTA \(1,0,0\)"):
        run(body + COMMIT.replace("rs1, 3", "rs1, 1") + WAIT + read_out(32), image, out)


def test_a_commit_can_name_the_peers_barrier() -> None:
    image, a, b, left, right = operands(256, 32)
    body = "@%p7 bra ISSUED;\n" + mma("%r9", a, b, encode_instruction_descriptor(256, 32), False)
    body += "".join(
        f"mapa.shared::cluster.u32 %r22, %r3, {rank};\n"
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r22];\n"
        for rank in range(2)
    )
    out = np.zeros((2, 128, 32), np.float32)
    run(body + WAIT + read_out(32), image, out)
    assert np.array_equal(out, split(product(left, right)))


def test_events_name_the_pair() -> None:
    image, a, b, *_ = operands(128, 32)
    body = "@%p7 bra ISSUED;\n" + mma("%r9", a, b, encode_instruction_descriptor(128, 32), False) + COMMIT + WAIT
    traced = run(body, image, np.zeros(1, np.float32), ptxemu.Config(trace=True), issuer=1)
    (begin, _) = [e for e in traced.events if e.name == "MMA"]
    assert (begin.cta, begin.data["cta_group"], begin.data["m"]) == (1, 2, 128)
    marks = {(e.cta, e.name) for e in traced.events if e.name.startswith("TMEM ")}
    assert marks == {(cta, f"TMEM {what}") for cta in (0, 1) for what in ("alloc", "dealloc")}


BAD = {
    "D off lane 0": (
        "add.u32 %r22, %r9, 0x100000;\n@%p7 bra ISSUED;\n", "%r22", (256, 32), "", IllegalInstruction, "lane 16",
    ),
    "a shape of one CTA": ("@%p7 bra ISSUED;\n", "%r9", (64, 32), "", IllegalInstruction, "must be 128 or 256"),
    "N no multiple of 16": ("@%p7 bra ISSUED;\n", "%r9", (256, 24), "", IllegalInstruction, "multiple of 16"),
    "four words of lanes": (
        "@%p7 bra ISSUED;\n", "%r9", (256, 32), "{%r1, %r1, %r1, %r1}, ", UnsupportedInstruction, "4 words",
    ),
    "disabled lanes": (
        "mov.u32 %r23, 1;\n@%p7 bra ISSUED;\n", "%r9", (256, 32),
        "{%r1, %r1, %r1, %r23, %r1, %r1, %r1, %r1}, ", UnsupportedInstruction, "for .cta_group::1 only",
    ),
    "accumulate onto nothing": (
        "@%p7 bra ISSUED;\n", "%r9", (256, 32), "keep", IllegalInstruction, "nobody has written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_rules_of_the_mma(case: str) -> None:
    before, d, (m, n), rest, error, text = BAD[case]
    image, a, b, *_ = operands(256, 32)
    keep = rest == "keep"
    body = before + mma(d, a, b, encode_instruction_descriptor(m, n), keep, "" if keep else rest) + COMMIT + WAIT
    with pytest.raises(error, match=text):
        run(body, image, np.zeros(1, np.float32))


def test_all_eight_words_zero_disable_nothing() -> None:
    image, a, b, left, right = operands(256, 32)
    body = "mov.u32 %r23, 0;\n@%p7 bra ISSUED;\n"
    body += mma("%r9", a, b, encode_instruction_descriptor(256, 32), False, "{" + ", ".join(["%r23"] * 8) + "}, ")
    out = np.zeros((2, 128, 32), np.float32)
    run(body + COMMIT + WAIT + read_out(32), image, out)
    assert np.array_equal(out, split(product(left, right)))


# ---------------------------------------------------------------------------------------------------------- allocation

PLAIN = """
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r6, %cluster_ctarank;
    setp.ne.u32 %p1, %r6, 0;
    shr.u32 %r2, %r1, 5;
    shl.b32 %r3, %r2, 2;
    mov.u32 %r4, sm;
    add.u32 %r4, %r4, %r3;
    {body}
    ret;
}}
"""
ALLOC = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r4], {};\n"
DEALLOC = "ld.shared.u32 %r5, [%r4];\ntcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, {};\n"


def plain(body: str, warps: int = 1, config: ptxemu.Config | None = None, ctas: int = 2) -> np.ndarray:
    out = np.full((ctas, warps, 32), 7, np.uint32)
    ptxemu.run_ptx(
        HEAD + PLAIN.format(body=body), grid=(ctas, 1, 1), cluster=(ctas, 1, 1), block=(32 * warps,), args=[out],
        shared=64, config=config,
    )  # fmt: skip
    return out


SAVE = """
    ld.shared.u32 %r5, [%r4];
    mov.u32 %r7, %ntid.x;
    mad.lo.u32 %r7, %r6, %r7, %r1;
    mul.wide.u32 %rd2, %r7, 4;
    add.u64 %rd2, %rd2, %rd1;
    st.global.u32 [%rd2], %r5;
"""


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
def test_both_ctas_get_the_same_columns(config: ptxemu.Config) -> None:
    body = ALLOC.format(128) + DEALLOC.format(128) + ALLOC.format(64) + SAVE + DEALLOC.format(64)
    assert not plain(body, config=config).any()
    body = ALLOC.format(128) + "add.u32 %r4, %r4, 16;\n" + ALLOC.format(64) + SAVE + DEALLOC.format(64)
    body += "sub.u32 %r4, %r4, 16;\n" + DEALLOC.format(128)
    assert (plain(body, config=config) == 128).all()


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
def test_a_pair_waits_for_room(config: ptxemu.Config) -> None:
    """Two warps in each CTA want all of TMEM; named barriers keep the warps of one number together."""
    order = "setp.ne.u32 %p2, %r2, 0;\n@%p2 bra SECOND;\n" + ALLOC.format(512) + "bar.arrive 1, 64;\n" + SAVE
    order += DEALLOC.format(512) + "bra END;\nSECOND:\nbar.sync 1, 64;\n" + ALLOC.format(512) + SAVE
    order += DEALLOC.format(512) + "END:\n"
    assert not plain(order, warps=2, config=config).any()


def only(rank: int, body: str) -> str:
    return f"@{'!' if rank else ''}%p1 bra SKIP{rank};\n{body}SKIP{rank}:\n"


RULES = {
    "alone": (
        only(0, ALLOC.format(64)) + MEET, DeadlockError, r"a warp of the peer CTA \(1,0,0\) has to execute it too",
    ),
    "different sizes": (
        only(0, ALLOC.format(64)) + only(1, ALLOC.format(32)), IllegalInstruction, "asks for .* columns, its peer for",
    ),
    # The ISA's table "non-deterministic hang due to incorrect synchronization": here it always hangs.
    "free, then meet": (
        ALLOC.format(64) + only(0, MEET + DEALLOC.format(64)) + only(1, DEALLOC.format(64) + MEET),
        DeadlockError, "tcgen05.dealloc of 64 columns: a warp of the peer",
    ),
    "not freed": (ALLOC.format(64), IllegalInstruction, "columns 0-63 still allocated"),
    "after giving up the right": (
        "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n" + ALLOC.format(64),
        IllegalInstruction, "after tcgen05.relinquish",
    ),
    "free other columns": (
        ALLOC.format(64) + "mov.u32 %r5, 64;\ntcgen05.dealloc.cta_group::2.sync.aligned.b32 %r5, 64;\n",
        IllegalInstruction, "at column 64: allocated are columns 0-63",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize("config", SCHEDULES[:2], ids=lambda c: c.schedule)
def test_rules_of_allocation(case: str, config: ptxemu.Config) -> None:
    body, error, text = RULES[case]
    with pytest.raises(error, match=text) as caught:
        plain(body, config=config)
    assert isinstance(caught.value, EmulationError)


def test_a_cta_without_a_peer_is_told_so() -> None:
    with pytest.raises(IllegalInstruction, match="has no peer: its rank is 0 in a cluster of 1"):
        plain(ALLOC.format(64), ctas=1)


def test_a_peer_that_has_exited_is_noticed() -> None:
    """CTA 1 leaves; CTA 0 lets it, then issues an MMA for the pair."""
    wait = "mov.u32 %r7, 0;\nLOOP:\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 %p3, %r7, 2000;\n@%p3 bra LOOP;\n"
    commit = "mbarrier.init.shared::cta.b64 [%r4+16], 1;\n"
    commit += "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r4+16];\n"
    with pytest.raises(IllegalInstruction, match=r"the peer CTA \(1,0,0\) has exited"):
        plain(only(0, wait + commit))


# ------------------------------------------------------------------------------------------------------- tensor copies

LOADS = """
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 x, .param .u64 out)
{{
    .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .b16 %rs<4>;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r12, %cluster_ctarank;
    mov.u32 %r2, sm;
    add.u32 %r3, %r2, 2048;
    shl.b32 %r4, %r1, 2;
    mov.u32 %r5, %ctaid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
READY:
    {meet}
    @%p1 bra ISSUED;
    {body}
ISSUED:
    {meet}
    and.b32 %r20, %r12, 1;
    setp.ne.u32 %p2, %r20, {parity};
    @%p2 bra DONE;                  // only the CTAs whose barriers are signalled wait
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra WAIT;
DONE:
    {meet}
    add.u32 %r6, %r2, %r4;
    ld.shared.u32 %r7, [%r6];
    shl.b32 %r8, %r5, 7;
    add.u32 %r8, %r8, %r4;
    cvt.u64.u32 %rd3, %r8;
    add.u64 %rd3, %rd3, %rd2;
    st.global.u32 [%rd3], %r7;
    ret;
}}
"""
BOX = 128  # bytes of a box: two rows of 32 16-bit elements


def load_pairs(body: str, parity: int, ctas: int, config: ptxemu.Config | None) -> tuple[np.ndarray, np.ndarray]:
    """Out (CTA, 64 elements) and the source (rows of 32 elements)."""
    x = np.arange(64 * 32, dtype=np.uint16).reshape(64, 32)
    m = tensor_map(x.ctypes.data, "u16", x.shape[::-1], x.strides[-2::-1], (32, 2))
    out = np.zeros((ctas, BOX), np.uint8)
    ptxemu.run_ptx(
        HEAD + LOADS.format(meet=MEET, body=body, parity=parity), grid=(ctas, 1, 1), cluster=(ctas, 1, 1), block=(32,),
        args=[m.encode(), x, out], shared=4096, config=config,
    )  # fmt: skip
    return out.view(np.uint16), x


TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
@pytest.mark.parametrize("parity", [0, 1])
def test_a_load_for_a_pair_signals_the_barrier_that_it_names(config: ptxemu.Config, parity: int) -> None:
    """Both CTAs load their own rows; both report to the barrier of one of them, which expects the bytes of both."""
    body = f"setp.ne.u32 %p4, %r12, {parity};\n@%p4 bra LOAD;\n"
    body += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {2 * BOX};\nLOAD:\n"
    body += f"mapa.shared::cluster.u32 %r22, %r3, {parity};\nshl.b32 %r23, %r12, 1;\n"
    body += f"{TENSOR}.cta_group::2 [%r2], [%rd1, {{0, %r23}}], [%r22];\n"
    out, x = load_pairs(body, parity, 2, config)
    assert np.array_equal(out, x[:4].reshape(2, 64))


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
@pytest.mark.parametrize("parity", [0, 1])
def test_a_multicast_load_signals_one_cta_of_each_pair(config: ptxemu.Config, parity: int) -> None:
    """One load of CTA 2 to CTAs 0, 1 and 3: pair (0, 1) gets the bytes of two destinations on one barrier."""
    body = f"and.b32 %r20, %r12, 1;\nsetp.ne.u32 %p4, %r20, {parity};\n@%p4 bra LOAD;\n"
    body += f"mov.u32 %r24, {BOX};\nsetp.lt.u32 %p5, %r12, 2;\n@%p5 add.u32 %r24, %r24, {BOX};\n"
    body += "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], %r24;\nLOAD:\n"
    body += "setp.ne.u32 %p6, %r12, 2;\n@%p6 bra ISSUED;\nmov.u16 %rs1, 11;\n"
    body += f"mapa.shared::cluster.u32 %r22, %r3, {2 + parity};\n"
    body += f"{TENSOR}.multicast::cluster.cta_group::2 [%r2], [%rd1, {{0, 6}}], [%r22], %rs1;\n"
    out, x = load_pairs(body, parity, 4, config)
    for cta in (0, 1, 3):
        assert np.array_equal(out[cta], x[6:8].reshape(64))
    assert (out[2] == 0xFFFF).all()  # nobody wrote there


@pytest.mark.parametrize(
    ("group", "text"), [("", "only .cta_group::2 may signal"), (".cta_group::1", "only .cta_group::2")]
)
def test_without_a_pair_the_barrier_must_be_the_destinations(group: str, text: str) -> None:
    body = f"mapa.shared::cluster.u32 %r22, %r3, 1;\n{TENSOR}{group} [%r2], [%rd1, {{0, 0}}], [%r22];\n"
    with pytest.raises(IllegalInstruction, match=text):
        load_pairs("setp.ne.u32 %p4, %r12, 0;\n@%p4 bra ISSUED;\n" + body, 0, 2, None)
