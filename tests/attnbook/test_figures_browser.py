"""Every figure, and positions of every movable one, as a browser sets them: nothing overlaps, sticks out or is too "
"small."""

import math
import os
import shutil

import pytest

from attnbook import figures, widgets
from attnbook.figures import style
from attnbook.figures.traces import stage_run

pytestmark = pytest.mark.book

COLUMN = 688  # the text column of the book at 1280 pixels
FONT = "'DejaVu Sans', Verdana, sans-serif"  # wide faces: what fits here fits everywhere

MEASURE = """
const out = [];
for (const svg of document.querySelectorAll("svg.bk")) {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width, name = svg.getAttribute("aria-label");
  const frame = svg.getBoundingClientRect();
  const words = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim()).map((t) => [t.textContent.trim(),
    t.getBoundingClientRect(), parseFloat(getComputedStyle(t).fontSize) * scale]);
  words.forEach(([text, box, size], i) => {
    if (size < 11) out.push(`${name}: "${text}" is ${size.toFixed(1)} px`);
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom >
    frame.bottom + 1)
      out.push(`${name}: "${text}" sticks out`);
    for (const [other, b] of words.slice(i + 1))
      if (Math.min(box.right, b.right) - Math.max(box.left, b.left) > 1.5 && Math.min(box.bottom, b.bottom) -
      Math.max(box.top, b.top) > 3.5)
        out.push(`${name}: "${text}" and "${other}" overlap`);
  });
}
return [document.querySelectorAll("svg.bk").length, document.querySelectorAll("svg.bk text").length, [...new Set(out)]];
"""


def everything() -> list[str]:
    run = stage_run(1)
    drawn = [
        figures.sm_map(),
        figures.memory_ladder(),
        figures.mma_operands(),
        figures.tile_budget(1),
        figures.tile_budget(2),
        figures.serial_budget(1),
        figures.tile_budget(5),
        *(figures.predicted_and_published(n, guess=100) for n in (1, 2, 3, 4, 5, 7)),
        figures.roofline(1),
        figures.ladder_plot(1),
        figures.dataflow(1),
        figures.smem_map(1),
        figures.tmem_map(1),
        figures.grid_map(1),
        figures.grid_map(1, 2, 4, 4096),
        figures.instruction_mix(run),
        figures.timeline_still(run.trace),
        figures.shared_traffic(1, 2),
        figures.exp_order(1, 2),
        figures.tma_boxes(2, 3),
        figures.box_cost(),
        figures.barrier_graph(4),
        figures.barrier_graph(7),
    ]
    out = [figure.html() for figure in (*drawn, figures.listing(1), figures.diff(1, 2), figures.diff(2, 3))]
    for widget in (
        widgets.tma_box(),
        widgets.tmem_windows(),
        widgets.mbarrier_steps(),
        widgets.descriptor_bits(),
        widgets.canonical_layout(),
        widgets.bank_conflicts(),
        widgets.online_softmax(),
        widgets.tmem_overlay(),
        widgets.canonical_layout(3),
        widgets.handover(4),
        widgets.handover(7),
    ):
        shape = [len(c["options"]) for c in widget.controls]
        w, h = widget.size
        for at in range(0, math.prod(shape), max(1, math.prod(shape) // 9)):
            position, rest = [], at
            for n in reversed(shape):
                position.insert(0, rest % n)
                rest //= n
            label = f"{widget.name} {position}"
            svg = f'<svg class="bk" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-label="{label}">'
            out.append(f'<div class="bk-view">{svg}{widget.svg_at(*position)}</svg></div>')
    return out


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    from selenium import webdriver

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        reason = "no Chromium with chromedriver here; on Debian: apt install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    css = style.figures_css().replace("var(--pst-font-family-base,", f"var(--none, {FONT},")
    body = "".join(everything())
    path = tmp_path_factory.mktemp("gallery") / "gallery.html"
    head = f'<meta charset="utf-8"><style>{css} main{{width:{COLUMN}px}}</style>'
    page = f'<!doctype html><html lang="en" data-theme="light">{head}<main>{body}</main></html>'
    path.write_text(page, encoding="utf-8")
    return path


def test_words_are_apart_inside_and_large_enough(chrome, gallery):
    chrome.set_window_size(1000, 1000)
    chrome.get(gallery.as_uri())
    pictures, words, wrong = chrome.execute_script(MEASURE)
    assert pictures >= 70 and words > 2000
    assert wrong == []


CODE = """
const out = [];
for (const box of document.querySelectorAll(".bk-code")) {
  const name = box.getAttribute("aria-label"), frame = box.getBoundingClientRect();
  if (box.scrollWidth > box.clientWidth + 1) out.push(`${name} scrolls sideways: ${box.scrollWidth}`);
  for (const cell of box.querySelectorAll("td")) {
    if (parseFloat(getComputedStyle(cell).fontSize) < 11) out.push(`${name}: ${cell.textContent} is too small`);
    const edge = cell.getBoundingClientRect(), word = document.createRange();
    const pieces = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (pieces.nextNode())
      for (const m of pieces.currentNode.data.matchAll(/\\S+/g)) {  // blanks may hang over the edge
        word.setStart(pieces.currentNode, m.index);
        word.setEnd(pieces.currentNode, m.index + m[0].length);
        const box = word.getBoundingClientRect();
        if (box.left < edge.left - 1 || box.right > edge.right + 1) out.push(`${name}: "${m[0]}" leaves its cell`);
      }
  }
}
return [document.querySelectorAll(".bk-code td").length, [...new Set(out)]];
"""


def test_code_stays_inside_the_column(chrome, gallery):
    chrome.set_window_size(1000, 1000)
    chrome.get(gallery.as_uri())
    cells, wrong = chrome.execute_script(CODE)
    assert cells > 400
    assert wrong == []
