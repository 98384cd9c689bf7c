"""SIGKILL before each change of the workdir, within each section, and at random; several in a row per run."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.campaign import subject
from tools.campaign.lab import Bench, Case, Lab

TOGETHER = 5  # kill marks per run, one after the other
WITHIN = {  # kills within a section per run, and the seconds that the section takes, or the first half of it
    "set-up": (1, 0.3),
    "tracing": (3, 0.3),
    "steps": (8, 0.01),
    "evaluation": (2, 0.1),
    "hook": (4, 0.01),
    "save": (4, 0.03),
    "copy": (4, 0.003),
    "write": (4, 0.02),
    "seal": (4, 0.005),
    "move": (4, 0.002),
}
THE_END = "each ends in the same bits"


def cases(lab: Lab) -> Iterator[Case]:
    """Yields the cases; a mark is a moment of the undisturbed run."""
    chosen = lab.marks[40::50] if lab.short else lab.marks
    count = -(-len(chosen) // TOGETHER)
    for i in range(count):  # of distant moments, so that a run killed at one still reaches the next
        yield Case(f"before marks {i + 1} of {count}", lambda bench, at=chosen[i::count]: at_marks(bench, at), THE_END)
    for section in ["write"] if lab.short else WITHIN:
        for i in range(1 if lab.short else 6):
            yield Case(f"within {section} {i + 1}", lambda bench, section=section: within(bench, section), THE_END)
    for i in range(1 if lab.short else 20):
        yield Case(f"at random {i + 1}", at_random, THE_END)


def at_marks(bench: Bench, marks: Sequence[str]) -> None:
    """Kills at each mark; marks that a resumed run doesn't reach again need a new run."""
    left = list(marks)
    while left:
        folder, before = bench.new(), len(left)
        while left and _killed(bench, folder, at=left[0], act="kill"):
            mark = left.pop(0)
            passed = bench.lab.marks[: bench.lab.marks.index(mark) + 1]
            _count(bench, "save" if " checkpoints" in mark else subject.section(passed), "before a change")
        _finish(bench, folder)
        if left and len(left) == before:
            bench.fail(f"never came to `{left.pop(0)}`")


def within(bench: Bench, section: str) -> None:
    """Kills some time after a section began, while TensorFlow's C++ computes and writes."""
    folder = bench.new()
    times, seconds = WITHIN[section]
    for _ in range(1 if bench.lab.short else 4):
        at = f"section {section} #{bench.chance.randint(1, times)}"
        if _killed(bench, folder, at=at, act="kill_after", values=[bench.chance.uniform(0.0, seconds)]):
            _count(bench, _section_of_death(folder), "at random")
    _finish(bench, folder)


def at_random(bench: Bench) -> None:
    """Kills at any moment, even before the first section."""
    folder = bench.new()
    for _ in range(1 if bench.lab.short else 6):
        journal = _new_journal(folder)
        try:
            bench.lab.run(folder, limit=bench.chance.uniform(0.0, bench.lab.seconds), journal=journal)
        except subprocess.TimeoutExpired:
            _count(bench, _section_of_death(folder), "at random")
            bench.readable(folder)
    _finish(bench, folder)


def _killed(bench: Bench, folder: Path, **mark: object) -> bool:
    codes = [0, -signal.SIGKILL, -signal.SIGALRM]
    code = bench.run(folder, codes=codes, journal=_new_journal(folder), **mark).returncode
    bench.readable(folder)
    return code in codes[1:]


def _new_journal(folder: Path) -> str:
    journal = folder / "journal.txt"
    journal.unlink(missing_ok=True)
    return str(journal)


def _section_of_death(folder: Path) -> str:
    journal = folder / "journal.txt"
    return subject.section(journal.read_text().splitlines() if journal.exists() else [])


def _count(bench: Bench, section: str, when: str) -> None:
    bench.count(when, row=f"mid-{section}" if section in subject.SECTIONS else section)


def _finish(bench: Bench, folder: Path) -> None:
    bench.run(folder)
    if bench.same(folder):
        bench.count("runs, killed time and again", tried=0)
