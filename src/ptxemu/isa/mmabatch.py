"""The same MMA of several CTAs, worked out together.

CTAs that run in step give their tensor cores the same instruction at the same time, on shared and tensor memories of
their own. One NumPy call for all of them costs little more than for one. Nothing else changes: each MMA still takes
its turn in its own queue, and finds its work done.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import SHARED_RESERVED
from . import mma as arithmetic
from .descriptors import K_MAJOR, MMA_K, SmemDescriptor, chunk_indices
from .tmemalloc import tmem_state

MOST = 16  # CTAs at once: more would only be slower, for want of cache


def alike(job: Any) -> list[Any]:
    """`job` and the MMAs of other CTAs that are due now, came from the same instruction and differ in nothing."""
    m = job.machine
    agents = m.agents
    if not agents.in_step or m.check is not None or m.observer is not None or m.tracing:
        return [job]
    found = [job]
    for queue in agents.queues.values():
        if not queue:  # the job itself was the last of its queue
            continue
        op = queue[0]
        other = op.run
        if type(other) is type(job) and op.due <= m.tick and not other.done and job.same_as(other):
            found.append(other)
            if len(found) == MOST:
                break
    return found


def run(jobs: Sequence[Any]) -> bool:
    """Do the work of like jobs, each of one CTA and with D in 128 lanes of FP32. False: one of them would fail."""
    first = jobs[0]
    m, shape = first.machine, first.shape
    ctas = [job.ctas[0] for job in jobs]
    step = ctas[1] - ctas[0]
    if step <= 0 or any(b - a != step for a, b in itertools.pairwise(ctas)):
        return False
    rect = slice(ctas[0], ctas[-1] + 1, step)
    column, n = first.column, shape.n
    lanes = slice(0, 128)
    for cta in ctas:
        state = tmem_state(m, cta)
        if not state.allocated(column, n) or (first.keep and not state.is_written(lanes, column, n)):
            return False
        if not isinstance(first.a, SmemDescriptor) and not (
            state.allocated(first.a[1], 8) and state.is_written(lanes, first.a[1], 8)
        ):
            return False
    b = operands(m, ctas, first.b, n, shape.b_major)
    if isinstance(first.a, SmemDescriptor):
        a = operands(m, ctas, first.a, 128, shape.a_major)
    else:
        a = arithmetic.unpack_tmem_operand(m.tmem[rect, :, first.a[1] : first.a[1] + 8])
    if a is None or b is None:
        return False
    left = arithmetic.to_float(a, shape.a)
    if shape.a_negate != shape.b_negate:
        left = -left
    product = left @ arithmetic.to_float(np.ascontiguousarray(b.swapaxes(1, 2)), shape.b)
    cells = m.tmem[rect, :, column : column + n].view(np.float32)
    if first.keep:
        np.add(cells, product, product)
    cells[...] = product
    for cta in ctas:
        tmem_state(m, cta).write(lanes, column, n)
    return True


def operands(m: Any, ctas: list[int], d: SmemDescriptor, rows: int, major: int) -> NDArray[np.uint16] | None:
    """One operand of each CTA, (CTAs, rows, 16); None where it reaches outside of shared memory."""
    phase = d.start % 1024
    index, top = chunk_indices(phase, d.lbo, d.sbo, d.swizzle, rows, major)
    base = d.start - phase
    if d.start < SHARED_RESERVED or base + 16 * top > m.shared.size:
        return None
    count = len(ctas)
    chunks = m.shared.bytes.view(np.complex128)[np.array(ctas)[:, None], base // 16 + index.reshape(1, -1)]
    chunks = chunks.view(np.uint16)
    if major == K_MAJOR:
        return chunks.reshape(count, rows, MMA_K)
    return chunks.reshape(count, rows // 8, MMA_K, 8).swapaxes(2, 3).reshape(count, rows, MMA_K)
