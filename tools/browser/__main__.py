"""`python -m tools.browser [--shots=DIR]`: what do readers see?

It needs `pip install -e '.[browser,docs]'` and Debian's Chromium, in which it opens what the commands write: the report
in a light and a dark system, on a wide and on a narrow screen, where it may ask for nothing but itself, all texts must
stand out from their ground (WCAG 2: 4.5, lines 3), be whole, and lie on no others; likewise the pages of `docs/`, built
as a site; and TensorBoard, without the internet, before a run of each configuration that trains here. Report and
TensorBoard have to show the figures of the runs. Pages and events with planted faults come first: each fault must be
found.
"""

import argparse
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.browser import boards, planted, reports, shipped, sites, spoiled
from tools.browser.look import browser


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is wrong; returns 1 if anything is, and 2 where nothing can be looked at."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shots", type=Path, metavar="DIR", help="a folder for pictures of what was looked at")
    flags = parser.parse_args(arguments)
    chromium = shutil.which("chromium")
    if chromium is None or not all(map(importlib.util.find_spec, ("playwright", "mkdocs"))):
        print("error: `chromium` and Python's `playwright` and `mkdocs` are needed: `apt install chromium`, and "
              "`pip install -e '.[browser,docs]'`.", file=sys.stderr)  # fmt: skip
        return 2
    if flags.shots:
        flags.shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, browser(chromium) as started:
        folder = Path(scratch)
        for name in shipped.names():
            shipped.train(name, folder / "shipped")
        print(f"{len(shipped.names())} configurations trained", flush=True)
        missed = [*planted.unseen(started, folder), *spoiled.unseen(started, folder / "shipped", folder / "spoiled")]
        planted_faults = len(planted.FAULTS) + sum(map(len, spoiled.FAULTS.values()))
        print(f"{planted_faults} planted faults: {len(missed) or 'none'} missed", flush=True)
        wrong = [f"of the planted faults: {text}" for text in missed]
        for what, looked in {
            "TensorBoard": boards.faults(started, folder / "shipped", flags.shots),
            "the report": reports.faults(started, folder, folder / "shipped", flags.shots),
            "the site": sites.faults(started, folder, flags.shots),
        }.items():
            faults = list(looked)
            print(f"{what}: {len(faults) or 'nothing'} wrong", flush=True)
            wrong += faults
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
