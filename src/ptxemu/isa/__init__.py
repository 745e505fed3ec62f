"""The instruction set: one small module a family, and the registry that finds the right one.

A family registers a *decoder* for an opcode (the longest dotted prefix wins). The decoder reads the instruction once
and returns a function
of a bundle of warps, which is the semantics. Modifiers that no decoder asked for are refused, so that nothing is
ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ptx
from ..errors import UnsupportedInstruction

if TYPE_CHECKING:
    from ..machine import Blocked, Warps
    from ..program import Program

Semantics = Callable[["Warps"], "list[Blocked] | None"]

_NEEDED = object()


@dataclass(slots=True, frozen=True)
class Family:
    """A registered decoder and how the machine has to treat its instructions.

    blocking: the semantics may return the warps that have to wait. converge: the lanes of a warp must come together
    first.
    """

    name: str
    decode: Callable[[Decode], Semantics]
    blocking: bool = False
    converge: bool = False


REGISTRY: dict[str, Family] = {}


def instruction(*names: str, blocking: bool = False, converge: bool = False) -> Callable:
    """Register the decorated decoder for these opcode prefixes."""

    def register(decode: Callable[[Decode], Any]) -> Callable[[Decode], Any]:
        for name in names:
            if name in REGISTRY:
                raise ValueError(f"two decoders for {name}")
            REGISTRY[name] = Family(name, decode, blocking, converge)
        return decode

    return register


def find(opcode: str) -> Family | None:
    """The family whose name is the longest dotted prefix of the opcode."""
    name = opcode
    while name:
        if name in REGISTRY:
            return REGISTRY[name]
        name = name.rpartition(".")[0]
    return None


class Modifiers:
    """What stands behind the opcode's name; every part has to be asked for."""

    def __init__(self, ins: ptx.Instr, parts: list[str]) -> None:
        self.ins, self.parts, self.used = ins, parts, [False] * len(parts)

    def flag(self, *names: str) -> bool:
        """True if any of these modifiers is present."""
        found = False
        for i, part in enumerate(self.parts):
            if part in names:
                self.used[i] = found = True
        return found

    def one_of(self, *names: str, default: Any = _NEEDED) -> Any:
        """The first not yet used modifier among `names`; without any, the default, or UnsupportedInstruction."""
        for i, part in enumerate(self.parts):
            if not self.used[i] and part in names:
                self.used[i] = True
                return part
        if default is _NEEDED:
            raise UnsupportedInstruction(f"{self.ins.opcode}: needs one of .{', .'.join(names)}", self.ins.where)
        return default

    def starting(self, prefix: str) -> str | None:
        """The first unused modifier that starts with `prefix`."""
        for i, part in enumerate(self.parts):
            if not self.used[i] and part.startswith(prefix):
                self.used[i] = True
                return part
        return None

    def done(self) -> None:
        left = [p for p, used in zip(self.parts, self.used, strict=True) if not used]
        if left:
            raise UnsupportedInstruction(
                f"{self.ins.opcode}: does not know the modifier .{', .'.join(left)}", self.ins.where
            )


# Name of a register view -> width of the register in bits. See registers.py for what each looks like.
VIEW_BITS = {
    "pred": 1,
    "u16": 16, "s16": 16, "f16": 16,
    "u32": 32, "s32": 32, "f32": 32, "u16x2": 32, "f16x2": 32,
    "u64": 64, "s64": 64, "f64": 64, "lo32": 64, "hi32": 64, "f32x2": 64, "u32x2": 64,
    "u128": 128,
}  # fmt: skip


@dataclass(slots=True)
class Decode:
    """One instruction while it is decoded: operands become slots of the register files."""

    ins: ptx.Instr
    mods: Modifiers
    program: Program
    name: str
    writes: list[tuple[int, int]] = field(default_factory=list)  # (bits, slot) of every destination
    reads: list[tuple[int, int]] = field(default_factory=list)  # (bits, slot) of every source that is a register
    members: int | None = None  # slot of a membermask, for instructions registered with converge=True

    @property
    def ops(self) -> tuple[ptx.Operand, ...]:
        return self.ins.operands

    def unsupported(self, why: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(f"{self.ins.opcode}: {why}", self.ins.where)

    def read(self, operand: ptx.Operand, view: str) -> int:
        """The slot to read as `w.<view>[slot]`. Literals, special registers and addresses of variables become
        constant slots.
        """
        bits = VIEW_BITS[view]
        match operand:
            case ptx.Reg():
                if operand.bits != bits:
                    raise self.unsupported(f"{operand.name} has {operand.bits} bits where {bits} are read")
                self.reads.append((bits, operand.slot))
                return operand.slot
            case ptx.Imm():
                return self.program.constant(bits, ("literal", literal_bits(operand, view)))
            case ptx.Special():
                if operand.name not in self.program.SPECIAL:
                    raise self.unsupported(f"does not know the special register %{operand.name}")
                return self.program.constant(bits, ("special", operand.name))
            case ptx.Sym():
                return self.program.constant(bits, ("symbol", operand.name, operand.offset))
        raise self.unsupported(f"cannot read the operand {operand!r}")

    def write(self, operand: ptx.Operand, view: str) -> int:
        """The slot to write as `w.to.<view>[slot]`; `_` writes to a slot that nobody reads."""
        bits = VIEW_BITS[view]
        if isinstance(operand, ptx.Sink):
            slot = self.program.scratch(bits)
        elif isinstance(operand, ptx.Reg):
            if operand.bits != bits:
                raise self.unsupported(f"{operand.name} has {operand.bits} bits where {bits} are written")
            slot = operand.slot
        else:
            raise self.unsupported(f"cannot write to {operand!r}")
        self.writes.append((bits, slot))
        return slot

    def items(self, operand: ptx.Operand) -> tuple[ptx.Operand, ...]:
        """The elements of `{a, b}`, or the operand alone."""
        return operand.items if isinstance(operand, ptx.Vec) else (operand,)

    def address(self, operand: ptx.Operand) -> tuple[str, int, int]:
        """Of `[base + offset]`: the view of the base ("u32" or "u64"), its slot and the offset."""
        if not isinstance(operand, ptx.Addr):
            raise self.unsupported(f"{operand!r} is no address")
        base = operand.base
        if isinstance(base, ptx.Reg):
            if base.bits not in (32, 64):
                raise self.unsupported(f"an address in {base.bits} bits")
            self.reads.append((base.bits, base.slot))
            return f"u{base.bits}", base.slot, operand.offset
        return "u64", self.read(base, "u64"), operand.offset


def literal_bits(literal: ptx.Imm, view: str) -> int:
    """The bit pattern of a literal when it is read as `view` (PTX ISA "Constants": floating-point literals are
    doubles).
    """
    bits = VIEW_BITS[view]
    if bits == 1:
        return int(literal.value != 0)
    if literal.kind == "f64" and bits == 32:
        return int(np.float32(literal.value).view(np.uint32))
    if literal.kind == "f64" and bits == 16:
        return int(np.float16(literal.value).view(np.uint16))
    if literal.kind == "f32" and bits == 64:
        return int(np.float64(literal.value).view(np.uint64))
    if literal.kind == "int" and view in ("f32", "f64", "f16"):
        number = np.array(literal.value, f"f{bits // 8}")
        return int(number.view(f"u{bits // 8}"))
    return literal.raw & (1 << bits) - 1


def load_all() -> None:
    """Import every family, so that it registers itself."""
    import importlib
    import pkgutil

    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
