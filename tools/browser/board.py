"""TensorBoard as users start and see it, in the folder of their runs, offline."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.commands import environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

SEES = Path(__file__).with_name("board.js").read_text().rstrip()
SETTINGS = """localStorage.setItem("_tb_global_settings", '{"paginationSize": 1000}')"""  # puts all cards on one page
WIDE, TALL = 1400, 12_000  # pixels: a card outside the screen stays empty
SCALE = 0.5  # of a picture's dots, which all have to be drawn
STILL_SECONDS = 10  # seconds after which a missing element counts as absent
START_SECONDS = 120
END_SECONDS = 20
CHANGE_SECONDS = 120  # seconds after which a page that still changes counts as wrong


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Starts `tensorboard --logdir=FOLDER` on a free local port, and yields its address once everything is loaded."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={folder}", "--host=127.0.0.1", "--port=0"]
    log = folder.parent / f"{folder.name}.tensorboard.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output)
    try:
        yield _loaded(process, log)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _loaded(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Waits for an address, and until the loaded data stops growing."""
    until = time.monotonic() + START_SECONDS
    before: Any = None
    while time.monotonic() < until and process.poll() is None:
        time.sleep(0.5)
        if found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text()):
            with urllib.request.urlopen(f"{found[0]}data/plugin/timeseries/tags", timeout=START_SECONDS) as answer:
                tags = json.load(answer)
            if tags == before and any(tags["scalars"]["runTagInfo"].values()):
                return found[0]
            before = tags
    raise RuntimeError(f"`tensorboard` doesn't come up:\n{log.read_text()}")


@contextlib.contextmanager
def opened(chromium: "Browser", faults: list[str]) -> Iterator["Page"]:
    """Opens an empty page that records requests beyond this machine, and errors."""
    context = chromium.new_context(viewport={"width": WIDE, "height": TALL}, device_scale_factor=SCALE)
    context.add_init_script(SETTINGS)
    page = context.new_page()

    def asked(request: "Request") -> None:
        if not re.match(r"http://127\.0\.0\.1:|data:|blob:|about:", request.url):
            faults.append(f"asks for {request.url}")

    page.on("request", asked)
    page.on("pageerror", lambda error: faults.append(f"has a script that fails: {error}"))
    try:
        yield page
    finally:
        context.close()


def see(page: "Page", address: str, what: str, complain: Callable[[Any], list[str]]) -> list[str]:
    """Opens an address, and waits until the page has no problems or they no longer change; returns the problems."""
    page.goto(address)
    return _patiently(page, what, complain)


def see_all_figures(page: "Page", complain: Callable[[Any], list[str]]) -> list[str]:
    """Makes HParams show every metric, which it doesn't by default, and returns the table's problems."""
    page.evaluate(f"{SEES}.choose()")
    return _patiently(page, "trials", complain)


def _patiently(page: "Page", what: str, complain: Callable[[Any], list[str]]) -> list[str]:
    began = changed = time.monotonic()
    before = None
    while True:
        found = page.evaluate(f"{SEES}.{what}()")
        complaints = complain(found)
        if not complaints or (found == before and time.monotonic() > changed + STILL_SECONDS):
            return complaints
        if time.monotonic() > began + CHANGE_SECONDS:
            return [*complaints, f"TensorBoard still changes its {what} after {CHANGE_SECONDS} s"]
        if found != before:
            changed, before = time.monotonic(), found
        page.wait_for_timeout(300)


def address_of_cards(address: str, run: str) -> str:
    """Returns the address of one run's Time Series."""
    pattern = urllib.parse.quote(f"^{re.escape(run)}/")
    return f"{address}?runFilter={pattern}&tagFilter=.&forceSVG=true#timeseries"


def address_of_texts(address: str) -> str:
    """Returns the address of Text; without metric folders, because it selects nothing if there are more than 40."""
    return f"{address}?texts#text&regexInput=(events|samples)$"


def address_of_trials(address: str) -> str:
    """Returns the address of HParams."""
    return f"{address}?trials#hparams"
