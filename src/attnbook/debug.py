"""The kernel with planted bugs (`kernels.blackwell.buggy`), ready to be run: for the page on debugging."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

import ptxemu
from attnbook.kernels.blackwell import buggy

__all__ = ["Outcome", "gemm"]


@dataclass(frozen=True)
class Outcome:
    """What a run said. right: is C what it should be (None where the kernel did not end)?  run: None likewise."""

    right: bool | None
    run: ptxemu.Run | None
    error: ptxemu.EmulationError | None

    def __str__(self) -> str:
        if self.error is not None:
            text = re.sub(r"/\S*/(?=\w+\.py:\d+)", "", str(self.error))  # file names say enough
            return f"{type(self.error).__name__}: {text}"
        findings = [] if self.run is None else [str(finding) for finding in self.run.findings]
        return "\n\n".join([f"the answer is {'right' if self.right else 'WRONG'}", *findings])


def _dlpack(t: torch.Tensor) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return (
        from_dlpack(t, assumed_align=16)
        .mark_layout_dynamic(leading_dim=1)
        .mark_compact_shape_dynamic(mode=1, divisibility=8)
    )


@lru_cache(maxsize=8)
def _compiled(mended: tuple[str, ...]) -> Any:
    import cutlass.cute as cute

    a, b, c = torch.zeros(128, 128).bfloat16(), torch.zeros(128, 128).bfloat16(), torch.zeros(128, 128)
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --generate-line-info --gpu-arch sm_100a --dump-dir {folder}"
        return cute.compile(buggy.Gemm(mended), _dlpack(a), _dlpack(b), _dlpack(c), options=options)


def gemm(mended: Sequence[str] = (), m: int = 128, n: int = 128, k: int = 64, seed: int = 0, **config: Any) -> Outcome:
    """Multiply standard normal A (m, k) and B (n, k) with the buggy GEMM on the emulator.

    mended: names in `buggy.BUGS`.  config: of `ptxemu.Config`.  The answer is held against FP64 with the bound
    k 2^-24 sum |a| |b|; C is filled with NaN first. ValueError for a shape or a name that does not exist.
    """
    buggy.check(m, n, k)
    random = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(rows, k, generator=random).bfloat16() for rows in (m, n))
    c = torch.full((m, n), torch.nan)
    kernel = _compiled(tuple(mended))
    try:
        run = ptxemu.launch(kernel, _dlpack(a), _dlpack(b), _dlpack(c), config=ptxemu.Config(**config))
    except ptxemu.EmulationError as error:
        return Outcome(None, None, error)
    exact, scale = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    right = bool(((c.double() - exact).abs() <= k * 2.0**-24 * scale).all())
    return Outcome(right, run, None)
