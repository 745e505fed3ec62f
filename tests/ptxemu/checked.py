"""Small kernels with one mistake each, and the finding that it must give. `// A` and `// B` name the lines of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ptxemu
from ptxemu import Config, Finding

CONFIGS = [{}, {"schedule": "adversarial", "seed": 1}, {"schedule": "adversarial", "seed": 2}]

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry k(.param .u64 a, .param .u64 b)
{
.reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .pred %p<16>; .reg .b32 %d<32>; .reg .b64 %t<4>;
ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;            // warp
and.b32 %r3, %r1, 31;           // lane
mov.u32 %r4, sm;
shl.b32 %r5, %r1, 2;
add.u32 %r6, %r4, %r5;          // a word of shared memory for each thread, from offset 0
add.u32 %r7, %r4, 16384;        // mbarriers
mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd4, %rd1, %rd3;       // a word of a for each thread
add.u64 %rd5, %rd2, %rd3;       // a word of b for each thread
setp.eq.u32 %p1, %r1, 0;        // the first thread
setp.eq.u32 %p2, %r2, 0;        // warp 0
setp.eq.u32 %p3, %r2, 1;        // warp 1
setp.eq.u32 %p4, %r3, 0;        // lane 0
mov.u32 %r8, %cluster_ctarank;
"""
INIT = """
@!%p1 bra INITIALISED;
mbarrier.init.shared::cta.b64 [%r7], {count};
INITIALISED:
bar.sync 0;
"""
TAIL = "\nDONE:\nret;\n}\n"


def wait(address: str = "%r7", parity: int = 0, order: str = "", label: str = "W", mark: str = "") -> str:
    """A loop that waits for the end of a phase."""
    return (
        f"{label}: mbarrier.try_wait.parity{order}.shared::cta.b64 %p9, [{address}], {parity}; {mark}\n"
        f"@!%p9 bra {label};\n"
    )


def text_of(body: str) -> str:
    return HEAD + body + TAIL


def line(body: str, mark: str) -> int:
    """The PTX line with the comment `// mark`."""
    found = [i for i, x in enumerate(text_of(body).split("\n"), 1) if x.rstrip().endswith(f"// {mark}")]
    assert len(found) == 1, (mark, found)
    return found[0]


def run(
    body: str, *, threads: int = 64, ctas: int = 1, cluster: int = 1, strict: bool = False, **config: Any
) -> tuple[Sequence[Finding], np.ndarray]:
    """Findings of a kernel, and its buffer b."""
    a, b = np.arange(4096, dtype=np.uint32), np.zeros(4096, np.uint32)
    found = ptxemu.run_ptx(
        text_of(body), grid=(ctas,), block=(threads,), cluster=(cluster,), shared=(16 << 10) + 256, args=[a, b],
        config=Config(races=True, strict=strict, on_race="collect", **config),
    )  # fmt: skip
    return found.findings, b


def clean(body: str, **options: Any) -> None:
    """Nothing may be found, under any schedule."""
    for config in CONFIGS:
        found, _ = run(body, **options, **config)
        assert not found, [str(x) for x in found]


def finds(body: str, kind: str, missing: str, first: str | None = "A", second: str = "B", **options: Any) -> Finding:
    """Under every schedule there must be a finding of this kind, about these two lines."""
    assert CONFIGS
    for config in CONFIGS:
        found, _ = run(body, **options, **config)
        lines = (*([line(body, first)] if first else []), line(body, second))
        # Whichever of the two came first here.
        some = [x for x in found if (x.kind, x.missing) == (kind, missing) and sorted(x.lines) == sorted(lines)]
        assert some, [(x.kind, x.missing, x.lines, str(x)) for x in found] + [lines]
    return some[0]


def pair(body: str, fix: str, kind: str, missing: str, **options: Any) -> Finding:
    """`body` has a place for the instruction that is missing: with it the kernel is clean, without it the finding is
    there.
    """
    clean(body.replace("FIX", fix), **options)
    return finds(body.replace("FIX", "// nothing"), kind, missing, **options)
