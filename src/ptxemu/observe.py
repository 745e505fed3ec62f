"""What a driver beside the plain one can see of a run: the machine calls an observer, when there is one.

The race checker and the recorder of the clock are observers. Methods that a subclass does not override cost a call and
do nothing. CTAs are resident CTAs (`Machine.linear` gives the number in the grid); a `place` is (CTA that owns it, byte
offset) of an mbarrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agents import AsyncOp
    from .machine import Machine, Warps

Place = tuple[int, int]


class Observer:
    """Sees everything, does nothing."""

    machine: Machine

    def start(self, machine: Machine) -> None:
        """Fresh CTAs begin on `machine`."""
        self.machine = machine

    def block(self, w: Warps, start: int, end: int) -> None:
        """The active lanes of a bundle have executed the instructions [start, end)."""

    def passed(self, cta: int, warp: int, pc: int) -> None:
        """A warp has got past the blocking instruction at `pc` (the others of its bundle may still wait)."""

    def arrive(self, cta: int, warp: int, place: Place, phase: int) -> None:
        """A warp's instruction arrives on an mbarrier, or announces bytes to it, in the phase of that number."""

    def signal(self, op: AsyncOp, place: Place, phase: int) -> None:
        """An asynchronous operation arrives on an mbarrier or pays bytes, in the phase of that number."""

    def wait(self, cta: int, warp: int, place: Place, phase: int) -> None:
        """A test_wait or try_wait of a warp has found the phase of that number over; -1: the one before the first."""

    def named(self, cta: int, warp: int, number: int, generation: int) -> None:
        """A warp arrives at a named barrier of its CTA."""

    def cluster(self, cta: int, warp: int, generation: int) -> None:
        """A warp arrives at the barrier of its cluster."""

    def submit(self, op: AsyncOp) -> None:
        """An asynchronous operation is asked for."""

    def finish(self, op: AsyncOp) -> None:
        """It has been done: its results are written, its signals sent."""
