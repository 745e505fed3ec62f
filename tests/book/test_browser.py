"""The built pages in a real browser, from the file system and with the network off: what a reader sees and can move."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from .conftest import PAGES

pytestmark = pytest.mark.book

MEASURE = (Path(__file__).parent / "measure.js").read_text()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 10) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return value


def set_theme(chrome: Any, theme: str) -> None:
    """What the reader's system prefers; the pages follow it."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    shown = "return document.documentElement.dataset.theme"
    wait_for(lambda: chrome.execute_script(shown) == theme, f"the {theme} theme")


def open_page(chrome: Any, path: Path) -> None:
    """Open a page and wait until its mathematics and its widgets stand."""
    chrome.get(path.as_uri())
    settled = """
        const widgets = !document.querySelector('script[type="application/vnd.jupyter.widget-state+json"]')
            || (document.documentElement.dataset.widgets === "ready"
                && [...document.querySelectorAll(".bk-widget")].every((w) => w.dataset.ready === "1"));
        const maths = !document.querySelector(".math:not(:has(mjx-container))");
        return document.readyState === "complete" && widgets && maths"""
    wait_for(lambda: chrome.execute_script(settled), f"{path.name} to settle", 30)
    chrome.execute_script(MEASURE)


def requests_elsewhere(chrome: Any) -> list[str]:
    """URLs that the browser asked another host for since the last call."""
    urls = []
    for entry in chrome.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:", "about:", "chrome:"))]


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, browser: Any, html: Path) -> Iterator[Any]:
    """The browser with one page open: each page is opened once, all tests that take it look at it in turn."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, html / f"{request.param}.html")
    set_theme(browser, "light")
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_in_drawings_can_be_read(page: Any, theme: str) -> None:
    set_theme(page, theme)
    result = page.execute_script("return measure.faintText(4.5)")
    assert result["faint"] == []
    assert bool(result["seen"]) == bool(page.find_elements(By.CSS_SELECTOR, ".bk-fig, .bk-widget, svg.bk text"))


def test_every_drawing_has_a_name(page: Any) -> None:
    """Those that a widget draws are not in the file; each says what it is, with a title or a label."""
    nameless = """
        const named = (e) => e.ariaLabel || e.querySelector(":scope > title, :scope > legend")?.textContent;
        const drawn = document.querySelectorAll("svg[role=img]:not([aria-hidden=true]), canvas, [role=group]");
        return [...drawn].filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 200))"""
    assert page.execute_script(nameless) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_the_screen(page: Any, width: int) -> None:
    metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait_for(lambda: page.execute_script("return innerWidth") == width, f"a window of {width} px")
    assert page.execute_script("return measure.wide()") == []
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_mathematics_is_set(page: Any) -> None:
    """No formula fails, and none has a command that MathJax does not know (it prints those in red)."""
    wrong = "mjx-merror, mjx-container [style*='color: red']"
    assert [e.get_attribute("data-mjx-error") or e.text for e in page.find_elements(By.CSS_SELECTOR, wrong)] == []


def test_every_widget_is_drawn(page: Any) -> None:
    views = len(page.find_elements(By.CSS_SELECTOR, 'script[type="application/vnd.jupyter.widget-view+json"]'))
    assert len(page.find_elements(By.CSS_SELECTOR, ".bk-widget")) == views
    assert [note.text for note in page.find_elements(By.CSS_SELECTOR, ".bk-widget-note")] == []


def test_every_widget_moves_by_mouse_and_by_keyboard(page: Any) -> None:
    for widget in page.find_elements(By.CSS_SELECTOR, ".bk-widget"):
        drive = Drive(page, widget)
        moved = drive.ranges() | drive.buttons() | drive.choices() | drive.parts() | drive.view()
        assert moved >= {"mouse", "keyboard"}, f"{drive.name} moves by {moved or 'nothing'} only"


def test_console_and_network_stay_silent(page: Any) -> None:
    """Comes after the other tests of this page: whatever they did must not have caused an error or a request."""
    errors = [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    assert requests_elsewhere(page) == []


def test_index_leads_to_the_cover_and_next_through_every_chapter(browser: Any, html: Path) -> None:
    browser.get((html / "index.html").as_uri())
    wait_for(lambda: browser.current_url.endswith(f"{PAGES[0]}.html"), "the cover")
    for name in PAGES[1:]:
        wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "a.right-next"), "the link to the next page")[0].click()
        wait_for(lambda name=name: browser.current_url.split("#")[0].endswith(f"{name}.html"), name)


def test_search_finds_a_word_of_the_book(browser: Any, html: Path) -> None:
    browser.get((html / "search.html").as_uri() + "?q=attention")
    hits = wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a"), "search results")
    hits[0].click()
    wait_for(lambda: "/book/" in browser.current_url, "the page that was found")


def test_theme_switch_goes_through_light_and_dark(browser: Any, html: Path) -> None:
    open_page(browser, html / f"{PAGES[0]}.html")
    seen = set()
    for _ in range(3):
        browser.execute_script("document.querySelector('.theme-switch-button').click()")
        seen.add(browser.execute_script("return document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}
    browser.execute_script("localStorage.clear()")


class Drive:
    """Moves every control of one widget and sees that its `data-state` follows. Methods return the ways that worked."""

    def __init__(self, chrome: Any, widget: WebElement) -> None:
        self.chrome = chrome
        self.widget = widget
        self.name = widget.get_attribute("data-widget")

    def state(self) -> str:
        return self.widget.get_attribute("data-state")

    def all(self, selector: str) -> list[WebElement]:
        found = self.widget.find_elements(By.CSS_SELECTOR, selector)
        return [element for element in found if element.is_displayed() and element.is_enabled()]

    def moves(self, what: str, act: Callable[[], Any]) -> None:
        before = self.state()
        assert before, f"{self.name} has no data-state"
        act()
        wait_for(lambda: self.state() != before, f"{self.name} to follow {what} (state {before})", 3)

    def to(self, element: WebElement, x: float = 0.5) -> ActionChains:
        """The pointer goes to a place in the element, `x` of its width from the left."""
        script = "arguments[0].scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'})"
        self.chrome.execute_script(script, element)
        offset = int((x - 0.5) * element.size["width"])
        return ActionChains(self.chrome, duration=0).move_to_element_with_offset(element, offset, 0)

    def ranges(self) -> set[str]:
        done = set()
        for control in self.all("input[type=range]"):
            value, low, high = (float(control.get_attribute(name)) for name in ("value", "min", "max"))
            if low == high:
                continue
            self.moves(
                "an arrow key", lambda c=control, v=value, h=high: c.send_keys(Keys.LEFT if v >= h else Keys.RIGHT)
            )
            at_end = float(control.get_attribute("value")) > (low + high) / 2
            self.moves(
                "a click on its track", lambda c=control, e=at_end: self.to(c, 0.03 if e else 0.97).click().perform()
            )
            assert control.get_attribute("aria-label"), f"{self.name}: a slider without a name"
            done |= {"keyboard", "mouse"}
        return done

    def buttons(self) -> set[str]:
        done = set()
        for button in self.all(".bk-next, .bk-prev"):
            self.moves("a click on a step button", lambda b=button: self.to(b).click().perform())
            self.moves("Enter on a step button", lambda b=button: b.send_keys(Keys.ENTER))
            done |= {"mouse", "keyboard"}
        for button in self.all(".bk-play"):
            self.moves("Play", lambda b=button: self.to(b).click().perform())
            assert button.get_attribute("aria-pressed") == "true"
            self.to(button).click().perform()
            wait_for(lambda b=button: b.get_attribute("aria-pressed") == "false", f"{self.name} to pause")
            done.add("mouse")
        return done

    def choices(self) -> set[str]:
        done = set()
        for radio in self.all("input[type=radio]"):
            if not radio.is_selected():
                self.moves("a choice", lambda r=radio: self.to(r).click().perform())
                done.add("mouse")
        for radio in self.all("input[type=radio]"):
            if radio.is_selected() and len(self.all(f"input[type=radio][name='{radio.get_attribute('name')}']")) > 1:
                self.moves("an arrow key in a choice", lambda r=radio: r.send_keys(Keys.DOWN))
                done.add("keyboard")
        for control in self.all("select"):
            select = Select(control)
            now = select.options.index(select.first_selected_option)
            if len(select.options) > 1:
                self.moves("a selection", lambda s=select, n=now: s.select_by_index((n + 1) % len(s.options)))
                key = Keys.UP if (now + 1) % len(select.options) else Keys.DOWN
                self.moves("an arrow key in a selection", lambda c=control, k=key: c.send_keys(k))
                done |= {"mouse", "keyboard"}
        return done

    def parts(self) -> set[str]:
        """Parts of the drawing that are controls themselves: at least one of them must move something."""
        names = "return [...arguments[0].querySelectorAll('.bk-view [data-set]')].map((e) => e.dataset.set)"
        named = list(dict.fromkeys(self.chrome.execute_script(names, self.widget)))
        if not named:
            return set()
        seen = {self.state()}
        for name in named[:: max(1, len(named) // 4)]:
            self.click_part(name)
            time.sleep(0.05)
            seen.add(self.state())
        assert len(seen) > 1, f"{self.name}: none of its parts moves anything"
        return {"mouse"}

    def click_part(self, name: str) -> None:
        """A real click in the middle of a part of the drawing, which is made anew after each move: no handle lasts."""
        middle = """
            const parts = [...arguments[0].querySelectorAll(".bk-view [data-set]")];
            const part = parts.find((e) => e.dataset.set === arguments[1]);
            if (!part) return null;
            const shape = part.matches("g") ? part.querySelector("rect, circle, path, text") ?? part : part;
            shape.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
            const box = shape.getBoundingClientRect();
            return { x: box.left + box.width / 2, y: box.top + box.height / 2 };"""
        place = self.chrome.execute_script(middle, self.widget, name)
        if place is None:
            return
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "button": "left", "clickCount": 1, **place}
            self.chrome.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def view(self) -> set[str]:
        """A timeline takes keys in its own view."""
        done = set()
        for view in self.all(".bk-view[tabindex='0']") if "bk-timeline" in self.widget.get_attribute("class") else []:
            self.chrome.execute_script("arguments[0].focus()", view)
            self.moves("an arrow key in its view", lambda: ActionChains(self.chrome).send_keys(Keys.RIGHT).perform())
            self.moves("+ in its view", lambda: ActionChains(self.chrome).send_keys("+").perform())
            done.add("keyboard")
        return done
