"""FlashAttention-4's forward kernels, unmodified from flash-attn-4, on the emulator. Runs in a worker (worker.py)."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
import worker
from cutlass.cute.runtime import from_dlpack

import ptxemu
from attnbook.reference import check, poison

ARCH = os.environ["FLASH_ATTENTION_ARCH"]
# So that a persistent kernel has more tiles than CTAs, few as there are here.
SMS = 2
worker.this_machine(SMS)

from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90  # noqa: E402
from flash_attn.cute.flash_fwd_sm100 import FlashAttentionForwardSm100  # noqa: E402
from flash_attn.cute.interface import AuxData, _tile_size_fwd_sm90  # noqa: E402

# On sm_100 a part of the exponentials is a polynomial of degree 3 on the FMA pipes. Its relative error is up to this,
# which is far below what 16-bit P loses but not below what FP32 can resolve of the row sum, so LSE may have it.
POLYNOMIAL = 8.8e-5 if ARCH == "sm_100" else 0.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def kernel(dim: int, causal: bool, pair: bool, group: int, pack: bool, dtype: str) -> Any:
    """The kernel object, with the settings that the library's own front end chooses."""
    if ARCH == "sm_100":
        return FlashAttentionForwardSm100(
            dim,
            dim,
            is_causal=causal,
            qhead_per_kvhead=group,
            pack_gqa=pack,
            is_static_persistent=not causal,
            use_2cta_instrs=pair,
        )
    tile = _tile_size_fwd_sm90(dim, dim, causal, False)
    return FlashAttentionForwardSm90(
        cutlass.BFloat16 if dtype == "bf16" else cutlass.Float16,
        dim,
        dim,
        group,
        is_causal=causal,
        is_local=False,
        pack_gqa=pack,
        tile_m=tile.m_block_size,
        tile_n=tile.n_block_size,
        num_stages=2,
        num_threads=512 if tile.m_block_size == 192 else 384,
        Q_in_regs=False,
        intra_wg_overlap=tile.intra_wg_overlap,
        mma_pv_is_rs=tile.mma_pv_is_rs,
    )


@functools.cache
def compiled(dim: int, causal: bool, pair: bool, group: int, pack: bool, dtype: str) -> Any:
    """What cute.compile makes of the kernel; lengths, heads and batch are left open."""
    tensors = problem(dim, group, dtype, 1, 256, group, 0)
    function = kernel(dim, causal, pair, group, pack, dtype)
    return cute.compile(function, *arguments(type(function), *tensors), options="--keep-ptx")


def problem(
    dim: int, group: int, dtype: str, batch: int, seqlen: int, heads: int, seed: int
) -> tuple[torch.Tensor, ...]:
    """Standard normal q, k, v; o and lse filled with NaN. heads: of q; k and v have one for each `group` of them."""
    random = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, seqlen, n, dim, generator=random).to(DTYPES[dtype])
        for n in (heads, heads // group, heads // group)
    )
    o, lse = torch.empty_like(q), torch.empty(batch, heads, seqlen)
    poison(o)
    poison(lse)
    return q, k, v, o, lse


def arguments(
    kind: type, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
) -> list[Any]:
    """The arguments of a kernel's __call__, by name; what is not named here is None."""

    def tensor(t: torch.Tensor) -> Any:
        return from_dlpack(t, assumed_align=16 if t.ndim == 4 else 4).mark_layout_dynamic(leading_dim=t.ndim - 1)

    given = {
        "mQ": tensor(q), "mK": tensor(k), "mV": tensor(v), "mO": tensor(o), "mLSE": tensor(lse),
        "softmax_scale": cutlass.Float32(q.shape[-1] ** -0.5), "stream": cuda.CUstream(0),
        "aux_data": AuxData(None, None),
    }  # fmt: skip
    names = list(inspect.signature(kind.__call__).parameters)[1:]
    return [given.get(name) for name in names]


def forward(
    *,
    dim: int = 128,
    causal: bool = False,
    pair: bool = False,
    group: int = 1,
    pack: bool | None = None,
    dtype: str = "bf16",
    batch: int = 1,
    seqlen: int = 256,
    heads: int = 1,
    seed: int = 0,
    schedule: str = "fair",
) -> dict[str, Any]:
    """Run one problem and hold it against FP64. pair: two CTAs share each MMA. group: query heads for each KV head."""
    pack = group > 1 if pack is None else pack
    function = compiled(dim, causal, pair, group, pack, dtype)
    q, k, v, o, lse = problem(dim, group, dtype, batch, seqlen, heads, seed)
    kind = FlashAttentionForwardSm100 if ARCH == "sm_100" else FlashAttentionForwardSm90
    config = ptxemu.Config(schedule=schedule, seed=seed)
    run = ptxemu.launch(function, *arguments(kind, q, k, v, o, lse), config=config)
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    verdict = check(o, None, q, k, v, causal=causal)
    log = check(o, lse, q, k, v, causal=causal)
    return {
        "ok": verdict.ok and log.lse_error <= log.lse_allowed + POLYNOMIAL,
        "verdict": f"{verdict}; {log}",
        "grid": run.grid,
        "cluster": run.cluster,
        "instructions": dict(run.instructions),
        "findings": [str(finding) for finding in run.findings],
        "seconds": run.seconds,
    }
