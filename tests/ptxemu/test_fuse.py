"""Like instructions run together: the registers hold what they would if each had run by itself."""

import random

import numpy as np
import pytest

from ptxemu import fuse, program, ptx
from ptxemu.errors import UnsupportedInstruction
from ptxemu.run import run_ptx

# Forms that compilers emit, with the registers they take: r 32 bits, d 64, h 16, p a predicate.
FORMS = [
    "mov.b64 {d}, {{{r}, {r}}};",
    "mov.b64 {{{r}, {r}}}, {d};",
    "mov.b64 {{{r}, _}}, {d};",
    "mov.b32 {r}, {{{h}, {h}}};",
    "mov.b32 {{{h}, {h}}}, {r};",
    "mov.b32 {r}, 0f3F800000;",
    "mov.u32 {r}, %tid.x;",
    "mov.b32 {r}, {r};",
    "mov.b64 {d}, {d};",
    "fma.rn.f32x2 {d}, {d}, {d}, {d};",
    "fma.rn.f32 {r}, {r}, {r}, 0f40490FDB;",
    "fma.rn.ftz.f32 {r}, {r}, {r}, {r};",
    "add.f32 {r}, {r}, {r};",
    "add.rm.ftz.f32x2 {d}, {d}, {d};",
    "sub.rn.f32x2 {d}, {d}, {d};",
    "mul.f32 {r}, {r}, {r};",
    "mul.rn.ftz.f32x2 {d}, {d}, {d};",
    "add.s32 {r}, {r}, -3;",
    "add.s64 {d}, {d}, {d};",
    "sub.s32 {r}, {r}, {r};",
    "mul.lo.s32 {r}, {r}, {r};",
    "mul.wide.u32 {d}, {r}, {r};",
    "mad.lo.s32 {r}, {r}, {r}, {r};",
    "max.f32 {r}, {r}, {r};",
    "max.f32 {r}, {r}, {r}, {r};",
    "min.ftz.f32 {r}, {r}, {r};",
    "max.NaN.f32 {r}, {r}, 0fFF800000;",
    "min.s32 {r}, {r}, {r};",
    "abs.f32 {r}, {r};",
    "neg.f32 {r}, {r};",
    "and.b32 {r}, {r}, 255;",
    "or.b32 {r}, {r}, {r};",
    "xor.b64 {d}, {d}, {d};",
    "not.b32 {r}, {r};",
    "not.pred {p}, {p};",
    "and.pred {p}, {p}, {p};",
    "shl.b32 {r}, {r}, 5;",
    "shr.u32 {r}, {r}, {r};",
    "shr.s32 {r}, {r}, 31;",
    "lop3.b32 {r}, {r}, {r}, {r}, 0x96;",
    "setp.lt.f32 {p}, {r}, {r};",
    "setp.ne.b32 {p}, {r}, 0;",
    "setp.gt.and.s32 {p}, {r}, {r}, {p};",
    "setp.eq.s32 {p}|{p}, {r}, 7;",
    "selp.b32 {r}, {r}, {r}, {p};",
    "selp.f32 {r}, 0f3F800000, {r}, {p};",
    "ex2.approx.ftz.f32 {r}, {r};",
    "rcp.approx.ftz.f32 {r}, {r};",
    "lg2.approx.f32 {r}, {r};",
    "sqrt.rn.f32 {r}, {r};",
    "tanh.approx.f32 {r}, {r};",
    "cvt.rn.bf16x2.f32 {r}, {r}, {r};",
    "cvt.rn.f16x2.f32 {r}, {r}, {r};",
    "cvt.rn.f32.s32 {r}, {r};",
    "cvt.f32.f16 {r}, {h};",
    "cvt.rn.bf16.f32 {h}, {r};",
    "cvt.u64.u32 {d}, {r};",
    "cvt.u32.u64 {r}, {d};",
    "cvt.rzi.s32.f32 {r}, {r};",
    "cvt.sat.f32.f32 {r}, {r};",
    "add.rn.bf16x2 {r}, {r}, {r};",
    "fma.rn.f16x2 {r}, {r}, {r}, {r};",
    "max.bf16x2 {r}, {r}, {r};",
    "cvt.rn.satfinite.e4m3x2.f32 {h}, {r}, {r};",
    "cvt.rn.f16x2.e4m3x2 {r}, {h};",
]
COUNT = {"r": 24, "d": 16, "h": 8, "p": 6}
BITS = {"r": 32, "d": 64, "h": 16, "p": 1}


def state(body: str) -> list[np.ndarray]:
    """All registers at the end of `body`, which begins with something in each of them (the same every time)."""
    load, store, at = [], [], 0
    for kind, count in COUNT.items():
        for i in range(count):
            where = f"[%rda+{at}]"
            if kind == "p":
                load.append(f"ld.global.u32 %rx, {where}; and.b32 %rx, %rx, 1; setp.ne.u32 %p{i}, %rx, 0;")
                store.append(f"selp.u32 %rx, 1, 0, %p{i}; st.global.b32 {where}, %rx;")
            else:
                load.append(f"ld.global.b{BITS[kind]} %{kind}{i}, {where};")
                store.append(f"st.global.b{BITS[kind]} {where}, %{kind}{i};")
            at += 8
    rng = np.random.default_rng(1)
    # Numbers of every size, and every fourth word one that is special.
    words = (rng.standard_normal((64, at // 4)) * 2.0 ** rng.integers(-20, 20, (64, at // 4))).astype(np.float32)
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00001, 1, 0x80000001, 0x7F7FFFFF], np.uint32)
    mask = rng.random(words.shape) < 0.25
    memory = np.where(mask, rng.choice(special, words.shape), words.view(np.uint32)).astype(np.uint32)
    declare = " ".join(f".reg .{'pred' if k == 'p' else f'b{BITS[k]}'} %{k}<{n}>;" for k, n in COUNT.items())
    text = f""".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 a) {{ {declare}
        .reg .b64 %rda; .reg .b32 %rx; ld.param.u64 %rda, [a]; mov.u32 %rx, %tid.x;
        mad.wide.u32 %rda, %rx, {at}, %rda;
        {" ".join(load)} bar.sync 0;
        {body}
        bar.sync 0; {" ".join(store)} ret; }}"""
    run_ptx(text, block=(64,), args=[memory])
    return [memory]


def one_by_one(program_, ops, length):
    """Every instruction by itself, in its place."""
    cuts = [range(i, min(i + length, len(ops))) for i in range(0, len(ops), length)]
    return [fuse.Fused([ops[i].full for i in cut], list(cut), [ops[i].masked for i in cut], list(cut)) for cut in cuts]


def fill(form: str, rng: random.Random) -> str:
    """A form with registers drawn; one that it writes comes first and is drawn once."""
    names: dict[str, list[int]] = {kind: rng.sample(range(n), n) for kind, n in COUNT.items()}
    out = form
    for kind in COUNT:
        while f"{{{kind}}}" in out:
            out = out.replace(f"{{{kind}}}", f"%{kind}{names[kind].pop()}", 1)
    return out.replace("{{", "{").replace("}}", "}")


def compare(monkeypatch, body: str) -> None:
    fused = state(body)
    with monkeypatch.context() as patch:
        patch.setattr(program, "fuse", one_by_one)
        apart = state(body)
    assert np.array_equal(fused[0], apart[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_form_together_and_apart(form, monkeypatch):
    """Ten of one form: some on neighbouring registers, some anywhere, some that need each other's results."""
    rng = random.Random(form)
    compare(monkeypatch, "\n".join(fill(form, rng) for _ in range(10)))


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_forms(seed, monkeypatch):
    """150 instructions (three blocks) that read and write the same few registers."""
    rng = random.Random(seed)
    chosen = rng.sample(FORMS, 5)
    lines = [fill(rng.choice(chosen), rng) for _ in range(150)]
    lines = [f"@{rng.choice(['', '!'])}%p{rng.randrange(6)} {x}" if rng.random() < 0.05 else x for x in lines]
    compare(monkeypatch, "\n".join(lines))


@pytest.mark.parametrize("seed", range(6))
def test_lanes_that_part(seed, monkeypatch):
    """Half of the lanes go another way through the same kind of code, and they meet again."""
    rng = random.Random(seed)
    chosen = [form for form in rng.sample(FORMS, 12) if "p}" not in form.split()[1]][:5]

    def lines() -> str:
        return "\n".join(fill(rng.choice(chosen), rng) for _ in range(90))

    body = f"""{lines()} setp.lt.u32 %p0, %rx, 40; @%p0 bra ELSE; {lines()} bra DONE;
        ELSE: {lines()} DONE: {lines()}"""
    compare(monkeypatch, body)


def functions(body: str) -> int:
    """How many functions the first block of these lines became."""
    text = f""".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 a) {{
        .reg .b32 %r<200>; .reg .b64 %d<99>; .reg .pred %p<9>; {body} ret; }}"""
    decoded = program.decode(ptx.parse(text))
    decoded.block(0)
    return sum(len(block.full) for block in decoded.blocks.values())


def test_unrolled_code_becomes_few_calls():
    triples = [
        f"mov.b64 %d{2 * i}, {{%r{2 * i}, %r{2 * i + 1}}}; fma.rn.f32x2 %d{2 * i + 1}, %d{2 * i}, %d90, %d91;"
        f"mov.b64 {{%r{100 + 2 * i}, %r{101 + 2 * i}}}, %d{2 * i + 1};"
        for i in range(30)
    ]
    assert functions(" ".join(triples)) == 3
    # A chain has nothing that could go together; two chains go side by side where their registers are neighbours.
    assert functions(" ".join(f"add.f32 %r0, %r0, %r{i};" for i in range(1, 21))) == 20
    assert functions(" ".join(f"add.f32 %r0, %r0, %r{i}; add.f32 %r1, %r1, %r{i};" for i in range(2, 22))) == 20


def test_what_keeps_its_order():
    """Carries, guards, clocks and everything that touches memory stay where they are."""
    assert functions("add.cc.u32 %r0, %r1, %r2; addc.u32 %r3, %r4, %r5; add.cc.u32 %r6, %r7, %r8;") == 3
    assert functions("@%p0 add.u32 %r0, %r1, %r2; @%p0 add.u32 %r1, %r3, %r2;") == 2
    assert functions("mov.u32 %r0, %clock; mov.u32 %r1, %clock;") == 2
    assert functions("ld.global.b32 %r0, [%d0]; st.global.b32 [%d1], %r1; ld.global.b32 %r2, [%d2];") == 3


def test_what_is_not_known_is_still_refused():
    text = """.version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k() { .reg .b32 %r<9>;
        add.f32 %r0, %r1, %r2; add.wrong.f32 %r3, %r4, %r5; add.wrong.f32 %r6, %r7, %r8; ret; }"""
    with pytest.raises(UnsupportedInstruction, match="wrong"):
        run_ptx(text, block=(32,), args=[])


def test_lists_known_families_only():
    from ptxemu import isa

    isa.load_all()
    assert set(isa.REGISTRY) >= fuse.LANEWISE
