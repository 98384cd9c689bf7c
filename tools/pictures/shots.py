"""Screenshots of HTML pages, if Chromium is installed."""

import importlib.util
import shutil
from pathlib import Path

from tools.browser.look import browser

WIDTH, HEIGHT = 1000, 960  # pixels


def chromium() -> str | None:
    """Returns Chromium's path; None if it or Python's `playwright` isn't installed."""
    return shutil.which("chromium") if importlib.util.find_spec("playwright") else None


def shot(page: Path) -> bytes | None:
    """Returns the first screen of a page as PNG; None without Chromium."""
    path = chromium()
    if path is None:
        return None
    with browser(path) as started:
        window = started.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.as_uri())
        return window.screenshot()
