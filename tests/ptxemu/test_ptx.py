"""The parser: scopes, names, literals, declarations, places;
and what the emulator says of text and instructions it does not know."""

import struct

import numpy as np
import pytest

from ptxemu import PtxSyntaxError, UnsupportedInstruction, ptx, run_ptx
from ptxemu.testing import run_lines

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"


def entry(body, params="", before=""):
    return ptx.parse(f"{HEAD}{before}\n.visible .entry k({params})\n{{\n{body}\n}}\n").entry()


def test_registers_are_resolved_in_their_scope():
    e = entry(
        """.reg .b32 %r<3>; .reg .pred P1;
        mov.b32 %r1, 1;
        { .reg .b32 %r; .reg .pred P1; mov.b32 %r, 2; { .reg .pred P1; @P1 mov.b32 %r1, %r; } @!P1 mov.b32 %r2, %r; }
        @P1 mov.b32 %r2, 3;"""
    )
    outer, inner = e.code[0].operands[0], e.code[1].operands[0]
    assert outer.bits == inner.bits == 32 and outer.slot != inner.slot
    assert e.code[2].operands[0] is outer and e.code[2].operands[1] is inner
    guards = [i.guard for i in e.code[2:]]
    assert len({g.slot for g in guards}) == 3 and [i.guard_not for i in e.code[2:]] == [False, True, False]


def test_labels_are_resolved_in_their_scope():
    e = entry(
        """.reg .pred %p; L: { bra DONE; L: bra L; DONE: } { DONE: @%p bra DONE; @%p bra.uni L;
        } $L__BB0_1: ret;""".replace("; DONE: }", "; DONE: ; }")
    )
    assert [i.operands[0].pc for i in e.code if i.opcode.startswith("bra")] == [2, 1, 2, 0]


def test_the_same_scope_twice_runs_as_two_things():
    wait = (
        "{ .reg .pred P1; .reg .b32 %i; mov.b32 %i, 0; LAB: add.s32 %i, %i, 1; "
        "setp.eq.s32 P1, %i, COUNT; @P1 bra DONE; bra LAB; DONE: add.s32 %d, %d, %i; }"
    )
    lines = "mov.b32 %d, 0;" + wait.replace("COUNT", "3") + wait.replace("COUNT", "5")
    assert set(run_lines(lines, {}, {"d": np.uint32})["d"].tolist()) == {8}


def test_literals():
    e = entry(
        ".reg .b32 %r<2>; add.s32 %r0, %r1, -7; add.u32 %r0, %r1, 0xFFU; add.u32 %r0, %r1, 017; "
        "add.u32 %r0, %r1, 0b101; add.f32 %r0, %r1, 0f3F800000; add.f32 %r0, %r1, 1.5e3; "
        "add.f64 %r0, %r1, 0d3FF0000000000000;"
    )
    values = [i.operands[2].value for i in e.code]
    assert values == [-7, 255, 15, 5, 1.0, 1500.0, 1.0]


def test_constant_expressions():
    e = entry(
        ".reg .b32 %r<2>; add.s32 %r0, %r1, 65536 + 16; add.s32 %r0, %r1, (1 << 4) | 0x3; "
        "add.s32 %r0, %r1, -(7 / 2) * 2;"
    )
    assert [i.operands[2].value for i in e.code] == [65552, 19, -6]


def test_addresses_vectors_pairs():
    e = entry(
        ".reg .b32 %r<9>; .reg .b64 %d<3>; .reg .pred %p<3>; .shared .b8 s[16]; "
        "ld.shared.v2.b32 {%r1, _}, [s + 0x8]; ld.global.b32 %r1, [%d1+-4]; elect.sync _|%p1, -1; "
        "x.y [%r1], [%d1, {%r2, %r3}], !%p1;"
    )
    vec, addr = e.code[0].operands
    assert isinstance(vec.items[1], ptx.Sink) and addr == ptx.Addr(ptx.Sym("s", 8), 0)
    assert e.code[1].operands[1].offset == -4
    assert isinstance(e.code[2].operands[0], ptx.Pair)
    tensor = e.code[3].operands[1]
    assert tensor.base.bits == 64 and [x.name for x in tensor.more[0].items] == ["%r2", "%r3"]
    assert isinstance(e.code[3].operands[2], ptx.Not)


def test_parameters_and_bounds():
    text = """.visible .entry k(.param .u64 .ptr .global .align 16 a, .param .align 64 .b8 map[128], .param .u32 n,
        .param .f32 x)
        .reqntid 128, 1, 1 .reqnctapercluster 2, 1, 1 .maxnreg 64 { ret; }"""
    e = ptx.parse(HEAD + text).entry()
    assert [(p.name, p.size, p.align, p.offset) for p in e.params.values()] == [
        ("a", 8, 8, 0),
        ("map", 128, 64, 64),
        ("n", 4, 4, 192),
        ("x", 4, 4, 196),
    ]
    assert (e.reqntid, e.reqnctapercluster, e.maxnreg, e.param_bytes) == ((128, 1, 1), (2, 1, 1), 64, 200)


def test_variables():
    m = ptx.parse(
        HEAD
        + (
            ".visible .global .align 1 .b8 t[6] = {1, 2, 0xFF};\n.global .f32 f[2] = {0f3F800000, "
            '0.5};\n.const .align 8 .u64 p = t+2;\n.global .b8 s[4] = "ab";\n.extern .shared .align 1024 '
            ".b8 dyn[];\n.visible .entry k() { ret; }"
        )
    )
    v = m.variables
    assert v["t"].init == bytes([1, 2, 255, 0, 0, 0]) and v["f"].init == struct.pack("<ff", 1, 0.5)
    assert v["p"].refs == ((0, "t", 2),) and v["s"].init == b"ab\0\0"
    assert (v["dyn"].size, v["dyn"].align, v["dyn"].extern) == (0, 1024, True)


def test_places_come_from_file_and_loc():
    e = entry(
        (
            ".loc 1 12 4\n.reg .b32 %r<2>;\nmov.b32 %r0, 1; // comment ; "
            "with { brace\n.loc 1 13 2, function_name $x, inlined_at 1 40 1\n/* two\nlines */ mov.b32 %r1, "
            "2;"
        ),
        before='.file 1 "/src/kernel.py"',
    )
    assert [(str(i.source), i.line) for i in e.code] == [("kernel.py:12", 9), ("kernel.py:13", 12)]
    assert "PTX line 12 (/src/kernel.py:13): mov.b32 %r1, 2" in e.code[1].where


def test_pragmas_and_sections_are_passed_over():
    m = ptx.parse(HEAD + '.visible .entry k() { .pragma "nounroll"; ret; }\n.section .debug_str { .b8 1,2,3 }\n')
    assert len(m.entry().code) == 1


@pytest.mark.parametrize(
    "body, match",
    [
        ("bra NOWHERE;", "no label 'NOWHERE'"),
        ("mov.b32 %r1, 1", "has no end"),
        (".reg .b99 %x;", "register declaration"),
        (".reg .b32 %x; @%x ret;", "no predicate"),
    ],
)
def test_syntax_errors_name_the_line(body, match):
    with pytest.raises(PtxSyntaxError, match=match) as caught:
        entry(body)
    assert "PTX line" in str(caught.value)


def test_which_entry():
    m = ptx.parse(HEAD + ".visible .entry a() { ret; }\n.visible .entry b() { ret; }")
    assert m.entry("b").name == "b"
    with pytest.raises(PtxSyntaxError, match=r"\['a', 'b'\]: pass entry="):
        m.entry()


def test_an_unknown_instruction_stops_when_it_is_reached():
    lines = (
        ".reg .pred %p; setp.eq.u32 %p, %a, 99; @%p bra OVER; mov.b32 %d, 1; bra END; OVER: frobnicate.b32 %d, %a; END:"
    )
    a = np.arange(32, dtype=np.uint32)
    assert run_lines(lines, {"a": a}, {"d": np.uint32})["d"].all()
    a[3] = 99
    with pytest.raises(UnsupportedInstruction, match=r"frobnicate\.b32\n  at PTX line \d+: frobnicate"):
        run_lines(lines, {"a": a}, {"d": np.uint32})


@pytest.mark.parametrize(
    "line, what",
    [
        ("add.frob.s32 %d, %a, %a;", "modifier .frob"),
        ("add.sat.u32 %d, %a, %a;", ".sat is for .s32 only"),
        ("ld.global.hologram.b32 %d, [%x];", "modifier .hologram"),
        ("mov.b32 %d, %frob;", "special register %frob"),
        ("add.s64 %x, %a, %x;", "32 bits where 64 are read"),
        ("mov.b32 %d, {%a, %a, %a};", "3 parts of 10 bits"),
        ("cvt.rn.e5m2x2.bf16 %d, %a;", "from .bf16"),
    ],
)
def test_unknown_modifiers_and_forms_are_refused(line, what):
    with pytest.raises(UnsupportedInstruction, match=what):
        run_lines(".reg .b64 %x;" + line, {"a": np.zeros(32, np.uint32)}, {"d": np.uint32})


def test_unknown_symbols_are_named():
    with pytest.raises(Exception, match="declares no variable or parameter 'nobody'"):
        run_ptx(f"{HEAD}.visible .entry k() {{ .reg .b64 %d; mov.u64 %d, nobody; }}", block=(32,))
