"""Pictures of CuTe layouts. Every number in them is what the DSL's own layout returns for that coordinate.

A layout is built and evaluated while a function is traced under @cute.jit, which needs no GPU: with static shapes
`layout((i, j))` is a Python integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbook.figures.svg import Svg

PALETTE = 8


def traced(function: Callable[[], Any]) -> Any:
    """What `function` returns when it runs while the DSL traces."""
    import cutlass.cute as cute

    found: list[Any] = []

    @cute.jit
    def probe() -> None:
        found.append(function())

    probe()
    return found[0]


@dataclass(frozen=True)
class Table:
    """A layout of two modes, evaluated: index[i][j] for row i and column j. text: the DSL's own print."""

    text: str
    index: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        return len(self.index)

    @property
    def columns(self) -> int:
        return len(self.index[0])

    @property
    def cosize(self) -> int:
        """One more than the largest index."""
        return 1 + max(max(row) for row in self.index)


def table(build: Callable[[Any], Any], rows: int, columns: int) -> Table:
    """Evaluate a layout at every (row, column).

    build: takes the module cutlass.cute and returns a layout (or a composed one) with rows x columns coordinates.
    """

    def read() -> Table:
        import cutlass.cute as cute

        layout = build(cute)
        return Table(str(layout), tuple(tuple(int(layout((i, j))) for j in range(columns)) for i in range(rows)))

    result = traced(read)
    assert isinstance(result, Table)
    return result


def _swizzled(cute: Any) -> Any:
    return cute.make_composed_layout(cute.make_swizzle(2, 0, 3), 0, cute.make_layout((4, 8), stride=(8, 1)))


EXAMPLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "row-major": ("neighbours along a row are neighbours in memory", lambda c: c.make_layout((4, 8), stride=(8, 1))),
    "column-major": ("neighbours along a column are", lambda c: c.make_layout((4, 8), stride=(1, 4))),
    "padded": (
        "a ninth element in each row is never used: the classic remedy for bank conflicts",
        lambda c: c.make_layout((4, 8), stride=(9, 1)),
    ),
    "broadcast": (
        "stride 0: all four rows are the same eight elements",
        lambda c: c.make_layout((4, 8), stride=(0, 1)),
    ),
    "column slices": (
        "the second mode is itself two modes: slices of 2 columns, one after another",
        lambda c: c.make_layout((4, (2, 4)), stride=(2, (1, 8))),
    ),
    "2 x 2 blocks": (
        "both modes are split: blocks of 2 by 2 in one piece, blocks in rows",
        lambda c: c.make_layout(((2, 2), (2, 4)), stride=((1, 16), (2, 4))),
    ),
    "swizzled": (
        "row-major, and then the column is exchanged by an exclusive or with the row",
        _swizzled,
    ),
}
"""Name -> (what it is for, how to build it). All have the shape 4 by 8, so 32 coordinates."""


@cache
def example(name: str) -> Table:
    """One of EXAMPLES, evaluated."""
    return table(EXAMPLES[name][1], 4, 8)


def grid(
    s: Svg,
    x: float,
    y: float,
    labels: list[list[str]],
    classes: list[list[str]],
    *,
    w: float = 34,
    h: float = 26,
    small: bool = True,
    marks: frozenset[tuple[int, int]] = frozenset(),
) -> None:
    """Cells with a label and a colour class each; those in `marks` are outlined."""
    for i, (row, kinds) in enumerate(zip(labels, classes, strict=True)):
        for j, (label, kind) in enumerate(zip(row, kinds, strict=True)):
            s.rect(x + w * j, y + h * i, w, h, f"cell {kind}")
            if label:
                s.text(x + w * (j + 0.5), y + h * (i + 0.5) + 4.5, label, "tc" if small else "t", anchor="middle")
    for i, j in sorted(marks):
        s.rect(x + w * j + 1, y + h * i + 1, w - 2, h - 2, "pick")


def layout_composition() -> Svg:
    """Composition: a layout of coordinates into another layout picks elements of it."""

    def read() -> tuple[str, str, str, list[list[int]], list[list[int]]]:
        import cutlass.cute as cute

        a = cute.make_layout((6, 8), stride=(8, 1))
        b = cute.make_layout((3, 4), stride=(2, 12))
        c = cute.composition(a, b)
        first = [[int(b((i, j))) for j in range(4)] for i in range(3)]
        both = [[int(c((i, j))) for j in range(4)] for i in range(3)]
        return str(a), str(b), str(c), first, both

    text_a, text_b, text_c, first, both = traced(read)
    where = {index: (i, j) for i, row in enumerate(both) for j, index in enumerate(row)}
    s = Svg(
        760,
        284,
        title="Composition: one layout picks from another",
        name="layout_composition",
        desc=f"B = {text_b} of A = {text_a} gives {text_c}: the indices {both}.",
        caption=(
            f"B = `{text_b}` sends a coordinate to a number, and A = `{text_a}` takes that number as a coordinate, "
            "counted down the columns. The result is again a layout, "
            f"`{text_c}`: every second row and every second column of A. Nothing was copied and nothing is computed "
            "when the kernel runs; both layouts are known when it is compiled."
        ),
        source="evaluated by cute.composition",
    )
    s.text(8, 20, f"B = {text_b}", "tm")
    grid(
        s,
        8,
        40,
        [[str(v) for v in row] for row in first],
        [[f"s{(i * 4 + j) % PALETTE}" for j in range(4)] for i in range(3)],
    )
    s.text(8, 146, "what B says: a coordinate of A,", "ts")
    s.text(8, 162, "counted down its columns", "ts")
    s.arrow([(156, 80), (206, 80)], "r-load", head=9)
    x, y = 220.0, 40.0
    s.text(x, 20, f"A = {text_a}", "tm")
    labels = [[str(8 * i + j) for j in range(8)] for i in range(6)]
    classes = [["off"] * 8 for _ in range(6)]
    for index, (i, j) in where.items():
        classes[index // 8][index % 8] = f"s{(i * 4 + j) % PALETTE}"
    grid(s, x, y, labels, classes, w=30)
    s.text(x, y + 6 * 26 + 20, "an index of A in each cell; coloured: picked by B", "ts")
    s.arrow([(x + 8 * 30 + 12, 80), (x + 8 * 30 + 62, 80)], "r-load", head=9)
    x2 = x + 8 * 30 + 76
    s.text(x2, 20, f"A∘B = {text_c}", "tm")
    grid(
        s,
        x2,
        40,
        [[str(v) for v in row] for row in both],
        [[f"s{(i * 4 + j) % PALETTE}" for j in range(4)] for i in range(3)],
    )
    return s


def layout_divide(kind: str = "zipped") -> Svg:
    """A matrix of 8 by 16 divided by a tile of 4 by 4: coordinates inside the tile, and which tile."""

    def read() -> tuple[str, str, list[list[int]]]:
        import cutlass.cute as cute

        a = cute.make_layout((8, 16), stride=(16, 1))
        divide = {"zipped": cute.zipped_divide, "logical": cute.logical_divide}[kind]
        z = divide(a, (4, 4))
        if kind == "zipped":
            out = [[int(z((i, t))) for i in range(16)] for t in range(8)]
        else:
            out = [[int(z((i, j))) for j in range(16)] for i in range(8)]
        return str(a), str(z), out

    text, divided, found = traced(read)
    name = f"{kind}_divide"
    s = Svg(
        760,
        320,
        title="A matrix divided by a tile",
        name="layout_divide",
        desc=f"{text} divided by (4, 4) gives {divided}. Tile t holds the indices " + str(found[0]) + " for t = 0.",
        caption=(
            f"`{name}` of `{text}` by a tile of 4 × 4 gives `{divided}`: first the coordinate inside the tile, then "
            "the number of the tile. Colours and the large numbers are tiles, the small numbers the place inside, both "
            "counted down the columns. Fix the second and you have a CTA's tile; fix the first and you have the same "
            "element of every tile. The kernels of this book divide Q by (128, 128) in just this way."
        ),
        source=f"evaluated by cute.{name}",
    )
    where = {index: (t, i) for t, row in enumerate(found) for i, index in enumerate(row)}
    x, y, w, h = 8.0, 44.0, 46.0, 31.0
    s.text(x, 22, f"{divided}", "tm")
    for r in range(8):
        for c in range(16):
            t, i = where[16 * r + c]
            s.rect(x + w * c, y + h * r, w, h, f"cell s{t % PALETTE}")
            s.text(x + w * c + 6, y + h * r + 20, t, "tb")
            s.text(x + w * (c + 1) - 6, y + h * r + 20, i, "tc", anchor="end")
    for c in range(0, 17, 4):
        s.line(x + w * c, y, x + w * c, y + 8 * h, "ln ink")
    for r in range(0, 9, 4):
        s.line(x, y + h * r, x + 16 * w, y + h * r, "ln ink")
    return s


@cache
def _tv() -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    def read() -> tuple[str, str, tuple[tuple[int, ...], ...]]:
        import cutlass
        import cutlass.cute as cute

        threads = cute.make_ordered_layout((4, 8), order=(1, 0))
        values = cute.make_ordered_layout((2, 2), order=(1, 0))
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float32)
        copy = cute.make_tiled_copy_tv(atom, threads, values)
        tv = copy.layout_tv_tiled
        return (
            str(tv),
            str(copy.tiler_mn),
            tuple(tuple(int(tv((t, v))) for v in range(4)) for t in range(32)),
        )

    result = traced(read)
    return result[0], result[1], result[2]


def layout_tv() -> Svg:
    """A thread-value layout of a tiled copy: which thread holds which elements of an 8 by 16 tile."""
    text, tiler, found = _tv()
    s = Svg(
        760,
        352,
        title="A thread-value layout",
        name="layout_tv",
        desc=f"TV layout {text} of a tile of 8 by 16: thread 0 holds the tile's elements {list(found[0])}.",
        caption=(
            "A tiled copy of 32 threads, 4 × 8, with 2 × 2 values each. Its thread-value layout, "
            f"`{text}`, sends (thread, value) to a place of the 8 × 16 tile, counted down its columns. T is the "
            "thread, V which of its four values. A kernel gives its thread number to the first mode and gets the "
            "layout of its own fragment. Nobody writes an index."
        ),
        source=f"evaluated by cute.make_tiled_copy_tv; tile {tiler}",
    )
    x, y, w, h = 8.0, 44.0, 46.5, 35.0
    s.text(x, 22, text, "tm")
    for thread, row in enumerate(found):
        for value, index in enumerate(row):
            r, c = index % 8, index // 8
            s.rect(x + w * c, y + h * r, w, h, f"cell s{thread % PALETTE}")
            s.text(x + w * (c + 0.5), y + h * r + 22, f"T{thread} V{value}", "tc", anchor="middle")
    for c in range(0, 17, 2):
        s.line(x + w * c, y, x + w * c, y + 8 * h, "ln ink")
    for r in range(0, 9, 2):
        s.line(x, y + h * r, x + 16 * w, y + h * r, "ln ink")
    return s


@cache
def swizzled_chunks(bits: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Swizzle<bits, 4, 3> over 8 rows of 128 bytes: the byte address of each 16-byte chunk, and the layout's print."""

    def read() -> tuple[str, tuple[tuple[int, ...], ...]]:
        import cutlass.cute as cute

        rows = cute.make_layout((8, 128), stride=(128, 1))
        layout = cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)
        return str(layout), tuple(tuple(int(layout((r, 16 * c))) for c in range(8)) for r in range(8))

    result = traced(read)
    return result[0], result[1]
