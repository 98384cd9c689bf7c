"""Opens a page in light and dark mode, on a wide and a narrow screen."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

LOOK = Path(__file__).with_name("look.js").read_text()
SCHEMES = ("light", "dark")
SCREENS = {"wide": (1400, 900), "narrow": (360, 740)}


@contextlib.contextmanager
def browser(executable: str) -> Iterator["Browser"]:
    """Starts Chromium, and ends it afterwards."""
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to run its sandbox as root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=sandbox)
        try:
            yield started
        finally:
            started.close()


def views(
    chromium: "Browser", address: str, *, own: str | None = None, within: str = "body"
) -> Iterator[tuple[str, "Page", list[str]]]:
    """Opens an address in each mode and on each screen; yields the view's name, the page, and its problems.

    The page may request addresses that begin with `own`, by default itself. `within` selects what is checked.
    """
    for scheme, (screen, (width, height)) in itertools.product(SCHEMES, SCREENS.items()):
        context = chromium.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": height}
        )
        page, faults = context.new_page(), list[str]()
        _note(page, own or address, faults)
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        faults += page.evaluate(LOOK, within)
        yield f"{scheme}, {screen}", page, faults
        context.close()


def _note(page: "Page", own: str, faults: list[str]) -> None:
    """Records requests to foreign addresses, and the browser's errors."""

    def asked(request: "Request") -> None:
        if not request.url.startswith((own, "data:", "blob:")):
            faults.append(f"asks for {request.url}")

    page.on("request", asked)
    page.on("console", lambda message: faults.append(f"makes the browser say: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"has a script that fails: {error}"))
