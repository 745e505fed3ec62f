"""Fixtures for the tests of the built book: the pages, built once, and one headless browser that is off the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbook.book.toc import chapters

ROOT = Path(__file__).resolve().parents[2]
PAGES = [chapter.name for chapter in chapters(ROOT)]


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built pages of this checkout, brought up to date."""
    command = [sys.executable, "-m", "attnbook.book", "build", "--root", str(ROOT)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"the book does not build:\n{result.stdout}{result.stderr}", pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser(html: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """A headless Chromium with the network switched off and every request and console line on record."""
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
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-prefers-reduced-motion",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
        "--window-size=1280,1400",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    chrome.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield chrome
    chrome.quit()
