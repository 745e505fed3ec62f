"""Put FlashAttention-4's forward on the mutation bench: CUTE_DSL_ARCH=sm_100a python tests/peers/record_mutations.py.

Needs requirements-peers.txt. Writes book/results/mutations/fa4.json after every mutant; run again, it goes on. Words
on the command line choose: only mutants whose name has one of them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("FLASH_ATTENTION_ARCH", "sm_100")
os.environ.setdefault("FLASH_ATTENTION_NUM_SMS", "148")
sys.path.insert(0, str(Path(__file__).parent))
FOLDER = tempfile.TemporaryDirectory()
os.chdir(FOLDER.name)  # where the compiler leaves its files

import worker  # noqa: E402

worker.stand_in_for_triton()

import cutlass.cute as cute  # noqa: E402
import flash_attention as fa  # noqa: E402

import ptxemu  # noqa: E402
from attnbook import mutations  # noqa: E402
from attnbook.reference import check, poison  # noqa: E402
from ptxemu.cutedsl import ptx_of  # noqa: E402

TITLE = "flash-attn-4 4.0.0b36, forward, one CTA an MMA"
HEADS, SEQLEN = 3, 384  # one CTA (of one SM) goes through three tiles of 256 queries, each over three KV tiles


def main(words: list[str]) -> int:
    worker.this_machine(1)
    kernel = fa.kernel(128, False, False, 1, False, "bf16")
    q, k, v, o, lse = fa.problem(128, 1, "bf16", 1, SEQLEN, HEADS, 0)
    q, o, lse = q[:, :256], o[:, :256], lse[:, :, :256].contiguous()
    tensors = fa.arguments(type(kernel), q, k, v, o, lse)
    compiled = cute.compile(kernel, *tensors, options="--keep-ptx --generate-line-info")

    def run(text: str, config: ptxemu.Config) -> bool:
        poison(o)
        poison(lse)
        ptxemu.launch(compiled, *fa.arguments(type(kernel), q, k, v, o, lse), ptx=text, config=config)
        return bool(check(o, None, q, k, v).ok)

    only = (lambda: lambda mutant: any(word in mutant.name for word in words)) if words else None
    table = mutations.run_bench("fa4", TITLE, ptx_of(compiled), run, only, strict=False)
    print(table)
    return 0 if table.complete else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
