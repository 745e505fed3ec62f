"""What can go wrong in an emulated kernel. Every error names the PTX line and, with line info, the Python source
line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .findings import Finding


class EmulationError(Exception):
    """Base of all errors of the emulator. `where` is the place in the PTX (and source), `detail` the rest, `findings`
    what a run had found before it failed.
    """

    def __init__(self, detail: str, where: str = "") -> None:
        self.findings: list = []
        super().__init__(f"{detail}\n  at {where}" if where else detail)
        self.detail = detail
        self.where = where


class PtxSyntaxError(EmulationError):
    """The text is not PTX that the parser understands."""


class UnsupportedInstruction(EmulationError):
    """The emulator does not know this instruction (or this form of it). Raised when it is reached, never skipped."""


class IllegalInstruction(EmulationError):
    """A rule of the architecture is broken: a barrier used before its init, a trap, lanes missing from an aligned
    instruction.
    """


class MemoryFault(EmulationError):
    """An access outside every allocation, outside a CTA's shared memory, or misaligned."""


class DeadlockError(EmulationError):
    """Nothing can run and no asynchronous unit has work left. The message lists every waiting warp and what it waits
    for.

    `waiting` holds the same list as data, one dict a warp.
    """

    def __init__(self, detail: str, waiting: list[dict] | None = None) -> None:
        super().__init__(detail)
        self.waiting = waiting or []


class RaceError(EmulationError):
    """Two accesses to the same bytes with no order between them, one of them a write, or another finding of the
    checked driver; `finding` holds it as data.
    """

    def __init__(self, detail: str, where: str = "", finding: Finding | None = None) -> None:
        super().__init__(detail, where)
        self.finding = finding
