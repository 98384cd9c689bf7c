"""The site of `docs/`: built from `mkdocs.yml`, served, and each of its pages opened."""

import contextlib
import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.commands import CHECKOUT
from tools.browser.look import views
from tools.browser.progress import progress

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ALIKE = ("index", "core.layers", "trainers")  # of the reference, whose pages all share one template
SOUGHT = "accumulation"  # occurs on several pages
BUILD_SECONDS = 300


def built(folder: Path) -> Path:
    """Builds the site, in strict mode: every link must resolve; returns its folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={folder / 'site'}"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"`mkdocs build --strict` has failed:\n{done.stdout}{done.stderr}")
    return folder / "site"


class _Quietly(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Logs no requests."""


@contextlib.contextmanager
def serving(site: Path) -> Iterator[str]:
    """Serves a folder on a free local port, and yields its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quietly, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def faults(chromium: "Browser", folder: Path, shots: Path | None) -> Iterator[str]:
    """Yields a sentence for each fault of some page in some view."""
    progress("builds the site")
    site = built(folder)
    with serving(site) as address:
        names = sorted(path.relative_to(site) for path in site.rglob("*.html"))
        for name in names:
            if name.parent.name == "reference" and name.stem not in ALIKE:
                continue
            progress(f"opens {name}")
            for view, page, wrong in views(chromium, f"{address}{name}", own=address, within="article"):
                if shots and name.name in ("index.html", "core.layers.html"):
                    page.screenshot(path=shots / f"site, {str(name).replace('/', '-')}, {view}.png")
                if name.name == "index.html" and view == "light, wide":
                    wrong += _search(page)
                yield from (f"the site's `{name}` ({view}) {text}" for text in wrong)


def _search(page: "Page") -> list[str]:
    """Searches for a word as a reader does."""
    page.get_by_placeholder("Search").click()
    page.keyboard.type(SOUGHT)
    try:
        page.locator(".md-search-result__item").nth(2).wait_for(timeout=20_000)
    except Exception as error:  # of the browser's driver
        return [f"finds too little where one seeks `{SOUGHT}`: {error}"]
    return []
