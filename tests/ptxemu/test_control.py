"""Branches, divergence, exits, special registers, launches."""

import numpy as np
import pytest

from ptxemu import Config, EmulationError, IllegalInstruction, run_ptx
from ptxemu.schedule import rectangles
from ptxemu.testing import run_lines

SCHEDULES = [Config(), *(Config(schedule="adversarial", seed=s) for s in range(4))]
HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"


def collatz(n):
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


@pytest.mark.parametrize("config", SCHEDULES)
def test_every_lane_goes_its_own_way(config):
    lines = """.reg .pred %p<3>; .reg .b32 %t; mov.b32 %d, 0;
        LOOP: setp.eq.u32 %p1, %a, 1; @%p1 bra DONE; add.u32 %d, %d, 1; and.b32 %t, %a, 1; setp.eq.u32 %p2, %t, 0;
        @%p2 bra EVEN;
        mad.lo.u32 %a, %a, 3, 1; bra LOOP; EVEN: shr.u32 %a, %a, 1; bra LOOP; DONE:"""
    a = np.arange(1, 129, dtype=np.uint32)
    out = run_lines(lines, {"a": a.copy()}, {"d": np.uint32}, config=config)["d"]
    assert out.tolist() == [collatz(int(n)) for n in a]


def test_lanes_come_together_again():
    """Behind the branch the warp is whole: the instructions there are issued once, not once for each path."""
    lines = (
        ".reg .pred %p; and.b32 %d, %a, 1; setp.eq.u32 %p, %d, 0; @%p bra E; add.u32 %d, %d, 10; bra J; "
        "E: add.u32 %d, %d, 20; J: mul.lo.u32 %d, %d, 2;"
    )
    text = []

    def spy(*args, **kwargs):
        text.append(args[0])
        return real(*args, **kwargs)

    import ptxemu.testing as testing

    real = testing.run_ptx
    testing.run_ptx = spy
    try:
        out = run_lines(lines, {"a": np.arange(64, dtype=np.uint32)}, {"d": np.uint32})["d"]
    finally:
        testing.run_ptx = real
    assert out.tolist() == [40, 22] * 32
    source, target = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    run = real(text[0], block=(64,), args=[source, target])
    assert run.instructions["mul.lo.u32"] == 2 and run.instructions["add.u32"] == 4


def test_instructions_are_counted_once_whatever_the_schedule():
    """Waiting and trying again, or coming together at an aligned instruction, does not count twice."""
    text = (
        HEAD
        + """.visible .entry k() { .reg .pred %p, %q; .reg .b32 %r<9>; .shared .align 8 .b8 bar[8]; mov.u32 %r0, %tid.x;
        mov.u32 %r1, bar; setp.ne.u32 %p, %r0, 0; @%p bra A; mbarrier.init.shared.b64 [%r1], 64; A: bar.sync 0;
        and.b32 %r2, %r0, 1; setp.eq.u32 %q, %r2, 0; @%q bra B; mul.lo.u32 %r2, %r2, 3; bra C;
        B: mul.lo.u32 %r2, %r2, 5;
        C: shfl.sync.idx.b32 %r3, %r2, 1, 31, -1; mbarrier.arrive.shared.b64 _, [%r1];
        W: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0;
        @!%p bra W; bar.sync 0; ret; }"""
    )
    once = {"shfl.sync.idx.b32": 6, "bar.sync": 12, "mbarrier.arrive.shared.b64": 6, "mul.lo.u32": 12, "ret": 6}
    for config in SCHEDULES:
        run = run_ptx(text, grid=(3,), block=(64,), config=config)
        assert once.items() <= run.instructions.items()
        if config.schedule == "fair":
            assert run.instructions["mbarrier.try_wait.parity.shared.b64"] == 6


@pytest.mark.parametrize("config", SCHEDULES)
def test_lanes_exit_one_by_one(config):
    text = (
        HEAD
        + """.visible .entry k(.param .u64 a) { .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<3>; ld.param.u64 %d0, [a];
        mov.u32 %r0, %tid.x; mad.wide.u32 %d1, %r0, 4, %d0; mov.b32 %r1, 0;
        L: setp.ge.u32 %p, %r1, %r0; @%p exit; add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1; bra L; }"""
    )
    out = np.zeros(70, np.uint32)
    run_ptx(text, block=(70,), args=[out], config=config)
    assert out.tolist() == list(range(70))


def test_special_registers():
    names = [f"{n}.{x}" for n in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "cluster_ctaid") for x in "xyz"]
    names += [
        "laneid",
        "warpid",
        "cluster_ctarank",
        "cluster_nctarank",
        "lanemask_lt",
        "lanemask_ge",
        "dynamic_smem_size",
    ]
    block, grid, cluster = (6, 4, 2), (4, 2, 3), (2, 1, 1)
    threads, ctas = 48, 24
    stores = "\n".join(f"mov.u32 %r9, %{n}; st.global.u32 [%d1+{4 * i}], %r9;" for i, n in enumerate(names))
    text = (
        HEAD
        + f""".visible .entry k(.param .u64 a) {{ .reg .b32 %r<20>; .reg .b64 %d<3>; ld.param.u64 %d0, [a];
        mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r1, %r2, 4, %r1;
        mad.lo.u32 %r0, %r1, 6, %r0;
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mad.lo.u32 %r2, %r3, 2, %r2;
        mad.lo.u32 %r1, %r2, 4, %r1;
        mad.lo.u32 %r0, %r1, {threads}, %r0; mad.wide.u32 %d1, %r0, {4 * len(names)}, %d0; {stores} ret; }}"""
    )
    out = np.zeros((ctas, threads, len(names)), np.uint32)
    run_ptx(text, grid=grid, block=block, cluster=cluster, args=[out], shared=160, config=Config(max_resident_ctas=6))
    for cta in range(ctas):
        cx, cy, cz = cta % 4, cta // 4 % 2, cta // 8
        for t in range(threads):
            got = dict(zip(names, out[cta, t].tolist(), strict=True))
            lane = t % 32
            assert [got[f"tid.{x}"] for x in "xyz"] == [t % 6, t // 6 % 4, t // 24]
            assert [got[f"ntid.{x}"] for x in "xyz"] == list(block) and [got[f"nctaid.{x}"] for x in "xyz"] == list(
                grid
            )
            assert [got[f"ctaid.{x}"] for x in "xyz"] == [cx, cy, cz]
            assert [got[f"clusterid.{x}"] for x in "xyz"] == [cx // 2, cy, cz] and got["cluster_ctaid.x"] == cx % 2
            assert (got["laneid"], got["warpid"], got["cluster_ctarank"], got["cluster_nctarank"]) == (
                lane,
                t // 32,
                cx % 2,
                2,
            )
            assert (got["lanemask_lt"], got["lanemask_ge"]) == ((1 << lane) - 1, 0xFFFFFFFF ^ (1 << lane) - 1)
            assert got["dynamic_smem_size"] == 160


def test_predicated_instructions_leave_the_other_lanes_alone():
    a = np.arange(32, dtype=np.uint32)
    lines = (
        ".reg .pred %p; mov.b32 %d, 7; mov.b64 %e, 9; setp.lt.u32 %p, %a, 10; @%p add.u32 %d, %a, 100; "
        "@!%p mov.b64 {%f, _}, %e; @%p mov.b32 %f, 1; @%p setp.ge.u32 %p, %a, 5; selp.b32 %g, 1, 0, %p;"
    )
    out = run_lines(lines, {"a": a}, {"d": np.uint32, "e": np.uint64, "f": np.uint32, "g": np.uint32})
    assert out["d"].tolist() == [100 + i if i < 10 else 7 for i in range(32)]
    assert out["f"].tolist() == [1 if i < 10 else 9 for i in range(32)]
    assert out["g"].tolist() == [int(5 <= i < 10) for i in range(32)]


def test_trap():
    with pytest.raises(IllegalInstruction, match=r"trap in CTA \(0,0,0\), warp 1, lane 5"):
        run_lines(".reg .pred %p; setp.eq.u32 %p, %a, 37; @%p trap;", {"a": np.arange(64, dtype=np.uint32)})


def test_endless_loops_are_cut_off():
    with pytest.raises(EmulationError, match="max_steps = 10000"):
        run_lines("L: add.u32 %d, %d, 1; bra L;", {}, {"d": np.uint32}, config=Config(max_steps=10000))


@pytest.mark.parametrize("resident", [1, 3, 7, None])
def test_waves_and_progress(resident):
    text = (
        HEAD
        + """.visible .entry k(.param .u64 a) { .reg .b32 %r<5>; .reg .b64 %d<3>; ld.param.u64 %d0, [a];
        mov.u32 %r0, %ctaid.x; mad.wide.u32 %d1, %r0, 4, %d0; red.global.add.u32 [%d1], %r0; ret; }"""
    )
    out = np.zeros(7, np.uint32)
    seen = []
    run = run_ptx(
        text,
        grid=(7,),
        block=(32,),
        args=[out],
        config=Config(max_resident_ctas=resident, progress=lambda *x: seen.append(x)),
    )
    assert out.tolist() == [32 * i for i in range(7)]
    assert seen[-1] == (7, 7) and seen == sorted(set(seen))
    assert run.warp_instructions == 7 * 5 and run.instructions["red.global.add.u32"] == 7


def test_rectangles_cover_exactly():
    rng = np.random.default_rng(0)
    for _ in range(200):
        member = rng.random((rng.integers(1, 6), rng.integers(1, 12))) < rng.random()
        cover = np.zeros(member.shape, int)
        for w0, w1, c0, c1, step in rectangles(member):
            cover[w0:w1, c0:c1:step] += 1
        assert np.array_equal(cover, member.astype(int))


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"block": (2000,)}, "at most 1024"),
        ({"block": (0,)}, "positive"),
        ({"block": (32,), "args": []}, "takes 1 parameters, 0 were given"),
        ({"block": (32,), "args": [b"123"]}, "3 bytes, the parameter has 8"),
        ({"block": (32,), "args": ["x"]}, "is a str"),
        ({"block": (32,), "grid": (3,), "cluster": (2,)}, "no multiple of cluster"),
        ({"block": (32,), "args": [np.zeros((4, 4))[:, ::2]]}, "must be contiguous"),
    ],
)
def test_bad_launches(kwargs, match):
    text = HEAD + ".visible .entry k(.param .u64 a) { ret; }"
    with pytest.raises(ValueError, match=match):
        run_ptx(text, **{"args": [0], **kwargs})


def test_bad_config():
    with pytest.raises(ValueError, match="schedule='fast'"):
        Config(schedule="fast")
