"""SASS as text -> instructions with the scheduling that the compiler wrote into them.

Input is what `nvdisasm -g -hex -c` prints of a CUBIN. Each 128-bit instruction carries, in bits 105 to 125, what the
compiler decided about its time: the cycles until the next instruction may issue, and which of six scoreboards it sets
when its result (or its last read of a source) is there, and which it waits for. NVIDIA does not document the field; it
has been the same since Volta (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018,
section 2.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NO_SCOREBOARD = 7


@dataclass(slots=True, frozen=True)
class Sass:
    """One instruction.

    address: bytes from the start of the kernel. opcode: with modifiers, such as "MUFU.EX2". operands: text.
    guard: "@P0", "@!UP1" or "". line: of the source file, or None. stall: cycles after which the next instruction of
    the warp may issue. sets, frees: the scoreboards that count it until its result is written / its sources are
    read, or None. waits: the scoreboards that have to be at zero before it issues. targets: addresses of a branch.
    """

    address: int
    opcode: str
    operands: str
    guard: str
    file: str | None
    line: int | None
    stall: int
    sets: int | None
    frees: int | None
    waits: tuple[int, ...]
    targets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.opcode} at {self.address:#x} (source line {self.line})"

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction can follow."""
        leaves = ("EXIT", "BRA", "RET", "BRX", "JMP")
        return self.name not in leaves or bool(self.guard) or self.predicated_branch

    @property
    def predicated_branch(self) -> bool:
        """A BRA.U or BRA with a predicate operand: both ways are open."""
        return self.name == "BRA" and bool(re.match(r"!?U?P\d", self.operands))


_SECTION = re.compile(r"^\.text\.(\S+):$")
_LABEL = re.compile(r"^(\.L_\w+):")
_LINE = re.compile(r'//## File "([^"]+)", line (\d+)(.*)')
_FIRST = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s+/\* (0x[0-9a-f]{16}) \*/"
)
_SECOND = re.compile(r"^\s+/\* (0x[0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\(([.\w]+)\)")
_TARGETS = re.compile(r"BRANCH_TARGETS ([.\w,]+)")


def parse(text: str, kernel: str | None = None) -> list[Sass]:
    """The instructions of a kernel (the only one, or the one of that name) in order of address.

    Raises ValueError where the text holds no such kernel or lacks the encodings (nvdisasm's -hex).
    """
    rows: list[tuple[int, str, str, str, str | None, int | None, int]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    section, names = None, []
    file: str | None = None
    line: int | None = None
    first: re.Match[str] | None = None
    for raw in text.splitlines():
        if found := _SECTION.match(raw):
            section = found[1]
            names.append(section)
            continue
        if section is None or (kernel is not None and section != kernel):
            continue
        if first is not None and (found := _SECOND.match(raw)):
            address = int(first[1], 16)
            for label in waiting:
                labels[label] = address
            waiting.clear()
            rows.append((address, first[3], first[4], first[2] or "", file, line, int(found[1], 16)))
            first = None
        elif found := _FIRST.match(raw):
            first = found
        elif found := _LABEL.match(raw.strip()):
            waiting.append(found[1])
        elif found := _LINE.search(raw):
            # The first entry of a chain is where the instruction stands; "inlined at" lines follow it.
            if "inlined at" in raw or not raw.lstrip().startswith("//## File"):
                continue
            file, line = found[1], int(found[2])
    if not rows:
        known = ", ".join(names) or "none"
        raise ValueError(
            f"no instructions of kernel {kernel or '(any)'} in the SASS text; kernels: {known}. "
            "It must come from nvdisasm -g -hex -c."
        )
    return [
        _instruction(address, opcode, operands, guard, file, line, word, labels)
        for address, opcode, operands, guard, file, line, word in rows
    ]


def _instruction(
    address: int,
    opcode: str,
    operands: str,
    guard: str,
    file: str | None,
    line: int | None,
    word: int,
    labels: dict[str, int],
) -> Sass:
    control = word >> 41
    sets, frees = control >> 5 & 7, control >> 8 & 7
    targets: list[str] = []
    if opcode.partition(".")[0] == "BRA" and (found := _TARGET.search(operands)):
        targets = [found[1]]
    elif found := _TARGETS.search(operands):  # an indirect branch, with the places it may go to
        targets = found[1].split(",")
    return Sass(
        address,
        opcode,
        operands,
        guard,
        file,
        line,
        control & 15,
        None if sets == NO_SCOREBOARD else sets,
        None if frees == NO_SCOREBOARD else frees,
        tuple(i for i in range(6) if control >> 11 >> i & 1),
        tuple(labels[target] for target in targets if target in labels),
    )
