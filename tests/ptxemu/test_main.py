"""``python -m ptxemu``: the command, on PTX written here."""

import json
import subprocess
import sys

import numpy as np
import pytest

from ptxemu.__main__ import main

ADD = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry add(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 n
)
.reqntid 64, 1, 1
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 64, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.s32 %p, %r3, %r4;
    @%p bra DONE;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    mul.wide.s32 %rd4, %r3, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"""


@pytest.fixture
def add(tmp_path):
    path = tmp_path / "add.ptx"
    path.write_text(ADD)
    return str(path)


def test_two_vectors_are_added(add, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.float32))
    arguments = [
        "--arg",
        str(tmp_path / "a.npy"),
        "--arg",
        "ones:f32:100",
        "--arg",
        "poison:f32:100",
        "--arg",
        "s32:100",
    ]
    assert main([add, "--grid", "2", *arguments, "--save", f"2={tmp_path / 'c.npy'}", "--json"]) == 0
    assert np.array_equal(np.load(tmp_path / "c.npy"), np.arange(1, 101, dtype=np.float32))
    said = json.loads(capsys.readouterr().out)
    assert said["kernel"] == "add"
    assert said["block"] == [64, 1, 1]
    assert said["instructions"]["ld.global.f32"] == 8  # two CTAs of two warps, two loads each
    assert main([add, "--grid", "2", *arguments]) == 0
    assert "ld.global.f32" in capsys.readouterr().out


def test_a_fault_is_an_exit_status_and_a_message(add, capsys):
    arguments = ["--arg", "ones:f32:100", "--arg", "ones:f32:100", "--arg", "poison:f32:90", "--arg", "s32:100"]
    assert main([add, "--grid", "2", *arguments]) == 1
    said = capsys.readouterr().err
    assert "MemoryFault" in said
    assert "st.global" in said


def test_kernels_are_listed(add, capsys):
    assert main([add, "--list"]) == 0
    said = capsys.readouterr().out
    assert "add\n" in said
    assert "param 3: 4 bytes" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arg", "q8:1"], "no type 'q8'"),
        (["--arg", "s8:1000"], "s8:1000"),
        (["--entry", "sub"], "no kernel of that name"),
        (["--grid", "0"], "one to three positive numbers"),
        (["--arg", "s32:1", "--print", "0"], "argument 0 is no buffer"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(add, arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main([add, *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_help_is_there_without_the_dsl():
    code = "import sys; sys.modules['cutlass'] = None; from ptxemu.__main__ import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--cluster" in done.stdout
    assert "poison:f32:1024" in done.stdout


RACE = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry race()
.reqntid 64, 1, 1
{
    .reg .b32 %r<6>;
    .shared .align 4 .b32 x[64];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, x;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    xor.b32 %r4, %r3, 128;
    BARRIER
    ld.shared.u32 %r5, [%r4];
    ret;
}
"""


@pytest.mark.parametrize(("barrier", "status"), [("", 1), ("bar.sync 0;", 0)])
def test_races_are_looked_for(barrier, status, tmp_path, capsys):
    path = tmp_path / "race.ptx"
    path.write_text(RACE.replace("BARRIER", barrier))
    assert main([str(path), "--races"]) == status
    assert ("Nothing orders this st.shared" in capsys.readouterr().out) == bool(status)
    assert main([str(path), "--strict", "--json"]) == status
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [x["kind"] for x in found] == ["race"] * status
    assert main([str(path)]) == 0  # nobody asked
