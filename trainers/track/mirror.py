"""Copies a run's folder to an experiment tracker: whatever the tracker lacks, each step once."""

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from core.disk import write_whole
from core.errors import ConfigurationError, NoRoomError, as_said, did_you_mean, shown
from trainers.runs.read import Run, read_run

PROJECT = "tapeloop"
TRACKERS = ("mlflow", "trackio", "wandb")  # each is a file of this folder, and an extra in `pyproject.toml`
LOCAL = ("trackio", "wandb")  # they write files on this machine, and have no address
COPIED = ("config/operative.gin", "config/given.gin", "run.json", "result.json")  # and all of `samples/`
IMAGES = (".gif", ".jpeg", ".jpg", ".png")
MOST_TOLD = 600  # letters of a tracker's error, which may quote a whole page


class Tracker(Protocol):
    """An experiment tracker, called through its own package."""

    def open(self, path: Path, run_id: str | None) -> str:
        """Begins a run for the folder `path`, or resumes the run `run_id`. Returns the run's id."""

    def steps(self, names: Iterable[str]) -> Mapping[str, set[int]]:
        """Returns the steps that the tracker has of each metric."""

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Logs metrics by step, in ascending order."""

    def describe(self, run: Run, files: Mapping[str, Path]) -> None:
        """Uploads `files` by name, and shows configuration and state of the run."""

    def close(self) -> None:
        """Completes what was written. No call follows."""


class Mirror:
    """Copies the folder of one run to the tracker `to`.

    The file `trackers.json` in the folder keeps the id of the run, so that it continues when it resumes. Another `url`
    or `project` than before begins a new run there. `None` stands for the value before, or for the tracker's default.
    """

    def __init__(self, path: Path, to: str, url: str | None = None, project: str | None = None):
        if to not in TRACKERS:
            known = ", ".join(f"`{name}`" for name in TRACKERS)
            raise ConfigurationError(f"{shown(to)} isn't a tracker: give {known}.{did_you_mean(str(to), TRACKERS)}")
        if url is not None and to in LOCAL:
            raise ConfigurationError(
                f"`url` is {shown(url)}, but {to} writes files on this machine and has no address: leave `url` out."
            )
        try:
            module: Any = importlib.import_module(f"trainers.track.{to}")
        except ImportError as error:
            raise ConfigurationError(
                f"the tracker {to} needs a package that can't be imported ({error}): `pip install -e '.[{to}]'` "
                "installs it."
            ) from None
        self._path, self._to = path, to
        self._file = path / "trackers.json"
        all_kept = self._read()
        kept = all_kept.get(to, {})
        self.url = kept.get("url") if url is None else url
        self._project = project or kept.get("project") or PROJECT
        same = (self.url, self._project) == (kept.get("url"), kept.get("project"))
        self._kept: dict[str, Any] = (
            kept if same else {"url": self.url, "project": self._project, "run": None, "files": {}}
        )
        self._make: Any = module.connect
        self._prepare: Any = getattr(module, "prepare", None)
        self._tracker: Tracker | None = None
        self._steps: dict[str, set[int]] = {}

    @property
    def run_id(self) -> str | None:
        """Returns the id that the tracker gave to the run."""
        return self._kept["run"]

    def prepare(self) -> None:
        """Notes where the run is sent, and makes what the tracker needs on this machine and takes seconds.

        A tracker that is never reached meanwhile gets everything by the command, which then needs no address.
        """
        with contextlib.suppress(OSError, NoRoomError):  # a full disk doesn't end the run here
            self._write()
        if self._prepare:
            self._prepare(self.url)

    def sync(self, state: str | None = None) -> int:
        """Sends what the tracker lacks. Returns the number of values. `state` is the run's, if its files lag behind."""
        run = read_run(self._path)
        run = dataclasses.replace(run, state=state) if state else run
        try:
            tracker = self._tracker or self._open()
            names = run.figures.keys() - self._steps.keys()
            self._steps |= tracker.steps(names)
            rows: dict[int, dict[str, float]] = {}
            for name, curve in run.figures.items():
                for step, value in curve.finite:
                    if step not in self._steps[name]:
                        rows.setdefault(step, {})[name] = value
            tracker.log(dict(sorted(rows.items())))
            for step, figures in rows.items():
                for name in figures:
                    self._steps[name].add(step)
            changed = self._changed()
            tracker.describe(run, {name: self._path / name for name in changed})
        except Exception:
            with contextlib.suppress(Exception):  # the first error is reported
                self.close()
            raise
        self._kept["files"] |= changed
        if changed:
            self._write()
        return sum(map(len, rows.values()))

    def close(self) -> None:
        """Completes the copy. The next `sync` asks the tracker again for what it has."""
        tracker, self._tracker = self._tracker, None
        if tracker:
            tracker.close()

    def _open(self) -> Tracker:
        tracker: Tracker = self._make(self.url, self._project)
        before = self.run_id
        self._kept["run"] = tracker.open(self._path, before)
        self._tracker = tracker
        if before is None:
            self._write()  # at once: an error from here on mustn't lose the id
        self._steps = {}
        return tracker

    def _changed(self) -> dict[str, int]:
        """Returns the files that are new or have changed, with their times."""
        times = {name: path.stat().st_mtime_ns for name, path in copied(self._path).items()}
        return {name: time for name, time in times.items() if self._kept["files"].get(name) != time}

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = dict(json.loads(self._file.read_bytes()))
            return {name: dict(kept) for name, kept in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"`{self._file}`, which keeps the ids of trackers, can't be read ({error}): remove it to begin a new "
                "run on the tracker."
            ) from None

    def _write(self) -> None:
        write_whole({self._file: json.dumps({**self._read(), self._to: self._kept}, indent=2).encode()})


def copied(path: Path) -> dict[str, Path]:
    """Returns the files of a run's folder that trackers get, by name."""
    samples = sorted((path / "samples").rglob("[!.]*"))
    names = [*COPIED, *(str(sample.relative_to(path)) for sample in samples)]
    return {name: path / name for name in names if (path / name).is_file()}


def sample_of(name: str) -> tuple[int, str]:
    """Returns a sample's step, and what it shows.

    >>> sample_of("samples/step-000000100.png"), sample_of("samples/reconstructed-000000100.png")
    ((100, 'samples'), (100, 'samples/reconstructed'))
    """
    kind, _, step = Path(name).with_suffix("").as_posix().rpartition("-")
    if not step.isdecimal():
        return 0, name
    return int(step), kind.removesuffix("/step")


def told(error: Exception) -> str:
    """Returns a tracker's error as one line."""
    text = " ".join(as_said(str(error)).split()) or type(error).__name__
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]} ..."
