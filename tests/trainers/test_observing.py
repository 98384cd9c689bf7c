"""All observers of a run at once: weights and metrics are the same to the bit with and without them."""

import contextlib
import functools
import io
import json
import os
import pty
import re
import resource
import signal
import threading

import pytest
import tensorflow as tf

from core import checkpoint
from core.distribution import mirrored
from core.errors import NotFiniteError
from core.optimizers import linear, sgd
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard, Warned
from tests.commands import CONFIGS, launch, passed
from tests.trainers.launch.test_many_workers import saved
from tests.trainers.trainer_lab import HELD_OUT, Lines, Small, make
from trainers.hooks import Activations, Histograms, Hook, Norms, SampleGrid
from trainers.loop import profiler

BAD = 35  # the step that isn't finite
MEASURED = ("examples_per_second", "step_seconds", "data_wait")


class Drawing(Small):
    """Has samples to show, and a step whose loss is infinite."""

    optimizer = sgd(linear(0.1, 0.0, steps=40), momentum=0.9)

    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        return loss._replace(per_example=loss.per_example + tf.where(rng.step == BAD, float("inf"), 0.0))

    def sample(self, rng, n):
        return {"image": tf.tanh(rng.normal([n, 8, 8, 1]) + self.net.w[0, 0])}


class AskForProfile(Hook):
    """Sends the signal of `kill -USR2`."""

    def __call__(self, run):
        if run.step == 10:
            os.kill(os.getpid(), signal.SIGUSR2)


@contextlib.contextmanager
def terminal():
    """Yields a terminal and a list of its output, complete once it is closed."""
    mine, theirs = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # Linux reports that the other end is closed
            while part := os.read(mine, 1 << 16):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w") as stream:
        yield stream, shown
    reader.join()
    os.close(mine)


def outcome(trainer, lines):
    """Returns a run's results: the last checkpoint, its other state, and the metric lines."""
    newest = checkpoint.newest(trainer.workdir.checkpoints, warn=pytest.fail)
    variables = {path: variable.sha256 for path, variable in newest.variables.items()}
    files = sorted(path.name for path in newest.path.iterdir())
    return newest.step, variables, files, newest.extra, [line for line in lines.lines if line[1] in ("train", "eval")]


def run(tmp_path, name, replicas=1, **settings):
    """Returns a run of `Drawing` that is about to begin."""
    settings |= {"checkpoint_every": 10, "evaluate_every": 20, "log_every": 10}
    strategy = mirrored(replicas=replicas) if replicas > 1 else None
    return make(tmp_path, name, task=Drawing, eval_source=HELD_OUT, strategy=strategy, **settings)


def train_to_bad_step(trainer, *writers, warned=None):
    """Trains until the bad step; returns the error and the results."""
    lines = Lines()
    with contextlib.closing(Telemetry([*writers, lines], warned)) as telemetry, pytest.raises(NotFiniteError) as error:
        trainer.train(telemetry)
    return str(error.value), outcome(trainer, lines), lines


@pytest.fixture(scope="module")
def unobserved(tmp_path_factory):
    """Returns the error and the results of a run without observers, by the number of replicas."""

    def trained(replicas):
        return train_to_bad_step(run(tmp_path_factory.mktemp("plain"), "plain", replicas))

    return functools.cache(trained)


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.long)])
def test_observers_change_no_bit_of_a_run(replicas, unobserved, tmp_path, monkeypatch):
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: name)  # of the package that shows profiles
    monkeypatch.setenv("TERM", "xterm-256color")
    hooks = [Norms(10), Activations(10), Histograms(10), SampleGrid(10), AskForProfile(10)]
    looked = run(tmp_path, "looked", replicas, hooks=hooks, profile=(10, 20))
    given = looked.workdir.configurations / "given.gin"
    given.parent.mkdir(parents=True)
    given.touch()  # a capsule needs it
    files = JsonLines(looked.workdir.metrics, 0), TensorBoard(looked.workdir.events, 0)
    with terminal() as (stream, shown):
        error, found, lines = train_to_bad_step(
            looked, Console(40, stream), *files, warned=Warned(looked.workdir.warnings, 0)
        )
    assert re.search(f"--capsule=.*capsules/step-{BAD:09d}", error)

    plain_error, (step, variables, names, extra, told), _ = unobserved(replicas)
    assert "--capsule" not in plain_error
    assert step == 30
    assert any(path.startswith("optimizer/") for path in variables)
    assert any(path.startswith("figures/") for path in variables)
    assert found[:3] == (step, variables, names)
    assert found[4] == told
    assert extra.keys() | {"hooks"} == found[3].keys()
    assert found[3]["hooks"].keys() <= {"Norms", "Activations", "Evaluate"}
    assert extra["reported"]["figures"] == found[3]["reported"]["figures"]

    # Each of them did observe.
    text = b"".join(shown).decode()
    assert "━" in text
    assert text.count("profiled steps") == 2
    assert {split for _, split, _ in lines.lines} == {"train", "eval", "norms", "activations"}
    assert len([*(looked.workdir.path / "samples").iterdir()]) == 3
    assert {path.name for path in looked.workdir.events.iterdir() if path.is_dir()} >= {"weights", "samples", "plugins"}


class Full(Hook):
    """Limits the size of files to `size` bytes."""

    def __init__(self, size):
        super().__init__(10)
        self.size = size

    def __call__(self, run):
        run.settle()  # there is space for the checkpoint
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, hard))


@pytest.mark.long
def test_full_disk_for_observers_changes_no_bit_of_a_run(unobserved, tmp_path):
    hooks = [Full(20), SampleGrid(10), Histograms(10), Full(resource.getrlimit(resource.RLIMIT_FSIZE)[0])]
    looked, shown = run(tmp_path, "looked", hooks=hooks), io.StringIO()
    files = JsonLines(looked.workdir.metrics, 0), TensorBoard(looked.workdir.events, 0)
    _, found, _ = train_to_bad_step(looked, Console(40, shown), *files, warned=Warned(looked.workdir.warnings, 0))
    _, plain, _ = unobserved(1)
    assert found[:3] == plain[:3]
    assert found[4] == plain[4]
    said = [line for line in shown.getvalue().splitlines() if "can't be written: File too large" in line]
    assert [line.rpartition("; ")[2] for line in said] == [
        "until then the run goes on without.",
        "until then warnings are shown, but not kept.",
        "until then TensorBoard is shown nothing more of this run.",
    ]
    assert [*(looked.workdir.path / "samples").iterdir()] == []


DRAWS = """
import gin
import tensorflow as tf

from models.classifiers.linear import LinearClassifier


@gin.configurable
class Draws(LinearClassifier):
    def sample(self, rng, n):
        return {"image": tf.tanh(rng.normal([n, 8, 8, 1]) + self.net.b[0])}
"""
SHORT = (
    *(f"Trainer.{name} = {n}" for name, n in {"steps": 20, "chunk_steps": 5, "log_every": 5}.items()),
    "Trainer.evaluate_every = 10",
    "Trainer.checkpoint_every = 10",
)
LOOKING = (
    "Trainer.hooks = [@SampleGrid(), @Norms(), @Activations(), @Histograms()]",
    "Trainer.profile = (5, 10)",
    *(f"{hook}.every = 5" for hook in ("SampleGrid", "Norms", "Activations", "Histograms")),
)


@pytest.mark.long
def test_observers_change_no_bit_of_two_workers(tmp_path):
    (tmp_path / "xprof.py").touch()  # stands for the package, which displays profiles and isn't needed to make one
    (tmp_path / "draws.py").write_text(DRAWS)
    digits = (CONFIGS / "digits_linear.gin").read_text().replace("LinearClassifier", "Draws")
    (tmp_path / "draws.gin").write_text(f"import draws\n{digits}")
    files = ["--gin_file=draws.gin", f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"]
    found = {}
    for name, bindings in {"plain": (), "looked": LOOKING}.items():
        params = [f"--gin_param={binding}" for binding in (*SHORT, *bindings)]
        passed("--workers=2", "--", *files, *params, f"--workdir={name}", cwd=tmp_path, run=launch)
        _, variables = saved(tmp_path / name)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        kept = [line for line in lines if line["split"] in ("train", "eval")]
        found[name] = variables, [{key: x for key, x in line.items() if key not in MEASURED} for line in kept]
    assert found["looked"] == found["plain"]
    assert len(found["plain"][1]) == 6
    assert (tmp_path / "looked" / "events" / "plugins" / "profile").is_dir()
