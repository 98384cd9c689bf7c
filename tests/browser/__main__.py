"""`python -m tests.browser [--shots=DIR]`: what do readers see? (`pip install -e '.[browser]'`, and Debian's Chromium)

Opens what the commands write in Chromium, in a light and a dark system, on a wide and on a narrow screen. A page may
ask for nothing but itself; all texts must stand out from their ground (WCAG 2: 4.5, lines 3), be whole, and lie on no
others; figures must be those of the runs. Pages with planted faults come first: each fault must be found.
"""

import argparse
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser import planted, reports
from tests.browser.look import browser


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is wrong; returns 1 if anything is, and 2 where nothing can be looked at."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shots", type=Path, metavar="DIR", help="a folder for pictures of what was looked at")
    flags = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("error: `chromium` and Python's `playwright` are needed: `apt install chromium`, and "
              "`pip install -e '.[browser]'`.", file=sys.stderr)  # fmt: skip
        return 2
    if flags.shots:
        flags.shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser(chromium) as started:
        folder = Path(scratch)
        found = [f"of the planted faults: {text}" for text in planted.unseen(started, folder)]
        print(f"{len(planted.FAULTS)} planted faults: {len(found) or 'none'} missed", flush=True)
        wrong = list(reports.faults(started, folder, flags.shots))
        print(f"the report: {len(wrong) or 'nothing'} wrong", flush=True)
    print(*found, *wrong, sep="\n", end="\n" if found or wrong else "")
    return int(bool(found or wrong))


if __name__ == "__main__":
    sys.exit(main())
