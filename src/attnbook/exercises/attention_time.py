"""Exercises of the chapter "Attention and where its time goes"."""

from __future__ import annotations

from typing import Any

from attnbook.chips import B200, H200
from attnbook.exercises import Exercise, Wrong, add
from attnbook.figures.limits import TILE, longest, unit_cycles


def _grade_head_dim(answer: Any) -> str:
    cycles = unit_cycles(16384, 64)
    percent = 100 * cycles["tensor core"] / cycles[longest(cycles)]
    if abs(float(answer) - percent) > 1:
        if abs(float(answer) - 100) < 1:
            raise Wrong("Half the head dimension is half the FLOPs. What happens to the number of exponentials?")
        raise Wrong(f"Not {answer} %. Divide the tensor core's cycles for a tile by those of the longest unit.")
    return (
        f"Right: the tensor core needs {cycles['tensor core']:,.0f} cycles for a tile, the exponentials "
        f"{cycles['exp']:,.0f}."
    )


add(Exercise("time-head-dim", _grade_head_dim, solution=lambda: 50, wrong=lambda: 100))


def _grade_crossing(answer: Any) -> str:
    tokens = next(n for n in range(TILE, 65536, TILE) if longest(unit_cycles(n, chip=H200)) != "HBM")
    if int(answer) % TILE:
        raise Wrong(f"{answer} is no multiple of {TILE}.")
    if int(answer) != tokens:
        at = unit_cycles(int(answer), chip=H200)
        raise Wrong(
            f"At {answer} tokens a tile takes {at['HBM']:,.0f} cycles of HBM, {at['tensor core']:,.0f} of tensor core."
        )
    return f"Right: from {tokens} tokens on memory is not the longest bar of an H200."


add(Exercise("time-crossing", _grade_crossing, solution=lambda: 512, wrong=lambda: 256))

_BUGGY_BUDGET = '''\
def cycles(n, d, flops, mufu, hbm):
    """Cycles of one SM for one head: (tensor core, exp, HBM)."""
    tensor = 2 * n * n * d / flops + 2 * n * n * d / flops  # QK, PV
    exp = n * d / mufu  # P has one for each element
    memory = 4 * n * d * 2 / hbm  # Q, K, V, O in 16 bits
    return tensor, exp, memory
'''


def _grade_budget(answer: Any) -> str:
    scope: dict[str, Any] = {}
    try:
        exec(str(answer), scope)
        rates = (B200.mma_flops_per_clk, B200.mufu_per_clk, B200.hbm_bytes_per_clk_sm)
        for n, d in ((256, 128), (4096, 64), (1024, 192)):
            truth = unit_cycles(n, d)
            tiles = (n / TILE) ** 2
            for unit, got in zip(("tensor core", "exp", "HBM"), scope["cycles"](n, d, *rates), strict=True):
                if abs(got - truth[unit] * tiles) > 1e-6 * got:
                    raise Wrong(
                        f"{n} tokens, head dimension {d}: {unit} takes {got:,.0f} cycles by this "
                        "function. Count what that unit does, element by element."
                    )
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"It does not run: {type(error).__name__}: {error}") from None
    return "Right: P has a row for each query and a column for each key, whatever the head dimension."


add(
    Exercise(
        "time-bug",
        _grade_budget,
        solution=lambda: _BUGGY_BUDGET.replace("n * d / mufu", "n * n / mufu"),
        wrong=lambda: _BUGGY_BUDGET.replace("n * d / mufu", "n * n * d / mufu"),
        text=_BUGGY_BUDGET,
    )
)
