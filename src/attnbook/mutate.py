"""Edits of a compiled kernel's PTX that take one piece of synchronisation away, to see what it was for.

An edit is a function from PTX text to PTX text, for `attnbook.run(..., ptx_edit=edit)`. Only the emulator runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_TRY_WAIT = re.compile(r"mbarrier\.try_wait\.\S+\s+(?P<pred>[%\w]+)\s*,[^;]*;")
_PARITY = re.compile(r"\[[^\]]+\]\s*,\s*(?P<parity>[%\w]+)\s*,")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_BAR = re.compile(r"\bbar\.sync\s+0;")
_COMMIT = re.compile(r"tcgen05\.commit\.[^;]*;")
_STORE_P = re.compile(r"tcgen05\.st\.sync\.aligned\.32x32b\.x4\.b32\s*\[(?P<at>%\w+)\][^;]*;")
_MMA_OF_P = re.compile(r"tcgen05\.mma\.[\w:.]+\s*\[%\w+\],\s*\[(?P<at>%\w+)\][^;]*;")
_DESCRIPTOR = re.compile(r"\b\d{19}\b")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]+)"')
_WAIT_CALL = re.compile(r"mbarrier_wait\(\s*(\w+)")


def waits(ptx: str) -> list[str]:
    """The barriers that a kernel waits on, in the order of its text, by the names its Python source gives them.

    Needs line information in the PTX (`--generate-line-info`, as `attnbook.compile` asks for) and the source file.
    """
    return [name for _, name in _find_waits(ptx)]


def drop_wait(barrier: str, which: int | None = None) -> Callable[[str], str]:
    """An edit that makes every wait on `barrier` succeed at once, or one of them: the `which`-th in the text, from 0.

    ValueError when the kernel has no such wait.
    """

    def edit(ptx: str) -> str:
        found = [match for match, name in _find_waits(ptx) if name == barrier]
        if not found:
            raise ValueError(f"no wait on {barrier!r} in this kernel; it waits on {', '.join(waits(ptx))}")
        if which is not None:
            if not 0 <= which < len(found):
                raise ValueError(f"which = {which}: the kernel waits on {barrier} in {len(found)} places, from 0")
            found = [found[which]]
        for match in reversed(found):
            passes = f"setp.eq.u32 {match['pred']}, 0, 0;"  # what try_wait would say if the phase were always complete
            ptx = ptx[: match.start()] + passes + ptx[match.end() :]
        return ptx

    return edit


def flip_parity(barrier: str) -> Callable[[str], str]:
    """An edit that makes every wait on `barrier` wait for the other parity. ValueError when there is no such wait."""

    def edit(ptx: str) -> str:
        found = [match for match, name in _find_waits(ptx) if name == barrier]
        if not found:
            raise ValueError(f"no wait on {barrier!r} in this kernel; it waits on {', '.join(waits(ptx))}")
        for match in reversed(found):
            parity = _PARITY.search(match[0])
            assert parity is not None  # the syntax of try_wait.parity
            a, b = parity.span("parity")
            other = f"{match[0][:a]}other{match[0][b:]}"
            flipped = f"{{ .reg .b32 other; xor.b32 other, {parity['parity']}, 1; {other} }}"
            ptx = ptx[: match.start()] + flipped + ptx[match.end() :]
        return ptx

    return edit


def drop_commit(number: int) -> Callable[[str], str]:
    """An edit that takes out one `tcgen05.commit`, by its place in the text, from 0. ValueError for another place."""

    def edit(ptx: str) -> str:
        found = list(_COMMIT.finditer(ptx))
        if not 0 <= number < len(found):
            raise ValueError(f"number = {number}: this kernel has {len(found)} commits, 0 to {len(found) - 1}")
        return ptx[: found[number].start()] + ptx[found[number].end() :]

    return edit


def drop_sync(number: int) -> Callable[[str], str]:
    """An edit that takes out one barrier of the whole CTA (`bar.sync 0`), by its place in the text, from 0."""

    def edit(ptx: str) -> str:
        found = list(_BAR.finditer(ptx))
        if not 0 <= number < len(found):
            raise ValueError(
                f"number = {number}: this kernel has {len(found)} barriers of the CTA, 0 to {len(found) - 1}"
            )
        return ptx[: found[number].start()] + ptx[found[number].end() :]

    return edit


def move_p(columns: int) -> Callable[[str], str]:
    """An edit that puts P so many columns of tensor memory further: where it is stored, and where P V reads it.

    For stages that store P four columns at a time. ValueError for another kernel.
    """

    def edit(ptx: str) -> str:
        for pattern in (_STORE_P, _MMA_OF_P):
            if not pattern.search(ptx):
                raise ValueError("this kernel has no P in tensor memory that is stored four columns at a time")
            ptx = pattern.sub(_moved, ptx)
        return ptx

    def _moved(match: re.Match[str]) -> str:
        at = match["at"]
        there = match[0].replace(f"[{at}]", "[moved]")
        return f"{{ .reg .b32 moved; add.s32 moved, {at}, {columns}; {there} }}"

    return edit


def read_plain(product: str) -> Callable[[str], str]:
    """An edit that takes the swizzle mode out of the shared-memory descriptors of one product, "QK" or "PV".

    The TMA still writes the operands swizzled. ValueError for another name, or a kernel without such descriptors.
    """
    if product not in ("QK", "PV"):
        raise ValueError(f"product = {product!r} is neither 'QK' nor 'PV'")

    def plain(match: re.Match[str]) -> str:
        value = int(match[0])
        if value >> 61 != 2:  # not a descriptor with the 128-byte swizzle
            return match[0]
        # The operand of PV is MN-major and uses its leading dimension byte offset; those of QK leave the field at 1.
        is_pv = value >> 16 & 0x3FFF != 1
        return str(value & ((1 << 61) - 1)) if is_pv == (product == "PV") else match[0]

    def edit(ptx: str) -> str:
        edited = _DESCRIPTOR.sub(plain, ptx)
        if edited == ptx:
            raise ValueError(f"no operand of {product} is read with the 128-byte swizzle in this kernel")
        return edited

    return edit


def _find_waits(ptx: str) -> list[tuple[re.Match[str], str]]:
    files = {number: path for number, path in _FILE.findall(ptx)}
    found = []
    for match in _TRY_WAIT.finditer(ptx):
        # Inline assembly spans several source lines for the debugger; the call stands before it begins.
        before = ptx[: ptx.rindex("begin inline asm", 0, match.start())] if "begin inline asm" in ptx else ""
        locations = _LOC.findall(before or ptx[: match.start()]) or _LOC.findall(ptx[: match.start()])
        inside = _LOC.findall(ptx[len(before) : match.start()])
        candidates = [*locations[-1:], *inside]
        for number, line in candidates:
            name = _WAIT_CALL.search(_source_line(files.get(number, ""), int(line)))
            if name:
                found.append((match, name[1]))
                break
        else:
            raise ValueError("a wait without a source line: compile with --generate-line-info")
    return found


@lru_cache(maxsize=4096)
def _source_line(path: str, line: int) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return lines[line - 1] if 0 < line <= len(lines) else ""
