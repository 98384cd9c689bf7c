"""SIGKILL before each change of the workdir, within saves, and at random moments; several in a row for one run."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.campaign.lab import Bench, Case, Lab

TOGETHER = 5  # marks that one run is killed at, one after the other


def cases(lab: Lab) -> Iterator[Case]:
    """Yields the cases; a mark is a moment of the undisturbed run."""
    chosen = lab.marks[:: 9 if lab.short else 1]
    count = -(-len(chosen) // TOGETHER)
    for i in range(count):  # of moments far from each other, so that a run killed at one still comes to the next
        yield Case(f"before marks {i + 1} of {count}", lambda bench, at=chosen[i::count]: at_marks(bench, at))
    for i in range(2 if lab.short else 12):
        yield Case(f"within saves {i + 1}", within_saves)
    for i in range(2 if lab.short else 30):
        yield Case(f"at random {i + 1}", at_random)


def at_marks(bench: Bench, marks: Sequence[str]) -> None:
    """Kills at each mark; what a run that goes on doesn't come to again waits for a new one."""
    left = list(marks)
    while left:
        folder, before = bench.new(), len(left)
        while left and _killed(bench, folder, at=left[0], act="kill"):
            left.pop(0)
            bench.count("killed before a change")
        _finish(bench, folder)
        if left and len(left) == before:
            bench.count(f"never came to `{left.pop(0)}`")


def within_saves(bench: Bench) -> None:
    """Kills some time after a save began, where TensorFlow's C++ writes."""
    folder = bench.new()
    for number in (1, 2, 1, 1):
        seconds = bench.chance.uniform(0.0, 0.03)
        if _killed(bench, folder, at=f"section save #{number}", act="kill_after", values=[seconds]):
            bench.count("killed within a save")
    _finish(bench, folder)


def at_random(bench: Bench) -> None:
    """Kills at any moment, set-up and tracing included."""
    folder = bench.new()
    for _ in range(6):
        try:
            bench.lab.run(folder, limit=bench.chance.uniform(0.0, bench.lab.seconds))
        except subprocess.TimeoutExpired:
            bench.count("killed at random")
            bench.readable(folder)
    _finish(bench, folder)


def _killed(bench: Bench, folder: Path, **mark: object) -> bool:
    codes = [0, -signal.SIGKILL, -signal.SIGALRM]
    code = bench.run(folder, codes=codes, **mark).returncode
    bench.readable(folder)
    return code in codes[1:]


def _finish(bench: Bench, folder: Path) -> None:
    bench.run(folder)
    if bench.same(folder):
        bench.tally.count("ended in the same bits", tried=0)
