"""The disk full from each change of the workdir on, and files that may not grow; with room again the run goes on.

A checkpoint that finds no room is 5, everything else 8, and the first thing said is what there was no room for.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from core.errors import CheckpointError, NoRoomError
from tests.campaign.lab import Bench, Case, Lab, last_line
from tests.commands import Done

SAYS = re.compile("no space left|no room|file too large|disk", re.IGNORECASE)


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each file that is created or synced, and for some sizes."""
    marks = [mark for mark in lab.marks if mark.startswith(("open ", "mkdir ", "fsync "))]
    for mark in marks[:: 11 if lab.short else 1]:
        yield Case(f"full from {mark}", lambda bench, mark=mark: full(bench, mark))
    for size in (300, 3000) if lab.short else (1, 200, 400, 600, 1000, 2000, 3000, 4000, 5000, 6000):
        yield Case(f"no file beyond {size} bytes", lambda bench, size=size: small_files(bench, size))


def full(bench: Bench, mark: str) -> None:
    """Nothing can be created any more from this mark on."""
    folder = bench.new()
    expected = (CheckpointError if " checkpoints" in mark else NoRoomError).exit_code
    done = bench.run(folder, codes=[expected], at=mark, act="fill_disk")
    _finish(bench, folder, done)


def small_files(bench: Bench, size: int) -> None:
    """No file may grow beyond a size: what C++ writes fails as well."""
    folder = bench.new()
    done = bench.run(folder, codes=[CheckpointError.exit_code, NoRoomError.exit_code], largest_file=size)
    _finish(bench, folder, done)


def _finish(bench: Bench, folder: Path, done: Done) -> None:
    bench.count(f"said {done.returncode}")
    first = next((line for line in done.stderr.splitlines() if line.startswith("error: ")), "")
    if done.returncode and not SAYS.search(first):
        bench.fail(f"the first error doesn't say that there was no room: {first or last_line(done.stderr)}")
    bench.readable(folder)
    bench.run(folder)
    if bench.same(folder):
        bench.tally.count("ended in the same bits, with room", tried=0)
