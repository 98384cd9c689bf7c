"""`python -m tools.browser [--shots=DIR]`: checks reports, TensorBoard and docs pages in Chromium.

It needs `pip install -e '.[browser,docs]'` and Debian's Chromium. It opens the report and the site of `docs/` in light
and dark mode, on a wide and a narrow screen. A page may request only itself. Each text must have enough contrast (WCAG
2: 4.5, lines 3), be complete, and overlap no other text. TensorBoard opens offline on a run of each configuration that
trains here. Report and TensorBoard have to show the runs' metrics. Pages and events with planted faults come first: the
checks must find each fault.
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
