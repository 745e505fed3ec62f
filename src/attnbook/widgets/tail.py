"""Movable figure of a sequence that does not fill its last tile: what is loaded, masked and stored."""

from __future__ import annotations

from typing import Any

from attnbook.compile import stage_module
from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg
from attnbook.widgets.explorer import Control, Explorer, explore

LENGTHS = (1, 127, 128, 129, 233, 300, 500)


def masked_chunks(stage: Any, seqlen: int) -> tuple[int, range]:
    """Keys in the last tile, and the chunks of its scores that the mask reads and writes back (none if it is full)."""
    module = stage_module(stage)
    keys = (seqlen - 1) % module.TILE_N + 1
    last = module.TILE_N // module.CHUNK
    return keys, range(keys // module.CHUNK, last) if keys < module.TILE_N else range(last, last)


def tail_mask(stage: Any = 7, lengths: tuple[int, ...] = LENGTHS) -> Explorer:
    """The last KV tile and the last Q tiles of some lengths: zeros from the TMA, masked scores, rows not stored."""
    module = stage_module(stage)
    n, m, q_tiles, chunk = module.TILE_N, module.TILE_M, module.Q_TILES, module.CHUNK
    most = -(-max(lengths) // (m * q_tiles)) * m * q_tiles
    x0, w, y0, h = 92.0, 656.0, 46.0, 96.0

    def draw(at: int) -> tuple[Svg, str]:
        length = lengths[at]
        keys, chunks = masked_chunks(stage, length)
        tiles = -(-length // n)
        rows = -(-length // (m * q_tiles)) * m * q_tiles
        s = Svg(760, 296, title="A sequence that ends inside a tile")
        s.text(8, 20, f"{length:,} tokens", "tl")
        ctas = rows // (m * q_tiles)
        count = f"{tiles} KV tile{'s' if tiles > 1 else ''}, {ctas} CTA{'s' if ctas > 1 else ''}"
        s.text(752, 20, count, "ts", anchor="end")
        for name, y, whole, piece in (("keys", y0, tiles * n, n), ("queries", y0 + 46, rows, m)):
            s.text(8, y + 21, name, "tb")
            unit = w / most
            s.rect(x0, y, whole * unit, 32, "off", rx=2)
            s.rect(x0, y, length * unit, 32, "m-smem" if name == "keys" else "m-reg", rx=2)
            if whole > length:
                s.hatch(x0 + length * unit, y, (whole - length) * unit, 32)
            for k in range(0, whole + 1, piece):
                s.line(x0 + k * unit, y - 3, x0 + k * unit, y + 35, "ln ink")
            s.text(x0 + 6, y + 21, f"{length:,}", "t")
        top = y0 + h + 24
        s.text(8, top - 6, f"the last KV tile: one thread's row of {n} scores, in chunks of {chunk}", "tl")
        cell = 744.0 / n
        for k in range(n):
            touched = k // chunk in chunks
            cls = "off" if k >= keys else "r-softmax" if touched else "m-tmem"
            s.rect(8 + cell * k, top + 8, cell, 40, f"{cls} cell")
        if keys < n:
            s.hatch(8 + cell * keys, top + 8, cell * (n - keys), 40)
            a, b = 8 + cell * chunk * chunks.start, 8 + cell * n
            s.bracket(a, top + 62, b, top + 62)
            s.text(752, top + 82, f"read and written back: {len(chunks)} chunks", "t", anchor="end")
        s.text(8, top + 82, f"key {keys - 1} is the last", "t")
        s.text(8, 290, "outlined: left as it is", "ts")
        s.text(180, 290, "filled: goes along with its chunk", "ts")
        s.text(420, 290, "hatched: beyond the end, scores become -inf", "ts")
        told = f"the last KV tile has {keys} key{'s' if keys > 1 else ''}; {n - keys} of a row's scores become -inf"
        none = "every tile is full: no score is masked"
        whose = "all CTAs" if ctas > 1 else "the CTA"
        return s, (
            f"**{length:,} tokens**: {told if keys < n else none}. "
            f"Of the {rows} query rows of {whose}, {rows - length} are not stored."
        )

    return explore(
        [Control("length", "tokens", [f"{x:,}" for x in lengths])],
        draw,
        name="tail_mask",
        title="Any length: what happens beyond the end",
        caption=(
            "Keys and queries come in tiles; where the sequence ends inside one, the TMA writes zeros (hatched). A "
            "zero key would get the score 0 and a weight, so the softmax threads set its score to -inf before they "
            f"look for the maximum. They touch whole chunks of {chunk} scores, beginning with the one in which the "
            "sequence ends. Query rows beyond the end are computed with the others, and no thread stores them."
        ),
        source=f"from the tile sizes and the rule of stage {stage_number(stage)}; a test counts its stores",
        start=[3],
        interval=1100,
    )
