"""Barriers, phases, deadlocks, asynchronous order, and schedules."""

import numpy as np
import pytest

from ptxemu import Config, DeadlockError, IllegalInstruction, run_ptx

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"
SCHEDULES = [Config(), *(Config(schedule="adversarial", seed=s) for s in range(6))]


def kernel(body, params=".param .u64 a"):
    return f"""{HEAD}.visible .entry k({params}) {{
.reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %d<40>;
.shared .align 8 .b8 bar[64]; .shared .align 4 .b8 box[4096];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.u32 %r3, bar; mov.u32 %r4, box;
{body}
ret;
}}"""


WAIT = "{ .reg .pred P; W: mbarrier.try_wait.parity.shared.b64 P, [BAR], PARITY; @P bra D; bra W; D: }"


def wait(bar, parity, form="try_wait"):
    return WAIT.replace("BAR", bar).replace("PARITY", parity).replace("try_wait", form)


@pytest.mark.parametrize("config", SCHEDULES)
def test_named_barriers_with_id_and_count_from_registers(config):
    """Pairs of warps exchange through barriers of their own; then all meet."""
    body = """mov.u32 %r5, %r1; shr.u32 %r6, %r1, 1; add.u32 %r6, %r6, 3; mov.u32 %r7, 64; shl.b32 %r8, %r0, 2;
        add.u32 %r9, %r4, %r8;
        st.shared.u32 [%r9], %r0; barrier.cta.sync.aligned %r6, %r7; xor.b32 %r10, %r8, 128; add.u32 %r11, %r4, %r10;
        ld.shared.u32 %r12, [%r11];
        bar.sync 0; mul.lo.u32 %r13, %r12, 2; st.shared.u32 [%r9], %r13; bar.sync 0; sub.u32 %r14, 508, %r8;
        add.u32 %r15, %r4, %r14;
        ld.shared.u32 %r16, [%r15]; ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], %r16;"""
    out = np.zeros(128, np.uint32)
    run_ptx(kernel(body), block=(128,), args=[out], config=config)
    assert out.tolist() == [2 * ((127 - t) ^ 32) for t in range(128)]


@pytest.mark.parametrize("config", SCHEDULES)
def test_producers_arrive_and_do_not_wait(config):
    body = """setp.ge.u32 %p1, %r1, 2; @%p1 bra CONSUME; shl.b32 %r8, %r0, 2; add.u32 %r9, %r4, %r8;
        st.shared.u32 [%r9], %r0; bar.arrive 1, 128; bra OUT;
        CONSUME: bar.sync 1, 128; sub.u32 %r8, %r0, 64; shl.b32 %r8, %r8, 2; add.u32 %r9, %r4, %r8;
        ld.shared.u32 %r10, [%r9];
        ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], %r10; OUT:"""
    out = np.zeros(128, np.uint32)
    run_ptx(kernel(body), block=(128,), args=[out], config=config)
    assert out[64:].tolist() == list(range(64))


@pytest.mark.parametrize("config", SCHEDULES)
def test_bar_red(config):
    body = """setp.lt.u32 %p1, %r0, 40; bar.red.popc.u32 %r5, 0, %p1; bar.red.and.pred %p2, 0, %p1;
        bar.red.or.pred %p3, 0, %p1;
        selp.b32 %r6, 100, 0, %p2; selp.b32 %r7, 1000, 0, %p3; add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r7;
        ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], %r5;"""
    out = np.zeros(96, np.uint32)
    run_ptx(kernel(body), block=(96,), args=[out], config=config)
    assert set(out.tolist()) == {1040}


def test_warps_that_have_exited_are_not_waited_for():
    body = "setp.eq.u32 %p1, %r1, 1; @%p1 exit; bar.sync 0; ld.param.u64 %d1, [a]; st.global.u32 [%d1], 1;"
    out = np.zeros(1, np.uint32)
    for config in SCHEDULES:
        out[0] = 0
        run_ptx(kernel(body), block=(96,), args=[out], config=config)
        assert out[0] == 1


RING = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 1;
        mbarrier.init.shared.b64 [%r3+8], 32; INITED: bar.sync 0;
    mov.u32 %r10, 0; setp.eq.u32 %p2, %r1, 1; @%p2 bra CONSUMER;
    PRODUCE: and.b32 %r11, %r10, 1; xor.b32 %r12, %r11, 1; {wait("%r3+8", "%r12")}
    mad.lo.u32 %r13, %r10, %r10, 5; setp.eq.u32 %p3, %r2, 0; @%p3 st.shared.u32 [%r4], %r13; bar.warp.sync -1;
    @%p3 mbarrier.arrive.shared.b64 _, [%r3]; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 10; @%p4 bra PRODUCE;
    bra OUT;
    CONSUMER: and.b32 %r11, %r10, 1; {wait("%r3", "%r11")}
    ld.shared.u32 %r14, [%r4]; mbarrier.arrive.release.cta.shared::cta.b64 %d5, [%r3+8];
    ld.param.u64 %d1, [a]; mad.lo.u32 %r15, %r10, 32, %r2; mad.wide.u32 %d2, %r15, 4, %d1; st.global.u32 [%d2], %r14;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 10; @%p4 bra CONSUMER; OUT:"""


@pytest.mark.parametrize("form", ["try_wait", "test_wait"])
@pytest.mark.parametrize("config", SCHEDULES)
def test_phases_of_a_ring(config, form):
    out = np.zeros((10, 32), np.uint32)
    run_ptx(kernel(RING.replace("try_wait", form)), block=(64,), args=[out], config=config)
    assert np.array_equal(out, np.repeat(np.arange(10) ** 2 + 5, 32).reshape(10, 32))


@pytest.mark.parametrize("config", SCHEDULES)
def test_one_lane_waits_while_the_others_stand_back(config):
    """The elected lane of each warp waits for the other warp's elected lane; both branches meet again behind it."""
    body = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 1;
        mbarrier.init.shared.b64 [%r3+8], 1; INITED: bar.sync 0;
        elect.sync _|%p2, -1; xor.b32 %r5, %r1, 1; mad.lo.u32 %r6, %r1, 8, %r3; mad.lo.u32 %r7, %r5, 8, %r3;
        @!%p2 bra JOIN;
        mbarrier.arrive.shared.b64 _, [%r7]; {wait("%r6", "0")} JOIN: vote.sync.ballot.b32 %r8, %p2, -1;
        ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], %r8;"""
    out = np.zeros(64, np.uint32)
    run_ptx(kernel(body), block=(64,), args=[out], config=config)
    assert set(out.tolist()) == {1}


@pytest.mark.parametrize("config", SCHEDULES)
def test_lanes_of_one_warp_may_wait_for_each_other(config):
    """Independent thread scheduling: the lanes that stand back have to run when the lane ahead of them waits for one
    of them.
    """
    body = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 1; INITED: bar.warp.sync -1;
        setp.ge.u32 %p2, %r0, 1; @%p2 bra OTHERS; {wait("%r3", "0")} bra JOIN;
        OTHERS: setp.eq.u32 %p3, %r0, 7; @%p3 mbarrier.arrive.shared.b64 _, [%r3]; JOIN: bar.warp.sync -1;
        ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], 3;"""
    out = np.zeros(32, np.uint32)
    run_ptx(kernel(body), block=(32,), args=[out], config=config)
    assert set(out.tolist()) == {3}


def test_counts_of_an_mbarrier():
    body = """setp.ne.u32 %p1, %r0, 0; @%p1 exit; mbarrier.init.shared.b64 [%r3], 5;
        mbarrier.arrive.shared.b64 %d1, [%r3], 2;
        mbarrier.arrive.shared.b64 %d2, [%r3]; mbarrier.pending_count.b64 %r5, %d1; mbarrier.pending_count.b64 %r6, %d2;
        mbarrier.test_wait.shared.b64 %p2, [%r3], %d1; selp.b32 %r7, 1, 0, %p2;
        mbarrier.arrive_drop.shared.b64 %d3, [%r3]; mbarrier.arrive.expect_tx.shared.b64 %d4, [%r3], 64;
        mbarrier.test_wait.shared.b64 %p2, [%r3], %d1; selp.b32 %r8, 1, 0, %p2;
        mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%r3], 64;
        mbarrier.test_wait.shared.b64 %p2, [%r3], %d1; selp.b32 %r9, 1, 0, %p2; mbarrier.arrive.shared.b64 %d5, [%r3];
        mbarrier.pending_count.b64 %r10, %d5;
        ld.param.u64 %d6, [a]; st.global.v4.u32 [%d6], {%r5, %r6, %r7, %r8}; st.global.v2.u32 [%d6+16], {%r9, %r10};"""
    out = np.zeros(8, np.uint32)
    run_ptx(
        kernel(body.replace("complete_tx.shared::cta.relaxed.cta", "complete_tx.relaxed.cta.shared::cta")),
        block=(32,),
        args=[out],
    )
    assert out[:6].tolist() == [5, 3, 0, 0, 1, 4]  # the next phase expects one arrival fewer


def test_events_tell_the_phases():
    out = np.zeros((10, 32), np.uint32)
    run = run_ptx(kernel(RING), block=(64,), args=[out], config=Config(trace=True))
    ring = [e for e in run.events if e.row == "mbar:0x400"]
    assert [(e.name, e.data["pending"], e.data["phase"]) for e in ring[:4]] == [
        ("init", 1, 0), ("arrive", 0, 0), ("phase", 1, 1), ("arrive", 0, 1),
    ]  # fmt: skip
    assert all(e.data["tx"] == 0 and e.data["ptx_line"] > 0 for e in ring)
    phases = [e.data["phase"] for e in run.events if e.row.startswith("mbar") and e.name == "phase"]
    assert sorted(phases) == sorted([*range(1, 11)] * 2)
    stacks: dict = {}
    last = 0.0
    for e in run.events:
        assert e.t >= last
        last = e.t
        stack = stacks.setdefault((e.cta, e.row), [])
        if e.kind == "begin":
            stack.append(e.name)
        elif e.kind == "end":
            assert stack.pop() == e.name
    assert not any(stacks.values())
    assert any(e.name == "wait" and e.data["barrier"] for e in run.events)
    from ptxemu import Trace

    assert Trace.from_json(run.trace.to_json()) == run.trace


# -------------------------------------------------------------------------------------------------------------
# deadlocks


@pytest.mark.parametrize("config", SCHEDULES)
def test_deadlock_says_who_waits_for_what(config):
    body = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 3; INITED: bar.sync 0;
        setp.eq.u32 %p2, %r1, 1; @%p2 bra SECOND; setp.eq.u32 %p3, %r2, 0;
        @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
        {wait("%r3", "0")} bra OUT; SECOND: bar.sync 2, 96; OUT:"""
    with pytest.raises(DeadlockError) as caught:
        run_ptx(kernel(body, ""), grid=(2,), block=(64,), config=config)
    error = caught.value
    found = {(w["cta"], w["warp"]): w for w in error.waiting}
    assert set(found) == {(c, w) for c in range(2) for w in range(2)}
    first, second = found[1, 0], found[1, 1]
    assert (first["barrier"], first["phase"], first["arrivals_pending"], first["tx_bytes_pending"]) == (1024, 0, 2, 128)
    assert (second["barrier"], second["threads_arrived"], second["threads_expected"]) == (2, 32, 96)
    assert first["so_far_from"].startswith("PTX line") and first["so_far_from"].endswith("(1 times)")
    assert "mbarrier.try_wait" in first["instruction"] and "bar.sync 2, 96" in second["instruction"]
    text = str(error)
    assert (
        "waits on mbarrier 0x400 for the end of phase 0 (parity 0)" in text
        and "arrivals pending 2" in text
        and "PTX line" in text
    )


@pytest.mark.parametrize("config", SCHEDULES[:3])
def test_spinning_forever_is_a_deadlock_too(config):
    body = (
        f"setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 1; "
        f"INITED: bar.sync 0; {wait('%r3', '0', 'test_wait')}"
    )
    with pytest.raises(DeadlockError, match="polls in a loop"):
        run_ptx(kernel(body, ""), block=(64,), config=config)
    with pytest.raises(DeadlockError, match="polls in a loop"):
        run_ptx(
            kernel(
                "ld.param.u64 %d1, [a]; L: ld.acquire.gpu.global.u32 %r5, [%d1]; setp.eq.u32 %p1, %r5, 0; @%p1 bra L;"
            ),
            block=(32,),
            args=[np.zeros(1, np.uint32)],
            config=config,
        )


def test_a_missing_lane_is_reported():
    body = f"""setp.ne.u32 %p1, %r0, 0; @%p1 bra INITED; mbarrier.init.shared.b64 [%r3], 1; INITED: bar.warp.sync -1;
        setp.eq.u32 %p2, %r0, 3; @!%p2 bra REST; {wait("%r3", "0")} REST: bar.sync 0;"""
    with pytest.raises(DeadlockError, match="waits for the other lanes of its warp"):
        run_ptx(kernel(body, ""), block=(32,))


def test_a_try_wait_that_is_only_a_look_ahead_times_out():
    """The phase would end only after something this very thread does later: the time limit has to pass."""
    body = """setp.ne.u32 %p1, %r0, 0; @%p1 exit; mbarrier.init.shared.b64 [%r3], 1;
        mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
        selp.b32 %r5, 1, 0, %p2; mbarrier.arrive.shared.b64 _, [%r3];
        mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; selp.b32 %r6, 1, 0, %p2;
        ld.param.u64 %d1, [a]; st.global.v2.u32 [%d1], {%r5, %r6};"""
    out = np.full(2, 9, np.uint32)
    run_ptx(kernel(body), block=(32,), args=[out])
    assert out.tolist() == [0, 1]


@pytest.mark.parametrize(
    "body, match",
    [
        ("mbarrier.arrive.shared.b64 _, [%r3];", "no mbarrier at shared address 0x400"),
        ("mbarrier.init.shared.b64 [%r3], 0;", "count 0: must be 1 to"),
        (
            (
                "mbarrier.init.shared.b64 [%r3], 1; mbarrier.inval.shared.b64 [%r3]; "
                "mbarrier.test_wait.parity.shared.b64 %p1, [%r3], 0;"
            ),
            "was invalidated",
        ),
        (
            (
                "mbarrier.init.shared.b64 [%r3], 1; mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3], 8; "
                "mbarrier.arrive.shared.b64 _, [%r3]; mbarrier.arrive.shared.b64 _, [%r3];"
            ),
            "1 arrivals where only 0 were pending",
        ),
        ("bar.sync 16;", "barrier number 16"),
        ("bar.sync 1, 33;", "positive multiple of 32"),
        ("barrier.cluster.wait;", "never arrived"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "twice without a wait"),
    ],
)
def test_misuse(body, match):
    threads = 64 if "twice" in match else 1
    body = "setp.ge.u32 %p8, %r0, 32; @%p8 bra END; " + body + " END: bar.sync 9;" if threads == 64 else body
    with pytest.raises(IllegalInstruction, match=match):
        run_ptx(kernel(body, ""), block=(threads,))


def test_barrier_with_two_different_counts():
    with pytest.raises(IllegalInstruction, match="comes with a count of 96 threads"):
        run_ptx(kernel("setp.eq.u32 %p1, %r1, 0; selp.b32 %r5, 128, 96, %p1; bar.sync 1, %r5;", ""), block=(64,))


# -------------------------------------------------------------------------------------------------------------
# schedules


RACE = """ld.param.u64 %d1, [a]; mov.u32 %r5, %ctaid.x; mad.lo.u32 %r6, %r5, 4, %r1; setp.ne.u32 %p1, %r2, 0; @%p1 exit;
    atom.global.add.u32 %r7, [%d1], 1; mad.wide.u32 %d2, %r7, 4, %d1; st.global.u32 [%d2+4], %r6;"""


def order_of(config):
    out = np.zeros(33, np.uint32)
    run = run_ptx(kernel(RACE), grid=(8,), block=(128,), args=[out], config=config)
    return tuple(out[1:].tolist()), run.ticks


def test_the_seed_decides_the_order_and_nothing_else_does():
    orders = {seed: order_of(Config(schedule="adversarial", seed=seed)) for seed in range(4)}
    for seed, order in orders.items():
        assert sorted(order[0]) == list(range(32))
        assert order_of(Config(schedule="adversarial", seed=seed)) == order
    assert len({order for order, _ in orders.values()}) >= 3
    assert order_of(Config()) == order_of(Config())


def test_a_missing_barrier_shows_under_some_schedule():
    """Without the barrier the fair schedule happens to work; the adversarial one finds the fault."""
    body = """shl.b32 %r8, %r0, 2; add.u32 %r9, %r4, %r8; st.shared.u32 [%r9], %r0; SYNC xor.b32 %r10, %r8, 128;
        add.u32 %r11, %r4, %r10;
        ld.shared.u32 %r12, [%r11]; ld.param.u64 %d1, [a]; mad.wide.u32 %d2, %r0, 4, %d1; st.global.u32 [%d2], %r12;"""
    want = [t ^ 32 for t in range(64)]

    def results(text):
        out = np.zeros(64, np.uint32)
        for seed in range(12):
            run_ptx(kernel(text), block=(64,), args=[out], config=Config(schedule="adversarial", seed=seed))
            yield out.tolist() == want

    assert all(results(body.replace("SYNC", "bar.sync 0;")))
    assert not all(results(body.replace("SYNC", "")))
