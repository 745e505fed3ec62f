"""Loads, stores, atomics; faults that name the culprit; bank conflicts."""

import numpy as np
import pytest

from ptxemu import Config, MemoryFault, run_ptx
from ptxemu.isa.memory import wavefronts

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, params: str = "", extra: str = "") -> str:
    return (
        f"{HEAD}{extra}\n.visible .entry k({params}) "
        f"{{\n.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .f32 %f<9>; .reg .b64 %d<40>; "
        f".reg .b128 %q<3>;\nmov.u32 %r0, %tid.x;\n{body}\nret;\n}}"
    )


A = ".param .u64 a"
AB = ".param .u64 a, .param .u64 b"


def test_vectors_and_widths():
    source = np.arange(32 * 8, dtype=np.uint32)
    target = np.zeros_like(source)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mad.wide.u32 %d3, %r0, 32, %d1;
        mad.wide.u32 %d4, %r0, 32, %d2;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d3]; ld.global.nc.L1::no_allocate.v2.b64 {%d5, %d6}, [%d3+16];
        st.global.v2.b64 [%d4], {%d5, %d6}; st.global.v4.u32 [%d4+16], {%r4, %r3, %r2, %r1};"""
    run_ptx(kernel(body, AB), block=(32,), args=[source, target])
    rows, out = source.reshape(32, 8), target.reshape(32, 8)
    assert np.array_equal(out[:, :4], rows[:, 4:])
    assert np.array_equal(out[:, 4:], rows[:, 3::-1])


def test_v8_and_b128():
    source = np.arange(32 * 8, dtype=np.uint32)
    target = np.zeros_like(source)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mad.wide.u32 %d3, %r0, 32, %d1;
        mad.wide.u32 %d4, %r0, 32, %d2;
        ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d3];
        st.global.v8.b32 [%d4], {%r8, %r7, %r6, %r5, %r4, %r3, %r2, %r1};
        ld.global.b128 %q1, [%d4]; st.global.b128 [%d4+16], %q1;"""
    buffer = np.zeros(32 * 8 + 8, np.uint32)
    shift = -buffer.ctypes.data % 32 // 4
    aligned = buffer[shift : shift + 256]
    aligned[:] = source
    where = np.zeros(32 * 8 + 8, np.uint32)
    shift = -where.ctypes.data % 32 // 4
    target = where[shift : shift + 256]
    run_ptx(kernel(body, AB), block=(32,), args=[aligned, target])
    rows, out = source.reshape(32, 8), target.reshape(32, 8)
    assert np.array_equal(out[:, :4], rows[:, :3:-1])
    assert np.array_equal(out[:, 4:], rows[:, :3:-1])


def test_bytes_extend():
    source = np.array([0, 1, 127, 128, 255] * 7, np.uint8)[:32].copy()
    signed, unsigned = np.zeros(32, np.int32), np.zeros(32, np.uint32)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; cvt.u64.u32 %d0, %r0;
        add.s64 %d4, %d1, %d0;
        ld.global.s8 %r1, [%d4]; ld.global.u8 %r2, [%d4]; ld.global.b8 %h1, [%d4]; mad.wide.u32 %d5, %r0, 4, %d2;
        mad.wide.u32 %d6, %r0, 4, %d3;
        st.global.u32 [%d5], %r1; cvt.u32.u16 %r3, %h1; add.u32 %r2, %r2, %r3; st.global.u32 [%d6], %r2;
        neg.s16 %h2, %h1; st.global.b8 [%d4], %h2;"""
    before = source.copy()
    run_ptx(kernel(body, AB + ", .param .u64 c"), block=(32,), args=[source, signed, unsigned])
    assert np.array_equal(signed, before.view(np.int8).astype(np.int32))
    assert np.array_equal(unsigned, 2 * before.astype(np.uint32))
    assert np.array_equal(source, (0 - before.astype(np.int16)).astype(np.uint8))


SHARED = ".extern .shared .align 16 .b8 dyn[];"


def test_shared_static_dynamic_local_generic():
    out = np.zeros((2, 64), np.uint32)
    body = """.shared .align 4 .b8 fixed[256]; .local .align 8 .b8 mine[16]; mov.u32 %r1, %ctaid.x; shl.b32 %r2, %r0, 2;
        mov.u32 %r3, fixed; add.u32 %r4, %r3, %r2; mad.lo.u32 %r5, %r1, 1000, %r0; st.shared.u32 [%r4], %r5;
        mov.u32 %r6, dyn; add.u32 %r7, %r6, %r2; add.u32 %r8, %r5, 7; st.shared.u32 [%r7], %r8; bar.sync 0;
        xor.b32 %r9, %r2, 252; add.u32 %r10, %r3, %r9; ld.shared.u32 %r11, [%r10];
        cvt.u64.u32 %d1, %r7; cvta.shared.u64 %d2, %d1; ld.u32 %r12, [%d2]; isspacep.shared %p1, %d2;
        isspacep.global %p2, %d2;
        st.local.u32 [mine+8], %r12; mov.u64 %d7, mine; cvta.local.u64 %d8, %d7; ld.u32 %r13, [%d8+8];
        add.u32 %r14, %r11, %r13; @!%p1 mov.u32 %r14, 0; @%p2 mov.u32 %r14, 1;
        ld.param.u64 %d3, [a]; mad.lo.u32 %r15, %r1, 64, %r0; mad.wide.u32 %d4, %r15, 4, %d3; st.u32 [%d4], %r14;"""
    run_ptx(kernel(body, A, SHARED), grid=(2,), block=(64,), args=[out], shared=256)
    t = np.arange(64)
    for cta in range(2):
        assert np.array_equal(out[cta], cta * 1000 + (63 - t) + cta * 1000 + t + 7)


def test_generic_access_to_two_spaces_and_two_buffers():
    a, b = np.zeros(32, np.uint32), np.arange(100, 132, dtype=np.uint32)
    body = """.shared .align 4 .b8 s[128]; mov.u64 %d1, s; cvta.shared.u64 %d1, %d1; mad.wide.u32 %d1, %r0, 4, %d1;
        st.u32 [%d1], %r0;
        ld.param.u64 %d2, [b]; mad.wide.u32 %d2, %r0, 4, %d2; ld.param.u64 %d4, [a]; mad.wide.u32 %d4, %r0, 4, %d4;
        and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %d3, %d1, %d2, %p1; ld.u32 %r2, [%d3];
        st.global.u32 [%d4], %r2;
        selp.b64 %d5, %d4, %d2, %p1; st.global.u32 [%d5], 5;"""
    run_ptx(kernel(body, AB), block=(32,), args=[a, b])
    even = np.arange(32) % 2 == 0
    assert np.array_equal(a, np.where(even, 5, np.arange(100, 132)))
    assert np.array_equal(b, np.where(even, np.arange(100, 132), 5))


def test_module_variables_have_their_values_at_every_launch():
    extra = (
        ".visible .global .align 4 .u32 table[3] = {10, 20, 30}; "
        ".const .align 4 .f32 half = 0f3F000000; .global .u64 where = table;"
    )
    body = """ld.param.u64 %d1, [a]; mov.u64 %d2, table; ld.global.u32 %r1, [%d2+4]; add.u32 %r2, %r1, 1;
        st.global.u32 [%d2+4], %r2;
        ld.const.f32 %f1, [half]; cvt.rzi.u32.f32 %r3, %f1; ld.global.u64 %d3, [where]; ld.u32 %r4, [%d3+8];
        add.u32 %r5, %r1, %r4;
        st.global.v2.u32 [%d1], {%r5, %r3};"""
    out = np.zeros(2, np.uint32)
    for _ in range(2):
        run_ptx(kernel(body, A, extra), block=(1,), args=[out])
        assert out.tolist() == [50, 0]


ATOMICS = {
    "add.u32": (5, lambda v: 5 + int(v.sum()), np.uint32),
    "max.s32": (-3, lambda v: max(-3, int(v.max())), np.int32),
    "min.u32": (9, lambda v: min(9, int(v.min())), np.uint32),
    "and.b32": (0xFF, lambda v: 0xFF & int(np.bitwise_and.reduce(v)), np.uint32),
    "or.b32": (64, lambda v: 64 | int(np.bitwise_or.reduce(v)), np.uint32),
    "xor.b32": (1, lambda v: 1 ^ int(np.bitwise_xor.reduce(v)), np.uint32),
    "add.f32": (0.5, lambda v: None, np.float32),
}


@pytest.mark.parametrize("op", ATOMICS)
def test_atomics(op):
    start, want, dtype = ATOMICS[op]
    values = (np.arange(64) % 13 + 1).astype(dtype)
    cell = np.array([start], dtype)
    type_ = op.split(".")[1]
    body = f"""ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mad.wide.u32 %d3, %r0, 4, %d2; ld.global.b32 %r1, [%d3];
        atom.global.{op} %r2, [%d1], %r1; red.relaxed.gpu.global.{op} [%d1], %r1;"""
    run_ptx(kernel(body, AB), block=(64,), args=[cell, values])
    if type_ == "f32":
        assert cell[0] == 0.5 + 2 * values.sum()
    else:
        both = np.concatenate([values, values])
        assert int(cell[0]) == want(both)


def test_ticket_and_lock():
    """atom.inc gives each thread its own number; atom.cas and exch make a lock over CTAs."""
    numbers, cell, lock = np.zeros(96, np.uint32), np.zeros(2, np.uint32), np.zeros(1, np.uint32)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; mov.u32 %r1, %ctaid.x;
        mad.lo.u32 %r2, %r1, 32, %r0;
        atom.global.inc.u32 %r3, [%d1], 1000; mad.wide.u32 %d4, %r2, 4, %d2; st.global.u32 [%d4], %r3;
        setp.ne.u32 %p1, %r0, 0; @%p1 bra OUT;
        TRY: atom.acquire.gpu.global.cas.b32 %r4, [%d3], 0, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra TRY;
        ld.global.u32 %r5, [%d1+4]; nanosleep.u32 20; add.u32 %r5, %r5, 1; st.global.u32 [%d1+4], %r5;
        atom.release.gpu.global.exch.b32 %r6, [%d3], 0;
        OUT:"""
    for config in (Config(), Config(schedule="adversarial", seed=5)):
        numbers[:], cell[:] = 0, 0
        run_ptx(kernel(body, AB + ", .param .u64 c"), grid=(3,), block=(32,), args=[cell, numbers, lock], config=config)
        assert sorted(numbers.tolist()) == list(range(96))
        assert cell.tolist() == [96, 3]


def test_vector_and_half_reductions():
    cell = np.zeros(4, np.float32)
    halves = np.array([1.5, -2.0], np.float16)
    body = """ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;
        red.global.v4.f32.add [%d1], {%f1, %f2, %f1, %f2}; mov.b32 %r1, 0x3C003C00;
        red.global.add.noftz.f16x2 [%d2], %r1;"""
    run_ptx(kernel(body.replace("v4.f32.add", "add.v4.f32"), AB), block=(2,), args=[cell, halves])
    assert cell.tolist() == [2, 4, 2, 4]
    assert halves.tolist() == [3.5, 0.0]


def test_a_fault_names_everything():
    data = np.zeros(40, np.float32)
    body = "ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1;\nst.global.f32 [%d2], 0f00000000;"
    with pytest.raises(MemoryFault) as caught:
        run_ptx(kernel(body, A), grid=(1,), block=(64,), args=[data])
    text = str(caught.value)
    assert "0 bytes past the end of argument 0" in text and "CTA (0,0,0), warp 1, lane 8" in text
    assert "PTX line 9" in text and "st.global.f32" in text


@pytest.mark.parametrize(
    "body, match",
    [
        ("ld.param.u64 %d1, [a]; ld.global.u32 %r1, [%d1+2];", "not a multiple of 4"),
        ("mov.u32 %r1, 64; ld.shared.u32 %r2, [%r1];", "the system's first 1024 bytes"),
        ("mov.u32 %r1, dyn; st.shared.u32 [%r1+512], %r1;", "outside of shared memory"),
        (
            "mov.u32 %r1, dyn; or.b32 %r1, %r1, 0x1000000; ld.shared::cluster.u32 %r2, [%r1];",
            "CTA rank 1 of a cluster of 1",
        ),
        ("mov.u64 %d1, 0; ld.global.u32 %r1, [%d1];", "lies in no buffer"),
        (".local .align 4 .b8 m[16]; mov.u32 %r1, 16; ld.local.u32 %r2, [%r1];", "outside of the 16 bytes"),
    ],
)
def test_faults(body, match):
    with pytest.raises(MemoryFault, match=match):
        run_ptx(kernel(body, A, SHARED), block=(32,), args=[np.zeros(8, np.uint32)], shared=512)


def test_read_only_arrays_stay_so():
    data = np.zeros(32, np.uint32)
    data.flags.writeable = False
    with pytest.raises(MemoryFault, match="read-only"):
        run_ptx(kernel("ld.param.u64 %d1, [a]; st.global.u32 [%d1], 1;", A), block=(1,), args=[data])


def test_lanes_that_are_switched_off_do_not_fault():
    data = np.zeros(4, np.uint32)
    body = (
        "ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; setp.lt.u32 %p1, %r0, 4; "
        "@%p1 st.global.u32 [%d2], %r0; @%p1 ld.global.u32 %r1, [%d2];"
    )
    run_ptx(kernel(body, A), block=(32,), args=[data])
    assert data.tolist() == [0, 1, 2, 3]


def busiest_bank(addresses, size):
    """Wavefronts by the definition: lanes in groups that move 128 bytes; in each, the most different words that one
    bank has to give.
    """
    total, lanes = 0, max(1, min(32, 128 // size))
    for g in range(0, 32, lanes):
        banks = {}
        for a in addresses[g : g + lanes]:
            for word in range(a // 4, (a + max(size, 4)) // 4):
                banks.setdefault(word % 32, set()).add(word)
        total += max(map(len, banks.values()))
    return total


@pytest.mark.parametrize(
    "size, stride",
    [(4, 4), (4, 8), (4, 128), (4, 132), (4, 0), (2, 2), (8, 8), (8, 256), (16, 16), (16, 128), (16, 144), (16, 272)],
)
def test_bank_conflicts(size, stride):
    addresses = [2048 + stride * i for i in range(32)]
    want = busiest_bank(addresses, size)
    assert wavefronts(np.array(addresses, np.int64).tobytes(), size) == want
    type_ = {2: "u16 %h1", 4: "u32 %r5", 8: "v2.u32 {%r5, %r6}", 16: "v4.u32 {%r5, %r6, %r7, %r8}"}[size]
    body = f"mov.u32 %r1, dyn; mad.lo.u32 %r2, %r0, {stride}, %r1; shr.u32 %r3, %r0, 5; ld.shared.{type_}, [%r2];"
    run = run_ptx(kernel(body, extra=SHARED), grid=(3,), block=(32,), shared=16 * 1024)
    (stats,) = run.bank_conflicts.values()
    assert (stats.accesses, stats.wavefronts, stats.ideal) == (3, 3 * want, 3 * max(1, size * 32 // 128))


def test_cluster_peers_read_each_other():
    out = np.zeros((4, 32), np.uint32)
    body = """.shared .align 4 .b8 s[128]; mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
        mov.u32 %r4, %ctaid.x;
        mad.lo.u32 %r5, %r4, 100, %r0; st.shared.u32 [%r3], %r5; barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        mov.u32 %r6, %cluster_ctarank; xor.b32 %r7, %r6, 1; mapa.shared::cluster.u32 %r8, %r3, %r7;
        ld.shared::cluster.u32 %r9, [%r8];
        getctarank.shared::cluster.u32 %r12, %r8; add.u32 %r9, %r9, %r12;
        ld.param.u64 %d1, [a]; mad.lo.u32 %r10, %r4, 32, %r0; mad.wide.u32 %d2, %r10, 4, %d1; st.global.u32 [%d2], %r9;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    for config in (Config(), Config(max_resident_ctas=2), Config(schedule="adversarial", seed=2)):
        out[:] = 0
        run_ptx(kernel(body, A), grid=(4,), cluster=(2,), block=(32,), args=[out], config=config)
        for cta in range(4):
            assert np.array_equal(out[cta], (cta ^ 1) * 100 + np.arange(32) + (cta % 2 ^ 1))
