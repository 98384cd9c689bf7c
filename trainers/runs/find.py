"""Finds the runs and metrics that a command line names."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.errors import ConfigurationError, did_you_mean, shown
from core.storage import is_address, parse_address
from trainers.runs.read import Run, is_run

DEPTH = 3  # levels below the named folder
_WHAT: dict[type[OSError], str] = {FileNotFoundError: "doesn't exist", NotADirectoryError: "is no folder"}


def find_runs(folders: Sequence[str]) -> list[Path]:
    """Returns the folders of runs among `folders` (default: `runs`) and below them, each once."""
    found: dict[str, Path] = {}
    for name in folders or ["runs"]:
        if is_address(name):
            raise ConfigurationError(
                f"{shown(name)} is an address, and this command reads folders: `python -m trainers.storage --download "
                f"{name}` copies the run to `{parse_address(name, '--run').folder}`."
            )
        try:
            below = list(_below(Path(name), DEPTH))
        except OSError as error:
            raise _no_folder(name, error, named=bool(folders)) from None
        if not below:
            raise ConfigurationError(
                f"{shown(name)} is no run and contains none: a run's folder has a `run.json` or `metrics.jsonl`. "
                "Give the `--workdir` of a run, or a folder of runs."
            )
        for each in below:
            found.setdefault(os.path.realpath(each), each)
    return list(found.values())


def check_figures(figures: Sequence[str], runs: Sequence[Run]) -> None:
    """Raises an error for a metric that no run has."""
    known = list(dict.fromkeys(name for run in runs for name in run.figures))
    for figure in figures:
        if figure not in known:
            near = did_you_mean(figure, known) or next((f" Did you mean `{x}`?" for x in known if figure in x), "")
            there = f"They have {', '.join(f'`{name}`' for name in known)}" if known else "They have none yet"
            raise ConfigurationError(f"`--figure` is {shown(figure)}, which none of these runs has.{near} {there}.")


def _below(path: Path, depth: int) -> Iterator[Path]:
    """Yields the folders of runs. Raises an `OSError` if `path` isn't a readable folder."""
    if is_run(path):
        yield path
    elif depth:
        for folder in sorted(each for each in path.iterdir() if os.path.isdir(each) and not each.name.startswith(".")):
            with contextlib.suppress(OSError):  # not readable
                yield from _below(folder, depth - 1)


def _no_folder(name: str, error: OSError, *, named: bool) -> ConfigurationError:
    if not named and isinstance(error, FileNotFoundError):
        return ConfigurationError(
            f"there is no folder `runs` in `{Path.cwd()}`: give a run's folder or a folder of runs, as "
            "`python -m trainers.runs FOLDER`."
        )
    path = Path(name)
    siblings: list[str] = []
    with contextlib.suppress(OSError):
        siblings = [str(each) for each in path.parent.iterdir() if os.path.isdir(each)]
    what = _WHAT.get(type(error), f"can't be read ({error.strerror})")
    return ConfigurationError(
        f"{shown(name)} {what}: give a run's folder or a folder of runs.{did_you_mean(name, siblings)}"
    )
