"""A full disk from each change of the workdir on, small disks, and small files; with free space the run resumes.

A checkpoint without space is exit code 5, everything else 8, and the first error names the file. Which one fails first
is random when a checkpoint is written during training.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from core.errors import CheckpointError, NoRoomError
from tests.commands import Done
from tools.campaign import small_disk
from tools.campaign.lab import Bench, Case, Lab, last_line

SAYS = re.compile("no space left|no room|file too large|disk", re.IGNORECASE)
SAVE, ELSEWHERE = CheckpointError.exit_code, NoRoomError.exit_code
PAGE = 4096  # bytes: the least size of a file on the small disk
LARGE = 1000  # pages, or inodes: more than a run takes
SIZES = (1100, 1300, 2000, 2500, 2700, 2900, 3500, 4500, 5500, 6300)  # bytes; printed output is a file too, and smaller
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each file that is created or synced, and for some sizes."""
    marks = [mark for mark in lab.marks if mark.startswith(("open ", "mkdir ", "fsync "))]
    for mark in marks[30:31] if lab.short else marks:
        yield Case(f"full from {mark}", lambda bench, mark=mark: full(bench, mark), "refused from each change on")
    for size in SIZES[4:5] if lab.short else SIZES:
        yield Case(
            f"no file beyond {size} bytes", lambda bench, size=size: small_files(bench, size), "no file beyond n bytes"
        )
    row = "a file system (tmpfs) of n pages, or n files"
    if not small_disk.is_allowed():
        why = "not tried: this system lets nobody mount one"
        yield Case("no small disk", lambda bench: bench.count(why, tried=0), row)
        return
    for n in SMALL[:: 20 if lab.short else 1]:
        yield Case(f"a disk of {n} pages", lambda bench, n=n: small(bench, pages=n), row)
    for n in () if lab.short else SMALL[1:]:
        yield Case(f"a disk of {n} inodes", lambda bench, n=n: small(bench, inodes=n), row)


def full(bench: Bench, mark: str) -> None:
    """Runs with a disk that accepts no new file from a mark on."""
    folder = bench.new()
    done = bench.run(folder, codes=[SAVE, ELSEWHERE], at=mark, act="fill_disk")
    _check_words(bench, done)
    _finish(bench, folder)


def small_files(bench: Bench, size: int) -> None:
    """Limits the size of files: C++ writes fail as well."""
    folder = bench.new()
    _check_words(bench, bench.run(folder, codes=[SAVE, ELSEWHERE], largest_file=size))
    _finish(bench, folder)


def small(bench: Bench, *, pages: int = LARGE, inodes: int = LARGE) -> None:
    """Runs on a file system without enough space, which then grows."""
    folder = bench.new()
    (folder / "run").mkdir()
    with small_disk.mounted(folder / "run", size=pages * PAGE, inodes=inodes) as disk:
        _check_words(bench, bench.run(folder, codes=[0, SAVE, ELSEWHERE], workdir=disk.path))
        disk.grow()
        _finish(bench, folder, disk.path)


def _check_words(bench: Bench, done: Done) -> None:
    bench.count(f"said {done.returncode}" if done.returncode else "had enough")
    first = next((line for line in done.stderr.splitlines() if line.startswith("error: ")), "")
    if done.returncode and not SAYS.search(first):
        bench.fail(f"the first error doesn't say that there was no room: {first or last_line(done.stderr)}")
    if done.returncode and ("The checkpoint of step" in first) != (done.returncode == SAVE):
        bench.fail(f"ended with {done.returncode}, and said: {first[:200]}")


def _finish(bench: Bench, folder: Path, workdir: Path | None = None) -> None:
    bench.readable(folder, workdir)
    bench.run(folder, workdir=workdir)
    if bench.same(folder, workdir=workdir):
        bench.count("ended in the same bits, with room", tried=0)
