"""Runs of Hopper's matrix instructions whose answers are defined to the last bit, for the emulator and for a GPU."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import test_hopper_matrix as lines

import ptxemu
import ptxemu.testing
from ptxemu.isa import swizzle as sw


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, what calls run_ptx)."""
    for s, a, b in itertools.product((sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B), (0, 1), (0, 1)):
        yield f"wgmma {s.name} {a} {b}", lambda s=s, a=a, b=b: lines.test_wgmma_from_shared_memory(s, a, b, None)
    yield "wgmma registers", lambda: lines.test_wgmma_with_a_in_registers_signs_and_scale_d(None)
    yield "wgmma fp16", lines.test_wgmma_with_sums_of_fp16
    for k, (kind, sums) in itertools.product((8, 16), (("bf16", "f32"), ("f16", "f32"), ("f16", "f16"))):
        yield f"mma {k} {kind} {sums}", lambda k=k, kind=kind, sums=sums: lines.test_mma_sync_of_16_bits(k, kind, sums)
    for k in (4, 8):
        yield f"mma {k} tf32", lambda k=k: lines.test_mma_sync_of_tf32(k)
    for n, trans in itertools.product((1, 2, 4), ("", ".trans")):
        yield f"ldmatrix {n}{trans}", lambda n=n, trans=trans: lines.test_ldmatrix(n, trans)
        yield f"stmatrix {n}{trans}", lambda n=n, trans=trans: lines.test_stmatrix(n, trans)
    yield "movmatrix", lines.test_movmatrix


def answers(machine: Callable[..., Any]) -> dict[str, str]:
    """The hash of what each case leaves in its buffers. machine: called like run_ptx, before the emulator is."""
    emulator, found = ptxemu.run_ptx, {}
    out: list[str] = []

    def both(text: str, **options: Any) -> Any:
        buffers = [x.copy() for x in options["args"]]
        machine(text.replace("sm_100a", "sm_90a"), **(options | {"args": buffers}))
        out.append(hashlib.sha256(b"".join(x.tobytes() for x in buffers)).hexdigest()[:32])
        return emulator(text, **options)

    before = lines.RNG
    try:
        ptxemu.run_ptx = ptxemu.testing.run_ptx = both
        for name, run in cases():
            lines.RNG = np.random.default_rng(list(name.encode()))
            out.clear()
            run()
            (found[name],) = out
    finally:
        ptxemu.run_ptx = ptxemu.testing.run_ptx = emulator
        lines.RNG = before
    return found
