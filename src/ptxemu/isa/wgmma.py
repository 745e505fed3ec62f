"""The warpgroup's matrix product of Hopper: wgmma.fence, mma_async, commit_group, wait_group.

PTX ISA "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". The four warps of a warpgroup (the first
with a number that is a multiple of four) multiply together: the product starts when the last of them has come. It is
done later than it is issued, in the order of issue: shared memory, the registers of A and those of the accumulator are
read and written when the tensor core runs, whatever the warps do in the meantime. wgmma.wait_group is the only way to
know that it did. (The descriptors and scale-d are read at issue.)

Emulated: m64nNk16 of fp16 and bf16, dense. TF32, FP8, integers, single bits and .sp are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ptx
from ..errors import IllegalInstruction, UnsupportedInstruction
from ..machine import AsyncOp, Machine, Warps
from ..memory import SHARED_RESERVED
from ..schedule import Blocked, Wait
from . import Decode, instruction
from . import swizzle as sw
from .bits import Field, bits
from .descriptors import K_MAJOR, MN_MAJOR, SmemDescriptor, encode_matrix_field
from .fragments import a_matrix, accumulator, accumulator_registers
from .mma import operand_bits, to_float

ROWS = 64  # of A and D: sixteen for each warp
SWIZZLE_MODES = {0: sw.NONE, 1: sw.SWIZZLE_128B, 2: sw.SWIZZLE_64B, 3: sw.SWIZZLE_32B}

# ----------------------------------------------------------------------------------------------------------- descriptor


@lru_cache(maxsize=1024)
def decode_matrix_descriptor(value: int) -> SmemDescriptor:
    """Decode the 64-bit matrix descriptor of wgmma (PTX ISA "Matrix Descriptor Format").

    Start, leading and stride byte offsets and the base offset stand where tcgen05 has them; there is no fixed constant
    in bits 46-48, and the swizzle takes two bits, 62-63, with codes of its own. The layouts that the offsets describe
    are the same. UnsupportedInstruction: a matrix base offset that is not 0.
    """
    for hi, lo in ((15, 14), (31, 30), (48, 46), (61, 52)):
        if bits(value, hi, lo):
            raise IllegalInstruction(
                f"wgmma matrix descriptor {value:#018x}: the bits {lo}-{hi} are {bits(value, hi, lo):#x}, must be 0"
            )
    start, lbo, sbo = (bits(value, lo + 13, lo) * 16 for lo in (0, 16, 32))
    base, mode = bits(value, 51, 49), bits(value, 63, 62)
    if base:
        raise UnsupportedInstruction(
            f"wgmma matrix descriptor {value:#018x}: matrix base offset (bits 49-51) = {base}; only tiles whose swizzle"
            f" pattern starts on a {SWIZZLE_MODES[mode].period}-byte boundary are emulated"
        )
    fields = (
        Field("start address", 13, 0, start >> 4, f"{start:#x}"),
        Field("leading dimension byte offset", 29, 16, lbo >> 4, f"{lbo} bytes"),
        Field("stride dimension byte offset", 45, 32, sbo >> 4, f"{sbo} bytes"),
        Field("matrix base offset", 51, 49, base, str(base)),
        Field("swizzle mode", 63, 62, mode, SWIZZLE_MODES[mode].name),
    )
    return SmemDescriptor(value, start, lbo, sbo, base, False, SWIZZLE_MODES[mode], fields)


def encode_matrix_descriptor(start: int, lbo: int, sbo: int, swizzle: sw.Swizzle) -> int:
    """The 64-bit matrix descriptor of a tile. start, lbo, sbo: bytes, multiples of 16."""
    for name, x in (("start", start), ("lbo", lbo), ("sbo", sbo)):
        if x % 16 or not 0 <= x < 1 << 18:
            raise ValueError(f"{name} = {x}: must be a multiple of 16 in 0..2^18")
    code = {swizzle: code for code, swizzle in SWIZZLE_MODES.items()}[swizzle]
    return encode_matrix_field(start) | encode_matrix_field(lbo) << 16 | encode_matrix_field(sbo) << 32 | code << 62


# ---------------------------------------------------------------------------------------------------------- bookkeeping


@dataclass(slots=True, eq=False)
class _Product:
    """One wgmma.mma_async of a warpgroup. came: the warps that have issued it; operands: what they all have to agree
    on.
    """

    ins: ptx.Instr
    operands: tuple[int, int | None, bool]  # descriptor of B, descriptor of A, scale-d
    came: set[int] = field(default_factory=set)
    done: bool = False


@dataclass(slots=True)
class _Warpgroup:
    """products: by order of issue. issued, fenced, groups: of each of the four warps: how many it has issued, whether
    it has executed wgmma.fence, and how many products its groups hold, the open one left out.
    """

    products: list[_Product] = field(default_factory=list)
    issued: list[int] = field(default_factory=lambda: [0] * 4)
    fenced: list[bool] = field(default_factory=lambda: [False] * 4)
    groups: list[list[int]] = field(default_factory=lambda: [[], [], [], []])


def _warpgroup(m: Machine, cta: int, warp: int) -> _Warpgroup:
    state = m.cta_state[cta]
    found = state.setdefault("wgmma", {}).get(warp // 4)
    if found is None:
        if m.warps_per_cta < warp // 4 * 4 + 4:
            raise IllegalInstruction(
                f"wgmma in warp {warp}: a warpgroup is four warps, and this CTA has only {m.warps_per_cta}"
            )
        found = state["wgmma"][warp // 4] = _Warpgroup()
        state.setdefault("at exit", []).append(lambda: _at_exit(m, cta, warp // 4, found))
    return found


def _at_exit(m: Machine, cta: int, number: int, g: _Warpgroup) -> None:
    """A product that only some of the warps issued never starts."""
    for p in g.products:
        if len(p.came) < 4:
            missing = sorted({4 * number + i for i in range(4)} - p.came)
            raise IllegalInstruction(
                f"wgmma.mma_async of warpgroup {number} of CTA {m.cta_name(cta)}: warps {missing} never issued it",
                p.ins.where,
            )


# --------------------------------------------------------------------------------------------------------- instructions


@instruction("wgmma.fence.sync.aligned", converge=True)
def fence(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA "wgmma.fence": orders the warps' accesses to registers before a following wgmma.mma_async. Registers are
    written at once here; what is checked is that a warp has fenced before its first product.
    """

    def run(w: Warps) -> None:
        for cta, warp, _ in w.each_warp():
            _warpgroup(w.machine, cta, warp).fenced[warp % 4] = True

    return run


@instruction("wgmma.commit_group.sync.aligned", converge=True)
def commit_group(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA "wgmma.commit_group": all products since the last commit become a group (which may be empty)."""

    def run(w: Warps) -> None:
        for cta, warp, _ in w.each_warp():
            g = _warpgroup(w.machine, cta, warp)
            g.groups[warp % 4].append(g.issued[warp % 4])

    return run


@instruction("wgmma.wait_group.sync.aligned", blocking=True, converge=True)
def wait_group(d: Decode) -> Callable[[Warps], list[Blocked] | None]:
    """PTX ISA "wgmma.wait_group N": wait until at most N of the latest groups of the warp are not done."""
    (limit,) = d.ops
    if not isinstance(limit, ptx.Imm):
        raise d.unsupported("the number of groups must be a literal")
    n = int(limit.value)

    def run(w: Warps) -> list[Blocked] | None:
        blocked = []
        for cta, warp, _ in w.each_warp():
            g = _warpgroup(w.machine, cta, warp)
            groups = g.groups[warp % 4]
            if len(groups) <= n:
                continue
            end = groups[len(groups) - n - 1]
            if end and not g.products[end - 1].done:  # done in order
                text = f"wgmma group {len(groups) - n - 1} of warp {warp} ({n} may be pending)"
                blocked.append(Blocked(cta=cta, warp=warp, reason=Wait(("wgmma", cta, warp // 4), text)))
        return blocked or None

    return run


@dataclass(slots=True, frozen=True)
class _Form:
    """What the instruction says, the same for every execution. a: slots of A's registers, empty for shared memory."""

    n: int
    kind: str
    d_kind: str
    d: NDArray[np.intp]
    a: NDArray[np.intp]
    a_scale: int
    b_scale: int
    a_major: int
    b_major: int


def _multiply(m: Machine, cta: int, first: int, form: _Form, product: _Product) -> None:
    """Run one product of the warpgroup whose first warp is `first`."""
    b_desc, a_desc, keep = product.operands
    registers = m.files.raw[32][:, first : first + 4, cta, :]
    memory = m.shared.bytes[cta]
    name = "wgmma.mma_async"

    def shared_operand(value: int, rows: int, major: int) -> NDArray[np.float32]:
        d = decode_matrix_descriptor(value)
        if m.check is not None:
            m.check.operand(cta, d, rows, major)
        raw = operand_bits(memory, d, rows, major, first=SHARED_RESERVED, size=m.shared.size, name=name)
        return to_float(raw, form.kind)

    if a_desc is None:
        left = to_float(a_matrix(registers[form.a]).reshape(ROWS, 16), form.kind)
    else:
        left = shared_operand(a_desc, ROWS, form.a_major)
    if form.a_scale != form.b_scale:
        left = -left
    total = left @ shared_operand(b_desc, form.n, form.b_major).T + np.float32(0)  # a sum of zeros is +0
    if keep:
        total = total + accumulator(registers[form.d], form.d_kind).reshape(ROWS, form.n).astype(np.float32)
    registers[form.d] = accumulator_registers(total.reshape(4, 16, form.n), form.d_kind)
    product.done = True
    m.wake(("wgmma", cta, first // 4))


def _literal(d: Decode, operand: ptx.Operand, name: str, allowed: tuple[int, ...]) -> int:
    if not isinstance(operand, ptx.Imm) or int(operand.value) not in allowed:
        raise d.unsupported(f"{name} must be one of {allowed}")
    return int(operand.value)


@instruction("wgmma.mma_async.sync.aligned", converge=True)
def mma_async(d: Decode) -> Callable[[Warps], None]:
    """PTX ISA "wgmma.mma_async": D = A B (+ D), 64 x N x 16. A by descriptor or from registers, B by descriptor."""
    shape = d.mods.starting("m64n") or ""
    columns, _, depth = shape.removeprefix("m64n").partition("k")
    if depth != "16":
        raise d.unsupported(f"the shape .{shape}: only .m64nNk16 of f16 and bf16 is emulated")
    n = int(columns)
    if n % 8 or not 8 <= n <= 256:
        raise d.unsupported(f"N = {n} must be a multiple of 8 up to 256")
    d_kind = d.mods.one_of("f32", "f16")
    kind = d.mods.one_of("f16", "bf16")
    if d.mods.one_of("f16", "bf16") != kind or (d_kind == "f16" and kind != "f16"):
        raise d.unsupported("A and B must have the same type; D of type f16 takes f16 only")
    of = d.items(d.ops[0])
    if len(of) != n // (2 if d_kind == "f32" else 4):
        raise d.unsupported(f"{len(of)} accumulator registers for N = {n} of .{d_kind}")
    from_registers = isinstance(d.ops[1], ptx.Vec)
    if len(d.ops) != 7 + (not from_registers):
        raise d.unsupported("needs D, A, B, scale-d, imm-scale-a, imm-scale-b and the transposes")
    scale_d = d.ops[3]
    negate = isinstance(scale_d, ptx.Not)
    keep_slot = d.read(scale_d.operand if isinstance(scale_d, ptx.Not) else scale_d, "pred")
    a_slots = [d.read(x, "u32") for x in d.items(d.ops[1])] if from_registers else []
    if from_registers and len(a_slots) != 4:
        raise d.unsupported("A in registers takes four of them")
    a_slot = None if from_registers else d.read(d.ops[1], "u64")
    b_slot = d.read(d.ops[2], "u64")
    majors = [_literal(d, x, "imm-trans", (K_MAJOR, MN_MAJOR)) for x in d.ops[6:]]
    form = _Form(
        n, kind, d_kind,
        np.array([d.read(x, "u32") for x in of]), np.array(a_slots, np.intp),
        _literal(d, d.ops[4], "imm-scale-a", (-1, 1)), _literal(d, d.ops[5], "imm-scale-b", (-1, 1)),
        K_MAJOR if from_registers else majors[0], majors[-1],
    )  # fmt: skip
    name = f"wgmma m64n{n}k16"

    def uniform(values: NDArray, what: str, warp: int) -> int:
        if (values != values[0]).any():
            raise IllegalInstruction(f"wgmma.mma_async: {what} is not the same in all lanes of warp {warp}")
        return int(values[0])

    def run(w: Warps) -> None:
        m = w.machine
        for cta, warp, at in w.each_warp():
            b = uniform(w.u64[b_slot][at], "the descriptor of B", warp)
            a = None if a_slot is None else uniform(w.u64[a_slot][at], "the descriptor of A", warp)
            keep = bool(uniform(w.pred[keep_slot][at], "scale-d", warp)) != negate
            g = _warpgroup(m, cta, warp)
            if not g.fenced[warp % 4]:
                raise IllegalInstruction(
                    f"wgmma.mma_async in warp {warp} with no wgmma.fence before it: the order of its register accesses"
                    " is not defined"
                )
            index = g.issued[warp % 4]
            g.issued[warp % 4] += 1
            if index == len(g.products):
                g.products.append(_Product(d.ins, (b, a, keep)))
            p = g.products[index]
            if p.ins is not d.ins or p.operands != (b, a, keep):
                raise IllegalInstruction(
                    f"wgmma.mma_async: warp {warp} issues another product, or other descriptors or scale-d, than the"
                    f" warps {sorted(p.came)} of its warpgroup: {(b, a, keep)} and {p.operands}"
                )
            p.came.add(warp)
            if len(p.came) == 4:
                submit(m, cta, warp // 4 * 4, p)

    def submit(m: Machine, cta: int, first: int, p: _Product) -> None:
        b, a, keep = p.operands
        where = {"a": "registers"} if a is None else {"a": "shared", "a_descriptor": a}
        data: dict[str, Any] = {
            "m": ROWS, "n": n, "k": 16, **where, "b_descriptor": b, "accumulate": keep, "warp": first, **m.place(d.ins),
        }  # fmt: skip
        m.submit(
            AsyncOp(
                engine="tensor",
                cta=cta,
                run=lambda: _multiply(m, cta, first, form, p),
                name=name,
                ins=d.ins,
                queue=(cta, first),
                data=data,
                warp=first,
            )
        )

    return run
