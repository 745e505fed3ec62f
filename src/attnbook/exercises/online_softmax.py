"""Exercises of the chapter "Online softmax"."""

from __future__ import annotations

import math
from typing import Any

from attnbook.exercises import Exercise, Wrong, add


def _grade_merge(answer: Any) -> str:
    import numpy as np

    lse, out = np.array([2.0, 2.0 + math.log(3.0)]), np.array([10.0, 2.0])
    share = np.exp(lse - np.logaddexp(*lse))
    truth = float(share @ out)
    if abs(float(answer) - out.mean()) < 1e-9:
        raise Wrong(
            "That is the plain mean. The halves carry different weight: which has the larger sum of exponentials?"
        )
    if abs(float(answer) - truth) > 1e-6:
        raise Wrong(f"Not {answer}. Each half counts with exp(its LSE), divided by the sum of both.")
    return f"Right: the second half carries {share[1]:.0%} of the weight."


add(Exercise("softmax-merge", _grade_merge, solution=lambda: 4, wrong=lambda: 6))


def _grade_threshold(answer: Any) -> str:
    import torch

    fits = [t for t in range(40) if torch.tensor(2.0**t).to(torch.float16).isfinite()]
    if int(answer) == 8:
        raise Wrong("8 is what FlashAttention-4 takes. The type would allow more: what is its largest number?")
    if int(answer) != max(fits):
        p = torch.tensor(2.0 ** int(answer)).to(torch.float16).item()
        raise Wrong(f"2^{answer} in fp16 is {p:g}; look for the last power of two that fits.")
    return f"Right: 2^{max(fits)} fits into fp16, whose largest number is {torch.finfo(torch.float16).max:,.0f}."


add(Exercise("softmax-threshold", _grade_threshold, solution=lambda: 15, wrong=lambda: 16))

_BUGGY_ONLINE = '''\
def online(scores, values, tile):
    """softmax(scores) @ values, a tile of keys at a time."""
    import torch

    m, total, o = float("-inf"), 0.0, torch.zeros(values.shape[1])
    for s, v in zip(scores.split(tile), values.split(tile)):
        m_new = max(m, s.max())
        p = torch.exp(s - m_new)
        m = m_new
        alpha = torch.exp(torch.as_tensor(m - m_new))
        total = alpha * total + p.sum()
        o = alpha * o + p @ v
    return o / total
'''


def _grade_online(answer: Any) -> str:
    import torch

    scope: dict[str, Any] = {}
    try:
        exec(str(answer), scope)
        for name, slope in (("falling", -0.02), ("flat", 0.0), ("rising", 0.05)):
            generator = torch.Generator().manual_seed(0)
            scores = torch.randn(512, generator=generator) + slope * torch.arange(512)
            values = torch.randn((512, 8), generator=generator)
            truth = torch.softmax(scores.double(), 0) @ values.double()
            got = scope["online"](scores, values, 128)
            error = float((got.double() - truth).norm() / truth.norm())
            if not error < 1e-5:
                raise Wrong(f"Scores with a {name} maximum: relative error {error:.1g}. What should alpha be there?")
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"It does not run: {type(error).__name__}: {error}") from None
    return "Right: alpha compares the old maximum with the new one, so the old one must still be there."


add(
    Exercise(
        "softmax-bug",
        _grade_online,
        solution=lambda: _BUGGY_ONLINE.replace("        m = m_new\n", "").replace(
            "+ p @ v\n", "+ p @ v\n        m = m_new\n"
        ),
        wrong=lambda: _BUGGY_ONLINE.replace("        m = m_new\n", ""),
        text=_BUGGY_ONLINE,
    )
)
