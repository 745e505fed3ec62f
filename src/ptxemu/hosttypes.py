"""Types of the LLVM dialect and how their values lie in memory: little-endian, naturally aligned (x86-64, AArch64).

A value of integer or pointer type is a Python int without sign (0 <= v < 2**bits), a floating-point value a Python
float that the type can hold, and a struct, array or vector the ``bytes`` of its memory image: `extractvalue` and
`insertvalue` are then slices, and a store is one copy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np


class TypeSyntaxError(ValueError):
    """The text at hand is no type of the LLVM dialect that this module knows."""


@dataclass(frozen=True, slots=True)
class Type:
    """One type: ``kind`` is int, ptr, float, struct, array, vector or void; ``size`` and ``align`` are bytes.

    ``bits`` counts the bits of a scalar; ``members`` holds (byte offset, type) of a struct's fields; ``element`` and
    ``count`` describe arrays and vectors.
    """

    kind: str
    size: int
    align: int
    bits: int = 0
    name: str = ""
    members: tuple[tuple[int, Type], ...] = ()
    element: Type | None = None
    count: int = 0

    @property
    def scalar(self) -> bool:
        return self.kind in ("int", "ptr", "float")

    def member(self, index: int) -> tuple[int, Type]:
        """Byte offset and type of field or element ``index``; IndexError where there is none."""
        if self.kind == "struct":
            return self.members[index]
        if self.kind in ("array", "vector") and 0 <= index < self.count:
            assert self.element is not None
            return index * self.element.size, self.element
        raise IndexError(f"{self} has no member {index}")

    def __str__(self) -> str:
        return self.name


VOID = Type("void", 0, 1, name="void")
POINTER = Type("ptr", 8, 8, 64, "ptr")
_FLOATS = {
    "f64": Type("float", 8, 8, 64, "f64"),
    "f32": Type("float", 4, 4, 32, "f32"),
    "f16": Type("float", 2, 2, 16, "f16"),
    "bf16": Type("float", 2, 2, 16, "bf16"),
}
_INTEGER = re.compile(r"[su]?i(\d+)\b")
_FLOAT = re.compile(r"bf16|f16|f32|f64")
_NUMBER = re.compile(r"\s*(\d+)\s*x\s*")
_POINTER = re.compile(r"ptr(<\d+>)?")


@cache
def integer(bits: int) -> Type:
    """The integer type of that many bits; its size is the next power of two of bytes, i128 is aligned to 16."""
    size = 1
    while size * 8 < bits:
        size *= 2
    return Type("int", size, min(size, 16), bits, f"i{bits}")


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def structure(fields: tuple[Type, ...], packed: bool = False) -> Type:
    members, offset, alignment = [], 0, 1
    for field in fields:
        if not packed:
            offset = _align(offset, field.align)
            alignment = max(alignment, field.align)
        members.append((offset, field))
        offset += field.size
    text = f"struct<({', '.join(map(str, fields))})>"
    return Type("struct", _align(offset, alignment), alignment, name=text, members=tuple(members))


def sequence(kind: str, count: int, element: Type) -> Type:
    size = count * element.size
    alignment = element.align
    if kind == "vector":  # a vector is aligned to its size, rounded up to a power of two
        alignment = 1 << max(size - 1, 0).bit_length()
        size = _align(size, alignment)
    return Type(kind, size, alignment, name=f"{kind}<{count} x {element}>", element=element, count=count)


def parse_type(text: str, at: int = 0) -> tuple[Type, int]:
    """The type that starts at ``text[at]`` and the position after it; TypeSyntaxError where none does."""
    while at < len(text) and text[at] == " ":
        at += 1
    if text.startswith("!llvm.", at):
        at += 6
    if text.startswith("struct<", at):
        return _parse_struct(text, at + 7)
    for kind in ("array", "vector"):
        if text.startswith(kind + "<", at):
            number = _NUMBER.match(text, at + len(kind) + 1)
            if number is None:
                break
            element, end = parse_type(text, number.end())
            return sequence(kind, int(number[1]), element), _expect(text, end, ">")
    if match := _POINTER.match(text, at):
        return POINTER, match.end()
    if match := _INTEGER.match(text, at):
        return integer(int(match[1])), match.end()
    if match := _FLOAT.match(text, at):
        return _FLOATS[match[0]], match.end()
    if text.startswith("index", at):
        return integer(64), at + 5
    if text.startswith("void", at):
        return VOID, at + 4
    raise TypeSyntaxError(f"no known type at {text[at : at + 40]!r}")


def _expect(text: str, at: int, what: str) -> int:
    while at < len(text) and text[at] == " ":
        at += 1
    if not text.startswith(what, at):
        raise TypeSyntaxError(f"{what!r} expected at {text[at : at + 40]!r}")
    return at + len(what)


def _parse_struct(text: str, at: int) -> tuple[Type, int]:
    if text.startswith('"', at):  # an identified struct carries its name first
        at = text.index('"', at + 1) + 1
        at = _expect(text, at, ",")
    while text[at] == " ":
        at += 1
    packed = text.startswith("packed", at)
    at = _expect(text, at + 6 if packed else at, "(")
    fields = []
    while text[at] != ")":
        field, at = parse_type(text, at)
        fields.append(field)
        while text[at] in ", ":
            at += 1
    return structure(tuple(fields), packed), _expect(text, at + 1, ">")


def round_to(kind: Type) -> Callable[[float], float]:
    """The function that rounds a double to the nearest value of a floating-point type (ties to even)."""
    if kind.name == "f64":
        return float
    if kind.name == "bf16":
        return lambda value: _from_bf16(_to_bf16(value))
    dtype = np.float32 if kind.name == "f32" else np.float16

    def convert(value: float) -> float:
        with np.errstate(all="ignore"):
            return float(dtype(value))

    return convert


def _to_bf16(value: float) -> int:
    with np.errstate(all="ignore"):
        word = int(np.float32(value).view(np.uint32))
    if value != value:
        return (word >> 16) | 0x40
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16) & 0xFFFF


def _from_bf16(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", (word & 0xFFFF) << 16))[0]


@cache
def reader(kind: Type) -> Callable[[bytes | memoryview, int], object]:
    """A function (buffer, byte offset) -> value of that type."""
    if kind.kind in ("int", "ptr"):
        if kind.size <= 8:
            unpack = struct.Struct({1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[kind.size]).unpack_from
            if kind.bits == kind.size * 8:
                return lambda buffer, at: unpack(buffer, at)[0]
            mask = (1 << kind.bits) - 1
            return lambda buffer, at: unpack(buffer, at)[0] & mask
        return lambda buffer, at: int.from_bytes(buffer[at : at + kind.size], "little")
    if kind.name == "bf16":
        return lambda buffer, at: _from_bf16(int.from_bytes(buffer[at : at + 2], "little"))
    if kind.kind == "float":
        unpack = struct.Struct({"f16": "<e", "f32": "<f", "f64": "<d"}[kind.name]).unpack_from
        return lambda buffer, at: unpack(buffer, at)[0]
    return lambda buffer, at: bytes(buffer[at : at + kind.size])


@cache
def packer(kind: Type) -> Callable[..., bytes]:
    """A function value -> the bytes of its memory image."""
    if kind.kind in ("int", "ptr"):
        if kind.size <= 8:
            return struct.Struct({1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[kind.size]).pack
        return lambda value: value.to_bytes(kind.size, "little")
    if kind.name == "bf16":
        return lambda value: struct.pack("<H", _to_bf16(value))
    if kind.kind == "float":
        return struct.Struct({"f16": "<e", "f32": "<f", "f64": "<d"}[kind.name]).pack
    return bytes


def zero(kind: Type) -> object:
    """The value all of whose bits are zero."""
    if kind.kind == "float":
        return 0.0
    return 0 if kind.scalar else bytes(kind.size)
