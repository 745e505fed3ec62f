"""attnbook.compile: what it reads out of a CUBIN, against what ptxas and the disassembly say."""

import importlib
import re

import pytest

compile_module = importlib.import_module("attnbook.compile")
stage = importlib.import_module("attnbook.kernels.blackwell.s01_baseline")
Problem = compile_module.Problem


@pytest.mark.parametrize(
    ("arch", "dtype", "lse"), [("sm_100a", "bf16", True), ("sm_100a", "fp16", False), ("sm_103a", "bf16", False)]
)
def test_stage_1_for_every_chip_and_type(arch, dtype, lse):
    kernel = compile_module.compile(1, Problem(dtype=dtype, lse=lse), arch=arch)
    assert kernel.kernel_name.startswith("s01_baseline") and kernel.stage is stage
    assert f".target {arch}" in kernel.ptx and kernel.cubin[:4] == b"\x7fELF"
    assert kernel.registers <= 128 and kernel.spills == kernel.stack_bytes == 0
    assert kernel.compile_seconds < 10
    conversions = {"bf16": "cvt.rn.bf16x2.f32", "fp16": "cvt.rn.f16x2.f32"}
    assert (
        kernel.ptx_opcodes[conversions[dtype]] == 128
        and not kernel.ptx_opcodes[conversions[{"bf16": "fp16"}.get(dtype, "bf16")]]
    )
    assert (kernel.ptx_opcodes["lg2.approx.ftz.f32"] == 1) is lse


def test_the_same_request_gives_the_same_object():
    assert compile_module.compile(1) is compile_module.compile("baseline", Problem(batch=7, seqlen=1024))
    assert compile_module.compile(1) is not compile_module.compile(1, Problem(dtype="fp16", lse=False))


def test_sass_is_that_kernel():
    kernel = compile_module.compile(1)
    counts = kernel.sass_opcodes
    assert counts["UTCHMMA"] == 16 and counts["UTMALDG"] == 48 and counts["LDTM"] == 64 and counts["STTM"] == 16
    assert f"/*{0:04x}*/" in kernel.sass and kernel.kernel_name in kernel.sass
    highest = max(int(n) for n in re.findall(r"\bR(\d+)\b", kernel.sass))
    assert highest < kernel.registers <= highest + 8


def test_line_info_names_the_source():
    kernel = compile_module.compile(1)
    assert re.search(r'\.file\s+\d+\s+"[^"]*s01_baseline\.py"', kernel.ptx)


def test_registers_and_stack_are_what_ptxas_reports(capfd, tmp_path):
    """A kernel that indexes an array at run time keeps it in local memory: both readings must see it."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    @cute.kernel
    def kernel(x: cute.Tensor):
        kept = cute.make_rmem_tensor(64, cutlass.Float32)
        for i in cutlass.range(64, unroll=1):
            kept[i] = x[i]
        for i in cutlass.range(64, unroll=1):
            x[i] = kept[cutlass.Int32(x[i])]

    @cute.jit
    def host(x: cute.Tensor):
        kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

    tensor = make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,))
    options = f"--keep-ptx --keep-cubin --gpu-arch sm_100a --dump-dir {tmp_path} remarks{{ptx}}"
    compiled = cute.compile(host, tensor, options=options)
    said = capfd.readouterr().err
    (name,) = compiled.kernel_info
    registers, stack = compile_module.kernel_resources(compiled.__cubin__, name)
    assert registers == int(re.search(r"Used (\d+) registers", said)[1])
    assert stack == int(re.search(r"(\d+) bytes stack frame", said)[1]) >= 256
    counts = compile_module.count_sass(compile_module.disassemble(compiled.__cubin__))
    assert counts["STL"] and counts["LDL"]
    with pytest.raises(ValueError, match="says nothing of kernel 'other'"):
        compile_module.kernel_resources(compiled.__cubin__, "other")


def test_not_a_cubin():
    with pytest.raises(ValueError, match="no CUBIN"):
        compile_module.kernel_resources(b"PTX text, by mistake", "k")


def test_shared_memory_is_what_the_launch_asks_for():
    torch = pytest.importorskip("torch")
    from ptxemu.cutedsl import launch_record

    kernel = compile_module.compile(1)
    q, k, v, o = (torch.zeros(2, 256, 3, 128, dtype=torch.bfloat16) for _ in range(4))
    lse = torch.zeros(2, 3, 256)
    (record,) = launch_record(kernel.fn, *kernel.arguments(q, k, v, o, lse, 0.125))
    assert record.shared == kernel.shared_bytes
    assert (record.grid, record.block, record.kernel) == ((2, 3, 2), (128, 1, 1), kernel.kernel_name)


def test_diagnostics_are_the_compilers_own():
    kernel = compile_module.compile(1, diagnostics=True)
    assert all("mbarrier arrive inside scf.for loop" in m and "s01_baseline.py:" in m for m in kernel.warnings)
    assert len(kernel.warnings) == 3  # one a barrier that completes a phase a tile
    assert compile_module.compile(1).warnings == ()


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ({"dtype": "fp8"}, {}, "dtype = 'fp8' is none of bf16, fp16"),
        ({"seqlen": 200}, {}, "seqlen = 200"),
        ({"causal": True}, {}, "causal = True"),
        ({}, {"arch": "sm_90a"}, "arch = 'sm_90a' is none of sm_100a, sm_103a"),
    ],
)
def test_what_cannot_be_compiled(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        compile_module.compile(1, Problem(**arguments), **options)


def test_a_stage_without_a_kernel():
    with pytest.raises(ValueError, match="stage 22"):
        compile_module.compile(22)


def test_counting():
    ptx = """
    .reg .pred %p<3>;
    // add.s32 in a comment
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0, 10000000;
    @P1 bra.uni DONE;
    @!%p1 bra $L__BB0_2;
    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];
    ret;
    """
    assert compile_module.count_ptx(ptx) == {
        "mbarrier.try_wait.parity.shared.b64": 1,
        "bra.uni": 1,
        "bra": 1,
        "tcgen05.ld.sync.aligned.32x32b.x2.b32": 1,
        "ret": 1,
    }
    sass = "        /*0010*/              @!P0 BRA `(.L_1) ;\n        /*0020*/   MUFU.EX2 R1, R2 ;\n /*0030*/ NOP ;"
    assert compile_module.count_sass(sass) == {"BRA": 1, "MUFU": 1}


def test_diagnostic_messages():
    text = (
        "\x1b[91merror:\x1b[0m [C3] one thing\n\n  --> /somewhere/k.py:12:3\n    |\n"
        "\x1b[93mwarning:\x1b[0m another,\n      on two lines\n\n  --> /somewhere/k.py:20:0\n"
    )
    assert compile_module.diagnostic_messages(text) == (
        "error: [C3] one thing (k.py:12)",
        "warning: another, on two lines (k.py:20)",
    )
    assert compile_module.diagnostic_messages("") == ()
