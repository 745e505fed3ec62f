"""The order of the exponentials' loads and stores in the machine code: which chunks of a row are under way at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_]*(?:\.\w+)*)")


@dataclass(frozen=True)
class ExpPass:
    """The second pass over a row of S in machine code.

    opcodes: of its instructions, in order. loads, stores: for each chunk of 8 scores, where its load from TMEM stands
    and where the store of its probabilities.
    """

    opcodes: tuple[str, ...]
    loads: tuple[int, ...]
    stores: tuple[int, ...]

    @property
    def under_way(self) -> int:
        """The largest number of chunks that are loaded and not yet stored."""
        events = sorted([(at, 1) for at in self.loads] + [(at, -1) for at in self.stores])
        best = now = 0
        for _, change in events:
            now += change
            best = max(best, now)
        return best

    @property
    def load_is_early(self) -> int:
        """How many loads stand before the store of the chunk before them."""
        return sum(load < store for load, store in zip(self.loads[1:], self.stores, strict=False))


def exp_pass(stage: Any = 1) -> ExpPass:
    """Find the pass in a stage's SASS: from the last load of S to come, back to its first one, up to the last store.

    ValueError when the code does not look so: as many loads as stores, each chunk loaded before it is stored.
    """
    from attnbook.compile import compile as compile_stage
    from attnbook.compile import stage_module

    module = stage_module(stage)
    chunks = module.TILE_N // module.CHUNK
    kernel = compile_stage(stage_number(stage))
    found = (INSTRUCTION.match(line) for line in kernel.sass.splitlines())
    opcodes = [m[1] for m in found if m]
    stores = [i for i, op in enumerate(opcodes) if op in ("STS.128", "STTM.x4")]
    loads = [i for i, op in enumerate(opcodes) if op == "LDTM.x8" and i < stores[-1]][-chunks:] if stores else []
    if len(stores) != chunks or len(loads) != chunks or any(a >= b for a, b in zip(loads, stores, strict=True)):
        raise ValueError(
            f"stage {stage_number(stage)}: {len(loads)} loads and {len(stores)} stores of P in the machine code, where "
            f"{chunks} pairs are expected; this figure reads stages whose P leaves in chunks of {module.CHUNK}"
        )
    first, last = loads[0], stores[-1]
    return ExpPass(tuple(opcodes[first : last + 1]), tuple(i - first for i in loads), tuple(i - first for i in stores))


def exp_order(*stages: Any) -> Svg:
    """Stages one under the other: every chunk of the second pass as a bar from its load to its store."""
    stages = stages or (1, 2)
    numbers, passes = [stage_number(x) for x in stages], [exp_pass(x) for x in stages]
    longest = max(len(p.opcodes) for p in passes)
    kinds = ["shared memory" if "STS.128" in p.opcodes else "TMEM" for p in passes]
    says = [
        f"stage {n}: {p.load_is_early} of {len(p.loads) - 1} loads stand before the store of the chunk before"
        for n, p in zip(numbers, passes, strict=True)
    ]
    text = "; ".join(says)
    pitch, y0 = 122, 44
    s = Svg(
        760,
        y0 + pitch * len(passes),
        title="Sixteen chunks of a row, in the order of the machine code",
        name="exp_order",
        desc=f"{text}.",
        caption=(
            "The second pass over a row of S in the compiler's order, instruction by instruction from left to right. "
            "A bar is a chunk of eight scores, from its load out of TMEM to the store of its probabilities; a dot is "
            f"an exponential. {text[0].upper()}{text[1:]}. Where bars overlap, the next load is on its way while "
            "exponentials are taken. Where they stand end to end, every chunk waits for its own load."
        ),
        source="from the SASS of the compiled kernels: order of instructions, not time",
    )
    x0, w = 106.0, 644.0
    for i, (number, p, kind) in enumerate(zip(numbers, passes, kinds, strict=True)):
        top = y0 + pitch * i

        def px(at: float) -> float:
            return x0 + w * at / longest

        s.text(8, top + 20, f"stage {number}", "tb")
        s.text(8, top + 37, "P goes to", "ts")
        s.text(8, top + 52, kind, "ts")
        s.text(
            x0,
            top - 10,
            f"{len(p.opcodes)} instructions; at most {p.under_way} chunk{'s' if p.under_way > 1 else ''} under way",
            "tl",
        )
        for c, (a, b) in enumerate(zip(p.loads, p.stores, strict=True)):
            y = top + 4 + 24 * (c % 2)
            s.rect(px(a), y, px(b) - px(a), 20, "soft-softmax", rx=2)
            s.rect(px(a), y, 3, 20, "r-mma")
            s.rect(px(b) - 3, y, 3, 20, "r-load" if kind != "TMEM" else "r-mma")
            s.text((px(a) + px(b)) / 2, y + 14.5, c, "tc", anchor="middle")
        for at, op in enumerate(p.opcodes):
            if op == "MUFU.EX2":
                s.circle(px(at), top + 60, 1.6, "dot")
        s.text(8, top + 70, "exponentials", "ts")
        s.line(x0, top + 78, px(len(p.opcodes)), top + 78, "ln hair")
    return s
