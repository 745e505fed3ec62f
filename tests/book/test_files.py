"""The built pages as files: links lead somewhere, nothing is loaded from another host, pictures say what they show."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .conftest import PAGES, ROOT

pytestmark = pytest.mark.book

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Anchors that scripts of the theme give meaning to.
SCRIPT_ANCHORS = {"", "top"}


class Page(HTMLParser):
    """What a page holds: ids, links, loads (what a browser fetches by itself), pictures, drawings and scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str]] = []
        self.drawings: list[dict] = []
        self.inline: list[str] = []
        self._stack: list[str] = []
        self._open_drawing: dict | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        have = {key: value or "" for key, value in attrs}
        if "id" in have:
            self.ids.append(have["id"])
        if tag == "a" and "name" in have:
            self.ids.append(have["name"])
        if tag == "a" and "href" in have:
            self.links.append(have["href"])
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and "src" in have:
            self.loads.append(have["src"])
        if (
            tag == "link"
            and "href" in have
            and have.get("rel", "") not in ("index", "search", "next", "prev", "canonical")
        ):
            self.loads.append(have["href"])
        if tag == "img":
            self.images.append(have)
        if tag == "svg":
            self._open_drawing = {"attrs": have, "title": "", "desc": ""}
            self.drawings.append(self._open_drawing)
        if tag not in VOID:
            self._stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._stack and self._stack.pop() != tag:
            pass
        if tag == "svg":
            self._open_drawing = None

    def handle_data(self, data: str) -> None:
        inside = self._stack[-1] if self._stack else ""
        if inside in ("style", "script"):
            self.inline.append(data)
        if self._open_drawing is not None and inside in ("title", "desc"):
            self._open_drawing[inside] += data


@cache
def read(path: Path) -> Page:
    return Page(path)


def all_pages(html: Path) -> list[Path]:
    return [path for path in sorted(html.rglob("*.html")) if "_static" not in path.relative_to(html).parts]


def test_every_chapter_has_its_page(html: Path) -> None:
    assert [name for name in PAGES if not (html / f"{name}.html").is_file()] == []
    assert f"{PAGES[0]}.html" in (html / "index.html").read_text()


def test_every_link_leads_somewhere(html: Path) -> None:
    broken = []
    links = 0
    for page in all_pages(html):
        for link in read(page).links + read(page).loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                broken.append(f"{page.relative_to(html)}: {link}: no such file")
                continue
            anchor = unquote(parts.fragment)
            if target.suffix == ".html" and anchor not in SCRIPT_ANCHORS and anchor not in read(target).ids:
                broken.append(f"{page.relative_to(html)}: {link}: no such place in the page")
    assert links > 100
    assert broken == []


def test_links_to_other_hosts_are_https(html: Path) -> None:
    bad = [
        f"{page.relative_to(html)}: {link}"
        for page in all_pages(html)
        for link in read(page).links
        if urlsplit(link).scheme not in ("", "https", "mailto")
    ]
    assert bad == []


def test_nothing_is_loaded_from_another_host(html: Path) -> None:
    found = []
    for page in all_pages(html):
        found += [f"{page.name}: {load}" for load in read(page).loads if urlsplit(load).netloc]
        for text in read(page).inline:
            found += [
                f"{page.name}: {url}"
                for url in re.findall(r"""(?:import\s*\(?|url\()\s*["']?(https?://[^"')]+)""", text)
            ]
    for sheet in html.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{sheet.name}: {url}" for url in re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')]+)""", text)
        ]
    assert found == []


def test_every_id_stands_once(html: Path) -> None:
    twice = {
        f"{page.relative_to(html)}: {name}"
        for page in all_pages(html)
        for name in read(page).ids
        if name and read(page).ids.count(name) > 1 and not name.startswith(("pst-", "searchbox"))
    }
    assert twice == set()


def test_every_image_has_a_text_instead(html: Path) -> None:
    mute = []
    for page in all_pages(html):
        for image in read(page).images:
            alt = image.get("alt", "").strip()
            if len(alt) < 10 or re.search(r"\.(png|svg|jpe?g)$|^_?images?\b|[0-9a-f]{16}", alt):
                mute.append(f"{page.relative_to(html)}: {image.get('src', '')[:60]} says {alt!r}")
    assert mute == []


def test_every_drawing_has_title_and_description(html: Path) -> None:
    mute = []
    for page in all_pages(html):
        for drawing in read(page).drawings:
            if drawing["attrs"].get("role") != "img":
                continue
            if len(drawing["title"].strip()) < 5 or len(drawing["desc"].strip()) < 20:
                mute.append(f"{page.relative_to(html)}: title {drawing['title']!r}, desc {drawing['desc']!r}")
    assert mute == []


def test_the_chapters_are_drawn_and_some_of_it_moves(html: Path) -> None:
    """Guards the other tests: they would pass on a book that lost its pictures."""
    pages = [(html / f"book/{name}.html").read_text() for name in ("machine", "s01_baseline")]
    assert sum(page.count('<svg class="bk') for page in pages) >= 10
    assert sum(page.count("application/vnd.jupyter.widget-view+json") for page in pages) >= 3


def test_pages_do_not_tell_whose_machine_built_them(html: Path) -> None:
    places = [f"{ROOT}/", f"{Path.home()}/"]
    told = [
        f"{page.relative_to(html)}: {text[max(0, at - 60) : at + 80]!r}"
        for page in all_pages(html)
        for text in [page.read_text(encoding="utf-8")]
        for place in places
        if (at := text.find(place)) >= 0
    ]
    assert told == []


@pytest.mark.parametrize("name", PAGES)
def test_outputs_hold_no_stray_warning_or_error(html: Path, name: str) -> None:
    """A page shows an error, or text on stderr, only where the author asked for it by a tag."""
    kept = ROOT / "_build" / "executed" / f"{name}.json"
    source = ROOT / f"{name}.ipynb"
    if not source.is_file():
        return
    cells = [cell for cell in json.loads(source.read_text())["cells"] if cell["cell_type"] == "code"]
    stray = []
    for number, (cell, outputs) in enumerate(
        zip(cells, json.loads(kept.read_text())["kept"]["outputs"], strict=True), 1
    ):
        tags = cell["metadata"].get("tags", [])
        for output in outputs:
            if output["output_type"] == "error" and "raises-exception" not in tags:
                stray.append(f"cell {number}: {output['ename']}: {output['evalue']}")
            if output.get("name") == "stderr" and "expect-stderr" not in tags:
                stray.append(f"cell {number}: {output['text'][:300]}")
    assert stray == []


def test_the_index_of_figures_holds_what_the_pages_hold(html: Path) -> None:
    on_pages = []
    for name in PAGES:
        text = (html / f"{name}.html").read_text(encoding="utf-8")
        still = re.findall(r'<figure class="bk-fig"[^>]* data-figure="([^"]+)"', text)
        on_pages.append((still, text.count("widget-view+json")))
    index = (html / "book/figure-index.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", index, re.DOTALL)[1:]
    movable = [row for row in rows if "<p>movable</p>" in row or ">movable<" in row]
    assert len(rows) == sum(len(still) + moving for still, moving in on_pages)
    assert len(movable) == sum(moving for _, moving in on_pages)
    drawn = [
        re.findall(r"<code[^>]*>(?:<span[^>]*>)?(\w+)(?:</span>)?</code>", row)[-1]
        for row in rows
        if row not in movable
    ]
    assert sorted(drawn) == sorted(name for still, _ in on_pages for name in still)
    claimed = re.search(r"(\d+) different figures.*?(\d+) of them can be moved", index, re.DOTALL)
    assert claimed and len(movable) >= int(claimed[2]) > 0 and len(rows) >= int(claimed[1]) > int(claimed[2])
