"""The checked driver on global memory: warps of one block, blocks of a grid, release and acquire."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from checked import clean, finds, pair, run

NEIGHBOUR = "xor.b64 %rd12, %rd3, 128;\nadd.u64 %rd12, %rd12, %rd2;\n"  # b's word of the same lane of the other warp


def test_bar_sync():
    body = f"{NEIGHBOUR}st.global.u32 [%rd5], %r1; // A\nFIX\nld.global.u32 %r11, [%rd12]; // B\n"
    found = pair(body, "bar.sync 0;", "race", "a barrier or mbarrier")
    assert found.first.space == "global" and found.first.name == "argument 1"
    assert found.first.range in ((0, 128), (128, 256))


def test_reads_before_anybody_writes():
    body = f"{NEIGHBOUR}ld.global.u32 %r11, [%rd12]; // A\nFIX\nst.global.u32 [%rd5], %r1; // B\n"
    pair(body, "bar.sync 0;", "race", "a barrier or mbarrier")


def test_blocks_write_to_the_same_place():
    finds("st.global.u32 [%rd5], %r1; // A\n", "race", "a barrier or mbarrier", second="A", first="A", ctas=2)
    clean(
        "mov.u32 %r10, %ctaid.x;\nmul.wide.u32 %rd6, %r10, 256;\nadd.u64 %rd5, %rd5, %rd6;\nst.global.u32 [%rd5], %r1;",
        ctas=2,
    )


def test_atomics_do_not_race_with_each_other():
    clean("red.global.add.u32 [%rd2], 1;\natom.global.add.u32 %r11, [%rd2], 1;\n", ctas=2)
    finds("red.global.add.u32 [%rd2], 1; // A\nst.global.u32 [%rd2+4], %r1;\nld.global.u32 %r11, [%rd2]; // B\n",
          "race", "a barrier or mbarrier", threads=32, ctas=2)  # fmt: skip


# The first thread of block 0 writes data and raises a flag; the first thread of block 1 waits for the flag and reads.
FLAG = """
@!%p1 bra DONE;
mov.u32 %r10, %ctaid.x;
setp.ne.u32 %p5, %r10, 0;
@%p5 bra READER;
st.global.u32 [%rd2], 42; // A
{fence_before}
st.{order_out}.gpu.global.u32 [%rd2+4], 1;
bra DONE;
READER:
LOOP: ld.{order_in}.gpu.global.u32 %r11, [%rd2+4];
setp.eq.u32 %p6, %r11, 0;
@%p6 bra LOOP;
{fence_behind}
ld.global.u32 %r12, [%rd2]; // B
"""
STRONG = {"order_out": "release", "order_in": "acquire", "fence_before": "", "fence_behind": ""}
FENCE = "fence.acq_rel.gpu;"
FENCED = {"order_out": "relaxed", "order_in": "relaxed", "fence_before": FENCE, "fence_behind": FENCE}


@pytest.mark.parametrize("ctas", [2])
@pytest.mark.parametrize("how", [STRONG, FENCED, STRONG | {"order_in": "relaxed", "fence_behind": FENCE}])
def test_a_flag_between_blocks(how, ctas):
    clean(FLAG.format(**how), ctas=ctas)


@pytest.mark.parametrize(
    "how",
    [
        STRONG | {"order_out": "relaxed"}, STRONG | {"order_in": "relaxed"},
        FENCED | {"fence_before": ""}, FENCED | {"fence_behind": ""},
    ],
)  # fmt: skip
def test_a_flag_that_orders_nothing(how):
    assert finds(FLAG.format(**how), "race", "a barrier or mbarrier", ctas=2).second.cta == 1


def test_a_flag_within_a_block():
    body = FLAG.replace("@!%p1 bra DONE;\n", "@!%p4 bra DONE;\n").replace("%ctaid.x", "%tid.x").replace(".gpu", ".cta")
    clean(body.format(**STRONG))
    finds(body.format(**STRONG | {"order_out": "relaxed"}), "race", "a barrier or mbarrier")


def test_what_a_tensor_core_reads_from_global_memory():
    """Generic write, then a bulk load: the async proxy has to be told."""
    body = """
@!%p1 bra DONE;
mbarrier.init.shared::cta.b64 [%r7], 1;
st.global.u32 [%rd2], 7; // A
FIX
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 16;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%rd2], 16, [%r7]; // B
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r7], 0;
@!%p9 bra W;
"""
    pair(body, "fence.proxy.async.global;", "proxy", "fence.proxy.async")


def test_read_only_buffers_cost_nothing():
    found, _ = run("ld.global.u32 %r11, [%rd4];\n" * 8, ctas=4)
    assert not found
