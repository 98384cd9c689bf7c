"""Screenshots of HTML pages, if Chromium is installed."""

import importlib.util
import shutil
from pathlib import Path

from tools.browser.look import browser

WIDTH, HEIGHT = 1000, 960  # pixels


def shot(page: Path) -> bytes | None:
    """Returns the first screen of a page as PNG; None without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return None
    with browser(chromium) as started:
        window = started.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.as_uri())
        return window.screenshot()
