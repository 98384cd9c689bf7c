"""Weights & Biases as a tracker, in offline mode: a run is written to `wandb/` in its folder, without a server.

W&B can't add to an offline run, and `wandb sync` replaces the metrics of the same id on the server. So a process that
has something new writes the whole run again, under its id, and then removes the copy before. A copy that a kill has
cut off counts for nothing.
"""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_SILENT", "true")  # its lines would break a live bar
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B's own telemetry

import wandb

from trainers.runs.read import FINISHED, RUNNING, Run
from trainers.track.mirror import IMAGES, copied, sample_of

READ = (sys.executable, "-m", "wandb", "leet", "inspect", "--json")  # prints a record of an offline run per line
SETTINGS = {
    "mode": "offline",
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRun:
    """One run of the project `project`."""

    def __init__(self, url: str | None, project: str):
        self._project, self._path, self._id = project, Path(), ""
        self._held: dict[int, dict[str, float]] | None = None  # of the newest copy, unless a kill has cut it off
        self._copy: Any = None  # that this process writes
        self._run: Run | None = None

    def open(self, path: Path, run_id: str | None) -> str:
        """Begins a run with the folder's name, or resumes `run_id`. Returns the run's id."""
        self._path, self._id = path.resolve(), run_id or uuid.uuid4().hex
        copies = sorted(self._path.glob(f"wandb/offline-run-*-{self._id}"))
        self._held = _read(copies[-1] / f"run-{self._id}.wandb") if copies else None
        return self._id

    def steps(self, names: Iterable[str]) -> Mapping[str, set[int]]:
        """Returns the steps that the newest copy has of each metric."""
        return {name: {step for step, row in (self._held or {}).items() if name in row} for name in names}

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Logs metrics by step."""
        if rows:
            self._begin()
        for step, row in rows.items():
            self._copy.log({"step": step, **row})

    def describe(self, run: Run, files: Mapping[str, Path]) -> None:
        """Logs images, saves other files, and sets configuration and summary."""
        if self._copy is None and self._held is not None and not files:
            return
        self._begin()
        if self._run is None:
            self._copy.config.update(dict(run.configuration))
            files = copied(run.path)
        self._run = run
        for name, path in files.items():
            image = _image(path)
            if image:
                step, group = sample_of(name)
                self._copy.log({"step": step, group: image})
            else:
                kept = Path(self._copy.dir, name)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
                self._copy.save(kept, base_path=self._copy.dir, policy="now")
        self._copy.summary.update({"state": run.state, "reason": run.reason, "checkpoint": run.checkpoint})

    def close(self) -> None:
        """Ends the copy, with the newest checkpoint by reference, and removes those before it."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        run, folder = self._run, Path(copy.dir).parent
        if run and run.checkpoint:
            checkpoint = wandb.Artifact(f"checkpoint-{self._id}", type="model")
            checkpoint.add_reference(Path(run.checkpoint).resolve().as_uri(), checksum=False)
            copy.log_artifact(checkpoint)
        copy.finish(exit_code=0 if run and run.state in (FINISHED, RUNNING) else 1)
        for other in folder.parent.glob(f"offline-run-*-{self._id}"):
            if other != folder:
                shutil.rmtree(other)

    def _begin(self) -> None:
        """Begins a copy with the metrics of the one before, unless this process already writes one."""
        if self._copy is None:
            (self._path / "wandb").mkdir(exist_ok=True)  # W&B would fall back to a temporary folder
            self._copy = wandb.init(
                project=self._project,
                id=self._id,
                name=self._path.name,
                settings=wandb.Settings(root_dir=str(self._path), **SETTINGS),
                reinit="create_new",  # leaves alone what the training program itself tracks
            )
            for handler in logging.getLogger("wandb").handlers:
                handler.handleError = lambda record: None  # type: ignore[method-assign]  # of a full disk: a traceback
            # W&B's own steps only rise, but an evaluation may come later than the next steps.
            self._copy.define_metric("*", step_metric="step")
            for step, row in (self._held or {}).items():
                self._copy.log({"step": step, **row})


connect = WandbRun


def _read(path: Path) -> dict[int, dict[str, float]] | None:
    """Returns {step: {metric: value}} of an offline run, or None if it was cut off."""
    done = subprocess.run([*READ, str(path)], capture_output=True, check=False)
    rows: dict[int, dict[str, float]] = {}
    ended = False
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):  # the reader's own remarks
            record = json.loads(line)
            ended = ended or record["type"] == "exit"
            item = record.get("history", {}).get("item", {})
            if "step" in item and not any(name.endswith("._type") for name in item):  # no image
                values = {name: float(x) for name, x in item.items() if name != "step" and not name.startswith("_")}
                rows.setdefault(item["step"], {}).update(values)
    return rows if ended else None


def _image(path: Path) -> Any:
    """Returns an image file as W&B's image, and None for any other file."""
    if path.suffix in IMAGES:
        with contextlib.suppress(OSError):  # no picture after all
            return wandb.Image(str(path))
    return None
