"""Registers that an asynchronous instruction writes: who touches them, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import ptx
from .wrap import Run

if TYPE_CHECKING:
    from ..program import Program


def registers_in(operands: Iterable[ptx.Operand]) -> set[tuple[int, int]]:
    """(bits, slot) of every register in these operands."""
    found: set[tuple[int, int]] = set()
    for x in operands:
        match x:
            case ptx.Reg():
                found.add((x.bits, x.slot))
            case ptx.Not():
                found.add((x.operand.bits, x.operand.slot))
            case ptx.Vec() | ptx.Group():
                found |= registers_in(x.items)
            case ptx.Pair():
                found |= registers_in((x.first, x.second))
            case ptx.Addr():
                found |= registers_in((x.base, *x.more))
    return found


def link(program: Program) -> None:
    """When all is decoded: instructions that touch registers of a tcgen05.ld or a wgmma tell the checker so."""
    loaded: set[tuple[int, int]] = set()
    multiplied: set[tuple[int, int]] = set()
    for op in program.ops:
        if op.ins.opcode.startswith("tcgen05.ld"):
            loaded |= registers_in(op.ins.operands[:1])
        elif op.ins.opcode.startswith("wgmma.mma_async"):
            multiplied |= registers_in(op.ins.operands[:2])
    for op in program.ops:
        opcode = op.ins.opcode
        if loaded and not opcode.startswith("tcgen05.ld"):
            first = 0 if opcode.startswith(NO_RESULT) else 1
            mine = tuple(slot for bits, slot in registers_in(op.ins.operands[first:]) & loaded if bits == 32)
            if mine:
                op.full, op.masked = _reads(op.full, mine), _reads(op.masked, mine)
        if multiplied and not opcode.startswith("wgmma"):
            first = 0 if opcode.startswith(NO_RESULT) else 1
            reads, all_of_them = registers_in(op.ins.operands[first:]), registers_in(op.ins.operands)
            touched = tuple((slot, (bits, slot) in reads) for bits, slot in all_of_them & multiplied if bits == 32)
            if touched:
                op.full = _touches(op.full, touched, op.ins)
                op.masked = _touches(op.masked, touched, op.ins)


NO_RESULT = ("st", "red", "tcgen05", "mbarrier", "cp", "bar", "wgmma")  # their first operand is none


def _reads(semantics: Run, registers: tuple[int, ...]) -> Run:
    def run(w: Any) -> Any:
        check = w.machine.check
        if check.held:
            check.registers_read(w, registers)
        return semantics(w)

    return run


def _touches(semantics: Run, registers: tuple[tuple[int, bool], ...], ins: ptx.Instr) -> Run:
    def run(w: Any) -> Any:
        check = w.machine.check
        if check.under_way:
            check.registers_touched(w, registers, ins)
        return semantics(w)

    return run
