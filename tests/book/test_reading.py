"""A reader's way through the book, from the file system, off the network: page by page, a search, the theme switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selenium.webdriver.common.by import By

from .conftest import PAGES
from .test_browser import open_page, wait_for


def test_index_leads_to_the_cover_and_next_through_every_chapter(browser: Any, html: Path) -> None:
    browser.get((html / "index.html").as_uri())
    wait_for(lambda: browser.current_url.endswith(f"{PAGES[0]}.html"), "the cover")
    for name in PAGES[1:]:
        browser.find_element(By.CSS_SELECTOR, "a.right-next").click()
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
