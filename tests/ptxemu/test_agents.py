"""Asynchronous units: order within a queue, and how far the adversarial schedule lets them run ahead or lag."""

import random
from types import SimpleNamespace

import pytest

from ptxemu.agents import Agents, AsyncOp

QUEUE = 40


def submitted(seed):
    """(agents, what was done) with QUEUE operations in one queue; seed None: the fair schedule."""
    machine = SimpleNamespace(tick=0, progress=0, tracing=False, now=None, fraction=0.0, observer=None, check=None)
    agents = Agents(machine, None if seed is None else random.Random(seed))
    done = []
    for n in range(QUEUE):
        agents.submit(AsyncOp("tensor", 0, lambda n=n: done.append(n), queue=0))
    return agents, done


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_operations_of_a_queue_run_in_order(seed):
    agents, done = submitted(seed)
    while agents:
        agents.force_one()
    assert done == list(range(QUEUE))


def test_a_unit_may_do_everything_at_once_or_nothing():
    """Before any warp gets another turn: all of a long queue in some runs, none of it in others, a part in the rest."""
    counts = []
    for seed in range(200):
        agents, done = submitted(seed)
        agents.step()
        counts.append(len(done))
    assert counts.count(QUEUE) > 5
    assert counts.count(0) > 20
    assert sum(0 < count < QUEUE for count in counts) > 20
