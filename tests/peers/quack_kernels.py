"""Row reductions of quack-kernels, unmodified, on the emulator. Runs in a worker (worker.py)."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor
from quack.cross_entropy import CrossEntropy
from quack.rmsnorm import RMSNorm
from quack.rmsnorm_config import RmsNormFwdConfig
from quack.softmax import Softmax

import ptxemu

TYPES = {
    "bf16": (torch.bfloat16, cutlass.BFloat16),
    "fp16": (torch.float16, cutlass.Float16),
    "fp32": (torch.float32, cutlass.Float32),
}


def tensor(t: torch.Tensor | None) -> Any:
    """As it is launched: rows of any number, of a known length."""
    if t is None:
        return None
    if t.ndim == 1:
        return from_dlpack(t, assumed_align=align(t))
    return from_dlpack(t, assumed_align=16).mark_compact_shape_dynamic(mode=0, stride_order=(0, 1))


def pattern(argument: Any) -> Any:
    """As it is compiled: the same tensor in global memory. cp.async wants that, and CPU tensors count as generic."""
    if not hasattr(argument, "element_type"):
        return argument
    shape = tuple(argument.shape)
    if len(shape) == 2:
        shape = (cute.sym_int(), shape[1])
    order = tuple(range(len(shape)))[::-1]
    return make_fake_compact_tensor(argument.element_type, shape, stride_order=order, assumed_align=align(argument))


def align(argument: Any) -> int:
    """What the kernels need: vectors of 16 bytes along a row, single elements of what each row has one of."""
    return 16 if argument.shape[-1] % 8 == 0 else 4


def launch(kernel: Any, *args: Any) -> Any:
    function = cute.compile(kernel, *map(pattern, args), options="--keep-ptx")
    return ptxemu.launch(function, *args)


def random(rows: int, n: int, dtype: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)).to(TYPES[dtype][0])


def judged(run: Any, result: torch.Tensor, exact: torch.Tensor, rounding: float) -> dict[str, Any]:
    """The largest error in units of what is allowed: one rounding of the result's type and some of float32's."""
    allowed = rounding * exact.abs() + 4e-6 * exact.abs().amax(-1, keepdim=True)
    ratio = ((result.double() - exact).abs() / allowed).nan_to_num(torch.inf).max().item()
    return {
        "ratio": ratio,
        "grid": run.grid,
        "cluster": run.cluster,
        "instructions": dict(run.instructions),
        "findings": [str(finding) for finding in run.findings],
        "seconds": run.seconds,
    }


def rounding(dtype: str) -> float:
    return torch.finfo(TYPES[dtype][0]).eps / 2 if dtype != "fp32" else 0.0


def norm(*, rows: int, n: int, dtype: str, layer: bool = False) -> dict[str, Any]:
    """RMSNorm, or with `layer` LayerNorm with a bias, of rows of n elements."""
    x, w = random(rows, n, dtype), random(1, n, "fp32", 1)[0]
    b = random(1, n, "fp32", 2)[0] if layer else None
    out = torch.full_like(x, torch.nan)
    config = RmsNormFwdConfig.from_analytical_heuristic(n, x.element_size() * 8, arch_major=10, is_layernorm=layer)
    kernel = RMSNorm(TYPES[dtype][1], n, is_layernorm=layer, config=config)
    args = [tensor(x), tensor(w), tensor(b), None, tensor(out), None, None, None, cutlass.Float32(1e-6)]
    run = launch(kernel, *args, cuda.CUstream(0))
    y = x.double()
    if layer:
        y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.double()
    return judged(run, out, y if b is None else y + b.double(), rounding(dtype))


def softmax(*, rows: int, n: int, dtype: str, online: bool = True) -> dict[str, Any]:
    x = random(rows, n, dtype)
    out = torch.full_like(x, torch.nan)
    kernel = Softmax(TYPES[dtype][1], n, online_softmax=online)
    run = launch(kernel, tensor(x), tensor(out), cuda.CUstream(0))
    return judged(run, out, x.double().softmax(-1), rounding(dtype))


def cross_entropy(*, rows: int, n: int, dtype: str) -> dict[str, Any]:
    """The loss of each row, with its gradient in the same pass."""
    x = random(rows, n, dtype)
    target = torch.randint(0, n, (rows,), generator=torch.Generator().manual_seed(3))
    loss, lse, dx = torch.full((rows,), torch.nan), torch.full((rows,), torch.nan), torch.full_like(x, torch.nan)
    kernel = CrossEntropy(TYPES[dtype][1], n)
    args = [tensor(x), tensor(target), None, tensor(loss), tensor(lse), tensor(dx), None, cutlass.Int32(-100)]
    run = launch(kernel, *args, cuda.CUstream(0))
    wide = x.double()
    exact = torch.nn.functional.cross_entropy(wide, target, reduction="none")
    gradient = wide.softmax(-1)
    gradient[torch.arange(rows), target] -= 1
    answer = judged(run, loss[:, None], exact[:, None], 0.0)
    answer["lse ratio"] = judged(run, lse[:, None], wide.logsumexp(-1)[:, None], 0.0)["ratio"]
    answer["gradient ratio"] = judged(run, dx, gradient, rounding(dtype))["ratio"]
    return answer
