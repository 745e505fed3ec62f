"""The checked driver on shared memory: one bug each, and its repaired twin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from checked import INIT, clean, finds, pair, run, text_of, wait

import ptxemu
from ptxemu import Config, RaceError

NEIGHBOUR = "xor.b32 %r10, %r5, 128; add.u32 %r10, %r10, %r4;\n"  # the word of the same lane of the other warp


def test_bar_sync():
    body = f"{NEIGHBOUR} st.shared.u32 [%r6], %r1; // A\nFIX\nld.shared.u32 %r11, [%r10]; // B\n"
    found = pair(body, "bar.sync 0;", "race", "a barrier or mbarrier")
    assert (found.first.warp, found.second.warp) in ((0, 1), (1, 0))
    assert found.first.space == "shared" and found.first.write and not found.second.write
    first = 1024 + 128 * found.first.warp  # the system's part of shared memory comes first
    assert found.first.range == (first, first + 128)
    assert "st.shared" in str(found) and "no barrier" in str(found)


def test_a_named_barrier_that_some_only_arrive_at():
    body = f"""{NEIGHBOUR}
@%p3 bra READER;
st.shared.u32 [%r6], %r1; // A
bar.arrive 1, 64;
bra DONE;
READER:
FIX
ld.shared.u32 %r11, [%r10]; // B
"""
    pair(body, "bar.sync 1, 64;", "race", "a barrier or mbarrier")


def test_whoever_arrives_only_has_not_waited():
    finds(
        f"""{NEIGHBOUR}
@%p3 bra READER;
st.shared.u32 [%r6], %r1; // A
bar.sync 1, 64;
bra DONE;
READER:
bar.arrive 1, 64;
ld.shared.u32 %r11, [%r10]; // B
""",
        "race",
        "a barrier or mbarrier",
    )


def test_lanes_of_a_warp():
    body = """
st.shared.u32 [%r6], %r1; // A
FIX
@!%p4 bra DONE;
ld.shared.u32 %r11, [%r6+4]; // B
"""
    pair(body, "bar.warp.sync -1;", "race", "bar.warp.sync", threads=32)


def test_a_lane_may_read_what_it_wrote():
    clean("st.shared.u32 [%r6], %r1;\n@!%p4 bra DONE;\nld.shared.u32 %r11, [%r6];\n")


def test_write_after_read():
    body = f"""{NEIGHBOUR}
st.shared.u32 [%r6], %r1;
bar.sync 0;
ld.shared.u32 %r11, [%r10]; // A
FIX
st.shared.u32 [%r6], %r11; // B
"""
    pair(body, "bar.sync 0;", "race", "a barrier or mbarrier")


def test_bytes_and_halves_of_a_word():
    clean("@%p2 st.shared.u16 [%r4], 1;\n@%p3 st.shared.u16 [%r4+2], 2;\n")
    body = "setp.eq.u32 %p5, %r1, 32;\n@%p1 st.shared.u16 [%r4], 1; // A\nFIX\n@%p5 st.shared.u32 [%r4], 2; // B\n"
    pair(body, "bar.sync 0;", "race", "a barrier or mbarrier")


def test_two_warps_write_at_once():
    found, _ = run("mov.u32 %r10, %r3;\nshl.b32 %r10, %r10, 2;\nadd.u32 %r10, %r10, %r4;\nst.shared.u32 [%r10], %r1;\n")
    assert [x.kind for x in found] == ["race"] and found[0].count == 32


@pytest.mark.parametrize("step", [0, 4])  # one word, or a word for each lane
def test_more_readers_than_usual(step):
    body = f"""
@%p2 st.shared.u32 [%r6], %r1;
bar.sync 0;
mul.lo.u32 %r10, %r3, {step};
add.u32 %r10, %r10, %r4;
ld.shared.u32 %r11, [%r10]; // A
FIX
setp.eq.u32 %p5, %r2, 15;
@%p5 st.shared.u32 [%r10], %r1; // B
"""
    pair(body, "bar.sync 0;", "race", "a barrier or mbarrier", threads=512)
    found, _ = run(body.replace("FIX", "@%p5 bar.warp.sync -1;"), threads=512)
    assert [x.count for x in found] == [15]  # every other warp has read it


def test_mbarrier():
    body = (
        INIT.format(count=32)
        + f"""{NEIGHBOUR}
@%p3 bra READER;
st.shared.u32 [%r6], %r1; // A
mbarrier.arrive.shared::cta.b64 _, [%r7];
bra DONE;
READER:
FIX
ld.shared.u32 %r11, [%r10]; // B
"""
    )
    pair(body, wait(), "race", "a barrier or mbarrier")


def test_one_lane_arrives_for_its_warp():
    body = (
        INIT.format(count=1)
        + f"""{NEIGHBOUR}
@%p3 bra READER;
st.shared.u32 [%r6], %r1; // A
FIX
@%p4 mbarrier.arrive.shared::cta.b64 _, [%r7];
bra DONE;
READER:
{wait()}
ld.shared.u32 %r11, [%r10]; // B
"""
    )
    pair(body, "bar.warp.sync -1;", "race", "a barrier or mbarrier")


@pytest.mark.parametrize(("arrive", "order"), [(".relaxed.cluster", ""), ("", ".relaxed.cluster")])
def test_a_relaxed_mbarrier_orders_nothing(arrive, order):
    finds(
        INIT.format(count=32)
        + f"""{NEIGHBOUR}
@%p3 bra READER;
st.shared.u32 [%r6], %r1; // A
mbarrier.arrive{arrive}.shared::cta.b64 _, [%r7];
bra DONE;
READER:
{wait(order=order)}
ld.shared.u32 %r11, [%r10]; // B
""",
        "race",
        "release and acquire",
    )


LOAD = (
    INIT.format(count=1)
    + """
@!%p1 bra LOADED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 256;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 256, [%r7]; // A
LOADED:
"""
)


def test_a_bulk_load_is_over_when_its_mbarrier_says_so():
    body = LOAD + "FIX\nld.shared.u32 %r11, [%r6]; // B\n"
    clean(body.replace("FIX", wait()))
    for config in ({}, {"schedule": "adversarial", "seed": 3}):
        found, _ = run(body.replace("FIX", ""), **config)
        assert {x.kind for x in found} <= {"uninitialised", "race", "completion"} and found


def test_only_the_issuing_warp_waits():
    body = LOAD + f"@!%p2 bra OTHER;\n{wait()}OTHER:\nFIX\nld.shared.u32 %r11, [%r6]; // B\n"
    clean(body.replace("FIX", "bar.sync 0;"))
    assert run(body.replace("FIX", ""))[0]


STORE = """
{before}
st.shared.u32 [%r6], %r1; // A
{writer}
bar.sync 0;
{issuer}
@!%p1 bra DONE;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r4], 256; // B
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""
PROXY = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize("where", ["writer", "issuer"])
def test_proxy_fence_on_either_side_of_the_barrier(where):
    places = dict.fromkeys(("before", "writer", "issuer"), "")
    clean(STORE.format(**places | {where: PROXY}))


@pytest.mark.parametrize("places", [{}, {"before": PROXY}, {"writer": "fence.proxy.async.global;"}])
def test_no_proxy_fence(places):
    body = STORE.format(**dict.fromkeys(("before", "writer", "issuer"), "") | places)
    found = finds(body, "proxy", "fence.proxy.async")
    assert "no fence.proxy.async" in found.message and found.first.proxy == "generic" and found.second.proxy == "async"


def test_a_proxy_fence_is_no_barrier():
    finds(
        f"""
st.shared.u32 [%r6], %r1; // A
{PROXY}
@!%p1 bra DONE;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r4], 256; // B
""",
        "race",
        "a barrier or mbarrier",
    )


def test_the_source_of_a_bulk_store_is_written_again():
    body = f"""
st.shared.u32 [%r6], %r1;
{PROXY}
bar.sync 0;
@!%p1 bra STORED;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r4], 256; // A
cp.async.bulk.commit_group;
FIX
STORED:
bar.sync 0;
st.shared.u32 [%r6], %r3; // B
"""
    pair(body, "cp.async.bulk.wait_group.read 0;", "completion", "cp.async.bulk.wait_group.read")


def test_what_a_bulk_store_writes():
    body = f"""
st.shared.u32 [%r6], %r1;
{PROXY}
bar.sync 0;
@!%p1 bra STORED;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r4], 256; // A
cp.async.bulk.commit_group;
FIX
STORED:
bar.sync 0;
ld.global.u32 %r11, [%rd5]; // B
"""
    pair(body, "cp.async.bulk.wait_group 0;", "completion", "cp.async.bulk.wait_group")
    finds(body.replace("FIX", "cp.async.bulk.wait_group.read 0;"), "completion", "cp.async.bulk.wait_group")


def test_uninitialised():
    found, _ = run("ld.shared.u32 %r11, [%r6]; // B\n")
    assert [x.kind for x in found] == ["uninitialised"] and found[0].count == 2
    assert found[0].first is None and found[0].second.range == (1024, 1152)


def test_cp_async():
    body = "cp.async.ca.shared.global [%r6], [%rd4], 4; // A\ncp.async.commit_group;\nFIX\n"
    body += "ld.shared.u32 %r11, [%r6]; // B\n"
    pair(body, "cp.async.wait_group 0;", "completion", "cp.async.wait_group")
    finds(body.replace("FIX", "cp.async.wait_group 1;"), "completion", "cp.async.wait_group")


def test_cp_async_that_arrives_on_an_mbarrier():
    body = (
        INIT.format(count=64)
        + """
cp.async.ca.shared.global [%r6], [%rd4], 4; // A
cp.async.mbarrier.arrive.noinc.shared.b64 [%r7];
FIX
ld.shared.u32 %r11, [%r6]; // B
"""
    )
    pair(body, wait(), "completion", "cp.async.wait_group")


def test_the_peers_shared_memory():
    body = """
xor.b32 %r10, %r8, 1;
mapa.shared::cluster.u32 %r11, %r6, %r10;
barrier.cluster.arrive;
barrier.cluster.wait;
st.shared::cluster.u32 [%r11], %r1; // A
FIX
ld.shared.u32 %r12, [%r6]; // B
barrier.cluster.arrive;
barrier.cluster.wait;
"""
    fix = "barrier.cluster.arrive{};\nbarrier.cluster.wait;"
    clean(body.replace("FIX", fix.format(".release")), ctas=2, cluster=2, threads=32)
    found, _ = run(body.replace("FIX", ""), ctas=2, cluster=2, threads=32)
    assert any(x.kind in ("race", "uninitialised") for x in found)
    finds(body.replace("FIX", fix.format(".relaxed")), "race", "release and acquire", ctas=2, cluster=2, threads=32)


def test_st_async():
    body = (
        INIT.format(count=1)
        + f"""
barrier.cluster.arrive;
barrier.cluster.wait;
xor.b32 %r10, %r8, 1;
mapa.shared::cluster.u32 %r11, %r6, %r10;
mapa.shared::cluster.u32 %r12, %r7, %r10;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 128;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r11], %r1, [%r12]; // A
FIX
ld.shared.u32 %r13, [%r6]; // B
{wait(label="LATE")}
barrier.cluster.arrive;
barrier.cluster.wait;
"""
    )
    clean(body.replace("FIX", wait()), ctas=2, cluster=2, threads=32)
    found, _ = run(body.replace("FIX", ""), ctas=2, cluster=2, threads=32)
    assert any(x.kind in ("race", "completion", "uninitialised") for x in found)


# --------------------------------------------------------------------------------------------------------------- rules


def test_an_mbarrier_needs_a_barrier_between_init_and_use():
    body = f"""
@!%p1 bra INITIALISED;
mbarrier.init.shared::cta.b64 [%r7], 64; // A
INITIALISED:
FIX
mbarrier.arrive.shared::cta.b64 _, [%r7]; // B
{wait()}
"""
    clean(body.replace("FIX", "bar.sync 0;"))
    found, _ = run(body.replace("FIX", ""))
    assert [(x.kind, x.missing) for x in found] == [("barrier", "a barrier between mbarrier.init and use")]


def test_an_mbarrier_of_the_peer():
    body = f"""
@!%p1 bra INITIALISED;
mbarrier.init.shared::cta.b64 [%r7], 1; // A
INIT_FENCE
INITIALISED:
barrier.cluster.arrive.relaxed;
barrier.cluster.wait;
xor.b32 %r10, %r8, 1;
mapa.shared::cluster.u32 %r11, %r7, %r10;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11]; // B
{wait(order=".acquire.cluster")}
barrier.cluster.arrive;
barrier.cluster.wait;
"""
    clean(body.replace("INIT_FENCE", "fence.mbarrier_init.release.cluster;"), ctas=2, cluster=2, threads=32)
    finds(
        body.replace("INIT_FENCE", ""),
        "barrier",
        "a barrier between mbarrier.init and use",
        ctas=2,
        cluster=2,
        threads=32,
    )


def test_initialised_again():
    again = "@%p1 mbarrier.init.shared::cta.b64 [%r7], 64; // B\nbar.sync 0;\n"
    body = INIT.format(count=64).replace("64;", "64; // A") + "mbarrier.arrive.shared::cta.b64 _, [%r7];\nbar.sync 0;\n"
    finds(body + again, "barrier", "mbarrier.inval")
    clean(body + "@%p1 mbarrier.inval.shared::cta.b64 [%r7];\n" + again)


def test_data_where_an_mbarrier_lives():
    body = INIT.format(count=64).replace("64;", "64; // A") + "FIX\nbar.sync 0;\n@%p1 st.shared.u32 [%r7+4], 7; // B\n"
    pair(body, "@%p1 mbarrier.inval.shared::cta.b64 [%r7];", "barrier", "mbarrier.inval")
    load = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4+16384], [%rd1], 16, [%r7+8]; // B"
    body = "@!%p1 bra DONE;\nmbarrier.init.shared::cta.b64 [%r7], 1; // A\nmbarrier.init.shared::cta.b64 [%r7+8], 1;\n"
    with pytest.raises(ptxemu.IllegalInstruction) as caught:  # the copy cannot report any more
        run(body + "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7+8], 16;\n" + load)
    assert [x.kind for x in caught.value.findings] == ["barrier"]


def test_a_phase_that_laps_a_waiter():
    found, _ = run(
        INIT.format(count=1)
        + f"""
@%p3 bra WAITER;
nanosleep.u32 1;
nanosleep.u32 1;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r7];
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r7];
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r7];
bra DONE;
WAITER:
{wait(mark="// B")}
"""
    )
    assert [x.kind for x in found] == ["lap"] and "parity" in found[0].message


def test_what_is_pending_at_the_end():
    body = INIT.format(count=64) + "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r7];\n"
    clean(body)
    found, _ = run(body, strict=True)
    assert [x.kind for x in found] == ["pending"] and "32 of 64 arrivals" in found[0].message


def test_bytes_that_nobody_expected():
    body = INIT.format(count=1) + (
        "@!%p1 bra DONE;\ncp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 256, [%r7];\n"
    )
    found, _ = run(body)
    assert [x.kind for x in found] == ["completion", "pending"]
    assert "when the block has ended" in found[0].message and "256 bytes that nobody expected" in found[1].message


def test_a_block_must_not_end_before_its_copies():
    body = f"""
st.shared.u32 [%r6], %r1;
{PROXY}
bar.sync 0;
@!%p1 bra DONE;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r4], 256;
cp.async.bulk.commit_group;
FIX
"""
    clean(body.replace("FIX", "cp.async.bulk.wait_group.read 0;"))
    found, _ = run(body.replace("FIX", ""))
    assert [(x.kind, x.missing) for x in found] == [("completion", "cp.async.bulk.wait_group.read")]
    assert "when the block has ended" in found[0].message and found[0].second is None


# ------------------------------------------------------------------------------------------------------- how it is told


def test_raises_at_the_first_finding():
    body = f"{NEIGHBOUR} st.shared.u32 [%r6], %r1;\nld.shared.u32 %r11, [%r10];\n"
    with pytest.raises(RaceError, match="Nothing orders") as caught:
        ptxemu.run_ptx(text_of(body), block=(64,), shared=16640, args=[0, 0], config=Config(races=True))
    assert caught.value.finding is not None and caught.value.findings == [caught.value.finding]
    assert "PTX line" in caught.value.where
    ptxemu.run_ptx(text_of(body), block=(64,), shared=16640, args=[0, 0])  # not looked for


def test_what_was_found_before_a_deadlock():
    body = INIT.format(count=2) + "ld.shared.u32 %r11, [%r6];\n" + wait()
    with pytest.raises(ptxemu.DeadlockError) as caught:
        run(body)
    assert [x.kind for x in caught.value.findings] == ["uninitialised"]


def test_as_data():
    found, _ = run("ld.shared.u32 %r11, [%r6];\n")
    data = found[0].to_dict()
    assert data["kind"] == "uninitialised" and data["second"]["space"] == "shared" and data["first"] is None


def test_config_is_checked():
    with pytest.raises(ValueError, match="on_race"):
        Config(races=True, on_race="log")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="races=True"):
        Config(strict=True)
