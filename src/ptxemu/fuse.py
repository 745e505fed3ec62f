"""Like instructions of a block run together: one NumPy call for the registers of all of them.

Compilers unroll: a block of 64 instructions is often 20 packs, 20 multiply-adds and 20 unpacks of neighbouring
registers, none of which needs another's result. Registers are rows of one array, so that a function which works on row
7 works on rows 7 to 26 as well (registers.Rows); the semantics in isa/ are decoded for many slots instead of one, and
stay what they are.

Within a block the instructions that only compute on registers (LANEWISE, no guard) are put into groups that do not
depend on each other; everything else keeps its order. What every register holds at the end of the block is the same,
and nobody can look in between: a block runs in one go, and none of these instructions can fail.
"""

from __future__ import annotations

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


def fuse(program: Program, ops: Sequence[Op]) -> tuple[list[Semantics], list[int]]:
    """The functions that do what `ops` do, one after another, and for each the index of (the first of) its ops."""
    nodes = _graph(ops)
    left: dict[Any, int] = defaultdict(int)
    ready: dict[Any, list[int]] = defaultdict(list)
    for node in nodes:
        left[node.key] += 1
        if not node.waits:
            ready[node.key].append(node.at)
    functions: list[Semantics] = []
    places: list[int] = []
    while ready:
        # What all of its kind are ready for, first; else of what most is; what was written first, among equals.
        key = max(ready, key=lambda k: (k is None, len(ready[k]) / left[k], len(ready[k]), -ready[k][0]))
        group = ready.pop(key)
        left[key] -= len(group)
        for part in _parts([ops[i] for i in group]) if len(group) >= SMALLEST else [[ops[i] for i in group]]:
            functions.append(_one(program, part))
            places.append(ops.index(part[0]))
        for i in group:
            for follower in nodes[i].followers:
                nodes[follower].waits -= 1
                if not nodes[follower].waits:
                    ready[nodes[follower].key].append(follower)
    return functions, places


def _targets(op: Op) -> tuple[int, ...]:
    return tuple(slot for _, slot in op.writes)


def _parts(group: list[Op]) -> list[list[Op]]:
    """Cut a group where its targets do not go on in even steps."""
    group = sorted(group, key=_targets)
    parts: list[list[Op]] = [[group[0]]]
    step: tuple[int, ...] | None = None
    for op in group[1:]:
        new = tuple(b - a for a, b in zip(_targets(parts[-1][-1]), _targets(op), strict=True))
        if min(new, default=0) > 0 and (step is None or new == step):
            parts[-1].append(op)
            step = new
        else:
            parts.append([op])
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
