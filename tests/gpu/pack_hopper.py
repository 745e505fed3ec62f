"""Compile Hopper kernels here, for a machine that has the GPU and no compiler: python tests/gpu/pack_hopper.py FOLDER.

Writes NAME.cubin and NAME.json for every stage of the Hopper ladder (bf16, with lse; those that know it causal too),
and for flash-attn-4's sm_90 kernel where that package is installed. The JSON holds the printed host function, which
`ptxemu.host` interprets there: it says what to launch, tensor maps included. tests/gpu/bench_hopper.py reads both.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LOG2_TENSORS = ("q", "k", "v", "o", "lse")


def pack(folder: Path, name: str, fn: Any, *, causal: bool, order: list[str], facts: dict[str, Any]) -> None:
    """Write one compiled function. order: what its arguments are: q, k, v, o, lse, scale, stream."""
    from ptxemu import ptx
    from ptxemu.cutedsl import _facts, _function_name, _host_text
    from ptxemu.host import HostModule

    text = _host_text(fn)
    kernels = {kernel: [list(f.params), f.static_shared] for kernel, f in _facts(ptx.parse(fn.__ptx__)).items()}
    (folder / f"{name}.cubin").write_bytes(fn.__cubin__)
    record = {"name": name, "causal": causal, "function": _function_name(fn, HostModule(text, {})), "kernels": kernels}
    (folder / f"{name}.json").write_text(json.dumps(record | {"order": order, "facts": facts, "host": text}))


def pack_stages(folder: Path) -> None:
    """Every stage of the Hopper ladder that is written."""
    from attnbook.compile import Problem, compile
    from attnbook.ladder import HOPPER

    for stage in HOPPER.implemented:
        for causal in (False, True) if "causal" in stage.features else (False,):
            compiled = compile(stage, Problem(1, 1, 1024, causal=causal), arch="sm_90a", line_info=False)
            facts = {
                "registers": compiled.registers,
                "spills": compiled.spills,
                "stack_bytes": compiled.stack_bytes,
                "shared_bytes": compiled.shared_bytes,
            }
            order = ["q", "k", "v", "o", "lse", "scale", "stream"]
            name = f"h{stage.number:02d}_{stage.slug}" + ("_causal" if causal else "")
            pack(folder, name, compiled.fn, causal=causal, order=order, facts=facts)
            print(name, facts, flush=True)


def pack_flash_attention(folder: Path, causal: bool) -> None:
    """flash-attn-4's forward for sm_90 with the tile sizes that its own interface takes for head dim 128."""
    import math
    from unittest.mock import MagicMock

    import torch._dynamo  # before the mocks: it looks for Triton itself
    import torch._inductor.runtime.hints

    for module in ("triton", "triton.language", "triton.testing", "triton.compiler"):
        with contextlib.suppress(ImportError):
            __import__(module)
        sys.modules.setdefault(module, MagicMock())  # only its benchmarks want it
    import cuda.bindings.driver as cuda
    import cutlass
    import cutlass.cute as cute
    import torch
    from cutlass.cute.runtime import from_dlpack
    from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
    from flash_attn.cute.interface import AuxData

    def tensor(t: Any) -> Any:
        return from_dlpack(t, assumed_align=16).mark_layout_dynamic(leading_dim=t.dim() - 1)

    q, k, v, o = (torch.zeros(1, 256, 1, 128, dtype=torch.bfloat16) for _ in range(4))
    lse = torch.zeros(1, 1, 256)
    kernel = FlashAttentionForwardSm90(
        cutlass.BFloat16, 128, 128, 1, is_causal=causal, is_local=False, pack_gqa=False, tile_m=128, tile_n=128,
        num_stages=2, num_threads=384, Q_in_regs=False, intra_wg_overlap=True, mma_pv_is_rs=True,
    )  # fmt: skip
    given = {
        "mQ": tensor(q), "mK": tensor(k), "mV": tensor(v), "mO": tensor(o),
        "mLSE": from_dlpack(lse, assumed_align=4).mark_layout_dynamic(leading_dim=2),
        "softmax_scale": 1 / math.sqrt(128), "stream": cuda.CUstream(0), "aux_data": AuxData(None, None),
    }  # fmt: skip
    names = list(inspect.signature(FlashAttentionForwardSm90.__call__).parameters)[1:]
    fn = cute.compile(
        kernel, *(given.get(name) for name in names), options=f"--keep-ptx --keep-cubin --dump-dir {folder}"
    )
    plain = {"mQ": "q", "mK": "k", "mV": "v", "mO": "o", "mLSE": "lse", "softmax_scale": "scale", "stream": "stream"}
    order = [plain[name] for name in names if name in plain]
    version = importlib.metadata.version("flash-attn-4")
    name = "fa4" + ("_causal" if causal else "")
    pack(folder, name, fn, causal=causal, order=order, facts={"package": f"flash-attn-4 {version}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("stages", "fa4", "fa4_causal"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.only == "stages":
        pack_stages(options.folder)
    elif options.only:
        pack_flash_attention(options.folder, options.only == "fa4_causal")
    else:  # flash-attn-4 reads its target from the environment, once: a process of its own for each
        peer = {"CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_ARCH": "sm_90", "FLASH_ATTENTION_NUM_SMS": "132"}
        for only in ("stages", "fa4", "fa4_causal"):
            more = peer if only != "stages" else {}
            done = subprocess.run(
                [sys.executable, __file__, str(options.folder), "--only", only], env=os.environ | more
            )
            if done.returncode and only == "stages":
                sys.exit(done.returncode)


if __name__ == "__main__":
    main()
