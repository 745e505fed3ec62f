"""The words: who has accessed what, and which edge is missing between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ptx
from ..findings import Access, Finding
from .clocks import SOME, E, Table, V, X
from .records import BULK, GENERIC, PROXY, TENSOR, TMEM, WGMMA, Maker

if TYPE_CHECKING:
    from ..program import Program
    from .checker import Checker
    from .shadow import Shadow

_NARROW = re.compile(r"^(ld|ldu|st|atom|red)\.(?!param|local|const).*\.[bus](8|16)$")


def granule(program: Program) -> int:
    """Bytes to a cell of the shadow: four, or as few as the kernel's narrowest load or store has."""
    sizes = [4]
    for op in program.ops:
        found = _NARROW.match(op.ins.opcode)
        if found:
            sizes.append(int(found[2]) // 8)
    return min(sizes)


def describe(
    check: Checker, shadow: Shadow | None, record: int, cells: np.ndarray, write: bool | None = None
) -> Access:
    """One side of a finding. cells: flat cells of the shadow."""
    m, maker = check.machine, check.records.maker(record)
    cta, warp, lane = maker.warps[record - maker.first]
    kind = int(check.records.kind[record])
    if maker.cells is not None and lane is None:
        lanes = np.unique(maker.lanes[(maker.records == record) & np.isin(maker.cells, cells)])
        if len(lanes) == 1:
            lane = int(lanes[0])
    space, where, name = region(check, shadow, cells)
    ins = maker.ins
    source = str(ins.source) if ins.source else None
    return Access(maker.what, m.linear(cta), warp, lane, ins.line, source, space, where, maker.write, PROXY[kind], name)


def region(check: Checker, shadow: Shadow | None, cells: np.ndarray) -> tuple[str, tuple[int, ...], str]:
    """(space, range, name) of flat cells."""
    g = check.granule
    if shadow is check.shared:
        first, last = int(cells.min()) % check.row, int(cells.max()) % check.row
        return "shared", (first * g, last * g + g), ""
    if shadow is not None and shadow is check._tmem:
        group, column = cells // 512 % 8, cells % 512
        return "tmem", (16 * int(group.min()), 16 * int(group.max()) + 16, int(column.min()), int(column.max()) + 1), ""
    assert shadow is not None
    a = check.globals.buffer(shadow)
    shift = check.globals.base(a) - a.address
    first = max(0, int(cells.min()) * g + shift)
    return "global", (first, min(a.nbytes, int(cells.max()) * g + g + shift)), a.name


def place(access: Access) -> str:
    return f"{access.what} ({access.place})"


def uninitialised(check: Checker, shadow: Shadow, record: int, cells: np.ndarray) -> Finding:
    second = describe(check, shadow, record, cells)
    return Finding("uninitialised", f"{second} reads {second.where}, which nobody has written", None, second, "a write")


def race(
    check: Checker, shadow: Shadow, old: int, new: int, cells: np.ndarray, known: Table | None, reads: bool
) -> Finding:
    """What to say of `new`, which is not ordered behind `old`. known: what `new` knows; None for a warp's access."""
    records = check.records
    if issued_before(check, new, old):  # it is done now, but it was there before: nobody has waited for its end
        known = knowledge(check, old)
        old, new, reads = new, old, not records.maker(new).write
    first, second = describe(check, shadow, old, cells), describe(check, shadow, new, cells)
    a, b = records.maker(old), records.maker(new)
    cta, warp, _ = b.warps[new - b.first]
    if known is None:
        full = int(records.component[new]) < check.clocks.fixed
        known = check.clocks.know[cta, warp, 0 if full else SOME]
    kind, missing, why, strict = explain(check, shadow, old, new, a, b, known, reads)
    verb = "written" if a.write else "read"
    then = "written" if b.write else "read"
    message = f"{second.where}: {verb} by {first}, then {then} by {second}. {why}"
    return Finding(kind, message, first, second, missing, strict=strict)


def knowledge(check: Checker, record: int) -> Table:
    """What the maker of an access knows: an operation when it was asked for, a warp now."""
    maker = check.records.maker(record)
    if maker.op is not None:
        return check.clocks.fit(maker.op.note.known)
    cta, warp, _ = maker.warps[record - maker.first]
    full = int(check.records.by[record]) < check.clocks.fixed
    return check.clocks.know[cta, warp, 0 if full else SOME]


def issued_before(check: Checker, new: int, old: int) -> bool:
    """Whether an asynchronous operation that is done only now had been asked for before `old`, as far as that knew."""
    r = check.records
    op, before = check.records.maker(new).op, check.records.maker(old).op
    if op is None or r.cluster[old] != r.cluster[new] or (before.note.born if before else old) < op.note.born:
        return False
    by, at = int(r.by[new]), int(r.at[new])
    known = knowledge(check, old)
    return bool(by < known.shape[1] and known[V, by] >= at)


def explain(
    check: Checker, shadow: Shadow, old: int, new: int, a: Maker, b: Maker, known: Table, reads: bool
) -> tuple[str, str, str, bool]:
    """(kind, missing edge, sentence, only by the letter of the ISA)."""
    r = check.records
    component, clock, by, at = (int(x[old]) for x in (r.component, r.clock, r.by, r.at))
    kind_a, kind_b = int(r.kind[old]), int(r.kind[new])
    one, two = f"{a.what} ({a.ins.short_where})", f"{b.what} ({b.ins.short_where})"
    width = known.shape[1]

    def knows(row: int, c: int, n: int) -> bool:
        return 0 <= c < width and int(known[row, c]) >= n

    same_warp = a.warps[old - a.first][:2] == b.warps[new - b.first][:2]
    cross = shadow is not check.shared and shadow is not check._tmem and r.cluster[old] != r.cluster[new]
    if kind_a == GENERIC and kind_b in (BULK, TENSOR, WGMMA) and not cross and knows(V, component, clock):
        space = "shared::cta" if shadow is check.shared else "global"
        return (
            "proxy",
            "fence.proxy.async",
            f"There is no fence.proxy.async (.{space}) between this {one} and that {two}: the first goes through the"
            " generic proxy, the second through the async proxy",
            reads,
        )
    issued = knows(V, by, at) or (kind_a == TENSOR and same_warp)
    tcgen = shadow is check._tmem
    if tcgen and knows(X, component, clock):
        return (
            "race",
            "tcgen05.fence::after_thread_sync",
            f"There is no tcgen05.fence::after_thread_sync between the synchronisation of this {one} with that {two},"
            " and the latter",
            knows(V, component, clock),
        )
    if tcgen and knows(V, component, clock):
        return (
            "race",
            "tcgen05.fence::before_thread_sync",
            f"There is no tcgen05.fence::before_thread_sync between this {one} and its synchronisation with that {two}",
            True,
        )
    later = kind_a != GENERIC or (component, clock) != (by, at)
    if later and issued:
        strict = False
        if kind_a == TMEM:
            missing = "tcgen05.wait::st" if a.write else "tcgen05.wait::ld"
            why = f"There is no {missing} between this {one} and that {two}, or it is not passed on to it"
            if not a.write and check.consumed(a, old):
                strict = True
                why += " (its registers have been read by then, which does not promise it: PTX ISA 9.7.16.6.4.5)"
        elif kind_a == TENSOR:
            missing = "a wait on a tcgen05.commit"
            why = f"Nobody has waited for a tcgen05.commit behind this {one} before that {two}"
        elif a.barrier is not None:
            missing = "a wait on its mbarrier"
            why = (
                f"Nobody has waited for phase {a.barrier[2]} of the mbarrier at {a.barrier[1]:#x}, to which this {one}"
                f" reports, before that {two}"
            )
        else:
            missing = a.ends if a.ends != "mbarrier" else "a wait on its mbarrier"
            why = f"There is no {missing} between this {one} and that {two}"
        return "completion", missing, why, strict
    waited = check.lone.get(a.warps[0][:2], {}).get(component, (0, 0)) if kind_a == TMEM else (0, 0)
    if waited[0] >= clock > 0 and knows(V, check.clocks.of_warp(*a.warps[0][:2]) + check.clocks.fixed, waited[1]):
        return (
            "race",
            "bar.warp.sync",
            f"There is no bar.warp.sync between the tcgen05.wait behind this {one} and the single lane that passes it"
            f" on to that {two}: every lane waits for its own part only",
            True,
        )
    if same_warp and not later:
        return (
            "race",
            "bar.warp.sync",
            f"There is no bar.warp.sync between the lanes of one warp: this {one} and that {two}",
            False,
        )
    if knows(E, component, clock):
        edge = "tcgen05.fence::before_thread_sync" if tcgen else "release and acquire"
        return (
            "race",
            edge,
            f"What synchronises this {one} with that {two} is .relaxed: it needs {edge}",
            False,
        )
    if later and a.barrier is not None:
        return (
            "race",
            "a wait on its mbarrier",
            f"Nobody has waited for phase {a.barrier[2]} of the mbarrier at {a.barrier[1]:#x}, to which this {one}"
            f" reports, before that {two}",
            False,
        )
    return (
        "race",
        "a barrier or mbarrier",
        f"Nothing orders this {one} before that {two}: no barrier, and no arrive that is waited for",
        False,
    )


def register(
    check: Any, cta: int, warp: int, product: ptx.Instr, result: bool, ins: ptx.Instr, reads: bool, slot: int
) -> Finding:
    """A register of a wgmma that is touched before wgmma.wait_group."""

    def side(what: str, at: ptx.Instr, write: bool, proxy: str) -> Access:
        source = str(at.source) if at.source else None
        return Access(what, check.machine.linear(cta), warp, None, at.line, source, "register", (slot,), write, proxy,
                      "a register")  # fmt: skip

    first = side("wgmma.mma_async", product, result, "async")
    second = side(ins.opcode.split(".")[0], ins, not reads, "generic")
    role, verb = ("the accumulator" if result else "A"), ("reads" if reads else "writes")
    return Finding(
        "register",
        f"{second} {verb} a register of {role} of {first} before a wgmma.wait_group has waited for it",
        first,
        second,
        "wgmma.wait_group",
    )


def overwritten(check: Checker, record: int, cells: np.ndarray, place: tuple[int, int], init: Access) -> Finding:
    """A write to where an mbarrier lives."""
    second = describe(check, check.shared, record, cells)
    message = f"{second} writes over the mbarrier at {place[1]:#x} of CTA {check.machine.linear(place[0])} ({init})"
    return Finding("barrier", message, init, second, "mbarrier.inval")


def left_behind(check: Checker, record: int) -> Finding:
    """A copy to or from the shared memory of a block that nobody in the block has waited for."""
    maker = check.records.maker(record)
    cta, warp, lane = maker.warps[0]
    source = str(maker.ins.source) if maker.ins.source else None
    first = Access(maker.what, check.machine.linear(cta), warp, lane, maker.ins.line, source, "shared", (0, 0),
                   maker.write, "async")  # fmt: skip
    verb = "write to" if maker.write else "read from"
    missing = "a wait on its mbarrier" if maker.write else "cp.async.bulk.wait_group.read"
    message = (
        f"{first} may still {verb} the block's shared memory when the block has ended: nothing in it has waited for"
        f" that ({missing})"
    )
    return Finding("completion", message, first, None, missing)
