"""From a stage's source to PTX, CUBIN and SASS, with what the compiler says about them. No GPU is needed.

``compile`` hands the stage's ``Attention`` class to ``cute.compile`` with tensors that have a type and no data, so one
compilation serves every batch, sequence length and number of heads. The numbers in `Compiled` are read from the CUBIN
itself (an ELF file; its ``.nv.info`` section holds the register count and the stack frame of every kernel), from the
SASS and from the host function, none of them from the source.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["ARCHITECTURES", "DTYPES", "Compiled", "Problem", "compile", "stage_module"]

ARCHITECTURES = ("sm_100a", "sm_103a", "sm_90a")  # B200/GB200, B300/GB300; H100/H200
_OF_MACHINE = {"blackwell": ARCHITECTURES[:2], "hopper": ARCHITECTURES[2:]}  # the first is taken where none is named
DTYPES = ("bf16", "fp16")


@dataclass(frozen=True)
class Problem:
    """What is to be computed. Only ``dtype``, ``lse`` and what a stage lists as its KNOBS change the code; the rest is
    checked.

    batch, seqlen, heads, head_dim: of q, k, v and o, all (batch, seqlen, heads, head_dim). dtype: "bf16" or "fp16".
    scale: what scores are multiplied by; None stands for 1 / sqrt(head_dim). lse: whether the (batch, heads, seqlen)
    fp32 log-sum-exp is wanted too.
    """

    batch: int = 1
    heads: int = 1
    seqlen: int = 512
    head_dim: int = 128
    dtype: str = "bf16"
    causal: bool = False
    lse: bool = True
    scale: float | None = None

    @property
    def softmax_scale(self) -> float:
        """The scale itself: the one given, or 1 / sqrt(head_dim)."""
        return self.head_dim**-0.5 if self.scale is None else float(self.scale)


@dataclass(frozen=True)
class Compiled:
    """One stage, compiled.

    fn           what ``cute.compile`` returned: call it on a GPU, or give it to ``ptxemu.launch``
    ptx          the PTX text
    cubin        the machine code, an ELF file
    registers    32-bit registers a thread
    stack_bytes  local memory a thread: 0 unless something spilled or an array is indexed at run time
    shared_bytes dynamic shared memory of a CTA, as the host function will ask for it
    compile_seconds  wall time of ``cute.compile``, the tracing of the Python source included
    warnings     what the compiler said; empty unless diagnostics=True
    """

    fn: Any
    kernel_name: str
    arch: str
    ptx: str
    cubin: bytes
    registers: int
    stack_bytes: int
    shared_bytes: int
    compile_seconds: float
    warnings: tuple[str, ...]
    stage: ModuleType

    @cached_property
    def sass(self) -> str:
        """The machine code as text, by NVIDIA's nvdisasm (Python package nvidia-cuda-nvdisasm)."""
        return disassemble(self.cubin)

    @cached_property
    def annotated_sass(self) -> str:
        """The machine code with encodings and source lines: what ``ptxemu.clock.parse`` reads."""
        return disassemble(self.cubin, annotated=True)

    @cached_property
    def sass_opcodes(self) -> Counter[str]:
        """How often each SASS instruction stands in the kernel, by its name without modifiers."""
        return count_sass(self.sass)

    @cached_property
    def ptx_opcodes(self) -> Counter[str]:
        """How often each PTX instruction stands in the kernel, by its full name."""
        return count_ptx(self.ptx)

    @property
    def spills(self) -> int:
        """Instructions that store to or load from local memory: what register pressure costs. 0 is what one wants."""
        if self.stack_bytes == 0:
            return 0
        return sum(count for name, count in self.sass_opcodes.items() if name in ("STL", "LDL"))

    def arguments(self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, stream: Any = None) -> tuple[Any, ...]:
        """The arguments of ``fn``, and of ``ptxemu.launch(fn, ...)``, for torch tensors on a CPU or a GPU.

        The tuple points into the tensors: keep both alive until the kernel is done. ``stream`` is an integer handle
        such as ``torch.cuda.current_stream().cuda_stream``; None is the default stream.
        """
        import cuda.bindings.driver as cuda
        import cutlass
        from cutlass.cute.runtime import from_dlpack

        def tensor(t: Any) -> Any:
            t = t.detach()
            alignment = 16 if t.dim() == 4 else t.element_size()
            return from_dlpack(t, assumed_align=alignment).mark_layout_dynamic(leading_dim=t.dim() - 1)

        lse = None if lse is None else tensor(lse)
        return tensor(q), tensor(k), tensor(v), tensor(o), lse, cutlass.Float32(scale), cuda.CUstream(stream or 0)

    def summary(self) -> str:
        """A few lines of text: what came out."""
        rows = [
            ("kernel", f"{self.kernel_name} for {self.arch}"),
            ("compiled in", f"{self.compile_seconds:.2f} s"),
            ("PTX", f"{len(self.ptx.splitlines()):,} lines, {sum(self.ptx_opcodes.values()):,} instructions"),
            ("CUBIN", f"{len(self.cubin):,} bytes"),
            ("registers", f"{self.registers} a thread"),
            ("spills", f"{self.spills} ({self.stack_bytes} bytes of stack a thread)"),
            ("shared memory", f"{self.shared_bytes:,} bytes a CTA"),
        ]
        return "\n".join(f"{name:<14} {value}" for name, value in rows)


def stage_module(stage: Any) -> ModuleType:
    """The module of a stage's kernel, for its number, its slug or its ``ladder.Stage``.

    Raises ValueError when the ladder knows no such stage, or when its kernel is not written.
    """
    from attnbook.ladder import LADDER, Stage

    found = stage if isinstance(stage, Stage) else LADDER[stage]
    if not found.implemented or found.path is None:
        raise ValueError(
            f"stage {found.number} ({found.slug}) has no kernel here; try one that `attnbook doctor` lists"
        )
    path = Path(found.path)
    return importlib.import_module(f"attnbook.kernels.{path.parent.name}.{path.stem}")


def compile(
    stage: Any = 1,
    problem: Problem | None = None,
    *,
    arch: str | None = None,
    iket: bool = False,
    line_info: bool = True,
    diagnostics: bool = False,
) -> Compiled:
    """Compile a stage of the ladder for ``arch``; the same request again gives the same object back.

    arch: one of ARCHITECTURES that the stage is for; None is "sm_100a" for a Blackwell stage and "sm_90a" for a Hopper
    one.

    iket keeps the named ranges of the source as IKET events (they are stripped otherwise); line_info ties every
    instruction to its source line; diagnostics asks the compiler for what its own checkers have to say about
    synchronisation. What they call an error is a doubt of theirs: the kernel is compiled all the same.

    Raises ValueError, naming the value and the remedy, for a problem that the stage does not solve.
    """
    problem = problem or Problem()
    if problem.dtype not in DTYPES:
        raise ValueError(f"dtype = {problem.dtype!r} is none of {', '.join(DTYPES)}; convert q, k and v to one of them")
    module = stage_module(stage)
    possible = _OF_MACHINE[module.__name__.split(".")[-2]]
    arch = arch or possible[0]
    if arch not in possible:
        raise ValueError(f"arch = {arch!r} is none of {', '.join(possible)}, for which this stage is; leave arch out")
    module.check(
        problem.batch,
        problem.seqlen,
        problem.heads,
        problem.head_dim,
        causal=problem.causal,
        scale=problem.softmax_scale,
    )
    knobs = tuple((name, getattr(problem, name)) for name in getattr(module, "KNOBS", ()))
    return _compile(module, problem.dtype, problem.lse, arch, iket, line_info, diagnostics, knobs)


@functools.cache
def _compile(
    module: ModuleType,
    dtype: str,
    lse: bool,
    arch: str,
    iket: bool,
    line_info: bool,
    diagnostics: bool,
    knobs: tuple[tuple[str, Any], ...] = (),
) -> Compiled:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    element = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16}[dtype]

    def fake(kind: Any, rank: int, divisor: int, alignment: int) -> Any:
        # As mark_layout_dynamic types a real tensor: every extent and every stride but the last is a run-time value.
        extents = tuple(cute.sym_int32() for _ in range(rank))
        strides = tuple(cute.sym_int64(divisibility=divisor) for _ in range(rank - 1))
        return make_fake_tensor(kind, extents, (*strides, 1), assumed_align=alignment)

    qkvo = [fake(element, 4, 8, 16) for _ in range(4)]
    lse_out = fake(cutlass.Float32, 3, 1, 4) if lse else None

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--keep-ptx", "--keep-cubin", f"--dump-dir {scratch}", f"--gpu-arch {arch}"]
        options += ["--generate-line-info"] if line_info else []
        options += ["iket"] if iket else []
        options += ["warnings"] if diagnostics else []
        start = time.perf_counter()
        with contextlib.redirect_stderr(said) if diagnostics else contextlib.nullcontext():
            fn = cute.compile(
                module.Attention(**dict(knobs)),
                *qkvo,
                lse_out,
                cutlass.Float32(1.0),
                make_fake_stream(),
                options=" ".join(options),
            )
        seconds = time.perf_counter() - start

    (name,) = fn.kernel_info
    registers, stack = kernel_resources(fn.__cubin__, name)
    return Compiled(
        fn=fn,
        kernel_name=name,
        arch=arch,
        ptx=fn.__ptx__,
        cubin=fn.__cubin__,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=dynamic_shared_bytes(str(fn.ir_module)),
        compile_seconds=seconds,
        warnings=diagnostic_messages(said.getvalue()),
        stage=module,
    )


# ---- reading what came out ------------------------------------------------------------------------------------------

_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11  # attributes of .nv.info; each holds (index of the kernel's symbol, value)


def kernel_resources(cubin: bytes, kernel: str) -> tuple[int, int]:
    """(registers, stack bytes) of a thread of ``kernel``, from the ELF file. ValueError if they are not there."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError("this is no CUBIN: it does not begin as an ELF file; compile with --keep-cubin")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4]

    def text(at: int) -> str:
        return cubin[at : cubin.index(b"\0", at)].decode()

    sections = {text(names + h[0]): (h[4], h[5], h[6]) for h in headers}
    symbols_at, symbols_size, strings = sections[".symtab"]
    symbols = [
        text(headers[strings][4] + struct.unpack_from("<I", cubin, symbols_at + i)[0])
        for i in range(0, symbols_size, 24)
    ]

    found = {}
    at, length, _ = sections[".nv.info"]
    end = at + length
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == 4:  # then value is the length of what follows; in every other form it is the value
            if attribute in (_REGISTER_COUNT, _FRAME_SIZE) and value == 8:
                symbol, number = struct.unpack_from("<II", cubin, at)
                if symbols[symbol] == kernel:
                    found[attribute] = number
            at += value
    if found.keys() != {_REGISTER_COUNT, _FRAME_SIZE}:
        raise ValueError(f"the CUBIN says nothing of kernel {kernel!r}; it holds {', '.join(filter(None, symbols))}")
    return found[_REGISTER_COUNT], found[_FRAME_SIZE]


_LAUNCH_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"


def dynamic_shared_bytes(host: str) -> int:
    """The dynamic shared memory that the printed host function puts into its launch configuration, in bytes."""
    field = re.search(
        rf"(%\w+) = llvm\.getelementptr %\w+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, {_LAUNCH_CONFIG}", host
    )
    store = field and re.search(rf"llvm\.store (%\w+), {re.escape(field[1])} : i64", host[field.end() :])
    constants = store and re.findall(
        rf"{re.escape(store[1])} = llvm\.mlir\.constant\((\d+) : i64\)", host[: field.end()] if field else ""
    )
    if not constants:
        raise ValueError("the host function sets no constant amount of dynamic shared memory")
    return int(constants[-1])  # the nearest definition above: numbers start anew in every function


def diagnostic_messages(text: str) -> tuple[str, ...]:
    """The compiler's messages as "error: what (file:line)", without terminal colours and quoted source lines."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    messages = []
    for part in re.split(r"^(?=(?:error|warning|remark)\b)", text, flags=re.M):
        where = re.search(r"-->\s*(\S+?):(\d+)", part)
        what = " ".join(part.split("\n\n")[0].split())
        if what:
            messages.append(f"{what} ({Path(where[1]).name}:{where[2]})" if where else what)
    return tuple(messages)


def disassemble(cubin: bytes, annotated: bool = False) -> str:
    """The SASS of a CUBIN as text; annotated: with encodings and source lines.

    Raises FileNotFoundError, with the remedy, where there is no nvdisasm.
    """
    tool = _nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        more = ["-g", "-hex"] if annotated else []
        done = subprocess.run([tool, *more, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def _nvdisasm() -> str:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob("*/bin/nvdisasm*")):
            return str(found)
    if on_path := shutil.which("nvdisasm"):
        return on_path
    raise FileNotFoundError(f"no nvdisasm: {sys.executable} -m pip install nvidia-cuda-nvdisasm")


def count_sass(sass: str) -> Counter[str]:
    """SASS instructions by name without modifiers (``MUFU.EX2`` counts as ``MUFU``); NOP padding is left out."""
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", sass)
    return Counter(name for name in found if name != "NOP")


def count_ptx(ptx: str) -> Counter[str]:
    """PTX instructions by full name, guards left out."""
    return Counter(re.findall(r"^\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)[^;]*;", ptx, flags=re.M))
