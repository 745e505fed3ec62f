"""cp.async and its groups, st.async and red.async across a cluster: done later, counted by threads and by mbarriers."""

import numpy as np
import pytest

from ptxemu import Config, run_ptx
from ptxemu.errors import DeadlockError, MemoryFault, UnsupportedInstruction

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
SCHEDULES = [Config(), *(Config(schedule="adversarial", seed=seed) for seed in range(4))]
REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %d<40>;"


def kernel(body: str) -> str:
    return f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b) {{ {REGISTERS}
        ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; mov.u32 %r0, %tid.x; mov.u32 %r1, sm;
        mad.wide.u32 %d3, %r0, 16, %d1; mad.lo.u32 %r2, %r0, 16, %r1;
        {body}
        ret; }}"""


BACK = """ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r2];
    mad.wide.u32 %d4, %r0, 16, %d2; st.global.v4.b32 [%d4], {%r10, %r11, %r12, %r13};"""


def run(body: str, rows: int = 64, *, a=None, config=None, **launch):
    a = np.arange(1, rows * 4 + 1, dtype=np.uint32) if a is None else a
    b = np.zeros(rows * 4, np.uint32)
    launch = {"block": (rows,), "shared": 16 * rows + 64, **launch}
    result = run_ptx(kernel(body), args=[a, b], config=config, **launch)
    return a.reshape(-1, 4), b.reshape(-1, 4), result


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_copies_what_a_thread_waits_for(config):
    body = f"cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.commit_group; cp.async.wait_group 0; {BACK}"
    a, b, _ = run(body, config=config)
    assert np.array_equal(a, b)


def test_without_the_wait_the_bytes_are_not_there_yet():
    a, b, _ = run(f"cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.commit_group; {BACK}")
    assert (b == 0xFFFFFFFF).all()
    # A wait that leaves one group open does not wait for this one.
    _, b, _ = run(f"cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.commit_group; cp.async.wait_group 1; {BACK}")
    assert (b == 0xFFFFFFFF).all()
    # A copy that is in no group is left out by wait_group and waited for by wait_all.
    _, b, _ = run(f"cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.wait_group 0; {BACK}")
    assert (b == 0xFFFFFFFF).all()
    _, b, _ = run(f"cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.wait_all; {BACK}")
    assert np.array_equal(a, b)


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_groups_of_lanes_that_parted(config):
    """Even lanes commit an empty group more: for them, `all but one` includes the copy."""
    body = f"""cp.async.ca.shared.global [%r2], [%d3], 16; cp.async.commit_group;
        and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 cp.async.commit_group; cp.async.wait_group 1;
        @!%p1 cp.async.wait_all; {BACK}"""
    a, b, _ = run(body, config=config)
    assert np.array_equal(a, b)


def test_source_size_and_ignored_sources():
    """The rest is zero; what is not read may lie anywhere."""
    body = f"""and.b32 %r3, %r0, 3; shl.b32 %r3, %r3, 2; setp.eq.u32 %p1, %r3, 0; @%p1 mov.u64 %d3, 16;
        cp.async.cg.shared.global [%r2], [%d3], 16, %r3; cp.async.wait_all; {BACK}"""
    a, b, _ = run(body)
    size = np.arange(64) % 4
    assert np.array_equal(b, np.where(np.arange(4) < size[:, None], a, 0))
    _, b, _ = run(body.replace("16, %r3;", "16, %p1;"))
    assert np.array_equal(b, np.where(size[:, None] > 0, a, 0))


def test_bounds_and_sizes():
    with pytest.raises(MemoryFault, match="lane 31"):
        run("add.u64 %d3, %d3, 16; cp.async.cg.shared.global [%r2], [%d3], 16;", 32)
    with pytest.raises(MemoryFault, match="multiple of 16"):
        run("add.u32 %r2, %r2, 4; cp.async.cg.shared.global [%r2], [%d3], 16;", 32)
    with pytest.raises(UnsupportedInstruction, match="16 bytes"):
        run("cp.async.cg.shared.global [%r2], [%d3], 8;", 32)


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_arrives_on_an_mbarrier_when_the_copies_are_done(config, noinc):
    """Without .noinc the barrier counts the arrivals on top of what it was given."""
    body = f"""add.u32 %r4, %r1, 1024; setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r4], 64; READY: bar.sync 0;
        cp.async.cg.shared.global [%r2], [%d3], 16; cp.async.mbarrier.arrive{noinc}.shared.b64 [%r4];
        {"" if noinc else "mbarrier.arrive.shared.b64 _, [%r4];"}
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
        xor.b32 %r2, %r2, 16; xor.b32 %r0, %r0, 1; {BACK}"""
    a, b, _ = run(body, config=config)
    assert np.array_equal(a, b)
    if noinc:
        with pytest.raises(DeadlockError):
            run(body.replace(".b64 [%r4], 64;", ".b64 [%r4], 65;"), config=config)


EXCHANGE = """add.u32 %r4, %r1, 512; mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; setp.ne.u32 %p1, %r0, 0;
    {fill}
    @%p1 bra READY; mbarrier.init.shared.b64 [%r4], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {bytes};
    READY: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r7, %r2, %r6; mapa.shared::cluster.u32 %r8, %r4, %r6;
    mad.lo.u32 %r9, %r5, 100, %r0;
    {store}
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
    mad.wide.u32 %d2, %r5, 512, %d2; """


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_st_async_writes_and_pays_in_another_cta(config):
    store = """st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r7], {%r9, %r9, %r0, 7}, [%r8];"""
    body = EXCHANGE.format(fill="", bytes=512, store=store) + BACK
    _, b, _ = run(body, 64, block=(32,), grid=(2,), cluster=(2,), config=config)
    lane = np.arange(32)
    for rank in (0, 1):
        sent = (1 - rank) * 100 + lane
        assert np.array_equal(b[32 * rank :][:32], np.stack([sent, sent, lane, 0 * lane + 7], -1))


@pytest.mark.parametrize("config", SCHEDULES, ids=str)
def test_red_async_combines_in_another_cta(config):
    """All lanes of the neighbour add to the first word of this CTA."""
    store = """mapa.shared::cluster.u32 %r7, %r1, %r6;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7], %r9, [%r8];"""
    fill = "mov.u32 %r20, 5; st.shared.v4.b32 [%r2], {%r20, %r20, %r20, %r20};"
    body = EXCHANGE.format(fill=fill, bytes=128, store=store) + BACK
    _, b, _ = run(body, 64, block=(32,), grid=(2,), cluster=(2,), config=config)
    for rank in (0, 1):
        assert b[32 * rank, 0] == 5 + sum((1 - rank) * 100 + i for i in range(32))
        assert (b[32 * rank, 1:] == 5).all()
