"""PTX text -> `Module`: globals, entries, and instructions whose names are resolved.

PTX ISA, chapters "Syntax" and "Directives". Registers and labels live in `{ }` scopes: the inline assembly of a
compiler declares its own
`P1` or `DONE` again and again, and each is a thing of its own. A register is resolved to a *slot* in the register
file of its width, a
label to the index of the instruction behind it; from here on nothing looks at names again.
"""

from __future__ import annotations

import ast
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from .errors import PtxSyntaxError

# ----------------------------------------------------------------------------------------------------------------
# operands


@dataclass(slots=True, eq=False)
class Reg:
    """A register: `slot` counts within the file of its width (`bits`: 1 for a predicate, else 16, 32, 64 or 128)."""

    name: str
    type: str
    bits: int
    slot: int


@dataclass(slots=True, frozen=True)
class Imm:
    """A literal. `kind` "int": value is a Python int; "f32"/"f64": value is a Python float, `raw` its bit pattern."""

    kind: str
    value: int | float
    raw: int


@dataclass(slots=True, frozen=True)
class Special:
    """A special register, such as `%tid.x` (name without the percent sign)."""

    name: str


@dataclass(slots=True, frozen=True)
class Sym:
    """The address of a variable or of a kernel parameter, plus a constant."""

    name: str
    offset: int = 0


@dataclass(slots=True)
class Label:
    """A branch target; `pc` is filled in when the function is complete."""

    name: str
    pc: int = -1


@dataclass(slots=True, frozen=True)
class Not:
    """`!%p`."""

    operand: Reg


@dataclass(slots=True, frozen=True)
class Pair:
    """`a|b`: two results of one instruction (shfl, setp, elect)."""

    first: Operand
    second: Operand


@dataclass(slots=True, frozen=True)
class Vec:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(slots=True, frozen=True)
class Sink:
    """`_`: the result is thrown away."""


@dataclass(slots=True, frozen=True)
class Addr:
    """`[base + offset]`, or `[base, more...]` as TMA and others write it."""

    base: Reg | Sym | Imm
    offset: int = 0
    more: tuple[Operand, ...] = ()


@dataclass(slots=True, frozen=True)
class Group:
    """`(a, b)`: the lists of a call."""

    items: tuple[Operand, ...]


Operand = Reg | Imm | Special | Sym | Label | Not | Pair | Vec | Sink | Addr | Group

# ---------------------------------------------------------------------------------------------------- instructions,
# module


@dataclass(slots=True, frozen=True)
class Source:
    """A place in the source language, from `.file` and `.loc`."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(slots=True, eq=False)
class Instr:
    """One instruction. `opcode` is the whole dotted name, `guard` the predicate (and `guard_not` its negation)."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None
    guard_not: bool
    line: int
    source: Source | None
    text: str
    pc: int = -1

    @property
    def where(self) -> str:
        """The place, for messages: PTX line, source line where known, and the instruction."""
        source = f" ({self.source.file}:{self.source.line})" if self.source else ""
        return f"PTX line {self.line}{source}: {self.text}"

    @property
    def short_where(self) -> str:
        """The place, in few words: the source line where known, else the PTX line."""
        return str(self.source) if self.source else f"PTX line {self.line}"


@dataclass(slots=True)
class Variable:
    """A declared variable: space "global", "const", "shared", "local" or "param"; `size` in bytes (0: extern, sized
    at launch).
    """

    name: str
    space: str
    align: int
    size: int
    extern: bool = False
    init: bytes | None = None
    refs: tuple[tuple[int, str, int], ...] = ()  # (byte offset, symbol, addend): pointers in the initialiser


@dataclass(slots=True)
class Param(Variable):
    """A kernel parameter; `offset` is its place in the parameter buffer."""

    offset: int = 0


@dataclass(slots=True)
class Entry:
    """A kernel (or a device function): parameters, launch bounds, variables and instructions."""

    name: str
    params: dict[str, Param] = field(default_factory=dict)
    returns: dict[str, Param] = field(default_factory=dict)
    is_function: bool = False
    reqntid: tuple[int, ...] | None = None
    maxntid: tuple[int, ...] | None = None
    maxnreg: int | None = None
    reqnctapercluster: tuple[int, ...] | None = None
    explicit_cluster: bool = False
    variables: dict[str, Variable] = field(default_factory=dict)
    code: list[Instr] = field(default_factory=list)
    registers: dict[int, int] = field(default_factory=dict)  # width in bits -> number of slots

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.params.values()), default=0)


@dataclass(slots=True)
class Module:
    """A parsed PTX text."""

    version: str
    target: str
    variables: dict[str, Variable]
    entries: dict[str, Entry]
    functions: dict[str, Entry]
    text: str
    cache: dict = field(default_factory=dict)  # decoded programs, by entry

    def entry(self, name: str | None = None) -> Entry:
        """The entry of that name, or the only one."""
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries.values()))
        if name not in self.entries:
            raise PtxSyntaxError(f"no kernel named {name!r}; the module has {sorted(self.entries)}: pass entry=")
        return self.entries[name]


TYPE_BITS = {
    "pred": 1,
    "b8": 8, "u8": 8, "s8": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64,
    "b128": 128,
}  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------
# parsing

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SPACE = re.compile(r"\s*")
_LINE_DIRECTIVE = re.compile(r"\.(version|target|address_size|file|loc)\b([^\n]*)")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_HEADER = re.compile(r"(?:\.(?:visible|weak|extern|common)\s+)*\.(entry|func)\b[^{;]*")
_STATEMENT = re.compile(r"[^;]*;")
_REGISTER_FAMILY = re.compile(r"([\w$%]+)<(\d+)>")
_VARIABLE = re.compile(
    r"(?P<extern>\.extern\s+)?(?:\.(?:visible|weak|common)\s+)*\.(?P<space>global|const|shared|local|param|tex)\b(?:::\w+)?\s*"
    r"(?P<attrs>(?:\.(?:align|attribute|ptr)[^.\[;]*)*)\s*(?:\.v(?P<vec>[248])\s*)?\.(?P<type>\w+)\s+"
    r"(?P<ptr>(?:\.ptr\b\s*(?:\.(?:global|shared|local|const)\s*)?(?:\.align\s+\d+\s*)?)?)"
    r"(?P<name>[\w$%]+)\s*(?P<dims>(?:\[\s*\d*\s*\]\s*)*)(?:=\s*(?P<init>.*?))?\s*$",
    re.S,
)
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([A-Za-z][\w.:]*)\s*(.*)", re.S)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?$")
_SUM = re.compile(r"(.+?)\s*([+-])\s*([+-]?\s*(?:0[xX][0-9a-fA-F]+|\d+)U?)$")


def parse(text: str) -> Module:
    """Parse a PTX module. Raises PtxSyntaxError with the line on text it cannot read."""
    return _Parser(text).module()


class _Scope:
    """The names of one `{ }` block."""

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.registers: dict[str, Reg] = {}
        self.families: dict[str, tuple[int, str, int]] = {}  # prefix -> (how many, type, number of the declaration)
        self.labels: dict[str, int] = {}
        self.variables: dict[str, str] = {}  # local name -> unique name in the entry


class _Parser:
    def __init__(self, text: str) -> None:
        self.original = text
        # Comments become blanks of the same shape, so that offsets still count lines.
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text.rstrip("\0"))
        self.lines = [m.start() for m in re.finditer("\n", self.text)]
        self.files: dict[int, str] = {}
        self.version = self.target = ""
        self.variables: dict[str, Variable] = {}
        self.entries: dict[str, Entry] = {}
        self.functions: dict[str, Entry] = {}
        self.locations: list[tuple[Instr, tuple[int, int, int]]] = []
        self.location: tuple[int, int, int] | None = None

    def line(self, position: int) -> int:
        return bisect_right(self.lines, position - 1) + 1

    def error(self, message: str, position: int) -> PtxSyntaxError:
        line = self.line(position)
        return PtxSyntaxError(f"{message} (PTX line {line}: {self.original.splitlines()[line - 1].strip()[:120]!r})")

    # ---- module level

    def module(self) -> Module:
        text, at = self.text, 0
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at >= len(text):
                break
            if m := _LINE_DIRECTIVE.match(text, at):
                self.line_directive(m)
                at = m.end()
            elif m := _HEADER.match(text, at):
                at = self.function(m)
            elif text.startswith(".section", at):
                at = text.index("}", at) + 1
            elif m := _STATEMENT.match(text, at):
                statement = m[0][:-1].strip()
                if statement.startswith((".pragma", ".alias")):
                    at = m.end()
                    continue
                variable = self.variable(statement, at)
                self.variables[variable.name] = variable
                at = m.end()
            else:
                raise self.error("cannot read this", at)
        for ins, (file, line, column) in self.locations:
            if file in self.files and line > 0:
                ins.source = Source(self.files[file], line, column)
        return Module(self.version, self.target, self.variables, self.entries, self.functions, self.original)

    def line_directive(self, m: re.Match) -> None:
        kind, rest = m[1], m[2].strip()
        if kind == "version":
            self.version = rest
        elif kind == "target":
            self.target = rest
        elif kind == "file":
            number, name = re.match(r'(\d+)\s+"([^"]*)"', rest).groups()  # type: ignore[union-attr]
            self.files[int(number)] = name
        elif kind == "loc":
            # `inlined_at` names the place of the call; the place itself is what a reader wants to see.
            file, line, column = re.match(r"(\d+)\s+(\d+)\s+(\d+)", rest).groups()  # type: ignore[union-attr]
            self.location = (int(file), int(line), int(column))

    def variable(self, statement: str, at: int, kind: type[Variable] = Variable) -> Variable:
        m = _VARIABLE.match(statement)
        if not m:
            raise self.error("cannot read this declaration", at)
        width = TYPE_BITS.get(m["type"])
        if width is None:
            width = 64  # opaque types (.texref and so on) are pointers
        size = max(width // 8, 1) * int(m["vec"] or 1)
        align = size
        if a := re.search(r"\.align\s+(\d+)", m["attrs"]):
            align = int(a[1])
        dims = re.findall(r"\[\s*(\d*)\s*\]", m["dims"])
        init, refs = None, ()
        if m["init"] is not None:
            init, refs = self.initialiser(m["init"], size, m["type"], at)
        for dim in dims:
            size *= int(dim) if dim else 0
        if init is not None:
            size = max(size, len(init))
            init = init.ljust(size, b"\0")
        return kind(m["name"], m["space"], align, size, bool(m["extern"]), init, refs)

    def initialiser(self, text: str, size: int, type_: str, at: int) -> tuple[bytes, tuple]:
        """`{1, 2, name+4}` or `"string"` -> bytes, and the places where an address has to be put at launch."""
        text = text.strip()
        if text.startswith('"'):
            return text[1:-1].encode().decode("unicode_escape").encode("latin1") + b"\0", ()
        out, refs = bytearray(), []
        for item in text.replace("{", " ").replace("}", " ").split(","):
            item = item.strip()
            if not item:
                continue
            if m := re.match(r"(?:generic\()?([A-Za-z_$][\w$]*)\)?(?:\s*\+\s*(\d+))?$", item):
                refs.append((len(out), m[1], int(m[2] or 0)))
                out += bytes(size)
                continue
            literal = _literal(item)
            if literal is None:
                raise self.error(f"cannot read the initial value {item!r}", at)
            if literal.kind == "int":
                out += (int(literal.value) & (1 << 8 * size) - 1).to_bytes(size, "little")
            else:
                out += struct.pack("<f" if type_ == "f32" else "<d", literal.value)
        return bytes(out), tuple(refs)

    # ---- functions

    def function(self, m: re.Match) -> int:
        header, is_function = m[0], m[1] == "func"
        groups = re.findall(r"\(([^()]*)\)", header)
        before = header[m.start(1) - m.start() + len(m[1]) :]
        name = re.sub(r"\([^()]*\)", " ", before).split()[0]
        entry = Entry(name, is_function=is_function)
        if is_function and before.lstrip().startswith("("):
            entry.returns = self.parameters(groups.pop(0), m.start())
        if groups:
            entry.params = self.parameters(groups[0], m.start())
        directives = re.sub(r"\([^()]*\)", " ", header)

        def numbers(directive: str) -> tuple[int, ...] | None:
            d = re.search(rf"\.{directive}\s+([\d\s,]+)", directives)
            return tuple(int(x) for x in d[1].replace(" ", "").strip(",").split(",") if x) if d else None

        entry.reqntid, entry.maxntid = numbers("reqntid"), numbers("maxntid")
        entry.reqnctapercluster = numbers("reqnctapercluster")
        entry.maxnreg = (numbers("maxnreg") or (None,))[0]
        entry.explicit_cluster = ".explicitcluster" in directives
        at = _SPACE.match(self.text, m.end()).end()  # type: ignore[union-attr]
        (self.functions if is_function else self.entries)[name] = entry
        if self.text[at] == ";":  # a declaration only
            return at + 1
        return self.body(entry, at)

    def parameters(self, text: str, at: int) -> dict[str, Param]:
        params: dict[str, Param] = {}
        offset = 0
        for item in filter(None, (x.strip() for x in text.split(","))):
            if item.startswith(".reg"):
                raise self.error("parameters in registers (.reg) are not supported", at)
            p = self.variable(item, at, Param)
            assert isinstance(p, Param)
            p.offset = -(-offset // p.align) * p.align
            offset = p.offset + p.size
            params[p.name] = p
        return params

    def body(self, entry: Entry, at: int) -> int:
        text = self.text
        scope: _Scope | None = None
        pending: list[tuple[Label, _Scope, int]] = []
        entry.registers = {1: 0, 16: 0, 32: 0, 64: 0, 128: 0}
        self.made: list[tuple[tuple[int, int], Reg]] = []
        self.declared = 0
        self.location = None
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at >= len(text):
                raise self.error(f"the body of {entry.name} never ends", len(text) - 1)
            c = text[at]
            if c == "{":
                scope = _Scope(scope)
                at += 1
                continue
            if scope is None:
                raise self.error("expected {", at)
            if c == "}":
                scope = scope.parent
                at += 1
                if scope is None:
                    break
                continue
            if c == ".":
                if m := _LINE_DIRECTIVE.match(text, at):
                    self.line_directive(m)
                else:
                    m = _STATEMENT.match(text, at)
                    if not m:
                        raise self.error("this statement has no end", at)
                    self.declaration(entry, scope, m[0][:-1].strip(), at)
                at = m.end()
                continue
            if m := _LABEL.match(text, at):
                scope.labels[m[1]] = len(entry.code)
                at = m.end()
                continue
            if c == ";":
                at += 1
                continue
            m = _STATEMENT.match(text, at)
            if not m:
                raise self.error("this instruction has no end", at)
            self.instruction(entry, scope, m[0][:-1], at, pending)
            at = m.end()
        for label, where, position in pending:
            s: _Scope | None = where
            while s is not None and label.name not in s.labels:
                s = s.parent
            if s is None:
                raise self.error(f"no label {label.name!r} in scope", position)
            label.pc = s.labels[label.name]
        for pc, ins in enumerate(entry.code):
            ins.pc = pc
        self.number_registers(entry)
        return at

    def declaration(self, entry: Entry, scope: _Scope, statement: str, at: int) -> None:
        if statement.startswith(".reg"):
            m = re.match(r"\.reg\s+(?:\.v([24])\s*)?\.(\w+)\s+(.*)", statement, re.S)
            if not m or m[1] or m[2] not in TYPE_BITS:
                raise self.error("cannot read this register declaration", at)
            for name in (x.strip() for x in m[3].split(",")):
                if f := _REGISTER_FAMILY.fullmatch(name):
                    scope.families[f[1]] = (int(f[2]), m[2], self.declared)
                else:
                    scope.registers[name] = self.new_register(name, m[2])
                self.declared += 1
        elif statement.startswith((".pragma", ".branchtargets", ".callprototype", ".calltargets")):
            pass
        else:
            v = self.variable(statement, at)
            unique = v.name
            while unique in entry.variables:
                unique += "'"
            scope.variables[v.name] = unique
            v.name = unique
            entry.variables[unique] = v

    def new_register(self, name: str, type_: str, order: tuple[int, int] | None = None) -> Reg:
        """A register of the present body. order: (number of its declaration, number in its family)."""
        bits = max(TYPE_BITS[type_], 16) if type_ != "pred" else 1
        made = Reg(name, type_, bits, -1)
        self.made.append((order or (self.declared, 0), made))
        return made

    def number_registers(self, entry: Entry) -> None:
        """Slots for the registers that are used, families in order: what an unrolled loop takes lies side by side."""
        for _, register in sorted(self.made, key=lambda x: x[0]):
            register.slot = entry.registers[register.bits]
            entry.registers[register.bits] += 1

    def register(self, scope: _Scope, name: str) -> Reg | None:
        """The register of that name in the innermost scope that declares it."""
        s: _Scope | None = scope
        while s is not None:
            found = s.registers.get(name)
            if found is not None:
                return found
            if s.families:
                prefix = name.rstrip("0123456789")
                family = s.families.get(prefix)
                if family is not None and prefix != name and int(name[len(prefix) :]) < family[0]:
                    order = (family[2], int(name[len(prefix) :]))
                    found = s.registers[name] = self.new_register(name, family[1], order)
                    return found
            s = s.parent
        return None

    def instruction(self, entry: Entry, scope: _Scope, text: str, at: int, pending: list) -> None:
        m = _INSTRUCTION.match(text)
        if not m:
            raise self.error("cannot read this instruction", at)
        negated, guard_name, opcode, rest = m.groups()
        guard = None
        if guard_name is not None:
            guard = self.register(scope, guard_name)
            if guard is None or guard.bits != 1:
                raise self.error(f"{guard_name} is no predicate", at)
        branch = opcode == "bra" or opcode.startswith("bra.")
        operands: list[Operand] = []
        for item in _split(rest):
            if branch:
                label = Label(item)
                pending.append((label, scope, at))
                operands.append(label)
            else:
                operands.append(self.operand(entry, scope, item, at))
        short = " ".join(text.split())
        ins = Instr(opcode, tuple(operands), guard, negated == "!", self.line(at), None, short)
        if self.location is not None:
            self.locations.append((ins, self.location))
        entry.code.append(ins)

    def operand(self, entry: Entry, scope: _Scope, text: str, at: int) -> Operand:
        found = self.register(scope, text)
        if found is not None:
            return found
        c = text[0]
        if c == "{":
            return Vec(tuple(self.operand(entry, scope, x, at) for x in _split(text[1:-1])))
        if c == "[":
            parts = list(_split(text[1:-1]))
            base, offset = parts[0], 0
            if m := _SUM.match(base):
                base, offset = m[1], int(m[2] + "1") * _int(m[3].replace(" ", ""))
            inner = self.operand(entry, scope, base, at)
            if isinstance(inner, Sym):
                inner = Sym(inner.name, inner.offset + offset)
                offset = 0
            if not isinstance(inner, Reg | Sym | Imm):
                raise self.error(f"{text!r} is no address", at)
            return Addr(inner, offset, tuple(self.operand(entry, scope, x, at) for x in parts[1:]))
        if c in "(-+~0123456789":
            literal = _literal(text)
            value = _constant_expression(text) if literal is None else None
            if literal is not None or value is not None:
                return literal or Imm("int", value or 0, (value or 0) & (1 << 64) - 1)
        if c == "(":
            return Group(tuple(self.operand(entry, scope, x, at) for x in _split(text[1:-1])))
        if c == "!":
            inner = self.operand(entry, scope, text[1:].strip(), at)
            if not isinstance(inner, Reg):
                raise self.error(f"{text!r}: only a register can be negated", at)
            return Not(inner)
        if text == "_":
            return Sink()
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(entry, scope, first.strip(), at), self.operand(entry, scope, second.strip(), at))
        literal = _literal(text)
        if literal is not None:
            return literal
        if c == "%":
            return Special(text[1:])
        name, offset = text, 0
        if m := _SUM.match(text):
            name, offset = m[1], int(m[2] + "1") * _int(m[3].replace(" ", ""))
        if m := re.fullmatch(r"generic\((.*)\)", name):
            name = m[1]
        if name == "WARP_SZ":
            return Imm("int", 32, 32)
        s: _Scope | None = scope
        while s is not None:
            if name in s.variables:
                return Sym(s.variables[name], offset)
            s = s.parent
        if re.fullmatch(r"[A-Za-z_$][\w$]*", name):
            return Sym(name, offset)
        raise self.error(f"cannot read the operand {text!r}", at)


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside of every bracket."""
    if "{" not in text and "[" not in text and "(" not in text:
        for part in text.split(","):
            part = part.strip()
            if part:
                yield part
        return
    depth, start = 0, 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            part = text[start:i].strip()
            start = i + 1
            if part:
                yield part
    part = text[start:].strip()
    if part:
        yield part


def _int(text: str) -> int:
    text = text.rstrip("U")
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _constant_expression(text: str) -> int | None:
    """An integer expression of literals (PTX ISA "Constant Expressions"), or None."""
    if not re.fullmatch(r"[\d\sxXa-fA-FU+\-*/%()&|^~<>]+", text) or not re.match(r"[\d(~+-]", text):
        return None
    plain = re.sub(r"\b(?:0[xX][0-9a-fA-F]+|\d+)U?\b", lambda m: str(_int(m[0])), text).replace("/", "//")
    try:
        tree = ast.parse(plain, mode="eval")
    except SyntaxError:
        return None
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if not all(isinstance(node, allowed) and not isinstance(node, ast.Pow) for node in ast.walk(tree)):
        return None
    return int(eval(compile(tree, "<constant>", "eval")))


def _literal(text: str) -> Imm | None:
    """An integer or floating-point literal (PTX ISA "Constants"), or None."""
    if _INTEGER.match(text):
        value = _int(text)
        return Imm("int", value, value & (1 << 64) - 1)
    if text[:2] in ("0f", "0F") and len(text) == 10:
        raw = int(text[2:], 16)
        return Imm("f32", struct.unpack("<f", raw.to_bytes(4, "little"))[0], raw)
    if text[:2] in ("0d", "0D") and len(text) == 18:
        raw = int(text[2:], 16)
        return Imm("f64", struct.unpack("<d", raw.to_bytes(8, "little"))[0], raw)
    if _FLOAT.match(text):
        number = float(text)
        return Imm("f64", number, int.from_bytes(struct.pack("<d", number), "little"))
    return None
