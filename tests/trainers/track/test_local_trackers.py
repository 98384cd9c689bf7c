"""Runs are written for Weights & Biases and trackio: each value once, kills included, as their own readers show."""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from PIL import Image

from core.errors import ConfigurationError
from core.telemetry import JsonLines
from tests.trainers.track.test_track import id_of, tracked
from tests.written_runs import LOSSES, write_run
from trainers.hooks import track
from trainers.track.__main__ import main
from trainers.track.mirror import Mirror

TRACKERS = ("trackio", "wandb")
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp())  # trackio reads it once, when it is imported


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """The end of a run waits as long as a slow machine takes."""
    monkeypatch.setattr(track, "ENDING", 600.0)


def stored():
    """Returns trackio's own reader. Few processes run its tests, and its import takes a second."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def wandb_prints(path, *flags):
    """Returns the lines that W&B's reader prints of the only offline run in a folder.

    `python -m wandb leet inspect` calls the same, but imports for a second first.
    """
    from wandb.util import get_core_path

    (folder,) = path.glob("wandb/offline-run-*")
    (file,) = folder.glob("*.wandb")
    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", *flags, "--run-file", str(file)]
    command.append(str(folder.parent))
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()


def read(to, path, project):
    """Returns {metric: [(step, value), ...]} as the tracker's own reader has it."""
    if to == "trackio":
        rows = stored().get_logs(project, run_id=id_of(path, to))
    else:
        records = map(json.loads, wandb_prints(path))
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    found = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append((row["step"], value))
    return {name: sorted(values, key=lambda pair: pair[0]) for name, values in found.items()}


def described(to, path, project):
    """Returns the configuration with the state, and the bytes of the only image."""
    if to == "trackio":
        import trackio

        (run,) = (run for run in trackio.Api().runs(project) if run.id == id_of(path, to))
        ((_, image),) = read(to, path, project)["samples"]
        return run.config, (trackio.utils.MEDIA_DIR / image["file_path"]).read_bytes()
    summary = json.loads("".join(wandb_prints(path, "--summary")))
    assert (summary["run_id"], summary["name"], summary["project"]) == (id_of(path, to), path.name, project)
    (image,) = path.glob("wandb/offline-run-*/files/media/images/*.png")
    return {**summary["config"], **summary["summary"]}, image.read_bytes()


def written(tmp_path):
    """Writes the folder of a run with a sample and a checkpoint."""
    path = write_run(tmp_path / "a")
    (path / "samples").mkdir()
    for name in ("step-000000100.png", "reconstructed-000000100.png"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path / "samples" / name)
    (path / "checkpoints" / "step-000000300").mkdir(parents=True)
    (path / "checkpoints" / "step-000000300" / "weights").write_bytes(b"1")
    return path


@pytest.mark.parametrize("to", TRACKERS)
def test_a_tracker_gets_the_folder_of_a_run_once(to, tmp_path, capsys):
    path, project = written(tmp_path), f"once-{to}"
    words = [f"--to={to}", f"--project={project}", str(path)]
    assert main(words) == main(words) == 0
    assert read(to, path, project)["eval/loss"] == [*LOSSES.items()]
    found, image = described(to, path, project)
    assert (found["adamw.learning_rate"], found["Trainer.steps"]) == ("0.1", "300")
    assert (found["state"], found["reason"]) == ("finished", "finished")
    assert found["checkpoint"] == str(path / "checkpoints" / "step-000000300")
    assert image == (path / "samples" / "step-000000100.png").read_bytes()
    if to == "trackio":
        (artifact,) = stored().list_artifacts(project)
        manifest = stored().get_artifact_manifest(project, artifact["name"], "latest")["manifest"]
        assert [entry["ref"] for entry in manifest] == [(path / "checkpoints" / "step-000000300" / "weights").as_uri()]
    else:
        (artifact,) = (record["artifact"] for record in map(json.loads, wandb_prints(path)) if "artifact" in record)
        (entry,) = artifact["manifest"]["contents"]
        assert entry["ref"] == (path / "checkpoints" / "step-000000300" / "weights").as_uri()
        (configuration,) = path.glob("wandb/offline-run-*/files/config/operative.gin")
        assert configuration.read_text() == (path / "config" / "operative.gin").read_text()

    before = id_of(path, to)
    with JsonLines(path / "metrics.jsonl", 300).open() as file:  # the run trains on, and an evaluation comes late
        file.write(b'{"step": 400, "split": "eval", "loss": 0.5, "gap": null}\n')
    (path / "evaluations.jsonl").write_text('{"step": 100, "split": "eval", "late": 1.0}\n')
    (path / "samples" / "step-000000400.png").write_bytes(b"no picture")
    assert main(words) == 0
    found = read(to, path, project)
    assert found["eval/loss"] == [*LOSSES.items(), (400, 0.5)]
    assert found["eval/late"] == [(100, 1.0)]
    assert {len(values) for name, values in found.items() if name.startswith("samples/reconstructed")} == {1}
    assert id_of(path, to) == before
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{path}: {n} values sent to {to}, as run {before}" for n in (3, 0, 2)]


KILLED = """
import os, signal, sys
from pathlib import Path
from trainers.track.mirror import Mirror

_, path, to, project, moment = sys.argv
mirror = Mirror(Path(path), to, project=project)
tracker = mirror._make

class Dying(tracker):
    def describe(self, run, files):
        if moment == "after the metrics":
            os.kill(os.getpid(), signal.SIGKILL)
        super().describe(run, files)

mirror._make = Dying
mirror.sync()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.parametrize("moment", ["after the metrics", "at the end"])
@pytest.mark.parametrize("to", TRACKERS)
def test_a_kill_loses_nothing_and_repeats_nothing(to, moment, tmp_path):
    path, project = written(tmp_path), f"killed-{to}-{moment.split()[-1]}"
    alone = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # not this process's service
    for _ in range(2):
        words = [sys.executable, "-c", KILLED, str(path), to, project, moment]
        assert subprocess.run(words, check=False, env=alone).returncode == -9
    before = id_of(path, to)
    assert main([f"--to={to}", str(path)]) == 0
    assert read(to, path, project)["eval/loss"] == [*LOSSES.items()]
    assert described(to, path, project)[0]["state"] == "finished"
    assert id_of(path, to) == before


@pytest.mark.long
@pytest.mark.parametrize("to", TRACKERS)
def test_a_run_is_copied_while_it_lasts_and_resumes_under_its_id(to, tmp_path):
    project = f"live-{to}"
    trainer, notes = tracked(tmp_path, to=to, project=project)
    path = trainer.workdir.path
    before = id_of(path, to)
    assert [step for step, _ in read(to, path, project)["train/step_seconds"]] == [20, 40]
    tracked(tmp_path, to=to, steps=80, resumes=True)
    rows = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    assert read(to, path, project)["train/step_seconds"] == [(row["step"], row["step_seconds"]) for row in rows]
    assert (len(rows), id_of(path, to)) == (4, before)
    assert not [text for text in notes if to in text]


@pytest.mark.parametrize("to", TRACKERS)
def test_a_run_warns_once_of_a_tracker_that_cannot_write(to, tmp_path):
    project = "blocked"
    blocked = stored().get_project_db_path(project) if to == "trackio" else tmp_path / "run" / "wandb" / "x"
    blocked.parent.parent.mkdir(parents=True, exist_ok=True)
    if to == "trackio":
        blocked.mkdir(parents=True)  # in place of the database
    else:
        blocked.parent.write_text("in place of the folder")
    trainer, notes = tracked(tmp_path, to=to, project=project)
    assert trainer.step == 40
    (warning,) = (text for text in notes if to in text)
    assert warning.startswith(f"Warning: {to} doesn't take this run's metrics: ")


@pytest.mark.parametrize("to", TRACKERS)
def test_an_address_is_refused(to, tmp_path):
    with pytest.raises(ConfigurationError, match=r"`url` is 'http://x', but .* has no address"):
        Mirror(write_run(tmp_path / "a"), to, "http://x")
