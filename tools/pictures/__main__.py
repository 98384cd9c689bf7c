"""`python -m tools.pictures [PAGE ...] [--out=DIR]`: makes the pictures of pages with the pages' own commands.

A picture directly below a block of commands shows their result. That is the file of that name, an HTML page of that
name in Chromium (`pip install -e '.[browser]'`, and Debian's Chromium), or else the terminal. A terminal with a
progress bar is shown at two thirds of it. All commands of a page run in order in one new folder. Texts in
tools/pictures become diagrams, and `TRAININGS` lists pictures of whole trainings.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.commands import CHECKOUT
from tests.pages import bash, blocks, commands
from tools.pictures.diagram import diagram
from tools.pictures.draw import svg
from tools.pictures.shots import shot
from tools.pictures.terminal import Screen, shown
from tools.pictures.trained import TRAININGS, trained

DOCS = CHECKOUT / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws, and prints each picture; returns 1 if Chromium was needed and absent."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all of docs/ with such pictures")
    parser.add_argument("--out", type=Path, default=DOCS / "pictures", metavar="DIR", help="default: docs/pictures")
    flags = parser.parse_args(arguments)
    flags.out.mkdir(parents=True, exist_ok=True)
    missing = False
    for page in flags.pages or sorted(DOCS.glob("*.md")):
        for name, drawn in pictures(page.read_text()):
            if drawn is None:
                print(f"{page.name}: {name} needs Chromium and Python's `playwright`, and is left as it is", flush=True)
                missing = True
            else:
                (flags.out / name).write_bytes(drawn)
                print(f"{page.name}: {name}, {len(drawn) / 1000:.0f} kB", flush=True)
    for source in [] if flags.pages else sorted(Path(__file__).parent.glob("*.txt")):
        (flags.out / source.with_suffix(".svg").name).write_text(diagram(source.read_text()))
        print(f"{source.name}: {source.stem}.svg", flush=True)
    return int(missing)


def pictures(page: str) -> Iterator[tuple[str, bytes | None]]:
    """Yields each picture of a page with its name: of trainings, and of the page's commands, which it runs."""
    for name, training in TRAININGS.items():
        if f"(pictures/{name})" in page:
            with tempfile.TemporaryDirectory() as scratch:
                yield name, trained(training, Path(scratch))
    if not any(block.picture for block in blocks(page)):
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for block in commands(page, folder):
            screen = shown(bash(block.text), block.text, folder)
            if block.picture:
                yield block.picture, picture(block.picture, folder, screen)


def picture(name: str, folder: Path, screen: Screen) -> bytes | None:
    """Returns the picture of this name, from the folder and the terminal of the commands."""
    page = (folder / name).with_suffix(".html")
    if page.exists():
        return shot(page)
    if file := next(folder.rglob(name), None):
        return file.read_bytes()
    return svg(screen.ansi, Path(name).stem).encode()


if __name__ == "__main__":
    sys.exit(main())
