"""The clock on programs whose cycles can be worked out on paper."""

from collections import defaultdict

import pytest

from ptxemu import clock
from ptxemu.clock.chips import recorded as record
from ptxemu.clock.path import Anchor, NoWay, Paths, ptx_kind, sass_kind
from ptxemu.clock.record import Recorder, Step, Work
from ptxemu.clock.sass import Sass
from ptxemu.clock.timing import tmem_bytes

B200 = clock.CHIPS["B200"]

TEXT = """
\t.target\tsm_100a
.text.tiny:
\t//## File "/somewhere/kernel.py", line 12
        /*0000*/                   MUFU.EX2 R35, R12 ;                    /* 0x0000000c00237308 */
                                                                          /* 0x000e620000000800 */
\t//## File "/somewhere/kernel.py", line 14
.L_x_1:
        /*0010*/                   LDTM.x8 R12, tmem[UR4] ;               /* 0x00000004000c79ee */
                                                                          /* 0x002e2200081c0000 */
        /*0020*/              @!P0 BRA `(.L_x_1) ;                        /* 0x0000007000188947 */
                                                                          /* 0x001fea0003800000 */
        /*0030*/                   EXIT ;                                 /* 0x000000000000794d */
                                                                          /* 0x000fea0003800000 */
"""


def test_the_text_of_the_disassembler_is_read():
    mufu, load, branch, leave = clock.parse(TEXT)
    assert (mufu.opcode, mufu.name, mufu.line, mufu.stall, mufu.sets, mufu.waits) == ("MUFU.EX2", "MUFU", 12, 1, 1, ())
    assert (load.opcode, load.line, load.sets, load.waits) == ("LDTM.x8", 14, 0, (1,))
    assert (branch.guard, branch.targets, branch.stall, branch.waits) == ("@!P0", (16,), 5, (0,))
    assert branch.falls_through and not leave.falls_through


def test_a_text_without_encodings_is_refused():
    with pytest.raises(ValueError, match="nvdisasm -g -hex -c"):
        clock.parse(".text.tiny:\n        /*0000*/                   EXIT ;\n")
    with pytest.raises(ValueError, match=r"kernel other.*kernels: tiny"):
        clock.parse(TEXT, "other")


def test_kinds_go_by_the_longest_beginning():
    assert sass_kind("SYNCS.PHASECHK.TRANS64.TRYWAIT") == "wait" and sass_kind("SYNCS.PHASECHK.TRANS64") == "test"
    assert ptx_kind("cp.async.bulk.prefetch.tensor.2d.L2.global") == "prefetch"
    assert ptx_kind("cp.async.bulk.tensor.2d.shared::cta.global") == "tma" and ptx_kind("add.f32") is None


def op(address, opcode, operands="", guard="", line=None, stall=1, sets=None, frees=None, waits=(), target=None):
    return Sass(16 * address, opcode, operands, guard, None, line, stall, sets, frees, waits,
                () if target is None else (16 * target,))  # fmt: skip


def code(*rows):
    return [op(n, *row[:1], **row[1]) if len(row) > 1 else op(n, row[0]) for n, row in enumerate(rows)]


# A loop that the compiler has turned round: the first turn stands before it.
LOOP = code(
    ("S2R",), ("LDTM.x8", {"line": 1}), ("FADD",), ("STTM.x8", {"line": 2}),
    ("BRA", {"guard": "@P0", "target": 8}),
    ("LDTM.x8", {"line": 1}), ("STTM.x8", {"line": 2}), ("BRA", {"guard": "@P1", "target": 5}),
    ("EXIT",),
)  # fmt: skip


def test_the_way_through_a_loop_follows_the_anchors():
    turn = [Anchor("tmem load", 1), Anchor("tmem store", 2)]
    program, places = Paths(LOOP).match(turn)
    assert program == [0, 1, 2, 3, 4, 8] and places == [1, 3]
    program, places = Paths(LOOP).match(turn * 3)
    assert program == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8] and [program[i] for i in places] == [1, 3, 5, 6, 5, 6]


def test_anchors_that_do_not_fit_are_named():
    with pytest.raises(NoWay, match=r"anchor 1 of 2 \(commit, source line 9\) cannot follow LDTM.x8 at 0x10"):
        Paths(LOOP).match([Anchor("tmem load", 1), Anchor("commit", 9)])
    with pytest.raises(NoWay, match="no way leads from the last anchor"):
        Paths(code(("LDTM.x8",), ("STTM.x8",), ("EXIT",))).match([Anchor("tmem load", 1)])


def test_a_guarded_anchor_may_be_passed_by_on_either_side():
    guarded = code(("LDTM.x8",), ("UTCBAR", {"guard": "@P0", "line": 5}), ("STTM.x8",), ("EXIT",))
    load, store = Anchor("tmem load", None), Anchor("tmem store", None)
    assert Paths(guarded).match([load, store])[1] == [0, 2]
    assert Paths(guarded).match([load, Anchor("commit", 5), store])[1] == [0, 1, 2]
    assert Paths(code(("LDTM.x8",), ("STTM.x8",), ("EXIT",))).match([load, Anchor("commit", 5, True), store])[1] == [
        0,
        None,
        1,
    ]


def recorded(*warps, contributors=None):
    """A recorder as a run would have left it: for each warp the steps of its anchors."""
    r = Recorder()
    for number, steps in enumerate(warps):
        r.steps[0, number] = list(steps)
    r.contributors = defaultdict(int, contributors or {})
    return r


def cycles(program, warps=1, chip=B200):
    return clock.replay(recorded(*[[] for _ in range(warps)]), program, chip).cycles


def test_a_chain_of_dependent_additions_takes_its_stall_counts():
    assert cycles([*[op(i, "FADD", stall=4) for i in range(100)], op(100, "EXIT")]) == pytest.approx(400, abs=5)


def test_independent_additions_issue_every_cycle():
    program = [*[op(i, "FADD", stall=1) for i in range(100)], op(100, "EXIT")]
    assert cycles(program) == pytest.approx(100, abs=5)
    assert cycles(program, warps=4) == pytest.approx(100, abs=5)  # one in each sub-partition
    assert cycles(program, warps=8) == pytest.approx(200, abs=10)  # two in each: they share the issue slot


def test_integer_work_issues_every_other_cycle():
    assert cycles([*[op(i, "IADD3") for i in range(100)], op(100, "EXIT")]) == pytest.approx(200, abs=5)


@pytest.mark.parametrize(("chip", "each"), [("B200", 8), ("B300", 4)])
def test_exponentials_take_what_the_multi_function_unit_takes(chip, each):
    program = [*[op(i, "MUFU.EX2") for i in range(100)], op(100, "EXIT")]
    chip = clock.CHIPS[chip]
    assert cycles(program, chip=chip) == pytest.approx(100 * each, abs=2 * each)
    assert cycles(program, warps=8, chip=chip) == pytest.approx(200 * each, abs=2 * each)
    timing = clock.replay(recorded([], []), program, chip)
    assert timing.busy["mufu"] == 2 * 100 * each / 4 and timing.utilisation()["mufu"] <= 0.5


def test_who_needs_a_result_waits_for_its_scoreboard():
    program = [op(0, "MUFU.EX2", sets=0), op(1, "FADD", waits=(0,)), op(2, "EXIT")]
    timing = clock.replay(recorded([]), program, B200)
    assert timing.cycles == pytest.approx(B200.of("mufu_latency"), abs=5)
    assert timing.stalls[0, 0]["mufu"] == pytest.approx(B200.of("mufu_latency"), abs=5)


def mma(a="shared"):
    return Work("tensor", "MMA", 0, {"m": 128, "n": 128, "k": 16, "a": a})


def test_multiplications_back_to_back_keep_the_tensor_core_busy():
    place = (0, 64)
    commit = Work("tensor", "commit", 0, {}, [(place, 0)])
    steps = [*[Step(Anchor("mma", None), 0, "tcgen05.mma", work=[mma()]) for _ in range(16)],
             Step(Anchor("commit", None), 0, "tcgen05.commit", work=[commit]),
             Step(Anchor("wait", None), 0, "mbarrier.try_wait", phase=(place, 0))]  # fmt: skip
    program = [*[op(i, "UTCHMMA") for i in range(16)], op(16, "UTCBAR"),
               op(17, "SYNCS.PHASECHK.TRANS64.TRYWAIT", sets=0), op(18, "EXIT", waits=(0,))]  # fmt: skip
    timing = clock.replay(recorded(steps, contributors={(place, 0): 1}), program, B200)
    assert timing.busy["tensor"] == 16 * 64  # 2 * 128 * 128 * 16 FLOP at 8,192 a cycle
    ends = B200.of("mma_issue") + 16 * 64 + B200.of("mma_latency") + B200.of("wake_latency")
    assert timing.cycles == pytest.approx(ends, abs=3)
    assert timing.stalls[0, 0]["mbarrier"] > 900
    (wait,) = [i for i in timing.intervals if i.name == "wait"]
    assert wait.row == "warp0" and wait.data == {"barrier": 64, "phase": 0}


def test_narrow_multiplications_are_bound_by_shared_memory():
    narrow = Work("tensor", "MMA", 0, {"m": 128, "n": 64, "k": 16, "a": "shared"})
    steps = [Step(Anchor("mma", None), 0, "tcgen05.mma", work=[narrow]) for _ in range(10)]
    timing = clock.replay(recorded(steps), [*[op(i, "UTCHMMA") for i in range(10)], op(10, "EXIT")], B200)
    last = max(i.end for i in timing.intervals)
    assert timing.busy["tensor"] == 10 * 32 and timing.busy["shared"] == 10 * 48  # 6 KiB at 128 bytes a cycle
    assert last == pytest.approx(10 * 48 + B200.of("mma_issue"), abs=3)


def test_a_pipeline_of_two_stages_runs_at_the_slower_one():
    """A warp loads tiles of 16 KiB into two slots; another multiplies each: eight MMAs, 512 cycles."""
    full, empty = [(0, 0), (0, 8)], [(0, 16), (0, 24)]
    tiles = 12
    producer, consumer, contributors = [], [], defaultdict(int)
    for n in range(tiles):
        slot, phase = n % 2, n // 2
        if phase:
            producer.append(Step(Anchor("wait", 1), 0, "mbarrier.try_wait", phase=(empty[slot], phase - 1)))
        else:
            producer.append(Step(Anchor("wait", 1), 0, "mbarrier.try_wait"))
        copy = Work("tma", "TMA load", 0, {"bytes": 16384, "box": [64, 128]}, [(full[slot], phase)])
        producer.append(Step(Anchor("tma", 2), 0, "cp.async.bulk.tensor", work=[copy]))
        contributors[full[slot], phase] += 1
        consumer.append(Step(Anchor("wait", 3), 0, "mbarrier.try_wait", phase=(full[slot], phase)))
        consumer += [Step(Anchor("mma", 4), 0, "tcgen05.mma", work=[mma("tmem")]) for _ in range(8)]
        commit = Work("tensor", "commit", 0, {}, [(empty[slot], phase)])
        consumer.append(Step(Anchor("commit", 5), 0, "tcgen05.commit", work=[commit]))
        contributors[empty[slot], phase] += 1
    wait = {"sets": 0}
    program = code(
        ("BRA", {"guard": "@P2", "target": 5}),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", wait | {"line": 1}), ("UTMALDG", {"line": 2, "waits": (0,)}),
        ("BRA", {"guard": "@P0", "target": 1}), ("EXIT",),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", wait | {"line": 3}), ("FADD", {"waits": (0,)}),
        *[("UTCHMMA", {"line": 4})] * 8, ("UTCBAR", {"line": 5}), ("BRA", {"guard": "@P0", "target": 5}), ("EXIT",),
    )  # fmt: skip
    timing = clock.replay(recorded(producer, consumer, contributors=contributors), program, B200)
    # One slot's tile is loaded while the other is multiplied: a turn is load latency + multiplication, for two tiles.
    load = max(16384 / B200.of("l2_bytes"), 128 * B200.of("l2_row")) + B200.of("tma_latency") + B200.of("tma_issue")
    turn = load + 512 + B200.of("mma_issue") + B200.of("mma_latency") + 2 * B200.of("wake_latency")
    assert timing.cycles == pytest.approx(turn * tiles / 2, rel=0.1)
    assert timing.busy["tensor"] == 512 * tiles and timing.utilisation()["tensor"] <= 1
    faster = B200.with_(
        tma_latency=50, tma_row=0.5, l2_row=0.5, tma_bytes=256, l2_bytes=256
    )  # now the tensor core is the slower one, and never waits
    timing = clock.replay(recorded(producer, consumer, contributors=contributors), program, faster)
    assert timing.utilisation()["tensor"] > 0.9
    assert all(i.data["barrier"] in (0, 8, 16, 24) for i in timing.intervals if i.name == "wait")


def test_named_barriers_let_everybody_go_together():
    program = [op(0, "BRA", guard="@P0", target=3), op(1, "MUFU.EX2", sets=1), op(2, "FADD", waits=(1,), stall=15),
               op(3, "BAR.SYNC"), op(4, "EXIT")]  # fmt: skip
    steps = [[Step(Anchor("bar", None), 0, "bar.sync", barrier=(0, 0))] for _ in range(3)]
    timing = clock.replay(recorded(*steps), program, B200)
    assert B200.of("bar_latency") <= timing.cycles < 2 * B200.of("bar_latency") + 10


def test_a_wait_that_nobody_ends_is_an_error():
    steps = [Step(Anchor("wait", None), 0, "mbarrier.try_wait", phase=((0, 0), 0))]
    program = [op(0, "SYNCS.PHASECHK.TRANS64.TRYWAIT", sets=0), op(1, "EXIT", waits=(0,))]
    with pytest.raises(RuntimeError, match=r"stands still: warp 0 of CTA 0 before EXIT"):
        clock.replay(recorded(steps, contributors={((0, 0), 0): 1}), program, B200)


def test_bytes_of_tensor_memory_instructions():
    assert tmem_bytes("tcgen05.ld.sync.aligned.32x32b.x8.b32") == 1024
    assert tmem_bytes("tcgen05.st.sync.aligned.16x256b.x2.b32") == 1024


def test_every_figure_has_a_source():
    for chip in clock.CHIPS.values():
        for key, fact in chip.facts.items():
            assert fact.unit and fact.source and fact.value > 0 and fact.spread >= 1, key
            assert fact.spread >= 1.5 or fact.sure != "assumed" or "clock" in fact.source, key


def test_measured_figures_are_those_of_the_record():
    h200, found = clock.CHIPS["H200"], record()["found"]
    one = {key: value["4"] for key, value in found.items() if isinstance(value, dict)}
    box = "tma, 128 rows of {} bytes: {}"

    def seven(width, where):
        """Cycles for each of seven boxes more: eight and their wait, less one and its wait."""
        one, eight = found[box.format(width, "latency")], 8 * found[box.format(width, f"each of 8, {where}")]
        return (eight - one) / 7

    expected = {
        "fma": one["ffma rate"],
        "imad": one["imad rate"],
        "alu": one["fmnmx rate"],
        "convert": one["pack rate"],
        "mufu": one["ex2 rate"],
        "shuffle": one["shfl rate"],
        "mufu_latency": found["ex2 latency"],
        "shuffle_latency": found["shfl latency"],
        "lds_latency": found["lds latency"],
        "ldg_latency": found["ldg latency, L2"],
        "bar_latency": found["bar.sync of 1 warps"] - 2,
        "bar_warp": (found["bar.sync of 12 warps"] - found["bar.sync of 1 warps"]) / 11,
        "tma_row": seven(16, "1 SMs") / 128,
        "l2_row": seven(16, "132 SMs") / 128,
        "tma_bytes": 16384 / seven(128, "1 SMs"),
        "l2_bytes": 16384 / seven(128, "132 SMs"),
        "mma_flops": 2 * 64 * 128 * 16 / found["wgmma m64n128k16, A in shared memory: each, 2 warpgroups, 1 SMs"],
        "clock_hz": 1e9 * found["clock under a long load of wgmma, A in registers, GHz"],
    }
    for key, value in expected.items():
        assert h200.of(key) == pytest.approx(value, rel=0.04), key
