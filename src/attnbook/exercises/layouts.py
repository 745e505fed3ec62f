"""Exercises of the chapter "CuTe layouts in one sitting"."""

from __future__ import annotations

from typing import Any

from attnbook.exercises import Exercise, Wrong, add


def _grade_slices(answer: Any) -> str:
    from attnbook.figures.layouts import index, operands

    truth = operands("baseline")["Q"]
    shape = (128, (8, 16))
    try:
        rows, (inside, slices) = answer
        stride = (int(rows), (int(inside), int(slices)))
    except (TypeError, ValueError):
        raise Wrong(f"{answer} does not nest like the shape (128,(8,16)): give (a, (b, c)).") from None
    for name, place, why in (
        ("inside a slice", (0, 1), "the next column of the same slice"),
        ("down the rows", (1, 0), "the next row of the same slice"),
        ("from slice to slice", (0, 8), "the first column of the next slice"),
    ):
        got = index(place, shape, stride)
        if 2 * got != int(truth.offset(*place)):
            raise Wrong(f"The stride {name} is not it: where does {why} begin, in elements?")
    return f"Right: the kernel's own layout has the same offsets. The DSL prints it as {truth.text}."


add(
    Exercise(
        "layouts-slices",
        _grade_slices,
        solution=lambda: (8, (1, 1024)),
        wrong=lambda: (128, (1, 8)),
    )
)


def _divided() -> int:
    from attnbook.figures.cute_layouts import traced

    def read() -> int:
        import cutlass.cute as cute

        return int(cute.zipped_divide(cute.make_layout((8, 16), stride=(16, 1)), (2, 8))((5, 3)))

    return int(traced(read))


def _grade_divide(answer: Any) -> str:
    truth = _divided()
    if int(answer) == 45:
        raise Wrong("That counts along the rows first. A number as a coordinate counts down the columns.")
    if int(answer) != truth:
        raise Wrong(f"Not {answer}. Which row and column of the tile is 5, and which row and column of tiles is 3?")
    return f"Right: place 5 of a 2 x 8 tile is (1, 2), tile 3 of 4 x 2 is (3, 0), together row 7, column 2: {truth}."


add(Exercise("layouts-divide", _grade_divide, solution=lambda: 114, wrong=lambda: 45))

_BUGGY_PLACE = '''\
def place(row, column):
    """Byte offset of a bf16 element in a tile of 8 rows x 64 columns with the 128-byte swizzle."""
    offset = 64 * row + column
    swizzled = offset ^ (offset >> 3 & 0b1110000)  # Swizzle<3, 4, 3>
    return 2 * swizzled
'''


def _grade_place(answer: Any) -> str:
    from attnbook.figures.layouts import k_major_tile

    _, truth = k_major_tile("SW128", 8, 64)
    scope: dict[str, Any] = {}
    try:
        exec(str(answer), scope)
        for row in range(8):
            for column in range(64):
                got = scope["place"](row, column)
                if got != truth[row, column]:
                    raise Wrong(
                        f"({row}, {column}) goes to byte {got}, and the DSL's atom puts it elsewhere. What does the 4 "
                        "of Swizzle<3, 4, 3> count, so that 16-byte chunks stay whole?"
                    )
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"It does not run: {type(error).__name__}: {error}") from None
    return "Right: the swizzle moves address bits, and addresses count bytes."


add(
    Exercise(
        "layouts-bug",
        _grade_place,
        solution=lambda: _BUGGY_PLACE.replace("64 * row + column", "2 * (64 * row + column)").replace(
            "2 * swizzled", "swizzled"
        ),
        wrong=lambda: _BUGGY_PLACE.replace("64 * row + column", "2 * (64 * row + column)"),
        text=_BUGGY_PLACE,
    )
)
