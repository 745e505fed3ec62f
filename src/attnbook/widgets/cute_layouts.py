"""Movable figures of CuTe layouts; every frame is evaluated by the DSL."""

from __future__ import annotations

from attnbook.figures.cute_layouts import EXAMPLES, PALETTE, example, grid, swizzled_chunks
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore


def layout_explorer() -> Explorer:
    """A layout of 4 by 8, a coordinate that moves, and memory: which index the coordinate has."""
    names = list(EXAMPLES)
    tables = [example(name) for name in names]

    def draw(which: int, at: int) -> tuple[Svg, str]:
        name, t = names[which], tables[which]
        i, j = at % 4, at // 4
        index = t.index[i][j]
        s = Svg(760, 268, title="A layout")
        s.text(8, 20, t.text, "tm")
        s.text(8, 40, "each cell: the index of its coordinate", "ts")
        classes = [[f"s{t.index[r][c] // 4 % PALETTE}" for c in range(8)] for r in range(4)]
        for r in range(4):
            s.text(16, 80 + 30 * r, r, "ts", anchor="end")
        for c in range(8):
            s.text(24 + 38 * (c + 0.5), 58, c, "ts", anchor="middle")
        labels = [[str(v) for v in row] for row in t.index]
        grid(s, 24, 62, labels, classes, w=38, h=30, marks=frozenset({(i, j)}))
        for r in range(4):
            for c in range(8):
                s.rect(24 + 38 * c, 62 + 30 * r, 38, 30, "touch", data_set=f"at:{r + 4 * c}")
        x, y = 396.0, 62.0
        s.text(x, 20, "memory, 8 elements a line", "tl")
        s.text(x, 40, "each cell: the coordinate that lands there", "ts")
        holder: dict[int, list[tuple[int, int]]] = {}
        for c in range(8):
            for r in range(4):
                holder.setdefault(t.index[r][c], []).append((r, c))
        lines = 5
        for n in range(8 * lines):
            cx, cy = x + 44 * (n % 8), y + 30 * (n // 8)
            who = holder.get(n, [])
            s.rect(cx, cy, 44, 30, f"cell s{n // 4 % PALETTE}" if who else "cell off")
            if who:
                text = f"{who[0][0]},{who[0][1]}" + ("…" if len(who) > 1 else "")
                s.text(cx + 22, cy + 20, text, "tc", anchor="middle")
            if n == index:
                s.rect(cx + 1, cy + 1, 42, 28, "pick")
        s.arrow([(24 + 8 * 38 + 8, 62 + 60), (x - 10, 62 + 60)], "r-load", head=9)
        step = f"**{name}**: {EXAMPLES[name][0]}. Coordinate ({i}, {j}), which is also {at}, has index **{index}**."
        if len(holder[index]) > 1:
            step += f" {len(holder[index])} coordinates share it."
        return s, step

    return explore(
        [
            Control("layout", "layout", names, "select"),
            Control("at", "place", [f"{n}: ({n % 4}, {n // 4})" for n in range(32)]),
        ],
        draw,
        name="layout_explorer",
        title="Layouts: from a coordinate to an index",
        caption=(
            "A layout is a shape and a stride with the same nesting. The coordinate is multiplied by the strides and "
            "summed. A single number is a coordinate too: it counts down the first mode first. Colours follow memory, "
            "four elements each, so that you see where a piece of memory lies in the matrix."
        ),
        source="every index evaluated by cute",
        interval=500,
    )


def swizzle_bits() -> Explorer:
    """Swizzle<b, 4, 3> on 8 rows of 128 bytes: the bits of an address, and where the chunk goes."""
    found = [swizzled_chunks(b) for b in range(4)]

    def draw(bits: int, row: int, chunk: int) -> tuple[Svg, str]:
        text, address = found[bits]
        before, after = 128 * row + 16 * chunk, address[row][chunk]
        s = Svg(760, 356, title="A swizzle")
        s.text(8, 20, text, "tm")
        cell, x0 = 44.0, 128.0
        heads = ["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"]
        for n, head in enumerate(heads):
            s.text(x0 + cell * (n + 0.5), 44, head, "ts", anchor="middle")
        for y, label, value in ((52.0, "row-major", before), (92.0, "swizzled", after)):
            s.text(x0 - 10, y + 19, label, "tb", anchor="end")
            s.text(x0 + 10 * cell + 10, y + 19, f"byte {value}", "t")
            for n in range(10):
                bit = 9 - n
                kind = "s0" if bit >= 7 else "s1" if bit >= 4 else "off"
                s.rect(x0 + cell * n, y, cell, 28, f"cell {kind}")
                s.text(x0 + cell * (n + 0.5), y + 19, value >> bit & 1, "tm", anchor="middle")
                if value >> bit & 1 != before >> bit & 1:
                    s.rect(x0 + cell * n + 2, y + 2, cell - 4, 24, "pick")
        s.text(x0 + 1.5 * cell, 138, "row", "ts", anchor="middle")
        s.text(x0 + 4.5 * cell, 138, "16-byte chunk", "ts", anchor="middle")
        s.text(x0 + 8 * cell, 138, "byte in the chunk", "ts", anchor="middle")
        gx, gy, w, h = 128.0, 160.0, 55.0, 23.0
        held = {value: (r, c) for r, line in enumerate(address) for c, value in enumerate(line)}
        for r in range(8):
            s.text(gx - 10, gy + h * r + 16, f"+{128 * r}", "ts", anchor="end")
            for c in range(8):
                who = held[128 * r + 16 * c]
                s.rect(gx + w * c, gy + h * r, w, h, f"cell s{who[1]}")
                s.text(gx + w * (c + 0.5), gy + h * r + 16, f"{who[0]},{who[1]}", "tc", anchor="middle")
                if who == (row, chunk):
                    s.rect(gx + w * c + 1, gy + h * r + 1, w - 2, h - 2, "pick")
                s.rect(gx + w * c, gy + h * r, w, h, "touch", data_set=f"row:{who[0]},chunk:{who[1]}")
        groups = len({line[chunk] // 16 % 8 for line in address})
        step = (
            f"Row {row}, chunk {chunk}: byte {before} becomes byte **{after}**. Chunk {chunk} of the eight rows lies "
            f"in **{groups}** of the eight groups of four banks."
        )
        if not bits:
            step += " With no bits there is no swizzle."
        return s, step

    return explore(
        [
            Control("bits", "bits", ["0", "1", "2", "3"], "choice"),
            Control("row", "row", [str(r) for r in range(8)]),
            Control("chunk", "chunk", [str(c) for c in range(8)]),
        ],
        draw,
        name="swizzle_bits",
        title="Swizzle<B, 4, 3>, bit by bit",
        caption=(
            "Swizzle<B, M, S> takes B bits, S places to the left of bit M, and XORs them into the B bits from M on. "
            "Here M = 4, so chunks of 16 bytes stay whole, and S = 3, so the bits that come in are the lowest ones of "
            "the row. Below: memory, 128 bytes a line; each cell names the row and the chunk that lies there, its "
            "colour the chunk. A column of one colour is a bank "
            "conflict. With 3 bits this is what the hardware calls the 128-byte swizzle."
        ),
        source="every address evaluated by cute",
        start=[3, 5, 1],
    )
