"""The checked driver, `Config(races=True)`: what is not ordered in a kernel, whatever the schedule of this run.

    from ptxemu import Config, launch
    run = launch(compiled, *args, config=Config(races=True, on_race="collect"))
    for finding in run.findings:
        print(finding)

It notes every access to shared memory, tensor memory and those buffers of global memory that are written, and
everything that orders accesses, and reports two accesses to the same bytes or cells, one of them a write, that nothing
orders. That does not depend on luck: a wait that is missing is reported though its data were there in time. What
depends on the run is only which accesses a kernel makes at all.

**What orders** (clocks.py, edges.py, phases.py, strong.py, threads.py, units.py; PTX ISA 8.9.4, 8.9.5): program order
of a thread; bar.sync/.red/.arrive; bar.warp.sync; barrier.cluster; an arrive and the test_wait or try_wait that sees
its phase over, unless either is .relaxed; the bytes of a bulk copy and the wait for the phase that they pay to
(nothing else that the issuing thread did: 8.9.1.1); cp.async.bulk.wait_group and .read; cp.async groups and
cp.async.mbarrier.arrive; st.async; tcgen05.commit and the wait for it, for all earlier MMAs of its thread and what
those knew; tcgen05.wait::ld and ::st; tcgen05.fence around relaxed synchronisation (9.7.16.6.3); wgmma.wait_group;
release and acquire through memory, with and without fences (8.8). Waits are known to the lanes that made them: what
one lane does for its warp needs a bar.warp.sync where the others take part.

**Proxies** (8.6, 9.7.9.25.2): what has been written through the generic proxy and is then read or written by TMA, by an
MMA or by a bulk copy needs a fence.proxy.async for that state space somewhere on the way: by the writer before the
barrier or by the one who issues behind it. The way back needs none: the end of an asynchronous operation implies it.

**Also found**: reads of shared and tensor memory that nobody has written; registers of a wgmma that are touched
before wgmma.wait_group; mbarriers that are used by somebody whom nothing orders behind their mbarrier.init (across a
cluster, fence.mbarrier_init counts), initialised again or written over without mbarrier.inval, or lapped by a phase
while a warp still waits for the one before; bytes paid that nobody expected; a block that ends before its bulk
copies; tcgen05.dealloc while somebody may still use the columns. Deadlocks, out-of-bounds accesses, alignment,
allocation and instructions that need whole warps are checked by every driver.

**By the letter**, `Config(strict=True)`: things that work on every chip known, that widespread libraries rely on, and
that the ISA does not promise. Such findings have `strict` set.
  * tcgen05.ld whose registers were read, but that no tcgen05.wait::ld followed before its cells are overwritten
    (9.7.16.6.4.5: a register dependency says nothing of the order in memory; FlashAttention-4 executes no wait::ld)
  * tcgen05.fence::before/after_thread_sync around barriers with release and acquire (9.7.16.6.3 says that the ordinary
    mechanisms hold for tcgen05, too, but shows the fences everywhere; CUTLASS leaves them out)
  * a single lane that arrives for what its whole warp has waited for (tcgen05.wait) without bar.warp.sync
  * a generic *read* before an asynchronous write without fence.proxy.async
  * arrivals or expected bytes that are left pending on an mbarrier at the end of the kernel

**What it cannot see**
  * Paths that this run did not take, and what only other inputs would do.
  * The lanes of a warp are two actors, "all" and "some": that one lane races with another of the same warp is seen when
    only some take part in one of the two accesses, not between two instructions of the whole warp.
  * Order between MMAs of one thread is taken for granted, as the hardware keeps it; the ISA promises it for equal
    shapes and accumulators only (9.7.16.6.2). Tensor memory is kept in cells of 16 lanes of a column.
  * Scopes: a .cta arrive on the mbarrier of another CTA counts, as CUTLASS relies on it. Between clusters, release and
    acquire are known for whole clusters, not for each warp.
  * The tensor-map proxy (tensormap.replace and its fences), and aliases of one address.
  * Global memory between two grids, which run one after another here, and between blocks of a grid that are not
    resident together (160 at most, `Config.max_resident_ctas`).

Cells are four bytes (fewer, where a kernel loads or stores bytes or halves). For every cell shadow.py keeps the latest
write and the reads since, as numbers of records (records.py), which hold the epochs; report.py finds the words.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Checker", "instrument", "link"]


def __getattr__(name: str) -> Any:
    """The parts need the instruction set, which needs the machine: they are imported when first used."""
    if name == "Checker":
        from .checker import Checker

        return Checker
    if name == "instrument":
        from . import threads, units  # noqa: F401  (they register their wrappers)
        from .wrap import instrument

        return instrument
    if name == "link":
        from .registers import link

        return link
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
