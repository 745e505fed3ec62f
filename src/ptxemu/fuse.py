"""Like instructions of a straight run done together: one NumPy call for the registers of all of them.

Compilers unroll: a few hundred instructions are often 64 packs, 64 multiply-adds and 64 unpacks of neighbouring
registers, none of which needs another's result. Registers are rows of one array, so that a function which works on row
7 works on rows 7 to 70 as well (registers.Rows); the semantics in isa/ are decoded for many slots instead of one, and
stay what they are.

The instructions that only compute on registers (LANEWISE, no guard) are put into groups whose members do not depend on
each other, and done when the first of them is due; everything else keeps its order and its turn. Nobody sees the
difference: a warp's registers are its own, and none of these instructions can fail or wait.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import isa, ptx
from .errors import UnsupportedInstruction
from .registers import Rows

if TYPE_CHECKING:
    from .program import Op, Program

Semantics = Callable[[Any], Any]

# Families whose functions work element by element on whatever shape the registers have.
LANEWISE = frozenset(
    [
        "mov", "selp", "setp", "cvt", "cvta",
        "add", "sub", "mul", "mad", "fma", "min", "max", "abs", "neg",
        "and", "or", "xor", "not", "shl", "shr", "lop3",
        "ex2", "rcp", "lg2", "sqrt", "rsqrt", "tanh", "sin", "cos",
    ]
)  # fmt: skip
# Forms of them that look at the lanes one by one, or hand a carry from one instruction to the next.
NOT_LANEWISE = frozenset(["cc", "f64", "rz", "rp", "b128"])
CHANGING = frozenset(["clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"])
SMALLEST = 2  # instructions that are worth a group
LARGEST = 32  # more would only make temporaries that no cache holds

Slot = tuple[int, int]  # (bits, slot)


def lanewise(ins: ptx.Instr, family: str) -> bool:
    """Whether an instruction only computes on registers, each lane for itself."""
    if family not in LANEWISE or not NOT_LANEWISE.isdisjoint(ins.opcode.split(".")):
        return False
    return not any(isinstance(x, ptx.Special) and x.name in CHANGING for x in ins.operands)


def leaves(operand: ptx.Operand) -> Iterable[ptx.Operand]:
    """The registers, literals and so on of an operand."""
    match operand:
        case ptx.Vec() | ptx.Group():
            for item in operand.items:
                yield from leaves(item)
        case ptx.Pair():
            yield from leaves(operand.first)
            yield from leaves(operand.second)
        case ptx.Not():
            yield from leaves(operand.operand)
        case _:
            yield operand


def _kind(operand: ptx.Operand) -> Any:
    """What two operands have to share for their instructions to be alike: all but which register it is."""
    match operand:
        case ptx.Reg():
            return operand.bits, operand.type
        case ptx.Vec() | ptx.Group():
            return type(operand), *map(_kind, operand.items)
        case ptx.Pair():
            return ptx.Pair, _kind(operand.first), _kind(operand.second)
        case ptx.Not():
            return ptx.Not, _kind(operand.operand)
        case ptx.Imm():
            return operand.kind, operand.raw, operand.value
        case _:
            return operand


def _fresh(operand: ptx.Operand) -> ptx.Operand:
    """A copy in which every leaf is an object of its own, so that its identity says where it stands."""
    match operand:
        case ptx.Vec():
            return ptx.Vec(tuple(map(_fresh, operand.items)))
        case ptx.Pair():
            return ptx.Pair(_fresh(operand.first), _fresh(operand.second))
        case ptx.Not():
            return ptx.Not(_fresh(operand.operand))  # type: ignore[arg-type]
        case ptx.Reg():
            return ptx.Reg(operand.name, operand.type, operand.bits, operand.slot)
        case ptx.Imm():
            return ptx.Imm(operand.kind, operand.value, operand.raw)
        case _:
            return operand


class NoGroup(Exception):
    """These instructions cannot be decoded as one."""


class GroupDecode(isa.Decode):
    """Decodes like instructions as one: a register operand becomes the rows of all of them."""

    count: int  # of instructions
    rows: dict[int, tuple[int, ...]]  # id of a register operand of the first instruction -> the slots of all

    def read(self, operand: ptx.Operand, view: str) -> Any:
        slot = isa.Decode.read(self, operand, view)
        return Rows.of(self.rows.get(id(operand), (slot,) * self.count))

    def write(self, operand: ptx.Operand, view: str) -> Any:
        isa.Decode.write(self, operand, view)
        slots = self.rows.get(id(operand))
        if slots is None:
            raise NoGroup
        rows = Rows.of(slots)
        if rows.step <= 0:
            raise NoGroup
        return rows

    def address(self, operand: ptx.Operand) -> tuple[str, int, int]:
        raise NoGroup


def decode_group(program: Program, group: Sequence[ptx.Instr]) -> Semantics:
    """The semantics of like instructions with separate targets, as one function."""
    first = group[0]
    family = isa.find(first.opcode)
    assert family is not None
    ins = replace(first, operands=tuple(map(_fresh, first.operands)))
    rest = ins.opcode[len(family.name) + 1 :]
    d = GroupDecode(ins, isa.Modifiers(ins, rest.split(".") if rest else []), program, family.name)
    d.count, d.rows = len(group), {}
    columns = zip(*([x for o in i.operands for x in leaves(o)] for i in group), strict=True)
    places = [x for o in ins.operands for x in leaves(o)]
    for place, column in zip(places, columns, strict=True):
        if isinstance(place, ptx.Reg):
            d.rows[id(place)] = tuple(x.slot for x in column)  # type: ignore[union-attr]
    return family.decode(d)  # type: ignore[return-value]


@dataclass(slots=True)
class _Node:
    """An instruction of a block: how many of those that it needs are not placed yet, and who needs it."""

    at: int
    key: Any
    waits: int
    followers: list[int]


def _graph(ops: Sequence[Op]) -> list[_Node]:
    """Who has to come before whom: writers before readers, readers before the next writer, all others in order."""
    nodes: list[_Node] = []
    wrote: dict[Slot, int] = {}
    read: dict[Slot, list[int]] = defaultdict(list)
    for i, op in enumerate(ops):
        before: set[int] = set()
        reads, writes = set(op.reads), set(op.writes)
        if op.ins.guard is not None:
            reads |= {(1, op.ins.guard.slot)} | writes
        key = None
        if op.lanewise is op.full:  # not guarded, and nobody wants to be told of it
            key = (op.ins.opcode, *map(_kind, op.ins.operands))
        else:  # one pseudo-register that all of them write
            writes.add((0, 0))
        for slot in reads:
            if slot in wrote:
                before.add(wrote[slot])
        for slot in writes:
            if slot in wrote:
                before.add(wrote[slot])
            before.update(read.pop(slot, ()))
        for slot in writes:
            wrote[slot] = i
        for slot in reads - writes:
            read[slot].append(i)
        before.discard(i)
        for j in before:
            nodes[j].followers.append(i)
        nodes.append(_Node(i, key, len(before), []))
    return nodes


@dataclass(slots=True)
class Fused:
    """What a chunk of a straight run does: functions, and for each of them the instruction that it begins with.

    full: for whole warps, like instructions together. masked: for some of the lanes, each instruction by itself.
    """

    full: list[Semantics]
    full_places: list[int]
    masked: list[Semantics]
    masked_places: list[int]


def fuse(program: Program, ops: Sequence[Op], length: int) -> list[Fused]:
    """A straight run of instructions, cut into chunks of `length`: what is to be done in each of them.

    Everything is done in its own chunk; only what is LANEWISE may be done in an earlier one, together with others like
    it. So whoever enters such a run has to do so at its beginning, and whoever has begun has to go on to the end.
    """
    nodes = _graph(ops)
    left: dict[Any, int] = defaultdict(int)
    ready: dict[Any, list[int]] = defaultdict(list)
    for node in nodes:
        left[node.key] += 1
        if not node.waits:
            ready[node.key].append(node.at)
    placed = [False] * len(ops)
    chunks: list[Fused] = []
    for start in range(0, len(ops), length):
        chunk = Fused([], [], [], [])
        chunks.append(chunk)
        end = min(start + length, len(ops))
        missing = placed[start:end].count(False)
        while missing:
            # Of the kinds that this chunk needs: what all are ready for, else of what most is, else the first.
            needed = [k for k, waiting in ready.items() if min(waiting) < end]
            key = max(needed, key=lambda k: (k is None, len(ready[k]) / left[k], len(ready[k]), -min(ready[k])))
            group = sorted(ready.pop(key))
            left[key] -= len(group)
            for part in _parts(ops, group):
                chunk.full.append(_one(program, [ops[i] for i in part]))
                chunk.full_places.append(part[0])
            for i in group:
                chunk.masked.append(ops[i].masked)
                chunk.masked_places.append(i)
                placed[i] = True
                missing -= i < end
                for follower in nodes[i].followers:
                    nodes[follower].waits -= 1
                    if not nodes[follower].waits:
                        ready[nodes[follower].key].append(follower)
    return chunks


def _parts(ops: Sequence[Op], group: list[int]) -> list[list[int]]:
    """Cut a group where its targets do not go on in even steps."""
    if len(group) < SMALLEST:
        return [group]
    ordered = sorted((tuple(slot for _, slot in ops[i].writes), i) for i in group)
    parts = [[ordered[0][1]]]
    step: tuple[int, ...] | None = None
    for (before, _), (targets, i) in itertools.pairwise(ordered):
        new = tuple(b - a for a, b in zip(before, targets, strict=True))
        if min(new, default=0) > 0 and (step is None or new == step) and len(parts[-1]) < LARGEST:
            parts[-1].append(i)
            step = new
        else:
            parts.append([i])
            step = None
    return parts


def _one(program: Program, part: list[Op]) -> Semantics:
    if len(part) >= SMALLEST:
        try:
            return decode_group(program, [op.ins for op in part])
        except (NoGroup, UnsupportedInstruction):
            pass
    if len(part) == 1:
        return part[0].full
    functions = [op.full for op in part]

    def run(w: Any) -> None:
        for function in functions:
            function(w)

    return run
