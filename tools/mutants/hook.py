"""Line coverage of every Python process of a test, subprocesses and forks included.

Environments of `tools.mutants.trees` import a copy of this file when the interpreter starts. It does nothing unless
`MUTANT_CONTEXTS` names a folder. Each process then writes a data file there, and reads the test's name from `now`.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER, TREE = "MUTANT_CONTEXTS", "MUTANT_TREE"
PACKAGES = ("core", "models", "trainers")
_running: list[Any] = []


def begin(test: str | None) -> Any:
    """Starts coverage in this process; lines count for `test`, or as `switch_context` of the result says."""
    import coverage

    folder, tree = Path(os.environ[FOLDER]), os.environ[TREE]
    name = f"data.{os.getpid()}.{random.SystemRandom().getrandbits(32)}"
    made = coverage.Coverage(
        data_file=str(folder / name),
        auto_data=False,
        config_file=False,
        include=[f"{tree}/{package}/*" for package in PACKAGES],
        context=test,
        messages=False,
    )
    made.start()
    _running[:] = [made]
    return made


def end() -> None:
    """Stops coverage and writes its data."""
    while _running:
        made = _running.pop()
        made.stop()
        made.save()


def follow() -> None:
    """Covers this process from now to its end, and its forks."""
    folder = os.environ.get(FOLDER)
    if not folder or _running:
        return
    import atexit

    begin(_now(folder))
    atexit.register(end)
    watch_forks()


def watch_forks() -> None:
    """Covers forks of this process, and saves the data of those that end with `os._exit`."""
    os.register_at_fork(after_in_child=_again)
    os._exit = _saving(os._exit)


def _again() -> None:
    if _running:
        _running.pop().stop()  # the parent's, which has a separate file
        begin(_now(os.environ[FOLDER]))


def _saving(leave: Callable[[int], Any]) -> Any:
    def saved(code: int) -> None:
        try:
            end()
        finally:
            leave(code)

    return saved


def _now(folder: str) -> str:
    try:
        return (Path(folder) / "now").read_text()
    except OSError:
        return ""


if __name__ == "tapeloop_mutant_hook":
    follow()
