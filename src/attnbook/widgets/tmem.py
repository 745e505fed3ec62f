"""Movable figure of tensor memory: which cells a warp, a thread and a register get from a tcgen05.ld."""

from __future__ import annotations

from functools import cache

from attnbook.figures.svg import Svg, num
from attnbook.widgets.explorer import Control, Explorer, explore
from ptxemu.isa.tmem import fragment

LOADS = (("32x32b", 8), ("16x64b", 8), ("16x128b", 4), ("16x256b", 2))
COLUMNS = 16


def tmem_windows() -> Explorer:
    """The window of one warp in the 128 x 512 cells of TMEM, and the thread and register that each cell goes to."""
    names = [f"{shape}.x{n}" for shape, n in LOADS]
    fragments = [fragment(shape, n) for shape, n in LOADS]
    x0, y0, cw, ch = 86, 172, 41.5, 17
    ox, oy, ow, oh = 86, 44, 664, 84

    @cache
    def cells(which: int, thread: int) -> list[str]:
        """The 32 x 16 cells, one element each, so that a step changes few of them."""
        f = fragments[which]
        owner = {(int(f.lane[r, t]), int(f.column[r, t])): (t, r) for t in range(32) for r in range(f.registers)}
        out = []
        for lane in range(32):
            for c in range(COLUMNS):
                x, y = num(x0 + cw * c), num(y0 + ch * lane)
                box = f'<rect x="{x}" y="{y}" width="{cw}" height="{ch}" class="cell '
                if (lane, c) not in owner:
                    out.append(f'{box}off"/>')
                    continue
                t, r = owner[lane, c]
                x, y = num(x0 + cw * c + cw / 2), num(y0 + ch * lane + 13)
                at = f'<text x="{x}" y="{y}" text-anchor="middle" class="tc'
                if t == thread:
                    out.append(f'{box}r-softmax"/>{at} on tb">r{r}</text>')
                else:
                    out.append(f'{box}s{t % 8}" data-set="thread:{t}"/>{at} through">t{t}</text>')
        return out

    def draw(which: int, warp: int, thread: int) -> tuple[Svg, str]:
        f = fragments[which]
        s = Svg(760, y0 + 32 * ch + 8, title="TMEM windows")
        s.text(ox, 16, "all of TMEM: 128 lanes × 512 columns", "tl")
        s.rect(ox, oy, ow, oh, "t-tmem")
        for w in range(4):
            s.rect(ox, oy + oh * w / 4, ow, oh / 4, "m-tmem" if w == warp else "box", data_set=f"warp:{w}")
            s.text(
                ox - 8,
                oy + oh * w / 4 + 15,
                f"warp {w}",
                "tb" if w == warp else "ts",
                anchor="end",
                data_set=f"warp:{w}",
            )
        for c in range(0, 513, 128):
            s.text(ox + ow * c / 512, oy - 6, c, "ts", anchor="middle" if c < 512 else "end")
        wx, wy = ox, oy + oh * warp / 4
        s.rect(wx, wy, ow * COLUMNS / 512, oh / 4, "r-softmax")
        s.polyline([(wx, wy + oh / 4), (x0, y0 - 22)], "ln thin dash")
        s.polyline([(wx + ow * COLUMNS / 512, wy + oh / 4), (x0 + cw * COLUMNS, y0 - 22)], "ln thin dash")
        for c in range(COLUMNS):
            s.text(x0 + cw * (c + 0.5), y0 - 6, c, "ts", anchor="middle")
        s.text(x0 - 8, y0 - 6, "lane", "ts", anchor="end")
        mine = {(int(f.lane[r, thread]), int(f.column[r, thread])): r for r in range(f.registers)}
        for lane in range(32):
            s.text(
                x0 - 8,
                y0 + ch * lane + 13,
                32 * warp + lane,
                "tb" if any(a == lane for a, _ in mine) else "ts",
                anchor="end",
            )
        s.elements += cells(which, thread)
        lanes = sorted({32 * warp + a for a, _ in mine})
        columns = sorted({c for _, c in mine})
        where = f"lane {lanes[0]}" if len(lanes) == 1 else "lanes " + " and ".join(map(str, lanes))
        span = (
            f"{columns[0]}–{columns[-1]}"
            if columns[-1] - columns[0] == len(columns) - 1
            else ", ".join(map(str, columns))
        )
        step = (
            f"**Warp {warp}, thread {thread}**, `tcgen05.ld.sync.aligned.{names[which]}.b32`: {f.registers} "
            f"registers, r0 to r{f.registers - 1}, from {where}, "
            f"columns {span}. The warp moves {f.registers * 32 * 4:,} bytes."
        )
        return s, step

    return explore(
        [
            Control("shape", "shape", names, "choice"),
            Control("warp", "warp", [str(w) for w in range(4)], "choice"),
            Control("thread", "thread", [str(t) for t in range(32)]),
        ],
        draw,
        name="tmem_windows",
        title="Which cells of TMEM a thread gets",
        caption=(
            "TMEM is not addressed by threads: a whole warp loads a window of it, and the instruction's shape says "
            "which cell goes to which "
            "thread and register. Warp w reaches lanes 32w to 32w + 31. With `32x32b` thread t gets row t, which is "
            "why one thread can own "
            "one row of the scores; the other shapes hand out fragments. Each cell names its thread; the chosen "
            "thread's cells "
            "name the register."
        ),
        source="from the emulator's own tcgen05.ld addressing (PTX ISA, Data Movement Shape)",
        interval=350,
    )
