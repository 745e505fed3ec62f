"""One line of a printed host function -> one Python closure over the function's frame.

A frame is a list with one slot for each SSA value. Every closure takes the frame, reads the slots of its operands and
fills the slot of its result; a terminator returns the next `Block`, or None when the function returns (the value then
lies in slot 0). Constants and addresses of globals cost nothing at run time: they are filled in when a frame is made.

An operation that is not known here becomes a closure that raises `HostError` naming the operation and its line, so a
function may hold one in a branch that is not taken, and none is ever passed over.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptxemu.errors import EmulationError
from ptxemu.hosttypes import VOID, Type, TypeSyntaxError, integer, packer, parse_type, reader, round_to, zero

if TYPE_CHECKING:
    from ptxemu.host import HostModule

Frame = list[Any]
Operation = Callable[[Frame], Any]
_M64 = (1 << 64) - 1


class HostError(EmulationError):
    """The host function of a compiled object cannot be interpreted, or asks for a launch that CUDA would refuse."""


@dataclass(slots=True)
class Block:
    """A basic block: its argument slots, its operations in order, its terminator."""

    arguments: list[int] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    terminator: Operation | None = None


@dataclass(slots=True)
class Code:
    """A decoded function: entry block, the frame that a call starts from, types of arguments and of the result."""

    entry: Block
    frame: Frame
    arguments: list[tuple[int, Type]]
    result: Type


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


# ---------------------------------------------------------------------------------------------------- arithmetic


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * _divide(a, b)


# A shift by the width or more gives poison in LLVM: nothing may depend on it, so 0 does as well as any other value.
_UNSIGNED: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul": lambda a, b, n: a * b,
    "and": lambda a, b, n: a & b,
    "or": lambda a, b, n: a | b,
    "xor": lambda a, b, n: a ^ b,
    "shl": lambda a, b, n: a << b if b < n else 0,
    "lshr": lambda a, b, n: a >> b if b < n else 0,
    "udiv": lambda a, b, n: a // b,
    "urem": lambda a, b, n: a % b,
    "intr.umin": lambda a, b, n: min(a, b),
    "intr.umax": lambda a, b, n: max(a, b),
}
_SIGNED: dict[str, Callable[[int, int, int], int]] = {
    "ashr": lambda a, b, n: a >> b if 0 <= b < n else 0,
    "sdiv": lambda a, b, n: _divide(a, b),
    "srem": lambda a, b, n: _remainder(a, b),
    "intr.smin": lambda a, b, n: min(a, b),
    "intr.smax": lambda a, b, n: max(a, b),
}
_PREDICATES = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}
_PREDICATES |= {"gt": operator.gt, "ge": operator.ge}


def _fdiv(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _fmax(a: float, b: float) -> float:  # llvm.intr.maxnum: the number, where only one operand is one
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _fmin(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


# Computed in double and rounded once more to the type: exact for f16, bf16 and f32, whose products and quotients a
# double holds with more than twice their digits.
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "fadd": operator.add,
    "fsub": operator.sub,
    "fmul": operator.mul,
    "fdiv": _fdiv,
    "intr.maxnum": _fmax,
    "intr.minnum": _fmin,
}
_FLOAT_UNARY: dict[str, Callable[[float], float]] = {
    "fneg": operator.neg,
    "intr.fabs": abs,
    "intr.sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
}
_INTEGER_CASTS = {"sext", "zext", "trunc", "ptrtoint", "inttoptr", "bitcast", "addrspacecast", "freeze"}
_FLOAT_CASTS = {"sitofp", "uitofp", "fptosi", "fptoui", "fpext", "fptrunc"}
# Hints to a compiler, of no effect on a value.
_HINTS = {"intr.assume", "intr.lifetime.start", "intr.lifetime.end", "intr.stackrestore"}


# ---------------------------------------------------------------------------------------------------- the text

_SPACE = re.compile(r"\s*")
_VALUE = re.compile(r"%[\w$.]+(?:#\d+)?")
_BLOCK = re.compile(r"\^\w+")
_SYMBOL = re.compile(r'@(?:"((?:[^"\\]|\\.)*)"|([\w$.]+))')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_WORD = re.compile(r"[\w.]+")
_ESCAPE = re.compile(rb'\\([0-9A-Fa-f]{2}|[\\"nt])')
_OPERATION = re.compile(r"\s*(?:(%[\w$.]+) = )?llvm\.([\w.]+)")
_ATTRIBUTES = re.compile(r"\{[^{}]*\}")


def unescape(text: str) -> bytes:
    """The bytes of a string as MLIR prints it: a backslash and two hexadecimal digits stand for one byte."""

    def one(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return {b"n": b"\n", b"t": b"\t", b"\\": b"\\", b'"': b'"'}.get(code) or bytes.fromhex(code.decode())

    return _ESCAPE.sub(one, text.encode("utf-8", "surrogateescape"))


class Cursor:
    """A reading position in one line of text."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        if match := pattern.match(self.text, at):
            self.at = match.end()
        return match

    def skip(self, literal: str) -> bool:
        at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        if self.text.startswith(literal, at):
            self.at = at + len(literal)
            return True
        return False

    def need(self, literal: str) -> None:
        if not self.skip(literal):
            raise TypeSyntaxError(f"{literal!r} expected at {self.text[self.at : self.at + 40]!r}")

    def value(self) -> str:
        match = self.take(_VALUE)
        if match is None:
            raise TypeSyntaxError(f"a value expected at {self.text[self.at : self.at + 40]!r}")
        return match[0]

    def type(self) -> Type:
        kind, self.at = parse_type(self.text, _SPACE.match(self.text, self.at).end())  # type: ignore[union-attr]
        return kind

    def symbol(self) -> str:
        match = self.take(_SYMBOL)
        if match is None:
            raise TypeSyntaxError(f"a symbol expected at {self.text[self.at : self.at + 40]!r}")
        return match[2] if match[1] is None else match[1]

    def end(self) -> bool:
        return _SPACE.match(self.text, self.at).end() == len(self.text)  # type: ignore[union-attr]


def constant(cursor: Cursor) -> tuple[object, Type | None]:
    """What stands in ``llvm.mlir.constant( ... )`` or as a global's initial value: a value and the type written with
    it, if any. A string or dense vector comes as bytes."""
    if cursor.skip("true"):
        return 1, integer(1)
    if cursor.skip("false"):
        return 0, integer(1)
    if match := cursor.take(_STRING):
        return unescape(match[1]), None
    if cursor.skip("dense<"):
        return _dense(cursor)
    match = cursor.take(_NUMBER)
    if match is None:
        raise TypeSyntaxError(f"a constant expected at {cursor.text[cursor.at : cursor.at + 40]!r}")
    kind = cursor.type() if cursor.skip(":") else integer(64)
    return _number(match[0], kind), kind


def _number(text: str, kind: Type) -> object:
    if kind.kind == "float":
        if "0x" in text:  # the bits of the value
            word = int(text, 16)
            return reader(kind)(word.to_bytes(kind.size, "little"), 0)
        return round_to(kind)(float(text))
    return int(text, 0) & ((1 << kind.bits) - 1)


def _dense(cursor: Cursor) -> tuple[object, Type]:
    items = []
    bracket = cursor.skip("[")
    while not cursor.skip(">"):
        if match := cursor.take(_NUMBER) or cursor.take(re.compile("true|false")):
            items.append({"true": "1", "false": "0"}.get(match[0], match[0]))
        elif not (cursor.skip(",") or cursor.skip("]")):
            raise TypeSyntaxError(f"a number expected at {cursor.text[cursor.at : cursor.at + 40]!r}")
    cursor.need(":")
    cursor.skip("tensor<")  # an array's constant is printed as a tensor of one dimension
    if match := cursor.take(re.compile(r"(\d+)x")):
        element = cursor.type()
        count = int(match[1])
        cursor.need(">")
        kind = Type("array", count * element.size, element.align, element=element, count=count)
    else:
        kind = cursor.type()
    assert kind.element is not None
    if not bracket:
        items = items * kind.count
    pack = packer(kind.element)
    image = b"".join(pack(_number(item, kind.element)) for item in items)
    return image.ljust(kind.size, b"\0"), kind


# ---------------------------------------------------------------------------------------------------- the decoder


class Decoder:
    """Decodes one function of a `HostModule`; see the module's docstring for what comes out."""

    def __init__(self, module: HostModule, name: str, first: int, lines: list[str]) -> None:
        self.module, self.name, self.first, self.lines = module, name, first, lines
        self.slots: dict[str, int] = {}
        self.frame: Frame = [None]
        self.blocks: dict[str, Block] = {}
        self.at = ""  # "line N: text" of the operation at hand, for messages

    def slot(self, value: str) -> int:
        number = self.slots.get(value)
        if number is None:
            number = self.slots[value] = len(self.frame)
            self.frame.append(None)
        return number

    def block(self, label: str) -> Block:
        return self.blocks.setdefault(label, Block())

    def decode(self) -> Code:
        cursor = Cursor(self.lines[0], self.lines[0].index("("))
        arguments = self._signature(cursor)
        result = cursor.type() if cursor.skip("->") else VOID
        block = self.block("^entry")
        entry = block
        number = 0
        while (number := number + 1) < len(self.lines):
            line, here = self.lines[number], self.first + number
            if line.startswith("  ^"):
                cursor = Cursor(line)
                label = cursor.take(_BLOCK)
                assert label is not None
                block = self.block(label[0])
                block.arguments = [slot for slot, _ in self._signature(cursor)] if cursor.skip("(") else []
                continue
            while line.count("[") > line.count("]"):  # a switch spreads its cases over lines
                number += 1
                line += " " + self.lines[number].strip()
            self.at = f"host function, line {here}: {line.strip()[:200]}"
            self._line(block, line)
        return Code(entry, self.frame, arguments, result)

    def _signature(self, cursor: Cursor) -> list[tuple[int, Type]]:
        cursor.skip("(")
        found = []
        while not cursor.skip(")"):
            value = cursor.value()
            cursor.need(":")
            found.append((self.slot(value), cursor.type()))
            cursor.take(_ATTRIBUTES)
            cursor.skip(",")
        return found

    def _line(self, block: Block, line: str) -> None:
        match = _OPERATION.match(line)
        if match is None:
            name, method = line.strip().split(" ", 1)[0], None
            operation: Operation | None = self._unknown(name, "no operation of the LLVM dialect")
        else:
            name = match[2]
            cursor = Cursor(line, match.end())
            method = self._method(name)
            try:
                if method is None:
                    operation = self._unknown("llvm." + name, "not known")
                else:
                    operation = method(name, cursor, match[1])
            except (TypeSyntaxError, ValueError, IndexError, KeyError) as error:
                operation = self._unknown("llvm." + name, f"not understood ({error})")
        if name in _TERMINATORS and method is not None:
            block.terminator = operation
        elif operation is not None:
            block.operations.append(operation)

    def _method(self, name: str) -> Callable[[str, Cursor, str], Operation | None] | None:
        if name in _UNSIGNED or name in _SIGNED:
            return self._integer
        if name in _FLOAT:
            return self._float
        if name in _FLOAT_UNARY:
            return self._float_unary
        if name in _INTEGER_CASTS:
            return self._integer_cast
        if name in _FLOAT_CASTS:
            return self._float_cast
        if name in _HINTS:
            return lambda name, cursor, result: None
        return getattr(self, "_op_" + name.replace(".", "_"), None)

    def _unknown(self, name: str, why: str) -> Operation:
        at = self.at

        def unknown(frame: Frame) -> None:
            raise HostError(
                f"{at}\noperation {name!r} is {why}. ptxemu interprets the host function of a compiled object and "
                "passes over nothing: add the operation to ptxemu/hostops.py."
            )

        return unknown

    def _operands(self, cursor: Cursor, flags: tuple[str, ...] = ()) -> list[int]:
        """``%a, %b`` with flag words before them and ``overflow<...>`` after; in parentheses or not."""
        while (word := cursor.take(_WORD)) is not None:
            if word[0] not in ("exact", "disjoint", "nneg", "inbounds", "nuw", "nusw", "volatile", *flags):
                raise TypeSyntaxError(f"flag {word[0]!r}")
        bracket = cursor.skip("(")
        found = [self.slot(cursor.value())]
        while cursor.skip(","):
            found.append(self.slot(cursor.value()))
        if bracket:
            cursor.need(")")
        cursor.take(re.compile(r"overflow<[^>]*>"))
        cursor.take(_ATTRIBUTES)
        return found

    @staticmethod
    def _scalar(kind: Type, *kinds: str) -> Type:
        if kind.kind not in kinds:
            raise TypeSyntaxError(f"type {kind}")
        return kind

    # ------------------------------------------------------------------------------------------ arithmetic

    def _integer(self, name: str, cursor: Cursor, result: str) -> Operation:
        a, b = self._operands(cursor)
        cursor.need(":")
        cursor.skip("(")
        bits = self._scalar(cursor.type(), "int").bits
        mask = (1 << bits) - 1
        d, at = self.slot(result), self.at
        if name in ("sdiv", "udiv", "srem", "urem"):
            inner = _UNSIGNED.get(name) or _SIGNED[name]
            is_signed = name in _SIGNED

            def divide(frame: Frame) -> None:
                x, y = frame[a], frame[b]
                if y == 0:
                    raise HostError(f"{at}\ndivision of {x} by zero")
                if is_signed:
                    x, y = signed(x, bits), signed(y, bits)
                frame[d] = inner(x, y, bits) & mask

            return divide
        if name in _SIGNED:
            compute = _SIGNED[name]

            def run_signed(frame: Frame) -> None:
                frame[d] = compute(signed(frame[a], bits), signed(frame[b], bits), bits) & mask

            return run_signed
        compute = _UNSIGNED[name]

        def run_unsigned(frame: Frame) -> None:
            frame[d] = compute(frame[a], frame[b], bits) & mask

        return run_unsigned

    def _float(self, name: str, cursor: Cursor, result: str) -> Operation:
        a, b = self._operands(cursor)
        cursor.need(":")
        cursor.skip("(")
        convert = round_to(self._scalar(cursor.type(), "float"))
        compute, d = _FLOAT[name], self.slot(result)

        def run(frame: Frame) -> None:
            frame[d] = convert(compute(frame[a], frame[b]))

        return run

    def _float_unary(self, name: str, cursor: Cursor, result: str) -> Operation:
        (a,) = self._operands(cursor)
        cursor.need(":")
        cursor.skip("(")
        convert = round_to(self._scalar(cursor.type(), "float"))
        compute, d = _FLOAT_UNARY[name], self.slot(result)

        def run(frame: Frame) -> None:
            frame[d] = convert(compute(frame[a]))

        return run

    def _integer_cast(self, name: str, cursor: Cursor, result: str) -> Operation:
        (a,) = self._operands(cursor)
        cursor.need(":")
        source = cursor.type()
        target = cursor.type() if cursor.skip("to") else source
        d = self.slot(result)
        mask = (1 << target.bits) - 1
        if name == "bitcast" and "float" in (source.kind, target.kind) and source.kind != target.kind:
            pack, read = packer(source), reader(target)

            def reinterpret(frame: Frame) -> None:
                frame[d] = read(pack(frame[a]), 0)

            return reinterpret
        if name in ("freeze", "bitcast"):

            def copy(frame: Frame) -> None:
                frame[d] = frame[a]

            return copy
        self._scalar(source, "int", "ptr")
        self._scalar(target, "int", "ptr")
        if name == "sext":
            bits = source.bits

            def extend(frame: Frame) -> None:
                frame[d] = signed(frame[a], bits) & mask

            return extend

        def resize(frame: Frame) -> None:
            frame[d] = frame[a] & mask

        return resize

    def _float_cast(self, name: str, cursor: Cursor, result: str) -> Operation:
        (a,) = self._operands(cursor)
        cursor.need(":")
        source = self._scalar(cursor.type(), "int", "float")
        cursor.need("to")
        target = self._scalar(cursor.type(), "int", "float")
        d, at = self.slot(result), self.at
        bits, mask = source.bits, (1 << target.bits) - 1
        if target.kind == "float":
            convert = round_to(target)
            if name == "sitofp":
                return lambda frame: frame.__setitem__(d, convert(signed(frame[a], bits)))
            return lambda frame: frame.__setitem__(d, convert(frame[a]))
        low = -(1 << (target.bits - 1)) if name == "fptosi" else 0
        high = (1 << (target.bits - 1)) if name == "fptosi" else 1 << target.bits

        def truncate(frame: Frame) -> None:
            value = frame[a]
            if not low - 1 < value < high:
                raise HostError(f"{at}\n{value} does not fit {target}")
            frame[d] = int(value) & mask

        return truncate

    def _op_icmp(self, name: str, cursor: Cursor, result: str) -> Operation:
        word = cursor.take(_STRING)
        assert word is not None
        predicate = word[1]
        a, b = self._operands(cursor)
        cursor.need(":")
        bits = self._scalar(cursor.type(), "int", "ptr").bits
        compare = _PREDICATES[predicate if predicate in ("eq", "ne") else predicate[1:]]
        d = self.slot(result)
        if predicate[0] == "s":

            def run_signed(frame: Frame) -> None:
                frame[d] = 1 if compare(signed(frame[a], bits), signed(frame[b], bits)) else 0

            return run_signed

        def run(frame: Frame) -> None:
            frame[d] = 1 if compare(frame[a], frame[b]) else 0

        return run

    def _op_fcmp(self, name: str, cursor: Cursor, result: str) -> Operation:
        word = cursor.take(_STRING)
        assert word is not None
        predicate = word[1]
        a, b = self._operands(cursor)
        cursor.need(":")
        self._scalar(cursor.type(), "float")
        d = self.slot(result)
        unordered = predicate[0] == "u"
        if predicate in ("_true", "_false", "true", "false", "ord", "uno"):
            compare: Callable[[Any, Any], bool] = lambda x, y: predicate in ("_true", "true", "ord")  # noqa: E731
            unordered = predicate in ("_true", "true", "uno")
        else:
            compare = _PREDICATES[predicate[1:]]

        def run(frame: Frame) -> None:
            x, y = frame[a], frame[b]
            frame[d] = int(unordered if x != x or y != y else compare(x, y))

        return run

    def _op_select(self, name: str, cursor: Cursor, result: str) -> Operation:
        c, a, b = self._operands(cursor)
        cursor.need(":")
        self._scalar(cursor.type(), "int")
        d = self.slot(result)

        def run(frame: Frame) -> None:
            frame[d] = frame[a] if frame[c] else frame[b]

        return run

    # ------------------------------------------------------------------------------------------ constants

    def _op_mlir_constant(self, name: str, cursor: Cursor, result: str) -> None:
        cursor.need("(")
        value, _ = constant(cursor)
        cursor.need(")")
        kind = cursor.type() if cursor.skip(":") else None
        if isinstance(value, bytes) and kind is not None and (kind.scalar or len(value) != kind.size):
            raise TypeSyntaxError(f"{len(value)} bytes for {kind}")
        self.frame[self.slot(result)] = value

    def _op_mlir_zero(self, name: str, cursor: Cursor, result: str) -> None:
        cursor.need(":")
        self.frame[self.slot(result)] = zero(cursor.type())

    # No program may depend on an undefined value; zeros are one of the values that it can have.
    _op_mlir_undef = _op_mlir_poison = _op_mlir_zero

    def _op_mlir_addressof(self, name: str, cursor: Cursor, result: str) -> Operation | None:
        symbol = cursor.symbol()
        try:
            self.frame[self.slot(result)] = self.module.address_of(symbol)
        except HostError as error:
            return self._unknown("llvm.mlir.addressof", f"of no use here ({error})")
        return None

    # ------------------------------------------------------------------------------------------ aggregates

    def _path(self, cursor: Cursor) -> list[int]:
        cursor.need("[")
        path = []
        while not cursor.skip("]"):
            match = cursor.take(_NUMBER)
            if match is None:
                raise TypeSyntaxError(f"an index expected at {cursor.text[cursor.at : cursor.at + 40]!r}")
            path.append(int(match[0]))
            cursor.skip(",")
        return path

    def _member(self, cursor: Cursor) -> tuple[int, Type]:
        path = self._path(cursor)
        cursor.take(_ATTRIBUTES)
        cursor.need(":")
        kind, offset = cursor.type(), 0
        for index in path:
            step, kind = kind.member(index)
            offset += step
        return offset, kind

    def _op_extractvalue(self, name: str, cursor: Cursor, result: str) -> Operation:
        a = self.slot(cursor.value())
        offset, kind = self._member(cursor)
        read, d = reader(kind), self.slot(result)

        def run(frame: Frame) -> None:
            frame[d] = read(frame[a], offset)

        return run

    def _op_insertvalue(self, name: str, cursor: Cursor, result: str) -> Operation:
        value = self.slot(cursor.value())
        cursor.need(",")
        a = self.slot(cursor.value())
        offset, kind = self._member(cursor)
        pack, end, d = packer(kind), offset + kind.size, self.slot(result)

        def run(frame: Frame) -> None:
            image = frame[a]
            frame[d] = image[:offset] + pack(frame[value]) + image[end:]

        return run

    # ------------------------------------------------------------------------------------------ memory

    def _op_alloca(self, name: str, cursor: Cursor, result: str) -> Operation:
        count = self.slot(cursor.value())
        cursor.need("x")
        kind = cursor.type()
        attributes = cursor.take(_ATTRIBUTES)
        wanted = re.search(r"alignment = (\d+)", attributes[0]) if attributes else None
        alignment = max(int(wanted[1]) if wanted else 1, kind.align)
        allocate, size, d = self.module.memory.allocate, kind.size, self.slot(result)

        def run(frame: Frame) -> None:
            frame[d] = allocate(frame[count] * size, alignment)

        return run

    def _op_load(self, name: str, cursor: Cursor, result: str) -> Operation:
        cursor.skip("volatile")
        a = self.slot(cursor.value())
        cursor.take(re.compile(r"invariant\b"))
        cursor.take(_ATTRIBUTES)
        cursor.need(":")
        cursor.type()
        cursor.need("->")
        kind = cursor.type()
        find, size, read, d, at = self.module.memory.find, kind.size, reader(kind), self.slot(result), self.at

        def run(frame: Frame) -> None:
            view, offset = find(frame[a], size, at)
            frame[d] = read(view, offset)

        return run

    def _op_store(self, name: str, cursor: Cursor, result: str) -> Operation:
        cursor.skip("volatile")
        value = self.slot(cursor.value())
        cursor.need(",")
        a = self.slot(cursor.value())
        cursor.take(_ATTRIBUTES)
        cursor.need(":")
        kind = cursor.type()
        find, size, pack, at = self.module.memory.find, kind.size, packer(kind), self.at

        def run(frame: Frame) -> None:
            view, offset = find(frame[a], size, at)
            view[offset : offset + size] = pack(frame[value])

        return run

    def _op_getelementptr(self, name: str, cursor: Cursor, result: str) -> Operation:
        while cursor.take(re.compile(r"(?:inbounds|nuw|nusw)\b\s*\|?")):
            pass
        a = self.slot(cursor.value())
        cursor.need("[")
        indices: list[int | str] = []
        while not cursor.skip("]"):
            number = cursor.take(_NUMBER)
            indices.append(int(number[0]) if number else cursor.value())
            cursor.skip(",")
        cursor.take(_ATTRIBUTES)
        cursor.need(":")
        cursor.need("(")
        cursor.type()
        widths = []
        while not cursor.skip(")"):
            cursor.need(",")
            widths.append(cursor.type().bits)
        cursor.need("->")
        cursor.type()
        cursor.need(",")
        kind = cursor.type()
        offset = 0
        dynamic: list[tuple[int, int, int]] = []  # slot, bits and stride of every index that is a value
        for position, index in enumerate(indices):
            if position == 0:
                stride = kind.size
            elif isinstance(index, int) and kind.kind == "struct":
                step, kind = kind.member(index)
                offset += step
                continue
            else:
                if kind.element is None:
                    raise TypeSyntaxError(f"index {index} into {kind}")
                kind = kind.element
                stride = kind.size
            if isinstance(index, int):
                offset += index * stride
            else:
                dynamic.append((self.slot(index), widths[len(dynamic)], stride))
        d = self.slot(result)
        if not dynamic:

            def fixed(frame: Frame) -> None:
                frame[d] = (frame[a] + offset) & _M64

            return fixed

        def run(frame: Frame) -> None:
            address = frame[a] + offset
            for slot, bits, stride in dynamic:
                address += signed(frame[slot], bits) * stride
            frame[d] = address & _M64

        return run

    def _op_intr_memset(self, name: str, cursor: Cursor, result: str) -> Operation:
        a, value, length = self._operands(cursor)
        find, at = self.module.memory.find, self.at

        def run(frame: Frame) -> None:
            view, offset = find(frame[a], frame[length], at)
            view[offset : offset + frame[length]] = bytes([frame[value]]) * frame[length]

        return run

    def _op_intr_memcpy(self, name: str, cursor: Cursor, result: str) -> Operation:
        a, b, length = self._operands(cursor)
        find, at = self.module.memory.find, self.at

        def run(frame: Frame) -> None:
            size = frame[length]
            source, start = find(frame[b], size, at)
            view, offset = find(frame[a], size, at)
            view[offset : offset + size] = bytes(source[start : start + size])

        return run

    def _op_intr_stacksave(self, name: str, cursor: Cursor, result: str) -> None:
        self.frame[self.slot(result)] = 0

    # ------------------------------------------------------------------------------------------ control

    def _target(self, cursor: Cursor) -> tuple[Block, list[int]]:
        label = cursor.take(_BLOCK)
        if label is None:
            raise TypeSyntaxError(f"a block expected at {cursor.text[cursor.at : cursor.at + 40]!r}")
        values: list[int] = []
        if cursor.skip("("):
            values.append(self.slot(cursor.value()))
            while cursor.skip(","):
                values.append(self.slot(cursor.value()))
            cursor.need(":")
            for _ in values:
                cursor.type()
                cursor.skip(",")
            cursor.need(")")
        return self.block(label[0]), values

    @staticmethod
    def _jump(block: Block, values: list[int]) -> Operation:
        if not values:
            return lambda frame: block
        if len(values) == 1:
            (value,) = values

            def one(frame: Frame) -> Block:
                frame[block.arguments[0]] = frame[value]
                return block

            return one

        def many(frame: Frame) -> Block:
            for slot, new in zip(block.arguments, [frame[value] for value in values], strict=True):
                frame[slot] = new
            return block

        return many

    def _op_br(self, name: str, cursor: Cursor, result: str) -> Operation:
        return self._jump(*self._target(cursor))

    def _op_cond_br(self, name: str, cursor: Cursor, result: str) -> Operation:
        c = self.slot(cursor.value())
        cursor.take(re.compile(r"weights\([^)]*\)"))
        cursor.need(",")
        yes = self._jump(*self._target(cursor))
        cursor.need(",")
        no = self._jump(*self._target(cursor))

        def run(frame: Frame) -> Any:
            return yes(frame) if frame[c] else no(frame)

        return run

    def _op_switch(self, name: str, cursor: Cursor, result: str) -> Operation:
        a = self.slot(cursor.value())
        cursor.need(":")
        mask = (1 << cursor.type().bits) - 1
        cursor.need(",")
        default = self._jump(*self._target(cursor))
        cases: dict[int, Operation] = {}
        cursor.need("[")
        while not cursor.skip("]"):
            number = cursor.take(_NUMBER)
            if number is None:
                raise TypeSyntaxError(f"a case expected at {cursor.text[cursor.at : cursor.at + 40]!r}")
            cursor.need(":")
            cases[int(number[0]) & mask] = self._jump(*self._target(cursor))
            cursor.skip(",")
        return lambda frame: cases.get(frame[a], default)(frame)

    def _op_return(self, name: str, cursor: Cursor, result: str) -> Operation:
        if cursor.end():
            return lambda frame: None
        value = self.slot(cursor.value())

        def run(frame: Frame) -> None:
            frame[0] = frame[value]

        return run

    def _op_unreachable(self, name: str, cursor: Cursor, result: str) -> Operation:
        at = self.at

        def run(frame: Frame) -> None:
            raise HostError(f"{at}\nthe host function reached code that it declares unreachable")

        return run

    def _op_intr_trap(self, name: str, cursor: Cursor, result: str) -> Operation:
        at, module = self.at, self.module

        def run(frame: Frame) -> None:
            said = "".join(module.printed).strip()
            raise HostError(f"{at}\nthe host function gave up" + (f": {said}" if said else ""))

        return run

    def _op_call(self, name: str, cursor: Cursor, result: str) -> Operation:
        cursor.take(re.compile(r"(?:tail|musttail|notail)\b"))
        callee = cursor.symbol()
        cursor.need("(")
        values: list[int] = []
        while not cursor.skip(")"):
            values.append(self.slot(cursor.value()))
            cursor.skip(",")
        kinds = self._call_types(cursor)
        if len(kinds) != len(values):
            raise TypeSyntaxError(f"{len(values)} operands and {len(kinds)} types")
        d = self.slot(result) if result else 0
        call, at = self.module.call, self.at

        def run(frame: Frame) -> None:
            frame[d] = call(callee, [frame[value] for value in values], kinds, at)

        return run

    @staticmethod
    def _call_types(cursor: Cursor) -> list[Type]:
        """The types of a call's operands: what stands in the last ``: (...)`` of the line."""
        cursor.at = cursor.text.rindex(" : (") + 4
        kinds = []
        while not cursor.skip(")"):
            kinds.append(cursor.type())
            cursor.skip(",")
        return kinds


_TERMINATORS = {"br", "cond_br", "switch", "return", "unreachable"}


def format_c(template: bytes, values: list[tuple[object, Type]], text_at: Callable[[int], bytes]) -> str:
    """What ``printf`` writes for a template and its operands; ``text_at`` reads a C string at an address."""
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        flags, conversion = match[1], match[2]
        if conversion == "%":
            return "%"
        value, kind = next(rest, ("?", None))
        if not isinstance(value, (int, float)):
            return str(value)
        if conversion == "s":
            return f"%{flags}s" % text_at(int(value)).decode("utf-8", "replace")
        if conversion == "p":
            return hex(int(value))
        if conversion in "di" and kind is not None:
            value, conversion = signed(int(value), kind.bits), "d"
        elif conversion == "u":
            conversion = "d"
        return f"%{flags}{conversion}" % value

    return re.sub(
        r"%([-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGcsp%])", one, template.decode("utf-8", "replace")
    )
