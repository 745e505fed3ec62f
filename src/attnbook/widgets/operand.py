"""Movable figure: where the chunks of an operand lie in shared memory, for every canonical layout."""

from __future__ import annotations

import numpy as np

from attnbook.figures.svg import Svg
from attnbook.onemma import Operand
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import K_MAJOR, MN_MAJOR

ROWS = 16
SWIZZLES = (sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B)


def canonical(major: int, swizzle: sw.Swizzle) -> Operand:
    """The closest-packed operand of 16 rows x 16 columns in one of the eight canonical layouts (PTX ISA 9.7.16.3.3)."""
    group = 8 * swizzle.span  # bytes of 8 rows (K-major) or 8 columns (MN-major) of the pattern
    if major == K_MAJOR:
        lbo, sbo = (16, group) if swizzle.span else (ROWS * 16, 128)
    else:
        # 16 rows are two chunks of 8; a pattern of 32 bytes and more holds both, so LBO is not used
        lbo, sbo = (2 * group, group) if swizzle.span else (ROWS // 8 * 128, 128)
    return Operand(0, lbo, sbo, swizzle, major)


def operand_chunks() -> Explorer:
    """An operand of 16 x 16 cut into chunks of 16 bytes; where each lies in shared memory; what LBO and SBO span."""
    cases = [(major, swizzle) for major in (K_MAJOR, MN_MAJOR) for swizzle in SWIZZLES]
    names = [
        f"{'K' if major == K_MAJOR else 'MN'}-major, " + (s.name if s.span else "no swizzle") for major, s in cases
    ]

    def draw(which: int, at: int) -> tuple[Svg, str]:
        major, swizzle = cases[which]
        operand = canonical(major, swizzle)
        addresses = operand.addresses(ROWS)
        chunks = _chunks(addresses, major)
        row, k = (at % 16, at // 16) if major == K_MAJOR else (at // 16, at % 16)
        where = chunks[at]
        s = Svg(760, 382, title="An operand in shared memory")
        s.text(8, 20, "the operand: 16 rows × 16 columns", "tl")
        s.text(8, 40, "cells: 16-byte chunks, 8 numbers each", "ts")
        gx, gy = 40.0, 66.0
        if major == K_MAJOR:
            w, h = 110.0, 17.0
            for c in range(2):
                s.text(gx + w * (c + 0.5), gy - 8, f"k = {8 * c} to {8 * c + 7}", "ts", anchor="middle")
            for r in range(16):
                s.text(gx - 8, gy + h * r + 13, r, "ts", anchor="end")
        else:
            w, h = 14.0, 136.0
            s.text(gx + 112, gy - 8, "k = 0 to 15", "ts", anchor="middle")
            s.text(gx - 8, gy + 72, "0–7", "ts", anchor="end")
            s.text(gx - 8, gy + 208, "8–15", "ts", anchor="end")
        for n in range(32):
            r, c = (n % 16, n // 16) if major == K_MAJOR else (n // 16, n % 16)
            slot = _slot(n, major)
            s.rect(gx + w * c, gy + h * r, w, h, f"cell s{slot}", data_set=f"chunk:{n}")
            if n == at:
                s.rect(gx + w * c + 1, gy + h * r + 1, w - 2, h - 2, "pick")
            if major == K_MAJOR:
                s.text(gx + w * (c + 0.5), gy + h * r + 13, n, "tc through", anchor="middle")
        mx, my, mw, mh = 372.0, 66.0, 44.0, 17.0
        s.text(mx, 20, "shared memory, 128 bytes a line", "tl")
        for c in range(8):
            s.text(mx + mw * (c + 0.5), my - 8, 16 * c, "ts", anchor="middle")
        holder = {int(a) // 16: n for n, a in enumerate(chunks)}
        for line in range(16):
            s.text(mx - 8, my + mh * line + 13, f"+{128 * line}", "ts", anchor="end")
            for c in range(8):
                n = holder.get(8 * line + c, -1)
                kind = f"cell s{_slot(n, major)}" if n >= 0 else "cell off"
                target = f"chunk:{n}" if n >= 0 else None
                s.rect(mx + mw * c, my + mh * line, mw, mh, kind, data_set=target)
                if n >= 0:
                    s.text(mx + mw * (c + 0.5), my + mh * line + 13, n, "tc through", anchor="middle")
                if n == at:
                    s.rect(mx + mw * c + 1, my + mh * line + 1, mw - 2, mh - 2, "pick")
        s.text(8, 366, "LBO", "tb")
        s.text(44, 366, f"{operand.lbo:,} bytes" if not swizzle.span else "not used", "t")
        s.text(160, 366, "SBO", "tb")
        s.text(196, 366, f"{operand.sbo:,} bytes", "t")
        s.text(mx, 366, f"mode in bits 61–63: {operand.descriptor >> 61}", "t")
        before = int(swizzle(np.asarray(where)))
        if major == K_MAJOR:
            what = f"row {row}, k = {8 * k} to {8 * k + 7}"
        else:
            what = f"rows {8 * row} to {8 * row + 7}, k = {k}"
        step = f"**{names[which]}**: the chunk of {what} lies at byte **{int(where)}**"
        step += f", and would at {before} without the exclusive or." if before != where else "."
        return s, step

    return explore(
        [
            Control("layout", "layout", names, "select"),
            Control("chunk", "chunk", [str(n) for n in range(32)]),
        ],
        draw,
        name="operand_chunks",
        title="An operand in shared memory, in all eight layouts",
        caption=(
            "What one `tcgen05.mma` reads of a 16-row operand, packed as closely as each layout allows. Colours are "
            "groups of 8 rows and 8 columns; a cell of memory names its chunk by number. Grey: bytes that belong to "
            "the next steps along K, or to more rows. Without a swizzle a group is one piece of 128 bytes; with one "
            "it is spread over eight rows of the pattern, and the exclusive or keeps a column of it off the same banks."
        ),
        source="addresses: the emulator's reading of PTX ISA, canonical layouts",
        interval=500,
    )


def _chunks(addresses: np.ndarray, major: int) -> np.ndarray:
    """Byte offset of each of the 32 chunks, counted down the columns (K-major) or along the rows (MN-major)."""
    return addresses[:, ::8].T.reshape(-1) if major == K_MAJOR else addresses[::8, :].reshape(-1)


def _slot(n: int, major: int) -> int:
    """Colour of a chunk: its group of 8 rows x 8 columns."""
    row, k = ((n % 16) // 8, n // 16) if major == K_MAJOR else (n // 16, (n % 16) // 8)
    return 2 * row + k
