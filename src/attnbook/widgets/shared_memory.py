"""Movable figures of shared memory: the swizzle of a TMA box, the operands of the tensor core, bank conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnbook.figures.budget import stage_number
from attnbook.figures.layouts import k_major_tile, operands, wavefronts
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.isa import swizzle as sw
from ptxemu.isa import tmabox
from ptxemu.isa.tensormap import tensor_map

SWIZZLES = (sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B)


def swizzled_tile(swizzle: sw.Swizzle, rows: int = 8, chunks: int = 8) -> np.ndarray:
    """What lies where after TMA has brought a tile of `rows` x `chunks` 16-byte chunks into shared memory.

    The tile is loaded as the hardware would: in boxes no wider than the swizzle's span, one after another, through a
    real tensor map and the emulator's own copy. Returns (lines, 8): the chunk number (row * chunks + chunk) that each
    16-byte slot of shared memory holds, in address order.
    """
    itemsize, columns = 2, chunks * 8
    source = np.zeros((rows, columns), np.uint16)
    for r in range(rows):
        for c in range(chunks):
            source[r, 8 * c : 8 * c + 8] = r * chunks + c
    flat = source.view(np.uint8).reshape(-1)
    width = (swizzle.span or columns * itemsize) // itemsize
    box = tensor_map(0, "u16", (columns, rows), (columns * itemsize,), (width, rows), swizzle=swizzle)
    shared = np.zeros(rows * columns * itemsize, np.uint8)
    for i, x in enumerate(range(0, columns, width)):
        data = tmabox.gather(box, (x, 0), lambda address, length: flat[address : address + length])
        tmabox.put(shared, i * box.box_bytes, data, width * itemsize, swizzle)
    return shared.view(np.uint16)[::8].reshape(-1, 8).astype(int)


def tma_box() -> Explorer:
    """A tile of 8 rows x 64 columns goes from global to shared memory under four swizzles; a row or a column of it is
    picked out, and the banks it lies in are counted."""
    tiles = [swizzled_tile(s) for s in SWIZZLES]
    picks = [f"row {r}" for r in range(8)] + [f"column {c}" for c in range(8)]
    cell, cw = 27, 38
    gx, sx, top = 30, 436, 66

    def draw(mode: int, pick: int) -> tuple[Svg, str]:
        swizzle, tile = SWIZZLES[mode], tiles[mode]
        by_row = pick < 8
        wanted = {pick * 8 + c for c in range(8)} if by_row else {r * 8 + (pick - 8) for r in range(8)}
        s = Svg(760, 388, title="A TMA box and its swizzle")
        boxes = 1 if not swizzle.span else 128 // swizzle.span
        s.text(gx, 20, "global memory", "tl")
        s.text(gx, 38, "8 rows × 128 bytes of a tensor", "ts")
        s.text(sx, 20, "shared memory", "tl")
        s.text(sx, 38, f"{boxes} TMA box{'es' if boxes > 1 else ''} of 8 rows × {128 // boxes} bytes", "ts")
        for c in range(8):
            s.text(gx + cw * c + cw / 2, top - 8, c, "ts", anchor="middle", data_set=f"pick:{8 + c}")
        for g in range(8):
            s.text(sx + cw * g + 2, top - 8, 4 * g, "ts")
        s.text(sx - 8, top - 8, "bank", "ts", anchor="end")
        for r in range(8):
            s.text(gx - 8, top + cell * r + 18, r, "ts", anchor="end", data_set=f"pick:{r}")
            s.text(sx - 8, top + cell * r + 18, f"+{128 * r}", "ts", anchor="end")
            for c in range(8):
                n = r * 8 + c
                _chunk(s, gx + cw * c, top + cell * r, cw, cell, n, n in wanted, pick_row=r)
                m = int(tile[r, c])
                _chunk(s, sx + cw * c, top + cell * r, cw, cell, m, m in wanted, pick_row=m // 8)
        s.arrow([(gx + 8 * cw + 8, top + 4 * cell), (sx - 50, top + 4 * cell)], "r-load", head=9)
        s.text((gx + 8 * cw + sx - 42) / 2, top + 4 * cell - 9, "TMA", "ts", anchor="middle")
        # banks
        hits = [0] * 8
        for line in tile:
            for slot, n in enumerate(line):
                hits[slot] += int(n) in wanted
        y = top + 8 * cell + 26
        s.text(sx - 8, y + 12, "hits", "ts", anchor="end")
        worst = max(hits)
        for g in range(8):
            for i in range(hits[g]):
                s.rect(sx + cw * g + 3, y + 2 + i * 9, cw - 6, 7, "r-mma" if hits[g] == worst > 1 else "r-load", rx=1)
        s.text(gx, y + 14, f"{worst} wavefront{'s' if worst > 1 else ''} to read {picks[pick]}", "tl")
        s.text(gx, y + 33, "each wavefront takes one 16-byte", "ts")
        s.text(gx, y + 50, "chunk from every group of 4 banks", "ts")
        if by_row:
            step = f"**{picks[pick].capitalize()}**, swizzle {swizzle.name}: its 8 chunks lie "
        else:
            step = f"**{picks[pick].capitalize()}**, swizzle {swizzle.name}: the same chunk of 8 rows lies "
        spread = sum(1 for h in hits if h)
        turns = f"{worst} wavefront{'s' if worst > 1 else ''}"
        step += f"in {spread} of the 8 bank groups, at most {worst} in one: {turns}."
        if swizzle.bits and mode == 3 and not by_row:
            step += " Chunk c of row r went to slot c XOR (r mod 8)."
        return s, step

    return explore(
        [Control("swizzle", "swizzle", [s.name for s in SWIZZLES], "choice"), Control("pick", "read", picks)],
        draw,
        name="tma_box",
        title="A TMA box, its swizzle and the banks",
        caption=(
            "The TMA writes a box of a tensor into shared memory and permutes its 16-byte chunks on the way. Without a "
            "swizzle a column of 8 rows lies in one group of 4 banks, and reading it takes 8 turns; with any of the "
            "swizzles it lies in all 8 groups. A row does too, without a swizzle or with 128B; with 32B and 64B the "
            "tile comes in four or two boxes, and a row is cut into as many pieces, which fall on the same banks. 128B "
            "brings this tile in one box. Choose a swizzle; step through rows and columns, or "
            "point at a row."
        ),
        source="from the emulator's own tensor map and box copy",
        start=[0, 8],
    )


def _chunk(s: Svg, x: float, y: float, w: float, h: float, n: int, on: bool, *, pick_row: int) -> None:
    with s.group("hov", data_set=f"pick:{pick_row}"):
        s.rect(x, y, w, h, f"cell s{n % 8}")
        s.text(x + w / 2, y + h / 2 + 4.5, f"{n // 8}·{n % 8}", "tm" + ("" if on else " dim"), anchor="middle")
        if on:
            s.rect(x + 1.5, y + 1.5, w - 3, h - 3, "pick")


UNSWIZZLED = (
    "One `tcgen05.mma` multiplies 16 columns; a tile takes eight of them. Without a swizzle, shared memory is cut "
    "into core "
    "matrices of 8 rows × 16 bytes, each 128 bytes in one piece, and two strides say where the next ones lie. Q, K "
    "and P lie "
    "with the summed dimension contiguous and read 4 KiB in one run; V lies the other way, and its 16 keys are 16 "
    "short "
    "runs. Nothing is transposed."
)
SWIZZLED = (
    "One `tcgen05.mma` multiplies 16 columns; a tile takes eight of them. With the 128-byte swizzle a row of 64 "
    "columns lies "
    "in 128 bytes, its 16-byte chunks in an order that changes from row to row; a step of a K-major operand takes "
    "32 bytes "
    "of every row (pale cells: a part of the 128 bytes). Two such panels make the tile."
)


def canonical_layout(stage: Any = 1) -> Explorer:
    """Which bytes of shared memory each K = 16 step of an MMA reads, for every operand of the stage."""
    ops = list(operands(stage).values())
    steps = ops[0].steps
    cell = 17
    lx, mx, top = 64, 444, 76

    def draw(which: int, step: int) -> tuple[Svg, str]:
        op = ops[which]
        s = Svg(760, 444, title=f"Shared memory of {op.name}")
        k_across = op.major == "K"
        r, k = np.meshgrid(np.arange(op.rows), np.arange(16 * steps), indexing="ij")
        chunks = np.unique(op.offset(r, k)[:, 16 * step : 16 * step + 16] // 16)  # 16-byte chunks that the step reads
        full = np.bincount(chunks // 8, minlength=256)  # of each 128 bytes of shared memory, how many of the 8
        down, across = (op.rows_are, op.sum_is) if k_across else (op.sum_is, op.rows_are)
        s.text(lx, 20, f"the matrix {op.name}", "tl")
        s.text(lx, 38, f"each cell: {'8 rows × 8 columns' if k_across else '8 keys × 8 columns'}", "ts")
        s.text(mx, 20, "its 32 KiB of shared memory", "tl")
        s.text(mx, 38, "each cell: 128 bytes in one piece", "ts")
        s.text(lx + 8 * cell, top - 10, f"{across}, 0 to 127", "ts", anchor="middle")
        s.vertical(lx - 12, top + 8 * cell, f"{down}, 0 to 127", "ts")
        for i in range(16):
            for j in range(16):
                now = (j if k_across else i) // 2
                cls = "r-mma" if now == step else "t-smem"
                s.rect(lx + cell * j, top + cell * i, cell, cell, f"cell {cls}", data_set=f"step:{now}")
                share = int(full[16 * i + j])
                cls = "r-mma" if share == 8 else "soft-mma" if share else "t-smem"
                s.rect(mx + cell * j, top + cell * i, cell, cell, "cell " + cls)
            s.text(mx - 8, top + cell * i + 13, f"{2048 * i:#06x}", "tm", anchor="end")
        # strides, measured on the layout itself
        runs = _runs([int(c) for c in chunks])
        y = top + 16 * cell + 26
        s.text(lx, y, op.text, "tm")
        s.text(lx, y + 24, f"SBO = {op.sbo:,} B", "tb")
        s.text(
            lx + 116, y + 24, f"from 8 {op.rows_are} to the next 8" if k_across else "from 8 columns to the next 8", "t"
        )
        if op.swizzle.bits and k_across:
            s.text(lx, y + 44, "LBO is not used with a swizzle", "t")
        else:
            s.text(lx, y + 44, f"LBO = {op.lbo:,} B", "tb")
            s.text(lx + 116, y + 44, "from 8 columns to the next 8" if k_across else "from 8 keys to the next 8", "t")
        first = int(op.offset(0, 16 * step))
        s.text(mx, y + 24, f"step {step + 1}: from byte {first:,}", "tb")
        s.text(mx, y + 44, _say_runs(runs), "t")
        text = (
            f"Step {step + 1} of {steps}: the tensor core takes columns {16 * step} to {16 * step + 15} of the sum "
            f"({op.sum_is}). The descriptor starts {first:,} bytes into the tile, {int(op.offset(0, 16)):,} bytes on "
            f"for each "
            f"step, and reads {16 * len(chunks):,} bytes: {_say_runs(runs)}."
        )
        return s, f"**{op.name}, {'K-major' if k_across else 'MN-major'}.** {text}"

    return explore(
        [
            Control("operand", "operand", [o.name for o in ops], "choice"),
            Control("step", "step", [f"{i + 1} of {steps}" for i in range(steps)]),
        ],
        draw,
        name="canonical_layout",
        title="What each step of an MMA reads from shared memory",
        caption=SWIZZLED if any(o.swizzle.bits for o in ops) else UNSWIZZLED,
        source=f"from the layouts of stage {stage_number(stage)}'s kernel",
    )


def _runs(cells: list[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as (first, length)."""
    out: list[tuple[int, int]] = []
    for c in cells:
        if out and sum(out[-1]) == c:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((c, 1))
    return out


def _say_runs(runs: list[tuple[int, int]]) -> str:
    n, length = len(runs), runs[0][1] * 16
    if any(size * 16 != length for _, size in runs):
        return f"{n} pieces of {min(x for _, x in runs) * 16} bytes and more"
    return f"{n} run{'s' if n > 1 else ''} of {length:,} bytes"


def bank_conflicts(stage: Any = 1) -> Explorer:
    """The 32 lanes of a warp each store 16 bytes of their own row of P: banks and wavefronts under five layouts."""
    ops = operands(stage)
    lane = np.arange(32)
    own = ops["P"].offset(lane, 0) if "P" in ops else k_major_tile("INTER")[1][lane, 0]
    choices: list[tuple[str, str, np.ndarray]] = [
        (
            f"stage {stage_number(stage)}" if "P" in ops else "core matrices",
            "core matrices: row after row, 16 bytes apart",
            own,
        ),
        ("plain rows", "row-major, rows 256 bytes apart", lane * 256),
    ]
    for kind, name in (("SW32", "32B swizzle"), ("SW64", "64B swizzle"), ("SW128", "128B swizzle")):
        text, offsets = k_major_tile(kind)
        choices.append((name, text, offsets[lane, 0]))
    x0, bw, top, pitch = 76, 19, 62, 13

    def draw(which: int, at: int) -> tuple[Svg, str]:
        name, what, addresses = choices[which]
        fronts = wavefronts(addresses, 16)
        s = Svg(760, 62 + 13 * 32 + 6, title="Banks of a warp's store")
        s.text(x0, 18, f"{len(fronts)} wavefronts", "tl")
        s.text(x0 + 124, 18, what, "ts")
        s.text(x0 + 32 * bw, 38, "banks", "ts", anchor="end")
        s.text(x0 - 8, top - 8, "wavefront", "ts", anchor="end")
        for b in range(0, 32, 4):
            s.text(x0 + bw * b + bw * 2, top - 8, f"{b}–{b + 3}", "ts", anchor="middle")
        for b in range(0, 33, 4):
            s.line(x0 + bw * b, top, x0 + bw * b, top + pitch * 32, "ln hair")
        for i in range(32):
            if i < len(fronts) or i % 8 == 7:
                s.text(x0 - 8, top + pitch * i + 10.5, i + 1, "ts", anchor="end")
        s.line(x0 - 4, top + 4 * pitch, x0 + 32 * bw, top + 4 * pitch, "ln dash")
        s.text(x0 + 32 * bw + 4, top + 4 * pitch + 4, "4 is", "ts")
        s.text(x0 + 32 * bw + 4, top + 4 * pitch + 18, "the best", "ts")
        for i, lanes in enumerate(fronts):
            y = top + pitch * i
            for t in lanes:
                bank = int(addresses[t]) // 4 % 32
                with s.group(data_set=f"lane:{t}"):
                    s.rect(x0 + bw * bank, y, bw * 4, pitch, f"cell {'r-softmax' if t == at else f's{t % 8}'}")
                    s.text(
                        x0 + bw * bank + bw * 2,
                        y + 10.5,
                        f"lane {t}",
                        "tc" + (" on" if t == at else ""),
                        anchor="middle",
                    )
        bank = int(addresses[at]) // 4 % 32
        step = (
            f"**{name}: {len(fronts)} wavefronts**, {4} at best. Lane {at} writes its 16 bytes at offset "
            f"{int(addresses[at]):,}, "
            f"banks {bank} to {bank + 3}."
        )
        return s, step

    return explore(
        [
            Control("layout", "layout", [c[0] for c in choices], "select"),
            Control("lane", "lane", [str(i) for i in range(32)]),
        ],
        draw,
        name="bank_conflicts",
        title="Which banks a warp's store of P hits",
        caption=(
            "Every thread owns a row of P and stores it 16 bytes at a time; a warp's store moves 512 bytes, four "
            "wavefronts of 128 at best. In core-matrix order neighbouring rows are neighbours in memory and nothing "
            "collides. "
            "In plain rows every lane hits the same four banks, and the store takes 32 turns. Every layout that the "
            "tensor "
            "core can read, swizzled or not, is free of conflicts here."
        ),
        source=f"from the layouts of stage {stage_number(stage)}'s kernel and of the DSL's swizzle atoms",
        interval=400,
    )
