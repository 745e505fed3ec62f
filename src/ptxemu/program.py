"""An entry, decoded once: closures, basic blocks and the constants that registers hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import isa, ptx
from .errors import UnsupportedInstruction
from .fuse import Fused, fuse, lanewise
from .registers import RAW

if TYPE_CHECKING:
    from .machine import Warps

Semantics = Callable[["Warps"], Any]

MAX_RUN = 64  # instructions that a bundle executes before the scheduler looks again
EXITED = 1 << 30  # the PC of a lane that has left the kernel


@dataclass(slots=True)
class Op:
    """One decoded instruction.

    kind: "plain" (goes on to the next), "branch" (target; EXITED for exit and ret), "block" (may make warps wait).
    full runs it for whole warps; masked runs it for the lanes in `w.mask`.
    """

    ins: ptx.Instr
    kind: str
    full: Semantics
    masked: Semantics
    target: int = -1
    converge: bool = False
    members: int | None = None  # slot of the membermask: which lanes have to come together (None: all)
    # Its semantics, where it only computes on registers: while `full` is still that, it may join others (fuse.py).
    lanewise: Semantics | None = None
    reads: tuple[tuple[int, int], ...] = ()  # registers, as (bits, slot)
    writes: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Block:
    """Plain instructions [start, end) and the branch or blocking instruction behind them, if there is one.

    full: for whole warps; masked: for some of the lanes; places: the instruction that each of the functions begins
    with. Some may be of a later block of the same straight run, or have been done in an earlier one (see fuse.py).
    """

    start: int
    end: int
    full: list[Semantics]
    full_places: list[int]
    masked: list[Semantics]
    masked_places: list[int]
    last: Op | None
    warps: int = 0  # warp executions so far

    def __len__(self) -> int:
        return self.end - self.start + (self.last is not None)


@dataclass(slots=True)
class Program:
    """A decoded entry. `slots`: registers by width, with the constant ones; `constants`: what those hold, filled in
    at launch.
    """

    module: ptx.Module
    entry: ptx.Entry
    slots: dict[int, int] = field(default_factory=dict)
    constants: dict[tuple, int] = field(default_factory=dict)  # (bits, what...) -> slot
    ops: list[Op] = field(default_factory=list)
    leaders: set[int] = field(default_factory=set)
    blocks: dict[int, Block] = field(default_factory=dict)
    checked: bool = False  # every operation that can race tells `Machine.check` what it does (package check)
    _sinks: dict[int, int] = field(default_factory=dict)
    _hidden: dict[tuple, int] = field(default_factory=dict)

    # Special registers that never change while a warp runs; machine.py gives them their values.
    SPECIAL = frozenset(
        [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid") for axis in "xyz"]
        + [f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
        + ["laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "cluster_ctarank", "cluster_nctarank"]
        + [
            "is_explicit_cluster",
            "total_smem_size",
            "dynamic_smem_size",
            "aggr_smem_size",
            "reserved_smem_offset_begin",
        ]
        + [f"lanemask_{which}" for which in ("eq", "le", "lt", "ge", "gt")]
    )

    def constant(self, bits: int, what: tuple) -> int:
        """A register that holds a literal, a special register or an address."""
        key = (bits, *what)
        if key not in self.constants:
            self.constants[key] = self.slots[bits]
            self.slots[bits] += 1
        return self.constants[key]

    def scratch(self, bits: int) -> int:
        """A register that nobody reads."""
        if bits not in self._sinks:
            self._sinks[bits] = self.slots[bits]
            self.slots[bits] += 1
        return self._sinks[bits]

    def hidden(self, bits: int, name: str) -> int:
        """A register that the program does not name, such as the carry flag."""
        key = (bits, "hidden", name)
        if key not in self._hidden:
            self._hidden[key] = self.slots[bits]
            self.slots[bits] += 1
        return self._hidden[key]

    def block(self, pc: int) -> Block:
        """The block that starts at `pc`: where a straight run begins, or at a multiple of MAX_RUN behind that."""
        found = self.blocks.get(pc)
        if found is None:
            self._straight_run(pc)
            found = self.blocks[pc]
        return found

    def _straight_run(self, start: int) -> None:
        """Make the blocks of the plain instructions from `start` to a branch, a target of one, or an instruction that
        waits or brings the lanes together.
        """
        end, last = start, None
        while True:
            op = self.ops[end]
            if op.kind != "plain" or op.converge:
                last = op
                break
            end += 1
            if end in self.leaders:
                break
        chunks = fuse(self, self.ops[start:end], MAX_RUN) or [Fused([], [], [], [])]
        for i, chunk in enumerate(chunks):
            at = start + i * MAX_RUN
            until = min(at + MAX_RUN, end)
            self.blocks[at] = Block(
                at,
                until,
                chunk.full,
                [start + x for x in chunk.full_places],
                chunk.masked,
                [start + x for x in chunk.masked_places],
                last if until == end and until - at < MAX_RUN else None,
            )


def decode(module: ptx.Module, name: str | None = None, checked: bool = False) -> Program:
    """Decode an entry (kept in the module: the second launch finds it ready). checked: for the checked driver."""
    entry = module.entry(name)
    key = f"{entry.name} (checked)" if checked else entry.name
    if key in module.cache:
        return module.cache[key]
    isa.load_all()
    program = Program(module, entry, dict(entry.registers), checked=checked)
    for ins in entry.code:
        op = _decode_one(program, ins)
        program.ops.append(op)
        if op.kind == "branch" and op.target != EXITED:
            program.leaders.add(op.target)
    # Falling off the end is a return.
    end = ptx.Instr(
        "ret", (), None, False, entry.code[-1].line if entry.code else 0, None, "ret (end of the body)", len(entry.code)
    )
    program.ops.append(_decode_one(program, end))
    if checked:
        from .check import link

        link(program)
    module.cache[key] = program
    return program


def _decode_one(program: Program, ins: ptx.Instr) -> Op:
    family = isa.find(ins.opcode)
    try:
        if family is None:
            raise UnsupportedInstruction(f"the emulator does not know the instruction {ins.opcode}", ins.where)
        rest = ins.opcode[len(family.name) + 1 :]
        decoder = isa.Decode(ins, isa.Modifiers(ins, rest.split(".") if rest else []), program, family.name)
        semantics = family.decode(decoder)
        decoder.mods.done()
        alone = semantics if lanewise(ins, family.name) else None
        if program.checked:
            from .check import instrument

            semantics = instrument(decoder, semantics)
    except UnsupportedInstruction as error:
        raiser = _raiser(error)
        return Op(ins, "plain", raiser, raiser)
    if isinstance(semantics, Goto):
        return Op(ins, "branch", _nothing, _nothing, semantics.target)
    if ins.guard is not None:
        both = _guarded(semantics, ins.guard.slot, ins.guard_not, decoder.writes)
        full = masked = both
    else:
        full, masked = semantics, _masked(semantics, decoder.writes)
    return Op(
        ins,
        "block" if family.blocking else "plain",
        full,
        masked,
        converge=family.converge,
        members=decoder.members,
        lanewise=alone,  # type: ignore[arg-type]
        reads=tuple(decoder.reads),
        writes=tuple(decoder.writes),
    )


@dataclass(slots=True, frozen=True)
class Goto:
    """What a decoder returns for an instruction that sets the PC; the machine applies the guard."""

    target: int


def _nothing(w: Warps) -> None:
    return None


def _raiser(error: UnsupportedInstruction) -> Semantics:
    def run(w: Warps) -> None:
        raise UnsupportedInstruction(error.detail, error.where)

    return run


def _committer(writes: list[tuple[int, int]]) -> Callable[[Warps, np.ndarray], None]:
    """Copy what was written to scratch into the registers of the active lanes."""
    places = [(RAW[bits], slot) for bits, slot in dict.fromkeys(writes)]

    def commit(w: Warps, mask: np.ndarray) -> None:
        for name, slot in places:
            where = mask if name != "u128" else mask[..., None]
            np.copyto(getattr(w, name)[slot], getattr(w.to, name)[slot], where=where)

    return commit


def _masked(semantics: Semantics, writes: list[tuple[int, int]]) -> Semantics:
    commit = _committer(writes)

    def run(w: Warps) -> Any:
        result = semantics(w)
        commit(w, w.mask)  # type: ignore[arg-type]
        return result

    return run


def _guarded(semantics: Semantics, slot: int, negated: bool, writes: list[tuple[int, int]]) -> Semantics:
    commit = _committer(writes)

    def run(w: Warps) -> Any:
        mask = w.pred[slot]
        if negated:
            mask = ~mask
        if w.mask is not None:
            mask = mask & w.mask
        if not mask.any():
            return None
        twin = w.twin
        saved, twin.mask = twin.mask, mask.copy()
        try:
            result = semantics(twin)
            commit(twin, twin.mask)
        finally:
            twin.mask = saved
        return result

    return run
