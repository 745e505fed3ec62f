"""Code in figures: a listing whose lines are explained, and a side-by-side diff of two stages."""

from __future__ import annotations

import difflib
import io
import keyword
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Html, inline


@dataclass(frozen=True)
class Note:
    """Lines of a file and what to see in them.

    find: a piece of the first line (must occur in the file). lines: how many. text: the note. after: search behind
        this.
    """

    find: str
    text: str
    lines: int = 1
    after: str = ""


# What to look at in each stage, in the order of the file.
STAGE_NOTES: dict[int, tuple[Note, ...]] = {
    1: (
        Note(
            "mbarrier_arrive_and_expect_tx(kv_full",
            "One thread says how many bytes will come. The barrier's phase ends when it has arrived and all of them "
            "are there.",
        ),
        Note("cute.copy(tma_k", "Two TMA copies, K and V. They return at once; the bytes come later.", 2),
        Note("mbarrier_wait(kv_full", "All 128 threads stop here. Nobody computes while the tiles are on their way."),
        Note(
            "cute.gemm(qk_mma",
            "Eight MMAs of 16 columns each, issued by one thread. S in TMEM is overwritten by the first, added to "
            "by the rest.",
        ),
        Note("tcgen05.commit(s_full", "Arrives on the barrier when all MMAs before it are complete."),
        Note("mbarrier_wait(s_full", "All threads wait again: the tensor core works, the other units idle."),
        Note(
            "cute.copy(tmem_load, S_row",
            "First pass: read this thread's row of S, 8 columns at a time, and wait for each load before the next.",
            2,
            after="max: first pass",
        ),
        Note("factor = cute.math.exp", "The rescale factor for the new maximum."),
        Note(
            "cute.copy(tmem_load, O_row",
            "O leaves TMEM, is multiplied and goes back, for every tile after the first.",
            4,
            after="rescale: what was summed",
        ),
        Note("p = cute.math.exp", "Second pass: 128 exponentials a thread, 16,384 a tile."),
        Note(
            "cute.autovec_copy(x16, P_row", "P goes to shared memory as 16-bit numbers, 16 bytes a store, where K was."
        ),
        Note(
            "fence_view_async_shared()",
            "Ordinary stores and the tensor core see shared memory through different proxies. Without this fence "
            "the MMA "
            "may read what was there before.",
        ),
        Note("sync_threads()", "All rows of P must be there before one thread starts PV.", after="---- pv"),
        Note("cute.gemm(pv_mma", "Eight more MMAs: O += P V, 16 keys at a time."),
        Note("mbarrier_wait(o_full", "And all threads wait once more, before the next tile may even be asked for."),
    ),
}


def highlight(source: str) -> list[str]:
    """Python source as HTML, one string a line: keywords, comments, strings and numbers in spans."""
    lines = source.splitlines()
    marks: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    try:
        for tok in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = {tokenize.COMMENT: "c", tokenize.STRING: "str", tokenize.NUMBER: "num"}.get(tok.type)
            if tok.type == tokenize.NAME and keyword.iskeyword(tok.string):
                kind = "k"
            if kind is None:
                continue
            (r0, c0), (r1, c1) = tok.start, tok.end
            for r in range(r0, r1 + 1):
                line = lines[r - 1]
                first = c0 if r == r0 else len(line) - len(line.lstrip())  # indentation stays outside of the spans
                last = c1 if r == r1 else len(line)
                if first < last:
                    marks[r - 1].append((first, last, kind))
    except (tokenize.TokenError, IndentationError):
        pass  # a piece of a file need not be a whole program; what was read so far is marked
    out = []
    for line, spans in zip(lines, marks, strict=True):
        html, at = "", 0
        for a, b, kind in spans:
            html += escape(line[at:a], quote=False) + f'<span class="{kind}">{escape(line[a:b], quote=False)}</span>'
            at = b
        out.append(html + escape(line[at:], quote=False))
    return out


def _path(source: Any) -> Path:
    """A path, or the file of a stage given as number, slug or Stage."""
    if isinstance(source, Path) or (isinstance(source, str) and ("/" in source or source.endswith(".py"))):
        return Path(source)
    from attnbook.ladder import LADDER

    path = LADDER[source].path
    if path is None:
        raise ValueError(f"stage {source!r} has no kernel file yet")
    return Path(path)


def code(
    source: Any,
    start: str | int = 1,
    end: str | int | None = None,
    highlight_lines: Sequence[Note] = (),
    *,
    caption: str = "",
) -> Html:
    """A listing of part of a file, some of its lines marked and explained.

    Args:
        source: path, or a stage. start, end: line numbers, or text that the first and the last line contain.
        highlight_lines: notes; each must be found between start and end.
    """
    path = _path(source)
    lines = path.read_text(encoding="utf-8").splitlines()
    first = start if isinstance(start, int) else _find(lines, start, path) + 1
    last = len(lines) if end is None else end if isinstance(end, int) else _find(lines, end, path, first - 1) + 1
    marked = _place(lines, highlight_lines, path)
    for at, note in marked.items():
        if not first <= at + 1 <= last:
            raise ValueError(
                f"{path.name}: {note.find!r} is in line {at + 1}, outside of the lines {first} to {last} shown"
            )
    body = _table(lines, [(first - 1, last)], marked)
    return _listing(path, body, caption)


def listing(stage: Any = 1, *, context: int = 0) -> Html:
    """The lines of a stage's file that matter, each with its note; what lies between is left out.

    context: lines shown around each.
    """
    number = stage_number(stage)
    if number not in STAGE_NOTES:
        raise ValueError(f"stage {number} has no notes; listed are {sorted(STAGE_NOTES)}")
    path = _path(stage)
    lines = path.read_text(encoding="utf-8").splitlines()
    marked = _place(lines, STAGE_NOTES[number], path)
    parts: list[tuple[int, int]] = []
    for at, note in marked.items():
        a, b = max(0, at - context), min(len(lines), at + note.lines + context)
        if parts and a < parts[-1][1]:
            parts[-1] = (parts[-1][0], max(b, parts[-1][1]))
        else:
            parts.append((a, b))
    return _listing(
        path,
        _table(lines, parts, marked),
        f"The lines of `{path.name}` to look at first: where it asks, where it waits, where data changes its place.",
    )


def _find(lines: Sequence[str], text: str, path: Path, begin: int = 0) -> int:
    for i in range(begin, len(lines)):
        if text in lines[i]:
            return i
    raise ValueError(f"{path.name}: no line contains {text!r}" + (f" after line {begin}" if begin else ""))


def _place(lines: Sequence[str], notes: Sequence[Note], path: Path) -> dict[int, Note]:
    """Line index -> note, in file order."""
    found = {}
    for note in notes:
        begin = _find(lines, note.after, path) if note.after else 0
        found[_find(lines, note.find, path, begin)] = note
    return dict(sorted(found.items()))


def _table(lines: Sequence[str], parts: Sequence[tuple[int, int]], marked: dict[int, Note]) -> str:
    """Rows of code; a note stands above its lines. Each part loses the indentation that all its lines share."""
    html = highlight("\n".join(lines))
    rows = []
    covered = {i for at, n in marked.items() for i in range(at, at + n.lines)}
    for number, (a, b) in enumerate(parts):
        if number and parts[number - 1][1] < a:
            rows.append('<tr class="gap"><td class="n">⋯</td><td></td></tr>')
        indent = min((len(x) - len(x.lstrip()) for x in lines[a:b] if x.strip()), default=0)
        for i in range(a, b):
            if i in marked:
                rows.append(f'<tr class="note"><td class="n"></td><td>{inline(marked[i].text)}</td></tr>')
            cls = ' class="hl"' if i in covered else ""
            rows.append(f'<tr{cls}><td class="n">{i + 1}</td>{_line(html[i][indent:], "s")}</tr>')
    return f"<table>{''.join(rows)}</table>"


def _line(html: str, cls: str, before: str = "") -> str:
    """The cell of one line of code. Where it is too long it wraps, and the rest hangs behind its indent."""
    indent = len(html) - len(html.lstrip(" "))
    return f'<td class="{cls}" style="--in:{indent}">{before}{html}</td>'


def _listing(path: Path, body: str, caption: str) -> Html:
    name = f'<div class="name">{escape(path.name)}</div>'
    label = f'role="region" tabindex="0" aria-label="Listing of {escape(path.name)}"'
    box = f'<div class="bk-code" {label}>{name}{body}</div>'
    return Html(box, title=f"Listing of {path.name}", caption=caption, name="code")


FOLD = 3  # so many unchanged lines are shown rather than folded


def diff(before: Any, after: Any, *, context: int = 2, caption: str = "") -> Html:
    """Two files, or two stages, side by side; only what changed and `context` lines around it.

    before, after: paths or stages. Removed lines carry a minus on the left, new ones a plus on the right; where a line
    was altered, both stand in one row and the words that differ are marked. Runs without a change are folded into one
    row that says how long they are. Long lines wrap.
    """
    left_path, right_path = _path(before), _path(after)
    left = left_path.read_text(encoding="utf-8").splitlines()
    right = right_path.read_text(encoding="utf-8").splitlines()
    lh, rh = highlight("\n".join(left)), highlight("\n".join(right))
    rows: list[str] = []
    groups = list(difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(context))
    added = removed = shown = 0
    for group in groups:
        begin, offset = group[0][1], group[0][3] - group[0][1]
        if begin - shown > FOLD:
            rows += _fold(begin - shown)
        else:
            group.insert(0, ("equal", shown, begin, shown + offset, begin + offset))
        part = left[group[0][1] : group[-1][2]] + right[group[0][3] : group[-1][4]]
        cut = min((len(x) - len(x.lstrip()) for x in part if x.strip()), default=0)  # the indent that all lines share
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                rows += [_row(i, lh[i][cut:], "", i + j1 - i1, rh[i + j1 - i1][cut:], "") for i in range(i1, i2)]
                continue
            removed, added = removed + i2 - i1, added + j2 - j1
            for i, j in _pairs(left, right, range(i1, i2), range(j1, j2)):
                a = "" if i is None else lh[i][cut:]
                b = "" if j is None else rh[j][cut:]
                if i is not None and j is not None:
                    of_left, of_right = _changed(left[i][cut:], right[j][cut:])
                    a, b = _mark(a, of_left), _mark(b, of_right)
                rows.append(_row(i, a, "del", j, b, "add"))
        shown = group[-1][2]
    if rows:
        rows += _fold(len(left) - shown)
    names = (f'<th class="name" colspan="2" scope="col">{escape(p.name)}</th>' for p in (left_path, right_path))
    head = f"<thead><tr>{''.join(names)}</tr></thead>"
    label = f"{left_path.name} and {right_path.name}, side by side"
    columns = '<colgroup><col class="n"><col><col class="n"><col></colgroup>'
    box = (
        f'<div class="bk-code bk-diff" role="region" tabindex="0" aria-label="{escape(label)}">'
        f"<table>{columns}{head}<tbody>{''.join(rows)}</tbody></table></div>"
    )
    verb = "line of" if removed == 1 else "lines of"
    become = "becomes" if removed == 1 else "become"
    text = caption or f"{removed} {verb} `{left_path.name}` {become} {added} of `{right_path.name}`."
    return Html(box, title=label, desc=text, caption=text, name="diff")


def _row(i: int | None, a: str, left: str, j: int | None, b: str, right: str) -> str:
    """One row of a diff: line indices (None: no line on that side), their HTML and their classes."""
    return f"<tr>{_cell(i, a, left, '−')}{_cell(j, b, right, '+')}</tr>"


def _cell(i: int | None, html: str, cls: str, sign: str) -> str:
    if i is None:
        return '<td class="n"></td><td class="none"></td>'
    mark = f'<span class="sign">{sign}</span>' if cls else ""  # a sign too, not colour alone
    html = re.sub(
        r"(?<=\w)([(.\[])(?=\w)", r"\1<wbr>", html
    )  # break after a bracket or a dot rather than inside a name
    return f'<td class="n">{i + 1}</td>{_line(html, cls or "same", mark)}'


def _fold(lines: int) -> list[str]:
    if not lines:
        return []
    return [f'<tr class="gap"><td colspan="4">⋯ {lines} line{"s" if lines > 1 else ""} unchanged</td></tr>']


def _pairs(
    left: Sequence[str], right: Sequence[str], old: range, new: range, least: float = 0.5
) -> list[tuple[int | None, int | None]]:
    """Which changed line stands beside which: the pairs in order whose likeness sums to most. The others stand alone.

    least: the least likeness (0 to 1) of a pair.
    """
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    alike = [[_likeness(left[i], right[j], least) for j in new] for i in old]
    for a in range(len(old) - 1, -1, -1):
        for b in range(len(new) - 1, -1, -1):
            paired = alike[a][b] + best[a + 1][b + 1] if alike[a][b] else 0.0
            best[a][b] = max(paired, best[a + 1][b], best[a][b + 1])
    out: list[tuple[int | None, int | None]] = []
    a = b = 0
    while a < len(old) and b < len(new):
        if alike[a][b] and best[a][b] == alike[a][b] + best[a + 1][b + 1]:
            out.append((old[a], new[b]))
            a, b = a + 1, b + 1
        elif best[a][b] == best[a + 1][b]:
            out.append((old[a], None))
            a += 1
        else:
            out.append((None, new[b]))
            b += 1
    return out + [(i, None) for i in old[a:]] + [(None, j) for j in new[b:]]


def _likeness(a: str, b: str, least: float) -> float:
    """How much of two lines is the same, 0 to 1; 0 below `least` and for empty lines."""
    m = difflib.SequenceMatcher(None, a.strip(), b.strip(), autojunk=False)
    if not (a.strip() and b.strip()) or m.real_quick_ratio() < least or m.quick_ratio() < least:
        return 0.0
    ratio = m.ratio()
    return ratio if ratio >= least else 0.0


def _changed(a: str, b: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The spans (first, end column) of the words of each line that the other has not."""
    wa, wb = (list(re.finditer(r"\w+|\s+|.", x)) for x in (a, b))
    matcher = difflib.SequenceMatcher(None, [w[0] for w in wa], [w[0] for w in wb], autojunk=False)
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            for words, first, end, out in ((wa, i1, i2, spans[0]), (wb, j1, j2, spans[1])):
                part = "".join(w[0] for w in words[first:end])
                if part.strip():
                    at = words[first].start() + len(part) - len(part.lstrip())
                    out.append((at, at + len(part.strip())))
    return spans


def _mark(html: str, spans: Sequence[tuple[int, int]]) -> str:
    """Highlighted HTML of a line with <mark> around columns of its text; a mark never crosses a tag."""
    inside = {c for a, b in spans for c in range(a, b)}
    out, column, on = "", 0, False
    for piece in re.findall(r"<[^>]*>|&\w+;|.", html):
        if piece[0] == "<":
            out += "</mark>" * on + piece
            on = False
            continue
        if (column in inside) != on:
            out += "</mark>" if on else "<mark>"
            on = not on
        out += piece
        column += 1
    return out + "</mark>" * on
