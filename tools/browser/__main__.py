"""`python -m tools.browser [--shots=DIR]`: checks reports, TensorBoard and docs pages in Chromium.

It needs `pip install -e '.[browser,docs]'` and Debian's Chromium. It opens the report and the site of `docs/` in light
and dark mode, on a wide and a narrow screen. A page may request only itself. Each text must have enough contrast (WCAG
2: 4.5, lines 3), be complete, and overlap no other text. TensorBoard opens offline on a run of each configuration that
trains here. Report and TensorBoard have to show the runs' metrics. Pages and events with planted faults come first: the
checks must find each fault. A line per step says how far it is; a step may take 10 minutes.
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
from tools.browser.progress import finish, progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the problems; returns 1 if there are any, and 2 if no page can be opened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shots", type=Path, metavar="DIR", help="a folder for screenshots")
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
            progress(f"trains {name}")
            shipped.train(name, folder / "shipped")
        progress(f"{len(shipped.names())} configurations trained")
        missed = [*planted.unseen(started, folder), *spoiled.unseen(started, folder / "shipped", folder / "spoiled")]
        planted_faults = len(planted.FAULTS) + sum(map(len, spoiled.FAULTS.values()))
        progress(f"{planted_faults} planted faults: {len(missed) or 'none'} missed")
        wrong = [f"of the planted faults: {text}" for text in missed]
        for what, looked in {
            "TensorBoard": boards.faults(started, folder / "shipped", flags.shots),
            "the report": reports.faults(started, folder, folder / "shipped", flags.shots),
            "the site": sites.faults(started, folder, flags.shots),
        }.items():
            faults = list(looked)
            progress(f"{what}: {len(faults) or 'nothing'} wrong")
            wrong += faults
    finish()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
