"""Runs a pytest command, and reruns the tests that failed, each alone in a fresh process.

    python -m tools.gate run FOLDER -- pytest -m long tests/trainers
    python -m tools.gate report FOLDER

A test that passes alone is unstable. `report` lists unstable tests, and fails if there are more than two: each needs a
fix, but rejects no unrelated change. FOLDER collects the notes of all commands of a gate; `report` also lists the
slowest tests, and the plain ones that are too slow.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.slow import SLOW

MOST_UNSTABLE = 2
MOST_AGAIN = 10  # failed tests: if there are more, none counts as unstable
SLOWEST = 30
PLAIN_SECONDS = 3.0  # processor seconds on the reference machine: `report` names slower tests,
FAR_BEYOND = 4  # and fails at this multiple of it
REFERENCE_SECONDS = 0.55  # `loop_seconds` on the reference machine: two cores of an AMD EPYC without AVX-512
TESTS_FAILED = 1  # pytest's exit code

Note = Mapping[str, Any]


def run_command(command: Sequence[str], notes: Path) -> int:
    """Runs a command whose pytest writes to `notes`; returns its exit code."""
    return subprocess.run(command, env={**os.environ, "TEST_NOTES": str(notes)}, check=False).returncode


def run_alone(test: str) -> bool:
    """Runs one test in a fresh process; returns whether it passes."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "long or not long", test]
    in_time = {key: x for key, x in os.environ.items() if key != "TEST_DEADLINE"}
    return subprocess.run(command, env=in_time, check=False).returncode == 0


def run(
    folder: Path,
    command: Sequence[str],
    *,
    run_command: Callable[[Sequence[str], Path], int] = run_command,
    run_alone: Callable[[str], bool] = run_alone,
) -> int:
    """Runs a command and reruns its failed tests; returns the exit code of the section."""
    folder.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(".jsonl", "notes-", folder)
    os.close(number)
    code = run_command(command, Path(name))
    failed = sorted({note["test"] for note in _read([Path(name)]) if not note["passed"]})
    if code != TESTS_FAILED or not failed or len(failed) > MOST_AGAIN:
        return code
    for test in failed:
        print(f"\n== once more, alone: {test}", flush=True)
        if not run_alone(test):
            return code
        with (folder / "unstable").open("a") as file:
            print(test, file=file)
    return 0


def loop_seconds() -> float:
    """Returns the processor seconds of a Python loop, as a measure of this machine's speed."""

    def once() -> float:
        began = time.process_time()
        sum(i * i for i in range(10_000_000))
        return time.process_time() - began

    return min(once() for _ in range(3))


def report(folder: Path, *, loop_seconds: Callable[[], float] = loop_seconds) -> int:
    """Prints the slowest tests, those that are too slow, and the unstable ones; returns the gate's exit code."""
    notes = [note for note in _read(folder.glob("notes-*.jsonl")) if "seconds" in note]
    print(f"\n{len(notes):,} tests; the slowest {SLOWEST}, by processor seconds:")
    for note in sorted(notes, key=lambda note: -note["processor_seconds"])[:SLOWEST]:
        print(f"  {note['processor_seconds']:7.1f} s ({note['seconds']:.1f} s of time)  {note['test']}")
    late = [note["test"] for note in notes if not note.get("reached", True)]
    if late:
        print(f"{len(late):,} long tests were not reached in the gate's time; run them before a release:")
        print(*(f"  {test}" for test in late), sep="\n")
    for title, some in (("plain", False), ("long", True)):
        of_kind = [note for note in notes if note["long"] is some]
        if of_kind:
            print(
                f"{title}: {len(of_kind):,} tests, {sum(note['processor_seconds'] for note in of_kind):,.0f} processor "
                f"seconds; a process grows to {max(note['megabytes'] for note in of_kind):,} MB"
            )
    allowed = PLAIN_SECONDS * max(1.0, loop_seconds() / REFERENCE_SECONDS)
    slow = {note["test"]: note["processor_seconds"] for note in notes if not note["long"]}
    slow = {test: x for test, x in slow.items() if x > allowed and test.partition("[")[0] not in SLOW}
    for test, seconds in slow.items():
        print(f"too slow for a plain test: {seconds:.1f} processor seconds, at most {allowed:.1f} are allowed: {test}")
    unstable = (folder / "unstable").read_text().splitlines() if (folder / "unstable").exists() else []
    for test in unstable:
        print(f"unstable (failed, then passed alone; fix its cause): {test}")
    if len(unstable) > MOST_UNSTABLE:
        print(f"{len(unstable)} tests are unstable, at most {MOST_UNSTABLE} are allowed")
    return int(len(unstable) > MOST_UNSTABLE or any(x > FAR_BEYOND * allowed for x in slow.values()))


def _read(files: Iterable[Path]) -> list[Note]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gate", description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["run", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.task == "report":
        return report(arguments.folder)
    return run(arguments.folder, [x for x in arguments.command if x != "--"])


if __name__ == "__main__":
    sys.exit(main())
