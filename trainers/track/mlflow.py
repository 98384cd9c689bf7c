"""MLflow as a tracker, through its own client: metrics, parameters, tags and artifacts of one run.

`url` is MLflow's tracking URI: a server's address, or `sqlite:///FILE`. A password belongs into the environment
variable MLFLOW_TRACKING_PASSWORD. A checkpoint stays where it is: the tag `checkpoint` has its path.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# The mirror tries again by itself. MLflow's own telemetry would call a public server.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # it would break a live bar

from mlflow import MlflowClient, get_tracking_uri
from mlflow.entities import Metric, Param, RunTag

from trainers.runs.read import FINISHED, RUNNING, STOPPED, Run

for name in ("mlflow", "alembic"):
    logging.getLogger(name).setLevel(logging.WARNING)  # they print each step of making a database

STATUS = {RUNNING: "RUNNING", FINISHED: "FINISHED", STOPPED: "KILLED"}  # any other state is FAILED
MOST_METRICS, MOST_PARAMS = 1000, 100  # per request: MLflow's limits
MOST_LETTERS = 6000  # of a parameter's value


class MlflowRun:
    """One run of the experiment `project` on the server `url`."""

    def __init__(self, url: str | None, project: str):
        self._client, self._project = MlflowClient(url), project
        self._id = ""
        self._told: dict[str, str] | None = None  # tags and the status that the server has

    def open(self, path: Path, run_id: str | None) -> str:
        """Begins a run with the folder's name, or resumes `run_id`. Returns the run's id."""
        if run_id is None:
            found = self._client.get_experiment_by_name(self._project)
            experiment = found.experiment_id if found else self._client.create_experiment(self._project)
            run_id = str(self._client.create_run(experiment, run_name=path.resolve().name).info.run_id)
        self._id = run_id
        return run_id

    def steps(self, names: Iterable[str]) -> Mapping[str, set[int]]:
        """Returns the steps that the server has of each metric."""
        history = self._client.get_metric_history
        return {name: {int(point.step) for point in history(self._id, _allowed(name))} for name in names}

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Logs metrics by step, up to a thousand values per request."""
        now = int(1000 * time.time())
        found = [Metric(_allowed(name), x, now, step) for step, row in rows.items() for name, x in row.items()]
        for part in _parts(found, MOST_METRICS):
            self._client.log_batch(self._id, metrics=part)

    def describe(self, run: Run, files: Mapping[str, Path]) -> None:
        """Uploads artifacts, and sets the tags and the status that have changed. MLflow never changes a parameter."""
        if self._told is None:
            there = self._client.get_run(self._id)
            values = {_allowed(name): value[:MOST_LETTERS] for name, value in run.configuration.items()}
            new_params = [Param(name, value) for name, value in values.items() if name not in there.data.params]
            for part in _parts(new_params, MOST_PARAMS):
                self._client.log_batch(self._id, params=part)
            self._told = {**there.data.tags, "status": there.info.status}
        for name, path in files.items():
            folder = Path(name).parent
            self._client.log_artifact(self._id, str(path), None if folder == Path() else str(folder))
        tags = {
            "checkpoint": run.checkpoint,
            "reason": run.reason,
            "mlflow.source.name": " ".join(map(str, run.record.get("command", ()))),
            "mlflow.source.git.commit": str(run.record.get("git") or ""),
        }
        told = self._told
        new = {name: text for name, text in tags.items() if text and told.get(name) != text}
        if new:
            self._client.log_batch(self._id, tags=[RunTag(name, text) for name, text in new.items()])
        status = STATUS.get(run.state, "FAILED")
        if status != told["status"]:
            if status == STATUS[RUNNING]:
                self._client.update_run(self._id, status)
            else:
                self._client.set_terminated(self._id, status)
        told |= {**new, "status": status}

    def close(self) -> None:
        """Does nothing: the server has everything."""


connect = MlflowRun


def prepare(url: str | None) -> None:
    """Makes the SQLite file of `url` if it is missing. It takes seconds, and a process that ends leaves half a file."""
    uri = url or get_tracking_uri()
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        with contextlib.suppress(Exception):  # the first call of the client reports it
            MlflowClient(uri)


def _allowed(name: str) -> str:
    """Returns a name with the letters that MLflow allows.

    >>> _allowed("train/learning_rate[embedding/*]")
    'train/learning_rate_embedding/__'
    """
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _parts(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))
