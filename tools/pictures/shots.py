"""Photographs pages of HTML, where Chromium is found."""

import importlib.util
import shutil
from pathlib import Path

from tools.browser.look import browser

WIDTH, HEIGHT = 1000, 960  # pixels


def shot(page: Path) -> bytes | None:
    """Returns what is seen of a page before it is scrolled, as PNG; None where there is nothing to look with."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return None
    with browser(chromium) as started:
        window = started.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.as_uri())
        return window.screenshot()
