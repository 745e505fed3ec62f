"""Bulk copies in running kernels: loads onto mbarriers, stores in bulk groups, multicast, prefetches, rules."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu
from ptxemu.errors import DeadlockError, IllegalInstruction, MemoryFault, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.tensormap import TensorMap, tensor_map

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
SHARED = 32 << 10
BAR = SHARED
SCHEDULES = [
    ptxemu.Config(),
    ptxemu.Config(schedule="adversarial", seed=1),
    ptxemu.Config(schedule="adversarial", seed=2),
]

# One warp and one tensor map. Lane 0 runs `body`; then all lanes bring `nbytes` of shared memory out.
TEXT = """
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 x, .param .u64 out, .param .u32 nbytes)
{{
    .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .pred %p<8>; .reg .b16 %rs<4>;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [out];
    cvta.to.global.u64 %rd2, %rd2;
    ld.param.u64 %rd9, [x];
    ld.param.u32 %r9, [nbytes];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, sm;
    add.u32 %r3, %r2, {bar};
    shl.b32 %r4, %r1, 2;
ZERO:
    add.u32 %r5, %r2, %r4;
    st.shared.u32 [%r5], {fill};
    add.u32 %r4, %r4, 128;
    setp.lt.u32 %p2, %r4, {bar};
    @%p2 bra ZERO;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
READY:
    fence.proxy.async;
    {sync}
    @%p1 bra ISSUED;
    {body}
ISSUED:
    bar.sync 0;
    {wait}
    mov.u32 %r6, %ctaid.x;
    mul.lo.u32 %r6, %r6, %r9;
    shl.b32 %r4, %r1, 2;
OUT:
    add.u32 %r5, %r2, %r4;
    ld.shared.u32 %r7, [%r5];
    add.u32 %r8, %r6, %r4;
    cvt.u64.u32 %rd3, %r8;
    add.u64 %rd3, %rd3, %rd2;
    st.global.u32 [%rd3], %r7;
    add.u32 %r4, %r4, 128;
    setp.lt.u32 %p2, %r4, %r9;
    @%p2 bra OUT;
    {sync}
    ret;
}}
"""
WAIT = "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;\n@!%p3 bra WAIT;"
CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"


def kernel(body: str, wait: str = WAIT, sync: str = "bar.sync 0;", fill: int = 0) -> str:
    return HEAD + TEXT.format(bar=BAR, body=body, wait=wait, sync=sync, fill=fill)


def load(coords: list[int], nbytes: int, mods: str = "", destination: str = "shared::cta", extra: str = "") -> str:
    """PTX of expect_tx and one tensor load to the start of shared memory."""
    return (
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {nbytes};\n"
        f"cp.async.bulk.tensor.{len(coords)}d.{destination}.global.tile.mbarrier::complete_tx::bytes{mods} [%r2],"
        f" [%rd1, {{{', '.join(map(str, coords))}}}], [%r3]{extra};\n"
    )


def launch(text: str, m: TensorMap, x: np.ndarray, nbytes: int, ctas: int = 1, config: ptxemu.Config | None = None):
    out = np.zeros(ctas * nbytes, np.uint8)
    r = ptxemu.run_ptx(
        text, grid=(ctas, 1, 1), block=(32,), cluster=(ctas, 1, 1), args=[m.encode(), x, out, nbytes],
        shared=SHARED + 64, config=config,
    )  # fmt: skip
    return out, r


def matrix(rows: int = 40, columns: int = 96) -> np.ndarray:
    return np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)


def map_of(x: np.ndarray, box: tuple[int, ...], swizzle: sw.Swizzle = sw.NONE) -> TensorMap:
    return tensor_map(x.ctypes.data, "u16", x.shape[::-1], x.strides[-2::-1], box, swizzle=swizzle)


def slow(x: np.ndarray, coords: list[int], box: tuple[int, int]) -> np.ndarray:
    """The box as a dense (rows, columns) array, zeros outside."""
    padded = np.zeros((x.shape[0] + 2 * 256, x.shape[1] + 2 * 256), x.dtype)
    padded[256 : 256 + x.shape[0], 256 : 256 + x.shape[1]] = x
    return padded[256 + coords[1] :, 256 + coords[0] :][: box[1], : box[0]]


def unswizzle(raw: np.ndarray, s: sw.Swizzle) -> np.ndarray:
    """Shared memory (from a 1024-byte boundary on) with the swizzle taken off."""
    return raw[s(np.arange(len(raw)))]


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
@pytest.mark.parametrize("swizzle", sw.ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("coords", [[16, 3], [-8, -2], [64, 36], [96, 0]])
def test_load(coords: list[int], swizzle: sw.Swizzle, config: ptxemu.Config) -> None:
    x = matrix()
    box = ((swizzle.span or 64) // 2, 8)
    m = map_of(x, box, swizzle)
    # cache hints are taken and change nothing; the wait is for the whole box, out-of-bounds rows included
    body = "mov.b64 %rd8, 0x12f0000000000000;\n" + load(coords, m.box_bytes, ".L2::cache_hint", extra=", %rd8")
    out, _ = launch(kernel(body), m, x, m.box_bytes, config=config)
    assert np.array_equal(unswizzle(out, swizzle).view(np.uint16).reshape(8, -1), slow(x, coords, box))


def test_five_dimensions() -> None:
    x = np.arange(3 * 2 * 4 * 5 * 16, dtype=np.uint16).reshape(3, 2, 4, 5, 16)
    m = tensor_map(x.ctypes.data, "u16", (16, 5, 4, 2, 3), x.strides[-2::-1], (8, 2, 2, 2, 1))
    out, _ = launch(kernel(load([8, 1, 3, 0, 2], m.box_bytes)), m, x, m.box_bytes)
    expected = np.zeros((1, 2, 2, 2, 8), np.uint16)
    expected[:, :, :1] = x[2:3, 0:2, 3:4, 1:3, 8:16]
    assert np.array_equal(out.view(np.uint16).reshape(expected.shape), expected)


def test_expecting_more_than_the_box_never_ends() -> None:
    x = matrix()
    m = map_of(x, (64, 8))
    with pytest.raises(DeadlockError, match="tx bytes pending 16"):
        launch(kernel(load([0, 0], m.box_bytes + 16)), m, x, m.box_bytes)


def test_events_of_a_load() -> None:
    x = matrix()
    m = map_of(x, (64, 8))
    _, r = launch(kernel(load([8, 2], m.box_bytes)), m, x, m.box_bytes, config=ptxemu.Config(trace=True))
    begin, end = [e for e in r.events if e.row == "tma"]
    assert (begin.kind, end.kind, begin.name) == ("begin", "end", "TMA load")
    assert begin.t < end.t
    assert {k: begin.data[k] for k in ("bytes", "coords", "box", "offset", "barrier", "warp")} == {
        "bytes": 1024, "coords": [8, 2], "box": [64, 8], "offset": 1024, "barrier": 1024 + BAR, "warp": 0,
    }  # fmt: skip


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
def test_store_and_its_groups(config: ptxemu.Config) -> None:
    """Two groups of stores; after wait_group 0 both are in global memory, and .read lets the source be reused."""
    x, before = matrix(), matrix()
    m = map_of(x, (32, 4))
    box = m.box_bytes
    body = f"""
    add.u32 %r10, %r2, {box};
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {{0, 0}}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {{80, 38}}], [%r10];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 1;
    st.shared.u32 [%r2], 0xffffffff;
    cp.async.bulk.wait_group 0;
    ld.global.u16 %rs1, [%rd9];
    st.shared.u16 [%r10], %rs1;
    """
    out, _ = launch(kernel(body, wait="", fill=0x00070007), m, x, 2 * box, config=config)
    before[0:4, 0:32] = 7
    before[38:40, 80:96] = 7
    assert np.array_equal(x, before)
    assert out[:4].view(np.uint32)[0] == 0xFFFFFFFF
    assert out[box : box + 2].view(np.uint16)[0] == 7  # read back from the tensor after the wait


def test_waiting_for_one_of_two_groups_may_see_the_second_unfinished() -> None:
    """wait_group 1 waits for the older group only: under some schedule the younger one is still out."""
    seen = set()
    for seed in range(12):
        x = matrix()
        m = map_of(x, (32, 4))
        body = f"""
        add.u32 %r10, %r2, {m.box_bytes};
        cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {{0, 0}}], [%r2];
        cp.async.bulk.commit_group;
        cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {{0, 8}}], [%r10];
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 1;
        ld.global.u16 %rs1, [%rd9];
        ld.global.u16 %rs2, [%rd9+{8 * 96 * 2}];
        st.shared.u16 [%r2], %rs1;
        st.shared.u16 [%r2+2], %rs2;
        """
        config = ptxemu.Config(schedule="adversarial", seed=seed)
        out, _ = launch(kernel(body, wait="", fill=0x00070007), m, x, 128, config=config)
        first, second = out[:4].view(np.uint16).tolist()
        assert first == 7
        assert second in (7, 8 * 96)
        seen.add(second)
    assert 8 * 96 in seen


def test_wait_group_read_does_not_wait_for_the_write() -> None:
    """After .read the source may be reused; that the data are in global memory is not promised, and not always so."""
    seen = set()
    for seed in range(12):
        x = matrix()
        m = map_of(x, (32, 4))
        body = """
        cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {0, 8}], [%r2];
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        st.shared.u32 [%r2], 0xffffffff;
        ld.global.u16 %rs1, [%rd9+1536];
        st.shared.u16 [%r2], %rs1;
        """
        config = ptxemu.Config(schedule="adversarial", seed=seed)
        out, _ = launch(kernel(body, wait="", fill=0x00070007), m, x, 128, config=config)
        seen.add(int(out[:2].view(np.uint16)[0]))
        assert (x[8:12, :32] == 7).all()  # the copy itself has the data of before
    assert 8 * 96 in seen


@pytest.mark.parametrize("config", SCHEDULES, ids=lambda c: f"{c.schedule}-{c.seed}")
def test_multicast_reaches_every_cta_of_the_mask(config: ptxemu.Config) -> None:
    """CTA 0 of a cluster of four loads for CTAs 0, 1 and 3; each waits on its own barrier."""
    x = matrix()
    m = map_of(x, (32, 4))
    body = f"""
    mov.u32 %r11, %cluster_ctarank;
    setp.eq.u32 %p4, %r11, 2;
    @%p4 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {m.box_bytes};
    setp.ne.u32 %p4, %r11, 0;
    @%p4 bra ISSUED;
    mov.u16 %rs1, 11;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [%r2], [%rd1, {{8, 1}}], [%r3], %rs1;
    """
    wait = "mov.u32 %r11, %cluster_ctarank;\nsetp.eq.u32 %p4, %r11, 2;\n@%p4 bra SKIP;\n" + WAIT + "\nSKIP:"
    out, _ = launch(kernel(body, wait, CLUSTER), m, x, m.box_bytes, ctas=4, config=config)
    for cta in range(4):
        got = out.reshape(4, -1)[cta].view(np.uint16).reshape(4, 32)
        assert np.array_equal(got, x[1:5, 8:40] if cta != 2 else np.zeros((4, 32), np.uint16))


def test_plain_bulk_copies_there_and_back() -> None:
    x = matrix()
    m = map_of(x, (64, 8))
    body = """
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    add.u64 %rd10, %rd9, 64;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd10], 256, [%r3];
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra W;
    add.u64 %rd11, %rd9, 1024;
    cp.async.bulk.global.shared::cta.bulk_group [%rd11], [%r2], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    """
    expected = x.copy()
    expected.reshape(-1)[512 : 512 + 64] = x.reshape(-1)[32 : 32 + 64]
    source = x.reshape(-1)[32 : 32 + 128].copy()
    out, _ = launch(kernel(body), m, x, 256)
    assert np.array_equal(out.view(np.uint16), source)
    assert np.array_equal(x, expected)


def test_prefetches_check_what_they_are_given() -> None:
    x = matrix()
    m = map_of(x, (64, 8))
    body = """
    prefetch.tensormap [%rd1];
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {8, 0}];
    cp.async.bulk.prefetch.L2.global [%rd9], 64;
    """
    launch(kernel(body, wait=""), m, x, 128)
    with pytest.raises(MemoryFault, match="multiple of 64"):
        launch(kernel("add.u64 %rd5, %rd1, 8;\nprefetch.tensormap [%rd5];", wait=""), m, x, 128)


BAD = {
    "box off a 16-byte boundary": (load([4, 0], 1024), IllegalInstruction, "8 bytes"),
    "wrong rank": (load([0, 0, 0], 1024), IllegalInstruction, "rank 2"),
    "unaligned destination": ("add.u32 %r2, %r2, 64;\n" + load([0, 0], 1024), MemoryFault, "multiple of 128"),
    "no barrier": (load([0, 0], 1024).replace("], [%r3]", "], [%r2]"), IllegalInstruction, "no mbarrier"),
    "im2col": (load([0, 0], 1024).replace(".tile", ".im2col"), UnsupportedInstruction, "im2col"),
    "gather": (load([0, 0], 1024).replace(".tile", ".tile::gather4"), UnsupportedInstruction, "gather4"),
    "negative store": (
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {0, -1}], [%r2];",
        IllegalInstruction,
        "negative",
    ),
    "unaligned bulk copy": (
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd9], 24, [%r3];",
        MemoryFault,
        "multiple of 16",
    ),
    "map of zeros": (load([0, 0], 1024).replace("%rd1,", "%rd9,"), IllegalInstruction, "inner dimension"),
    "foreign CTA": ("add.u32 %r2, %r2, 0x1000000;\n" + load([0, 0], 1024), MemoryFault, "rank 1 of a cluster of 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_rules_are_enforced_with_the_place(case: str) -> None:
    body, error, text = BAD[case]
    room = np.zeros(40 * 96 + 32, np.uint16)
    x = room[-room.ctypes.data % 64 // 2 :][: 40 * 96].reshape(40, 96)  # on a 64-byte boundary, as a tensor map must be
    m = map_of(x, (64, 8))
    with pytest.raises(error, match=text) as caught:
        launch(kernel(body, wait=""), m, x, 128)
    assert "PTX line" in str(caught.value)


def test_global_memory_outside_of_every_buffer_is_a_fault_when_the_copy_runs() -> None:
    x = matrix()
    m = tensor_map(x.ctypes.data, "u16", (96, 41), (192,), (64, 8))
    with pytest.raises(MemoryFault, match=r"TMA load \(asynchronous"):
        launch(kernel(load([0, 36], m.box_bytes)), m, x, 128)
