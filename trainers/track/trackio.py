"""trackio as a tracker: metrics, configuration, images and reports of one run in its database on this machine.

The environment variable TRACKIO_DIR names trackio's folder. A checkpoint stays where it is, and the newest one is an
artifact by reference. Each write is one transaction, so a kill leaves all of it or none.
"""

import datetime
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import trackio

# `trackio.log` queues, and drops what it can't write: its storage raises an error, and returns when all is written.
from trackio.sqlite_storage import SQLiteStorage

from trainers.runs.read import Run
from trainers.track.mirror import IMAGES, sample_of


class TrackioRun:
    """One run of the project `project`."""

    def __init__(self, url: str | None, project: str):
        SQLiteStorage.validate_project_name(project)
        self._project, self._name, self._id = project, "", ""
        self._told: dict[str, Any] = {}  # the configuration that trackio has

    def open(self, path: Path, run_id: str | None) -> str:
        """Begins a run with the folder's name, or resumes `run_id`. Returns the run's id."""
        self._name, self._id = path.resolve().name, run_id or uuid.uuid4().hex
        self._told = SQLiteStorage.get_run_config(self._project, run_id=self._id) or {}
        return self._id

    def steps(self, names: Iterable[str]) -> Mapping[str, set[int]]:
        """Returns the steps that trackio has of each metric."""
        rows = SQLiteStorage.get_logs(self._project, run_id=self._id)
        return {name: {int(row["step"]) for row in rows if name in row} for name in names}

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Logs metrics by step, in one transaction."""
        self._write([*rows], [*rows.values()])

    def describe(self, run: Run, files: Mapping[str, Path]) -> None:
        """Logs images, the checkpoint's place and other files, and the run's configuration with its state."""
        images = {name: path for name, path in files.items() if path.suffix in IMAGES}
        for name, path in images.items():
            step, group = sample_of(name)
            image = trackio.Image(path)
            image._save(self._project, self._name, step)
            self._write([step], [{group: image._to_dict()}], f"{name} {path.stat().st_mtime_ns}")
        config = {
            **{name: value for name, value in run.configuration.items() if not name.startswith("_")},
            "state": run.state,
            "reason": run.reason,
            "checkpoint": run.checkpoint,
            "_Created": self._told.get("_Created") or datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }
        if config == self._told and files.keys() == images.keys():
            return
        if run.checkpoint and run.checkpoint != self._told.get("checkpoint"):
            self._refer(run.checkpoint)
        texts = {name: path.read_text("utf-8", "replace") for name, path in files.items() if name not in images}
        reports = {name: trackio.Markdown(f"```\n{text}\n```")._to_dict() for name, text in texts.items()}
        self._write([run.step], [{"state": run.state, **reports}], f"{sorted(config.items())} {texts}", config)
        self._told = config

    def close(self) -> None:
        """Does nothing: each call has written its values."""

    def _refer(self, checkpoint: str) -> None:
        """Makes `checkpoint` the one version of the run's artifact, without a copy of its bytes."""
        folder = Path(checkpoint).resolve()
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        SQLiteStorage.commit_artifact_version(
            self._project,
            f"checkpoint-{self._id}",
            type="model",
            description=None,
            manifest=[
                {
                    "path": path.relative_to(folder).as_posix(),
                    "ref": path.as_uri(),
                    "digest": path.as_uri(),  # trackio's, for references without a checksum
                    "size": path.stat().st_size,
                }
                for path in files
            ],
            metadata=None,
            aliases=None,
            run_name=self._name,
            run_id=self._id,
            overwrite=True,
        )

    def _write(
        self,
        steps: list[int],
        rows: list[Mapping[str, Any]],
        content: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes rows in one transaction. trackio ignores a row whose `content` it has from this run."""
        mark = hashlib.sha256(f"{self._id} {content}".encode()).hexdigest()
        SQLiteStorage.bulk_log(
            self._project,
            self._name,
            rows,
            steps=steps,
            config=config,
            log_ids=[mark] if content else None,
            run_id=self._id,
        )


connect = TrackioRun
