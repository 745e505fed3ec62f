"""`attention()`: one stage of the ladder on torch tensors, on the machine that is there.

On a Blackwell GPU the kernel runs there. On any other machine ptxemu executes the same kernel's PTX, for CUDA
tensors as well as for CPU ones (they are copied there and back).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnbook import machine as machines
from attnbook.ladder import LADDER, Stage

if TYPE_CHECKING:
    import ptxemu
    from attnbook.compile import Compiled

__all__ = ["DTYPES", "Execution", "attention", "execute", "problem_of"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "emulator", "gpu")
CTAS_A_WAVE = 32
TMA_ALIGNMENT = 16  # bytes: of the first element, and of every stride but the last


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    stage: int | str | Stage = "final",
    return_lse: bool = False,
    device: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ) v, computed by one stage of the ladder.

    q, k, v     (batch, seqlen, heads, head_dim), bf16 or fp16, all on one device. Any strides: what TMA cannot read
                is copied.
    causal      refused by the dense stages
    scale       finite; 1 / sqrt(head_dim) if None
    stage       a number, a slug, or "final", the last one that is written
    return_lse  also return the natural logarithm of the sum of exp(scores), (batch, heads, seqlen) fp32
    device      None or "auto": the machine that is there; "emulator"; "gpu": the GPU or an error

    Returns o, like q and on its device; with return_lse (o, lse). Raises ValueError or TypeError with the value and
    the remedy. There is no backward pass.
    """
    problem = problem_of(q, k, v, causal=causal, scale=scale, lse=return_lse, stage=stage)
    done = execute(stage, problem, q, k, v, device=device)
    return (done.o, done.lse) if done.lse is not None else done.o


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    lse: bool = False,
    stage: int | str | Stage = "final",
) -> Any:
    """The `compile.Problem` that these tensors pose. ValueError or TypeError, with the value and the remedy, for bad
    input."""
    from attnbook.compile import Problem, stage_module

    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} is a {type(tensor).__name__}; pass a torch.Tensor (torch.from_numpy, torch.as_tensor)"
            )
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has {tensor.dim()} dimensions, shape {tuple(tensor.shape)}; "
                "it must be (batch, seqlen, heads, head_dim)"
            )
        if tensor.dtype not in DTYPES.values():
            raise ValueError(
                f"{name} is {tensor.dtype}; convert it: {name}.to(torch.bfloat16) or {name}.to(torch.float16)"
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} has layout {tensor.layout}; make it dense: {name}.to_dense()")
        if tensor.numel() == 0:
            raise ValueError(f"{name} is empty, shape {tuple(tensor.shape)}; every dimension must be at least 1")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; convert them to one type, such as q.dtype")
    if not q.device == k.device == v.device:
        raise ValueError(
            f"q is on {q.device}, k on {k.device}, v on {v.device}; move them to one device: k.to(q.device)"
        )
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q, k and v are on {q.device}; move them to the CPU or an NVIDIA GPU: q.cpu()")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise ValueError(
            "q, k or v requires a gradient and there is no backward pass: use torch.no_grad() or q.detach()"
        )
    _check_shapes(q, k, v)
    batch, seqlen, heads, head_dim = q.shape
    scale = _checked_scale(scale, head_dim)
    stage_module(stage).check(batch, seqlen, heads, head_dim, causal=causal, scale=scale)
    dtype = next(name for name, torch_dtype in DTYPES.items() if torch_dtype == q.dtype)
    return Problem(
        batch=batch, heads=heads, seqlen=seqlen, head_dim=head_dim, dtype=dtype, causal=causal, lse=lse, scale=scale
    )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if k.shape != v.shape:
        raise ValueError(f"k and v differ in shape: {shapes}; they must be alike")
    for dimension, name, remedy in (
        (0, "batch", "repeat or cut one of them"),
        (3, "head_dim", "pad the shorter with zeros, and give scale= for the length that counts"),
        (2, "heads", "no stage has grouped-query attention yet: repeat k and v with repeat_interleave(..., dim=2)"),
        (1, "seqlen", "no stage has lengths that differ yet: pad or cut to one length"),
    ):
        if q.shape[dimension] != k.shape[dimension]:
            raise ValueError(
                f"q and k differ in {name}, {q.shape[dimension]} and {k.shape[dimension]} ({shapes}); {remedy}"
            )


def _checked_scale(scale: float | None, head_dim: int) -> float:
    if scale is None:
        return head_dim**-0.5
    try:
        value = float(scale)
    except (TypeError, ValueError):
        raise TypeError(
            f"scale = {scale!r} is no number; the usual one is 1/sqrt({head_dim}) = {head_dim**-0.5:.6f}"
        ) from None
    if not math.isfinite(value) or abs(value) > torch.finfo(torch.float32).max:
        raise ValueError(
            f"scale = {value} is not a finite fp32 number; the usual one is 1/sqrt({head_dim}) = {head_dim**-0.5:.6f}"
        )
    return value


@dataclass(frozen=True)
class Execution:
    """One launch of a kernel. o and lse are on the device of q; lse is None unless the problem asks for it.

    run      what ptxemu found out; None on a GPU
    seconds  wall time of the launch: of the emulation, or of one call on a GPU from launch to end
    """

    o: Tensor
    lse: Tensor | None
    compiled: Compiled
    run: ptxemu.Run | None
    machine: machines.Machine
    on_gpu: bool
    seconds: float


def execute(
    stage: int | str | Stage,
    problem: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    device: str | None = None,
    config: ptxemu.Config | None = None,
    iket: bool = False,
    ptx_edit: Callable[[str], str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Execution:
    """Compile a stage for this machine and launch it on q, k, v, which `problem` (from `problem_of`) describes.

    config, ptx_edit (PTX text to PTX text, before it is run): for the emulator only. progress(CTAs done, all CTAs) is
    called by the emulator, and on a GPU it is not.
    o and lse are filled with NaN before the launch, so that what the kernel does not write shows.
    """
    from attnbook.compile import compile
    from attnbook.reference import poison

    machine = machines.detect()
    gpu = _pick_gpu(LADDER[stage], machine, q, device)
    if gpu is not None and (config is not None or ptx_edit is not None):
        raise ValueError(
            f'config and ptx_edit are for the emulator and this runs on the {gpu.name}; pass device="emulator"'
        )
    compiled = compile(stage, problem, arch=gpu.arch if gpu else None, iket=iket)
    there = torch.device("cpu") if gpu is None else q.device if q.is_cuda else torch.device("cuda", gpu.index)
    q_there, k_there, v_there = (_readable_by_tma(x.detach().to(there)) for x in (q, k, v))
    o = poison(torch.empty(q.shape, dtype=q.dtype, device=there))
    lse_shape = (problem.batch, problem.heads, problem.seqlen)
    lse = poison(torch.empty(lse_shape, dtype=torch.float32, device=there)) if problem.lse else None
    run = None
    if gpu is None:
        import ptxemu

        config = config or ptxemu.Config()
        if progress is not None:
            # In waves, so that there is something to report before the end; no slower. A trace keeps all CTAs in one.
            wave = config.max_resident_ctas or (None if config.trace else CTAS_A_WAVE)
            config = dataclasses.replace(config, progress=progress, max_resident_ctas=wave)
        arguments = compiled.arguments(q_there, k_there, v_there, o, lse, problem.softmax_scale)
        edited = {} if ptx_edit is None else {"ptx": ptx_edit(compiled.ptx)}
        start = time.perf_counter()
        run = ptxemu.launch(compiled.fn, *arguments, config=config, **edited)
        seconds = time.perf_counter() - start
    else:
        with torch.cuda.device(there):
            stream = torch.cuda.current_stream().cuda_stream
            arguments = compiled.arguments(q_there, k_there, v_there, o, lse, problem.softmax_scale, stream)
            torch.cuda.synchronize()
            start = time.perf_counter()
            compiled.fn(*arguments)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
    back = (o.to(q.device), None if lse is None else lse.to(q.device))
    return Execution(*back, compiled, run, machine, gpu is not None, seconds)


def _pick_gpu(stage: Stage, machine: machines.Machine, q: Tensor, device: str | None) -> machines.Gpu | None:
    """The GPU to run on, or None for the emulator. A CUDA tensor runs where it lies, if the kernel can."""
    if device not in (None, *DEVICES):
        raise ValueError(f"device = {device!r} is none of {', '.join(DEVICES)}")
    if device == "emulator":
        return None
    gpu = machine.gpus[q.device.index or 0] if q.is_cuda and machine.gpus else machine.gpu
    if gpu is not None and gpu.kind == stage.machine:
        return gpu
    if device == "gpu":
        found = machine.gpus[0].name if machine.gpus else "none"
        raise ValueError(
            f"device = 'gpu', and stage {stage.name} needs a {stage.machine.capitalize()} GPU; here: {found}. "
            "Pass device='emulator', or leave it out"
        )
    return None


def _readable_by_tma(x: Tensor) -> Tensor:
    """x itself if TMA can read it as it lies, else a packed copy.

    PTX ISA, tensor maps: the address and all strides but the innermost are multiples of 16 bytes; the innermost is
    one element."""
    *outer, inner = x.stride()
    step = TMA_ALIGNMENT // x.element_size()
    if inner == 1 and all(stride > 0 and stride % step == 0 for stride in outer) and x.data_ptr() % TMA_ALIGNMENT == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
