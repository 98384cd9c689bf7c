"""Runs are copied to MLflow, read back with its own client, and never end or wait because of it."""

import contextlib
import http.server
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from core.errors import ConfigurationError, NoRoomError
from core.telemetry import JsonLines, Telemetry
from tests.trainers.hooks.hooks_lab import Notes
from tests.trainers.trainer_lab import idle, make, newest
from tests.written_runs import LOSSES, write_run
from trainers.hooks import track
from trainers.launch.commands import free_ports
from trainers.track import mirror
from trainers.track.__main__ import main
from trainers.track.mirror import Mirror


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Returns the URL of MLflow's store in files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file:{tmp_path / 'mlruns'}"


def client_of(url):
    """Returns MLflow's own client. Few processes run its tests, and its import takes seconds."""
    from mlflow import MlflowClient

    return MlflowClient(url)


def history(url, path, name):
    """Returns the (step, value) pairs that MLflow has of a metric."""
    client = client_of(url)
    return sorted((point.step, point.value) for point in client.get_metric_history(id_of(path), name))


def id_of(path, to="mlflow"):
    return json.loads((path / "trackers.json").read_text())[to]["run"]


def test_mlflow_gets_the_folder_of_a_run_once(store, tmp_path, capsys):
    path = write_run(tmp_path / "a")
    (path / "samples").mkdir()
    (path / "samples" / "step-000000100.png").write_bytes(b"a picture")
    (path / "checkpoints" / "step-000000300").mkdir(parents=True)
    words = ["--to=mlflow", f"--url={store}", "--project=digits", str(path)]
    assert main(words) == 0
    assert main(words) == main(["--to=mlflow", str(path)]) == 0  # the folder knows the tracker
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{path}: {n} values sent to mlflow, as run {id_of(path)}" for n in (3, 0, 0)]

    client = client_of(store)
    found = client.get_run(id_of(path))
    assert history(store, path, "eval/loss") == [*LOSSES.items()]
    assert (found.info.run_name, found.info.status) == ("a", "FINISHED")
    assert client.get_experiment(found.info.experiment_id).name == "digits"
    assert found.data.params["adamw.learning_rate"] == "0.1"
    assert found.data.params["Trainer.steps"] == "300"
    assert found.data.tags["checkpoint"] == str(path / "checkpoints" / "step-000000300")
    assert (found.data.tags["mlflow.source.git.commit"], found.data.tags["reason"]) == ("abc", "finished")
    samples = [file.path for file in client.list_artifacts(id_of(path), "samples")]
    assert samples == ["samples/step-000000100.png"]
    configuration = client.download_artifacts(id_of(path), "config/operative.gin")
    with open(configuration) as file:
        assert file.read() == (path / "config" / "operative.gin").read_text()

    with JsonLines(path / "metrics.jsonl", 300).open() as file:  # the run trains on
        file.write(b'{"step": 400, "split": "eval", "loss": 0.5, "gap": null}\n')
    assert Mirror(path, "mlflow").sync() == 1
    assert history(store, path, "eval/loss") == [*LOSSES.items(), (400, 0.5)]
    Mirror(path, "mlflow", project="others").sync()
    assert client.get_run(id_of(path)).info.run_id != found.info.run_id


def test_an_interrupted_copy_is_completed(store, tmp_path, monkeypatch):
    path = write_run(tmp_path / "a")
    copy = Mirror(path, "mlflow", store)
    log_batch, calls = type(client_of(store)).log_batch, []

    def failing(self, run_id, metrics=(), **more):
        calls.append(metrics)
        if len(calls) == 2:  # after the first value
            raise OSError("disk full")
        return log_batch(self, run_id, metrics=metrics, **more)

    monkeypatch.setattr("trainers.track.mlflow.MOST_METRICS", 1)
    monkeypatch.setattr("mlflow.MlflowClient.log_batch", failing)
    with pytest.raises(OSError, match="disk full"):
        copy.sync()
    began = id_of(path)
    assert len(history(store, path, "eval/loss")) == 1
    assert copy.sync() == 2
    assert id_of(path) == began
    assert history(store, path, "eval/loss") == [*LOSSES.items()]


def tracked(tmp_path, url=None, *, to="mlflow", project=None, steps=40, resumes=False, **settings):
    """Trains with a tracker. Returns the trainer, and what its screen showed."""
    hook, screen = track.Track(to=to, url=url, project=project), Notes()
    trainer = idle(make(tmp_path, steps=steps, hooks=[hook], **settings))
    if resumes:
        trainer.state.restore(newest(trainer))
    lines = JsonLines(trainer.workdir.metrics, trainer.step)
    with contextlib.closing(Telemetry([screen, lines])) as telemetry:
        trainer.train(telemetry)
    return trainer, screen.notes


def test_a_run_is_copied_while_it_lasts_and_resumes_under_its_id(store, tmp_path):
    trainer, notes = tracked(tmp_path, store)
    path = trainer.workdir.path
    found = client_of(store).get_run(id_of(path))
    assert [step for step, _ in history(store, path, "train/step_seconds")] == [20, 40]
    assert found.info.status == "FINISHED"
    assert found.data.tags["checkpoint"].endswith("step-000000040")
    tracked(tmp_path, store, steps=80, resumes=True)
    assert id_of(path) == found.info.run_id
    rows = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    assert history(store, path, "train/step_seconds") == [(row["step"], row["step_seconds"]) for row in rows]
    assert len(rows) == 4
    assert not [text for text in notes if "mlflow" in text]


@pytest.fixture
def server():
    """Starts servers that answer each request with one status, or never (None). Returns their URLs."""
    with contextlib.ExitStack() as ending:

        def start(status):
            if status is None:
                silent = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
                return f"http://127.0.0.1:{silent.getsockname()[1]}"

            class Answer(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_error(status)

                do_POST = do_GET  # noqa: N815

                def log_message(self, *_):
                    """Prints nothing."""

            answering = ending.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer))
            threading.Thread(target=answering.serve_forever, daemon=True).start()
            ending.callback(answering.shutdown)
            return f"http://127.0.0.1:{answering.server_port}"

        yield start


@pytest.mark.parametrize(
    ("status", "says"),
    [("refused", "refused"), (401, "401"), (507, "507"), (None, "it didn't answer within 0.5 s at the end of the run")],
)
def test_a_run_warns_once_of_a_tracker_that_fails(status, says, server, tmp_path, monkeypatch):
    monkeypatch.setattr(track, "SECONDS", 0.0)
    monkeypatch.setattr(track, "ENDING", 0.5 if status is None else 60.0)
    trainer, notes = tracked(tmp_path, "http://127.0.0.1:9" if status == "refused" else server(status))
    assert trainer.step == 40
    (warning,) = (text for text in notes if "mlflow" in text)
    assert warning.startswith("Warning: mlflow doesn't take this run's metrics: ")
    assert says in warning
    assert f"`python -m trainers.track --to=mlflow {trainer.workdir.named}` sends the rest." in warning
    assert Mirror(trainer.workdir.path, "mlflow").url.startswith("http://127.0.0.1")  # as the warning's command has it


def test_a_tracker_that_fails_in_many_ways_causes_one_warning(store, tmp_path, monkeypatch):
    count = itertools.count()

    def fail(self, state=None):
        raise OSError(f"error {next(count)}")

    monkeypatch.setattr(track, "SECONDS", 0.0)
    monkeypatch.setattr(Mirror, "sync", fail)
    _, notes = tracked(tmp_path, store, steps=200)
    assert next(count) > 2
    assert len([text for text in notes if "mlflow" in text]) == 1


def test_a_full_disk_at_the_beginning_does_not_end_the_run(store, tmp_path, monkeypatch):
    def full(contents, **_):
        raise NoRoomError("the disk is full")

    monkeypatch.setattr(mirror, "write_whole", full)
    assert tracked(tmp_path, store)[0].step == 40


@pytest.mark.long
def test_mlflows_own_database_is_made_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for artifacts
    file = tmp_path / "runs.db"
    path = write_run(tmp_path / "a")
    copy = Mirror(path, "mlflow", f"sqlite:///{file}")
    assert not file.exists()  # a check of the configuration makes nothing
    copy.prepare()
    assert file.is_file()
    assert copy.sync() == 3
    assert history(copy.url, path, "eval/loss") == [*LOSSES.items()]


@pytest.mark.parametrize("cause", ["another worker", "a trial run"])
def test_only_the_chief_of_a_real_run_sends(cause, store, tmp_path, monkeypatch):
    if cause == "another worker":
        monkeypatch.setattr(track, "is_chief", lambda: False)
    else:
        monkeypatch.setenv(track.UNTRACKED, "1")
    trainer, _ = tracked(tmp_path, store)
    assert not (trainer.workdir.path / "trackers.json").exists()


def test_an_error_of_the_run_is_its_status(store, tmp_path):
    class Broken(track.Track):
        def before_chunk(self, run):
            if run.step == 20:
                raise RuntimeError("broken")

    trainer = idle(make(tmp_path, hooks=[Broken(to="mlflow", url=store)]))
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train(Telemetry([JsonLines(trainer.workdir.metrics, 0)]))
    assert client_of(store).get_run(id_of(trainer.workdir.path)).info.status == "FAILED"


def test_mistakes_are_refused(tmp_path, monkeypatch, capsys):
    path = write_run(tmp_path / "a")
    with pytest.raises(
        ConfigurationError, match=r"'mlfow' isn't a tracker: give `mlflow`, `trackio`, `wandb`\. Did you mean `mlflow`"
    ):
        Mirror(path, "mlfow")
    assert main(["--to=mlflow", "--url=http://127.0.0.1:9", str(path)]) == 2
    assert "mlflow at `http://127.0.0.1:9` doesn't take the run in" in capsys.readouterr().err
    assert main(["--to=mlflow", "--url=http://me:secret@127.0.0.1:9", str(path)]) == 2
    assert "mlflow at `http://me:***@127.0.0.1:9` doesn't take" in capsys.readouterr().err
    for damaged in ("{", '{"mlflow": 5}'):
        (path / "trackers.json").write_text(damaged)
        assert main(["--to=mlflow", str(path)]) == 2
        assert "which keeps the ids of trackers, can't be read" in capsys.readouterr().err

    def missing(name):
        raise ImportError("No module named 'mlflow'")

    monkeypatch.setattr(mirror.importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"No module named 'mlflow'.*pip install -e '\.\[mlflow\]'"):
        Mirror(path, "mlflow")


@pytest.fixture
def mlflow_server(tmp_path):
    """Returns a function that starts or restarts MLflow's own server on an SQLite file, and one that kills it."""
    port, folder, processes = free_ports(1)[0], tmp_path / "server", []
    url = f"http://127.0.0.1:{port}"
    words = [f"--backend-store-uri=sqlite:///{folder}/runs.db", f"--artifacts-destination={folder}/artifacts"]
    words += ["--host=127.0.0.1", f"--port={port}", "--workers=1", "--gunicorn-opts=--log-level=warning"]
    folder.mkdir()

    def start():
        with open(folder / "log", "ab") as log:
            variables = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            command = [sys.executable, "-m", "mlflow", "server", *words]
            processes.append(
                subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True, cwd=folder)
            )
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health") as answer:
                return answer.read()
            assert processes[-1].poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        raise AssertionError((folder / "log").read_text())

    def kill():
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    yield url, start, kill
    kill()


@pytest.mark.long
def test_a_server_that_dies_misses_nothing(mlflow_server, tmp_path, capsys):
    url, start, kill = mlflow_server
    start()
    trainer, notes = tracked(tmp_path, url)
    path = trainer.workdir.path
    found = client_of(url).get_run(id_of(path))
    assert (found.info.status, [text for text in notes if "mlflow" in text]) == ("FINISHED", [])
    kill()
    _, notes = tracked(tmp_path, url, steps=100, resumes=True)
    assert len([text for text in notes if "mlflow" in text]) == 1
    assert main(["--to=mlflow", str(path)]) == 2
    start()
    assert [step for step, _ in history(url, path, "train/step_seconds")] == [20, 40]
    assert main(["--to=mlflow", str(path)]) == main(["--to=mlflow", str(path)]) == 0
    rows = [json.loads(line) for line in trainer.workdir.metrics.read_text().splitlines()]
    assert history(url, path, "train/step_seconds") == [(row["step"], row["step_seconds"]) for row in rows]
    assert [row["step"] for row in rows] == [20, 40, 60, 80, 100]
    assert id_of(path) == found.info.run_id
    sent = [int(line.split(": ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert sent[0] > 0 == sent[1]
