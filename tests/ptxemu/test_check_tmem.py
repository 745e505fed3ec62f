"""The checked driver on tensor memory and the matrix instructions: one bug each, and its repaired twin.

128 threads; A (128 x 16) and B (16 x 16) lie in shared memory, all of TMEM is allocated and zero where the MMA writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from checked import INIT, clean, finds, pair, run, wait

from ptxemu import MemoryFault
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import encode_instruction_descriptor, encode_smem_descriptor
from ptxemu.isa.wgmma import encode_matrix_descriptor

A = encode_smem_descriptor(1024, 128 * 16, 128, sw.NONE)
B = encode_smem_descriptor(1024 + 4096, 16 * 16, 128, sw.NONE)
IDESC = encode_instruction_descriptor(128, 16)

FILL = """
shl.b32 %r20, %r1, 4;
add.u32 %r20, %r20, %r4;
st.shared.v4.u32 [%r20], {%r1, %r1, %r1, %r1}; // FILL
st.shared.v4.u32 [%r20+2048], {%r1, %r1, %r1, %r1};
st.shared.v4.u32 [%r20+4096], {%r1, %r1, %r1, %r1};
"""
SETUP = f"""
@!%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r7], 1;
mbarrier.init.shared::cta.b64 [%r7+8], 1;
mbarrier.init.shared::cta.b64 [%r7+16], 4;
READY:
@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r7+32], 512;
{FILL}
fence.proxy.async.shared::cta;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.u32 %r21, [%r7+32];
shl.b32 %r22, %r2, 21;
add.u32 %r22, %r22, %r21;       // this warp's window
mov.b64 %rd10, {A};
mov.b64 %rd11, {B};
mov.b32 %r23, {IDESC};
setp.ne.u32 %p5, 0, 0;
setp.eq.u32 %p6, 0, 0;
add.u32 %r24, %r7, 8;
add.u32 %r25, %r7, 16;
"""
FREE = """
tcgen05.wait::ld.sync.aligned;
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r21, 512;
"""
MMA = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r21], %rd10, %rd11, %r23, %p5;"
AFTER = "tcgen05.fence::after_thread_sync;"
BEFORE = "tcgen05.fence::before_thread_sync;"
LOADED = ", ".join(f"%d{i}" for i in range(8))
LOAD = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{LOADED}}}, [%r22];"
STORE = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r22], {{{LOADED}}};"
USE = "add.u32 %r30, %d0, %d1;"


def commit(barrier: str = "%r7") -> str:
    return f"@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{barrier}];"


def kernel(body: str) -> str:
    return SETUP + body + FREE


def found_in(body: str, **options) -> list[tuple[str, str]]:
    return [(x.kind, x.missing) for x in run(kernel(body), threads=128, **options)[0]]


def test_wait_for_the_commit():
    body = kernel(f"{MMA} // A\n{commit()}\nFIX\n{AFTER}\n{LOAD} // B\n{wait(label='LATE')}")
    clean(body.replace("FIX", wait()), threads=128)
    for config in ({}, {"schedule": "adversarial", "seed": 1}, {"schedule": "adversarial", "seed": 2}):
        kinds = {x.kind for x in run(body.replace("FIX", ""), threads=128, **config)[0]}
        assert kinds & {"uninitialised", "completion", "race"}, kinds


def test_only_the_issuing_warp_has_waited():
    body = kernel(f"{MMA} // A\n{commit()}\n@!%p2 bra OTHERS;\n{wait()}OTHERS:\nbar.warp.sync -1;\nFIX\n{LOAD} // B\n")
    clean(body.replace("FIX", "bar.sync 0;"), threads=128)
    assert run(body.replace("FIX", ""), threads=128)[0]


def test_stored_cells_are_there_after_wait_st():
    """A in tensor memory, written by the warps."""
    body = kernel(
        f"""
{LOAD.replace("ld", "st").replace(f"{{{LOADED}}}, [%r22]", f"[%r22+64], {{{LOADED}}}")} // A
FIX
{BEFORE}
bar.sync 0;
{AFTER}
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r21], [%r21+64], %rd11, %r23, %p5; // B
{commit()}
{wait()}
"""
    )
    found = pair(body, "tcgen05.wait::st.sync.aligned;", "completion", "tcgen05.wait::st", threads=128)
    assert found.first.space == "tmem" and found.second.range[2:] == (64, 72) and found.second.proxy == "tcgen05"


def test_cells_are_read_before_the_next_product_overwrites_them():
    body = kernel(
        f"""
{MMA}
{commit()}
{wait()}
{AFTER}
{LOAD} // A
FIX
{BEFORE}
bar.sync 0;
{AFTER}
{MMA} // B
{commit("%r24")}
{wait("%r24", label="AGAIN")}
"""
    )
    pair(body, "tcgen05.wait::ld.sync.aligned;", "completion", "tcgen05.wait::ld", threads=128)


def test_a_register_dependency_waits_too_but_not_by_the_letter():
    """FlashAttention-4 relies on it (PTX ISA 9.7.16.6.4.5)."""
    use = "\n".join(f"add.u32 %r30, %r30, %d{i};" for i in range(8))
    body = kernel(
        f"{MMA}\n{commit()}\n{wait()}\n{AFTER}\n{LOAD} // A\nFIX\n{use}\n{BEFORE}\nbar.sync 0;\n{AFTER}\n{MMA} // B\n"
        f"{commit('%r24')}\n{wait('%r24', label='AGAIN')}"
    )
    clean(body.replace("FIX", ""), threads=128)
    clean(body.replace("FIX", "tcgen05.wait::ld.sync.aligned;"), threads=128, strict=True)
    found = finds(body.replace("FIX", ""), "completion", "tcgen05.wait::ld", threads=128, strict=True)
    assert found.strict and "9.7.16.6.4.5" in found.message


def test_one_warps_own_load_and_store():
    body = kernel(f"{STORE} // A\nFIX\n{LOAD} // B\n")
    pair(body, "tcgen05.wait::st.sync.aligned;", "completion", "tcgen05.wait::st", threads=128)
    other = STORE.replace("%d", "%r3")
    body = kernel(f"{STORE}\ntcgen05.wait::st.sync.aligned;\n{LOAD} // A\nFIX\n{other} // B\n")
    pair(body, "tcgen05.wait::ld.sync.aligned;", "completion", "tcgen05.wait::ld", threads=128)


RELAXED = f"""
{STORE} // A
tcgen05.wait::st.sync.aligned;
BEFORE
bar.warp.sync -1;
@%p4 mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%r25];
{wait("%r25", order=".relaxed.cluster")}
AFTER
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r21], %rd10, %rd11, %r23, %p5; // B
{commit()}
{wait(label="LATE")}
"""


@pytest.mark.parametrize("left_out", ["BEFORE", "AFTER"])
def test_fences_around_a_relaxed_mbarrier(left_out):
    """PTX ISA 9.7.16.6.4.4."""
    whole = RELAXED.replace("BEFORE", BEFORE).replace("AFTER", AFTER)
    clean(kernel(whole), threads=128)
    broken = RELAXED.replace(left_out, "").replace("BEFORE", BEFORE).replace("AFTER", AFTER)
    missing = f"tcgen05.fence::{left_out.lower()}_thread_sync"
    assert finds(kernel(broken), "race", missing, threads=128).strict is False


@pytest.mark.parametrize("left_out", ["BEFORE", "AFTER"])
def test_release_and_acquire_do_without_the_fences_but_not_by_the_letter(left_out):
    text = RELAXED.replace(".relaxed.cluster", "")
    broken = kernel(text.replace(left_out, "").replace("BEFORE", BEFORE).replace("AFTER", AFTER))
    clean(broken, threads=128)
    found = finds(broken, "race", f"tcgen05.fence::{left_out.lower()}_thread_sync", threads=128, strict=True)
    assert found.strict
    clean(kernel(text.replace("BEFORE", BEFORE).replace("AFTER", AFTER)), threads=128, strict=True)


def test_a_lane_that_arrives_for_its_warp():
    text = RELAXED.replace(".relaxed.cluster", "").replace("BEFORE", BEFORE).replace("AFTER", AFTER)
    broken = kernel(text.replace("bar.warp.sync -1;", ""))
    clean(broken, threads=128)
    assert finds(broken, "race", "bar.warp.sync", threads=128, strict=True).strict


def test_operands_written_through_the_generic_proxy():
    text = kernel(f"{MMA} // B\n{commit()}\n{wait()}")
    found = finds(text.replace("fence.proxy.async.shared::cta;", ""), "proxy", "fence.proxy.async", "FILL", threads=128)
    assert found.first.what == "st.shared" and found.second.what == "MMA" and "st.shared" in found.message


def test_operands_are_written_again_while_the_product_reads_them():
    body = kernel(
        f"{MMA} // A\n{commit()}\nFIX\nbar.sync 0;\n@%p1 st.shared.u32 [%r4], %r1; // B\n{wait(label='LATE')}"
    )
    pair(body, wait(), "completion", "a wait on a tcgen05.commit", threads=128)


def test_products_of_one_thread_need_no_wait():
    clean(kernel(f"{MMA}\n{MMA.replace('%p5', '%p6')}\n{commit()}\n{wait()}"), threads=128)


def test_deallocation():
    body = SETUP + f"{MMA} // A\n{commit()}\nFIX\n" + FREE.replace("32 %r21, 512;", "32 %r21, 512; // B")
    clean(body.replace("FIX", wait()), threads=128)
    free = FREE.replace("bar.sync 0;", "FIX").replace("32 %r21, 512;", "32 %r21, 512; // B")
    body = SETUP + f"{MMA}\n{commit()}\n{wait()}{AFTER}\n{LOAD} // A\n" + free
    clean(body.replace("FIX", "bar.sync 0;"), threads=128)
    found, _ = run(body.replace("FIX", ""), threads=128)  # the fair schedule: all warps load, then the first one frees
    assert [(x.first.what, x.second.what) for x in found] == [("tcgen05.ld", "tcgen05.dealloc")]


def test_faults_are_still_faults():
    outside = encode_smem_descriptor(1024 + 16384, 128 * 16, 128, sw.NONE)
    with pytest.raises(MemoryFault, match="outside of shared memory"):
        run(kernel(f"mov.b64 %rd10, {outside};\n{MMA}\n{commit()}\n{wait()}"), threads=128)


def test_uninitialised_cells():
    assert ("uninitialised", "a write") in found_in(LOAD)


# --------------------------------------------------------------------------------------------------------------- Hopper

WGMMA_A = encode_matrix_descriptor(1024, 64 * 16, 128, sw.NONE)
WGMMA_B = encode_matrix_descriptor(1024 + 4096, 8 * 16, 128, sw.NONE)
ACCUMULATOR = "{%d0, %d1, %d2, %d3}"
PRODUCT = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {ACCUMULATOR}, %rd10, %rd11, %p6, 1, 1, 0, 0;"
HOPPER = f"""
{FILL}
PROXY
bar.sync 0;
mov.b64 %rd10, {WGMMA_A};
mov.b64 %rd11, {WGMMA_B};
setp.ne.u32 %p6, 0, 0;
wgmma.fence.sync.aligned;
{PRODUCT} // A
wgmma.commit_group.sync.aligned;
"""
PROXY = "fence.proxy.async.shared::cta;"


def test_registers_of_wgmma():
    text = HOPPER.replace("PROXY", PROXY)
    body = text + "FIX\nadd.u32 %r30, %d0, 1; // B\nwgmma.wait_group.sync.aligned 0;\n"
    pair(body, "wgmma.wait_group.sync.aligned 0;", "register", "wgmma.wait_group", threads=128)
    body = text + "FIX\nmov.u32 %d1, 1; // B\nwgmma.wait_group.sync.aligned 0;\n"
    pair(body, "wgmma.wait_group.sync.aligned 0;", "register", "wgmma.wait_group", threads=128)


def test_operands_of_wgmma():
    tail = "wgmma.wait_group.sync.aligned 0;\n"
    text = (HOPPER.replace("PROXY", "") + tail).replace(" // A", " // B")
    finds(text, "proxy", "fence.proxy.async", "FILL", threads=128)
    body = HOPPER.replace("PROXY", PROXY) + "FIX\nbar.sync 0;\n@%p1 st.shared.u32 [%r4], %r1; // B\n" + tail
    pair(body, "wgmma.wait_group.sync.aligned 0;", "completion", "wgmma.wait_group", threads=128)


def test_the_head_of_these_kernels_is_clean():
    clean(kernel(""), threads=128)
    clean(INIT.format(count=1), threads=128)
