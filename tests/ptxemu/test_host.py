"""The host-function interpreter on small modules written here: every operation, calls, memory, and what it refuses."""

import ctypes
import math
import struct

import pytest

from ptxemu.host import Device, HostError, HostModule, KernelFacts
from ptxemu.hosttypes import TypeSyntaxError, packer, parse_type, reader

CONFIG = "!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>"
ATTRIBUTE = "!llvm.struct<(i32, array<4 x i8>, array<64 x i8>)>"


def function(body: str, arguments: str = "", result: str = "i32") -> str:
    lines = "\n".join(
        line if line.lstrip().startswith("^") else "    " + line.strip() for line in body.strip().splitlines()
    )
    lines = lines.replace("\n^", "\n  ^")
    head = f"  llvm.func @main({arguments}) -> {result} {{"
    return f"module attributes {{gpu.container_module}} {{\n{head}\n{lines}\n  }}\n}}\n"


def call(body: str, arguments: str = "", result: str = "i32", values: tuple = ()) -> object:
    module = HostModule(function(body, arguments, result), {})
    return module.call("main", values)


def binary(operation: str, kind: str, a: int | float, b: int | float, result: str | None = None) -> object:
    return call(
        f"%0 = llvm.{operation} %arg0, %arg1 : {kind}\nllvm.return %0 : {result or kind}",
        f"%arg0: {kind}, %arg1: {kind}",
        result or kind,
        (a, b),
    )


def u32(value: int) -> int:
    return value & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("text", "size", "align"),
    [
        ("i1", 1, 1),
        ("i32", 4, 4),
        ("!llvm.ptr", 8, 8),
        ("!llvm.ptr<1>", 8, 8),
        ("vector<4xi32>", 16, 16),
        ("!llvm.struct<(i1, i1, i1, vector<4xi32>)>", 32, 16),
        ("!llvm.struct<(ptr, struct<(i32, struct<()>)>)>", 16, 8),
        ("!llvm.struct<packed (i8, i64)>", 9, 1),
        ('!llvm.struct<"pair", (i8, i64)>', 16, 8),
        ("!llvm.array<17 x struct<(i32, array<4 x i8>, array<64 x i8>)>>", 17 * 72, 4),
        (CONFIG, 56, 8),
    ],
)
def test_types_have_the_layout_that_the_native_abi_gives_them(text, size, align):
    kind, end = parse_type(text)
    assert (kind.size, kind.align, end) == (size, align, len(text))


def test_an_unknown_type_is_named():
    with pytest.raises(TypeSyntaxError, match="tensor"):
        parse_type("tensor<4xi32>")


@pytest.mark.parametrize(
    ("operation", "a", "b", "expected"),
    [
        ("add", 0xFFFFFFFF, 2, 1),
        ("sub", 1, 2, u32(-1)),
        ("mul", 0x10001, 0x10001, u32(0x10001 * 0x10001)),
        ("sdiv", u32(-7), 2, u32(-3)),
        ("srem", u32(-7), 2, u32(-1)),
        ("udiv", u32(-7), 2, u32(-7) // 2),
        ("urem", u32(-7), 10, u32(-7) % 10),
        ("shl", 1, 31, 1 << 31),
        ("lshr", 1 << 31, 31, 1),
        ("ashr", 1 << 31, 31, u32(-1)),
        ("and", 12, 10, 8),
        ("or disjoint", 12, 3, 15),
        ("xor", 12, 10, 6),
    ],
)
def test_integer_arithmetic_wraps_and_divides_as_the_hardware_does(operation, a, b, expected):
    assert binary(operation, "i32", a, b) == expected


def test_arithmetic_flags_are_read():
    body = "%0 = llvm.add %arg0, %arg0 overflow<nsw, nuw> : i32\nllvm.return %0 : i32"
    assert call(body, "%arg0: i32", values=(4,)) == 8


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("eq", 0),
        ("ne", 1),
        ("slt", 1),
        ("sle", 1),
        ("sgt", 0),
        ("sge", 0),
        ("ult", 0),
        ("ule", 0),
        ("ugt", 1),
        ("uge", 1),
    ],
)
def test_comparisons_know_the_sign(predicate, expected):
    assert binary(f'icmp "{predicate}"', "i32", u32(-1), 1, "i1") == expected


@pytest.mark.parametrize(
    ("operation", "source", "target", "value", "expected"),
    [
        ("sext", "i32", "i64", u32(-5), 2**64 - 5),
        ("zext nneg", "i32", "i64", 5, 5),
        ("trunc", "i64", "i8", 0x1FF, 0xFF),
        ("ptrtoint", "!llvm.ptr", "i64", 0x1234, 0x1234),
        ("inttoptr", "i64", "!llvm.ptr", 0x1234, 0x1234),
        ("sitofp", "i32", "f32", u32(-3), -3.0),
        ("uitofp", "i64", "f32", 2**24 + 1, float(2**24)),
        ("fptosi", "f32", "i32", -2.75, u32(-2)),
        ("fptrunc", "f64", "f32", 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
        ("fptrunc", "f32", "bf16", 1.0 + 2**-8 + 2**-20, 1.0 + 2**-7),
        ("fptrunc", "f32", "f16", 1e6, math.inf),
        ("bitcast", "f32", "i32", 1.0, 0x3F800000),
        ("bitcast", "i32", "f32", 0x3F800000, 1.0),
    ],
)
def test_casts(operation, source, target, value, expected):
    body = f"%0 = llvm.{operation} %arg0 : {source} to {target}\nllvm.return %0 : {target}"
    assert call(body, f"%arg0: {source}", target, (value,)) == expected


def test_float_arithmetic_is_rounded_to_its_type():
    one_third = binary("fdiv", "f32", 1.0, 3.0)
    assert one_third == struct.unpack("f", struct.pack("f", 1 / 3))[0]
    assert binary("fdiv", "f32", 1.0, -0.0) == -math.inf
    assert math.isnan(binary("fdiv", "f32", 0.0, 0.0))
    assert binary("fmul", "f32", 3e38, 10.0) == math.inf


@pytest.mark.parametrize(
    ("predicate", "expected"), [("oeq", 0), ("une", 1), ("oge", 0), ("ult", 1), ("uno", 1), ("ord", 0)]
)
def test_float_comparisons_know_nan(predicate, expected):
    assert binary(f'fcmp "{predicate}"', "f32", math.nan, 1.0, "i1") == expected


def test_constants_of_every_kind():
    body = """
        %0 = llvm.mlir.constant(-1 : i64) : i64
        %1 = llvm.mlir.constant(true) : i1
        %2 = llvm.mlir.constant(1.5 : f32) : f32
        %3 = llvm.mlir.constant(dense<7> : vector<4xi32>) : vector<4xi32>
        %4 = llvm.mlir.constant("ab\\00") : !llvm.array<3 x i8>
        %5 = llvm.mlir.poison : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        %6 = llvm.insertvalue %0, %5[0] : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        %7 = llvm.insertvalue %1, %6[1] : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        %8 = llvm.insertvalue %2, %7[2] : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        %9 = llvm.insertvalue %3, %8[3] : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        %10 = llvm.insertvalue %4, %9[4] : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
        llvm.return %10 : !llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>
    """
    kind = "!llvm.struct<(i64, i1, f32, vector<4xi32>, array<3 x i8>)>"
    image = call(body, result=kind)
    assert image == struct.pack("<q?3xf4i3s13x", -1, True, 1.5, 7, 7, 7, 7, b"ab\0")


def test_nested_extractvalue_reads_a_tensor_argument():
    kind = "!llvm.struct<(ptr, struct<(struct<(i32, i32)>, i64)>)>"
    body = f"%0 = llvm.extractvalue %arg0[1, 0, 1] : {kind}\nllvm.return %0 : i32"
    assert call(body, f"%arg0: {kind}", values=(struct.pack("<Qiiq", 1, 5, 6, 7),)) == 6


def test_a_loop_with_block_arguments_swaps_them_at_once():
    body = """
        %0 = llvm.mlir.constant(0 : i32) : i32
        %1 = llvm.mlir.constant(1 : i32) : i32
        llvm.br ^bb1(%0, %1, %0 : i32, i32, i32)
^bb1(%2: i32, %3: i32, %4: i32):  // 2 preds: ^bb0, ^bb2
        %5 = llvm.icmp "ult" %4, %arg0 : i32
        llvm.cond_br %5, ^bb2, ^bb3(%2 : i32)
^bb2:  // pred: ^bb1
        %6 = llvm.add %2, %3 : i32
        %7 = llvm.add %4, %1 : i32
        llvm.br ^bb1(%3, %6, %7 : i32, i32, i32)
^bb3(%8: i32):  // pred: ^bb1
        llvm.return %8 : i32
    """
    assert [call(body, "%arg0: i32", values=(n,)) for n in range(9)] == [0, 1, 1, 2, 3, 5, 8, 13, 21]


def test_switch():
    body = """
        %0 = llvm.mlir.constant(10 : i32) : i32
        %1 = llvm.mlir.constant(20 : i32) : i32
        llvm.switch %arg0 : i32, ^bb1(%0 : i32) [
          3: ^bb1(%1 : i32),
          -1: ^bb1(%arg0 : i32)
        ]
^bb1(%2: i32):
        llvm.return %2 : i32
    """
    assert [call(body, "%arg0: i32", values=(v,)) for v in (0, 3, u32(-1))] == [10, 20, u32(-1)]


def test_memory_is_typed_bytes_at_real_addresses():
    body = """
        %0 = llvm.mlir.constant(2 : i32) : i32
        %1 = llvm.alloca %0 x PAIR {alignment = 64 : i64} : (i32) -> !llvm.ptr
        %2 = llvm.mlir.constant(1 : i32) : i32
        %3 = llvm.getelementptr inbounds %1[%2, 1, %arg0] : (!llvm.ptr, i32, i64) -> !llvm.ptr, PAIR
        %4 = llvm.mlir.constant(513 : i16) : i16
        llvm.store %4, %3 {alignment = 2 : i64} : i16, !llvm.ptr
        %5 = llvm.getelementptr %1[20] : (!llvm.ptr) -> !llvm.ptr, i8
        %6 = llvm.load %5 {nontemporal} : !llvm.ptr -> i32
        llvm.return %6 : i32
    """.replace("PAIR", "!llvm.struct<(i32, array<4 x i16>)>")
    assert call(body, "%arg0: i64", values=(3,)) == 513 << 16


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "%0 = llvm.mlir.zero : !llvm.ptr\n%1 = llvm.load %0 : !llvm.ptr -> i32",
            ["line 4", "null pointer", "4 bytes"],
        ),
        ("%0 = llvm.frobnicate %arg0 : i32", ["line 3", "llvm.frobnicate", "not known"]),
        ("%0 = arith.addi %arg0, %arg0 : i32", ["line 3", "no operation of the LLVM dialect"]),
        ("%0 = llvm.add %arg0, %arg0 : vector<2xi32>", ["line 3", "llvm.add", "not understood", "vector<2 x i32>"]),
        ("%0 = llvm.call @mystery(%arg0) : (i32) -> i32", ["line 3", "'mystery'", "_cudaLaunchKernelEx"]),
        ("%0 = llvm.mlir.constant(0 : i32) : i32\n%1 = llvm.udiv %arg0, %0 : i32", ["line 4", "division of 7 by zero"]),
        ("%0 = llvm.mlir.addressof @nothing : !llvm.ptr", ["line 3", "nothing"]),
        ("llvm.intr.trap", ["line 3", "gave up"]),
    ],
)
def test_what_is_not_understood_is_refused_by_name_and_line(body, words):
    with pytest.raises(HostError) as caught:
        call(body + "\nllvm.return %arg0 : i32", "%arg0: i32", values=(7,))
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_operation_in_a_branch_not_taken_does_no_harm():
    body = """
        %0 = llvm.mlir.constant(false) : i1
        llvm.cond_br %0, ^bb1, ^bb2
^bb1:
        %1 = llvm.frobnicate %arg0 : i32
        llvm.return %1 : i32
^bb2:
        llvm.return %arg0 : i32
    """
    assert call(body, "%arg0: i32", values=(7,)) == 7


def test_a_function_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr("ptxemu.host._MAX_BLOCKS", 1000)
    with pytest.raises(HostError, match="does not end"):
        call("llvm.br ^bb1\n^bb1:\nllvm.br ^bb1")


def launching(grid="%2", cluster: bool = False, shared: int = 256) -> str:
    """A module as compiled: a loader that asks for the kernel's handle, and a function that launches."""
    attributes = (
        f"""
    %30 = llvm.getelementptr %5[0, 0] : (!llvm.ptr) -> !llvm.ptr, {ATTRIBUTE}
    %31 = llvm.mlir.constant(4 : i32) : i32
    llvm.store %31, %30 : i32, !llvm.ptr
    %32 = llvm.getelementptr %5[0, 2] : (!llvm.ptr) -> !llvm.ptr, {ATTRIBUTE}
    llvm.store %2, %32 : i32, !llvm.ptr
    %33 = llvm.getelementptr %32[4] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %1, %33 : i32, !llvm.ptr
    %34 = llvm.getelementptr %32[8] : (!llvm.ptr) -> !llvm.ptr, i8
    llvm.store %1, %34 : i32, !llvm.ptr
    %35 = llvm.getelementptr %4[0, 5] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %1, %35 : i32, !llvm.ptr"""
        if cluster
        else ""
    )
    return f"""module attributes {{gpu.container_module}} {{
  llvm.func @_cudaLaunchKernelEx(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.func @_cudaLibraryGetKernel(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.func @printf(!llvm.ptr, ...) -> i32
  llvm.mlir.global internal constant @"said %d\\0A"("said %d %s\\0A\\00") {{addr_space = 0 : i32}}
  llvm.mlir.global internal @handle() {{addr_space = 0 : i32}} : !llvm.ptr
  llvm.func @cuda_num_binaries() -> i32 {{
    %0 = llvm.mlir.constant(1 : i32) : i32
    llvm.return %0 : i32
  }}
  llvm.func @cuda_load(%arg0: !llvm.ptr) -> i32 {{
    %0 = llvm.mlir.addressof @handle : !llvm.ptr
    %1 = llvm.mlir.constant(1 : i32) : i32
    %3 = llvm.mlir.constant("twice\\00") : !llvm.array<6 x i8>
    %4 = llvm.alloca %1 x !llvm.array<6 x i8> : (i32) -> !llvm.ptr
    llvm.store %3, %4 : !llvm.array<6 x i8>, !llvm.ptr
    %5 = llvm.load %arg0 : !llvm.ptr -> !llvm.ptr
    %6 = llvm.call @_cudaLibraryGetKernel(%0, %5, %4) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
    llvm.return %6 : i32
  }}
  llvm.func @main(%arg0: !llvm.ptr, %arg1: f32) -> i32 {{
    %0 = llvm.mlir.constant({shared} : i64) : i64
    %1 = llvm.mlir.constant(1 : i32) : i32
    %2 = llvm.mlir.constant(2 : i32) : i32
    %3 = llvm.mlir.constant(0 : i32) : i32
    %4 = llvm.alloca %1 x {CONFIG} : (i32) -> !llvm.ptr
    %5 = llvm.alloca %1 x {ATTRIBUTE} : (i32) -> !llvm.ptr
    %6 = llvm.getelementptr %4[0, 0, 0] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store {grid}, %6 : i32, !llvm.ptr
    %7 = llvm.getelementptr %4[0, 0, 1] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %1, %7 : i32, !llvm.ptr
    %8 = llvm.getelementptr %4[0, 0, 2] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %1, %8 : i32, !llvm.ptr
    %9 = llvm.getelementptr %4[0, 1, 0] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %2, %9 : i32, !llvm.ptr
    %10 = llvm.getelementptr %4[0, 1, 1] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %1, %10 : i32, !llvm.ptr
    %11 = llvm.getelementptr %4[0, 1, 2] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %1, %11 : i32, !llvm.ptr
    %12 = llvm.getelementptr %4[0, 2] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %0, %12 : i64, !llvm.ptr
    %13 = llvm.getelementptr %4[0, 4] : (!llvm.ptr) -> !llvm.ptr, {CONFIG}
    llvm.store %5, %13 : !llvm.ptr, !llvm.ptr{attributes}
    %14 = llvm.alloca %2 x !llvm.ptr : (i32) -> !llvm.ptr
    %15 = llvm.alloca %1 x !llvm.ptr : (i32) -> !llvm.ptr
    llvm.store %arg0, %15 : !llvm.ptr, !llvm.ptr
    llvm.store %15, %14 : !llvm.ptr, !llvm.ptr
    %16 = llvm.alloca %1 x f32 : (i32) -> !llvm.ptr
    llvm.store %arg1, %16 : f32, !llvm.ptr
    %17 = llvm.getelementptr %14[%1] : (!llvm.ptr, i32) -> !llvm.ptr, !llvm.ptr
    llvm.store %16, %17 : !llvm.ptr, !llvm.ptr
    %18 = llvm.mlir.addressof @handle : !llvm.ptr
    %19 = llvm.load %18 : !llvm.ptr -> !llvm.ptr
    %20 = llvm.mlir.addressof @"said %d\\0A" : !llvm.ptr
    %21 = llvm.getelementptr %20[0] : (!llvm.ptr) -> !llvm.ptr, i8
    %22 = llvm.call @printf(%21, %2, %21) vararg(!llvm.func<i32 (ptr, ...)>) : (!llvm.ptr, i32, !llvm.ptr) -> i32
    %23 = llvm.call @_cudaLaunchKernelEx(%4, %19, %14) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
    %24 = llvm.call @_cudaLaunchKernelEx(%4, %19, %14) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
    llvm.return %24 : i32
  }}
}}
"""


TWO_PARAMETERS = KernelFacts((8, 4))


def launch(text: str, facts: KernelFacts = TWO_PARAMETERS):
    pointer, scalar = ctypes.c_void_p(0xABCDEF), ctypes.c_float(2.5)
    module = HostModule(text, {"twice": facts}, Device.of("sm_100a"))
    return module, module.run("main", [ctypes.addressof(pointer), ctypes.addressof(scalar)])


def test_a_launch_is_recorded_with_the_bytes_of_its_parameters(capsys):
    _, launches = launch(launching(cluster=True))
    assert len(launches) == 2
    first = launches[0]
    assert first.kernel == "twice"
    assert (first.grid, first.block, first.cluster, first.shared) == ((2, 1, 1), (2, 1, 1), (2, 1, 1), 256)
    assert first.params == [struct.pack("<Q", 0xABCDEF), struct.pack("<f", 2.5)]
    assert capsys.readouterr().out == "said 2 said %d %s\n\n"


def test_interpreting_again_starts_afresh():
    module, _ = launch(launching())
    pointer, scalar = ctypes.c_void_p(1), ctypes.c_float(-1.0)
    for _ in range(300):
        (again, _) = module.run("main", [ctypes.addressof(pointer), ctypes.addressof(scalar)])
    assert again.params == [struct.pack("<Q", 1), struct.pack("<f", -1.0)]
    assert again.cluster == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (launching(grid="%3"), ["grid (0, 1, 1)", "1 to 2147483647"]),
        (launching(grid="%1", cluster=True), ["grid (1, 1, 1)", "no multiple of cluster (2, 1, 1)"]),
        (launching(shared=300_000), ["300000 bytes", "allowed are 49152"]),
    ],
)
def test_what_cuda_would_refuse_is_refused(text, words):
    with pytest.raises(HostError) as caught:
        launch(text)
    for word in words:
        assert word in str(caught.value)


def test_a_kernel_that_the_ptx_lacks_is_named():
    module = HostModule(launching(), {"other": KernelFacts(())})
    pointer, scalar = ctypes.c_void_p(1), ctypes.c_float(-1.0)
    with pytest.raises(HostError, match=r"'twice' is launched.*other"):
        module.run("main", [ctypes.addressof(pointer), ctypes.addressof(scalar)])


def test_a_wrong_number_of_arguments_is_refused():
    module = HostModule(launching(), {"twice": KernelFacts((8, 4))})
    with pytest.raises(HostError, match="takes 2 arguments and was given 0"):
        module.run("main", [])


def test_parameters_that_reach_past_their_memory_are_refused():
    with pytest.raises(HostError, match="400000 bytes"):
        launch(launching(), KernelFacts((400_000, 4)))


@pytest.mark.parametrize(("target", "kib"), [("sm_100a", 227), ("sm_103a", 227), ("sm_90a", 227), ("sm_89", 99)])
def test_device_limits(target, kib):
    assert Device.of(target).max_dynamic_shared == kib * 1024


@pytest.mark.parametrize("target", ["sm_70", "compute_90", "sm_x"])
def test_an_unknown_device_is_refused(target):
    with pytest.raises(HostError, match=target):
        Device.of(target)


def test_values_survive_a_round_trip_through_memory():
    for text, value in (
        ("i8", 200),
        ("i64", 2**63 + 5),
        ("f16", -1.5),
        ("bf16", 3.0),
        ("f64", 1e300),
        ("i128", 2**100),
    ):
        kind, _ = parse_type(text)
        assert reader(kind)(packer(kind)(value), 0) == value
