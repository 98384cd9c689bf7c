"""Runs loaded in Python: the weights that evaluation reads, with separate bindings."""

import contextlib
import importlib
import json
import logging
import shutil
import sys
import threading
from pathlib import Path

import gin
import pytest
import tensorflow as tf
from gin import config as gin_config

import trainers
from core import checkpoint
from core.data import digits
from core.errors import CheckpointError, ConfigurationError
from tests.commands import CONFIGS, passed
from trainers.python_api import load

LATE = """
import gin
import numpy as np
import tensorflow as tf
from core.data import ArraySource
from core.optimizers import sgd
from core.task import Loss, Task, Update

@gin.configurable
def bent(x, by=1.0):
    return x * by

@gin.configurable
def lifted(x, by=0.0):
    return x + by

@gin.configurable
class Bent(Task):
    def __init__(self, *, rng, activation=gin.REQUIRED):
        super().__init__()
        self.w = tf.Variable(2.0, name="w")
        self.net, self.activation = tf.Module(), activation
        self.net.w = self.w

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.0))]

    def loss(self, batch, rng):
        return Loss(self.activation(self.w * batch["x"]))

    def evaluate(self, batch):
        return Loss(lifted(self.activation(self.w * batch["x"])))

@gin.configurable
def ones():
    return ArraySource({"x": np.ones([4], "float32")}, name="ones")
"""
GIN = """
import late_calls
Experiment.task = @Bent
Experiment.train_source = @ones()
Experiment.eval_source = @ones()
Bent.activation = @bent
bent.by = {by}
Trainer.steps = 2
Trainer.global_batch_size = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("load")


@pytest.fixture(scope="module")
def trained(folder):
    """Returns a run of 20 steps with two checkpoints."""
    flags = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--gin_param=Trainer.checkpoint_every = 10"]
    flags += ["--gin_param=Trainer.steps = 20", "--gin_param=Trainer.log_every = 10", "--workdir=digits"]
    passed(*flags, cwd=folder)
    return folder / "digits"


@pytest.fixture(scope="module")
def bent(folder):
    """Returns two runs that differ in a binding of a function that a step calls."""
    (folder / "late_calls.py").write_text(LATE)
    (folder / "twice.gin").write_text(GIN.format(by=2.0))
    passed("--gin_file=twice.gin", "--workdir=twice", cwd=folder)
    shutil.copytree(folder / "twice", folder / "thrice")
    given = folder / "thrice" / "config" / "given.gin"
    assert "bent.by = 2.0" in given.read_text()
    given.write_text(given.read_text().replace("bent.by = 2.0", "bent.by = 3.0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder / "twice", folder / "thrice"


def contents(path):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.long
def test_loaded_run_evaluates_as_the_command_and_changes_no_file(trained, monkeypatch, tmp_path):
    path, before = trained, contents(trained)
    monkeypatch.chdir(tmp_path)
    loaded_run = trainers.load(path)
    told = json.loads((path / "result.json").read_text())["evaluation"]
    assert loaded_run.evaluate() == told
    assert contents(path) == before
    assert loaded_run.step == loaded_run.manifest.step == 20
    assert loaded_run.figures["eval/accuracy"].last == (20, told["accuracy"])
    assert repr(loaded_run).startswith(f"LoadedRun('{path}', step 20, MlpClassifier(9,610 parameters), eval/loss ")
    assert len(loaded_run.train_source) > len(loaded_run.eval_source)


@pytest.mark.long
def test_loaded_run_of_an_earlier_step_on_another_source(trained):
    early = trainers.load(str(trained), step=10)
    assert early.step == 10
    assert (
        early.evaluate(digits("test"))
        == early.evaluate()
        != json.loads((trained / "result.json").read_text())["evaluation"]
    )
    with pytest.raises(CheckpointError, match=r"`step` is 15, but .* `step-000000010`, `step-000000020`"):
        trainers.load(trained, step=15)


def test_loaded_run_shows_the_figures_of_its_own_step():
    figures = {"eval/loss": load.Curve((10, 20), (0.5, 0.25)), "eval/accuracy": load.Curve((20,), (0.75,))}
    for step, shown in ((10, "eval/loss 0.5)"), (20, "eval/loss 0.25, eval/accuracy 0.75)")):
        assert repr(load.LoadedRun(Path("run"), step, "task", None, figures, None, None)).endswith(f"'task', {shown}")


@pytest.mark.long
def test_loaded_runs_have_separate_bindings_in_any_order(bent):
    x = {"x": tf.constant([1.0])}

    def value(one):
        return float(one.task.evaluate(x).per_example[0])

    for order in (bent[::-1], bent):
        runs = {path.name: trainers.load(path) for path in order}
        assert [value(runs[path.name]) for path in bent] == [4.0, 6.0]
    traced = {name: tf.function(one.task.evaluate, autograph=False) for name, one in runs.items()}
    for name, by in (("twice", 2.0), ("thrice", 3.0), ("twice", 2.0)):
        assert value(runs[name]) == 2.0 * by
        assert float(traced[name](x).per_example[0]) == 2.0 * by
        assert float(runs[name].task.phases()[0].loss(x, None).per_example[0]) == 2.0 * by
        assert runs[name].evaluate()["loss"] == 2.0 * by
        assert float(runs[name].experiment.make_task().activation(1.0)) == by


def test_threads_have_the_bindings_of_the_run_that_they_call(bent):
    runs, wrong, begin = [trainers.load(path) for path in bent], [], threading.Barrier(3)

    def call(function, expected):
        begin.wait()
        wrong.extend(x for _ in range(2000) if (x := function(1.0)) != expected)

    import late_calls

    gin.bind_parameter("bent.by", 5.0)
    calls = [(runs[0].task.activation, 2.0), (runs[1].task.activation, 3.0), (late_calls.bent, 5.0)]
    threads = [threading.Thread(target=call, args=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("fails", [False, True])
def test_bindings_of_the_process_stay_as_they_are(bent, fails, tmp_path):
    path = bent[0]
    if fails:
        path = tmp_path / "broken"
        shutil.copytree(bent[0], path)
        shutil.rmtree(path / "checkpoints")
    importlib.import_module("late_calls")
    gin.bind_parameter("bent.by", 7.0)
    gin.finalize()

    def state():
        gin_tables = [dict(getattr(gin_config, name)) for name in ("_CONFIG", "_OPERATIVE_CONFIG", "_SINGLETONS")]
        return gin_tables, set(gin_config._IMPORTS), gin_config.config_is_locked(), gin.current_scope()

    before = state()
    with gin.config_scope("mine"):
        with pytest.raises(CheckpointError, match="there is no checkpoint") if fails else contextlib.nullcontext():
            trainers.load(path).evaluate()
        assert gin.current_scope() == ["mine"]
    assert state() == before
    assert gin.config_is_locked()


def test_bindings_that_only_a_step_reads_are_named(bent, tmp_path):
    path = tmp_path / "lifted"
    shutil.copytree(bent[0], path)
    given = path / "config" / "given.gin"
    given.write_text(given.read_text() + "lifted.by = 0.5\n")
    with pytest.warns(UserWarning, match=r"binds lifted\.by, which nothing has used.*`with run\.bindings\(\):`"):
        one = trainers.load(path)
    assert one.evaluate()["loss"] == 4.5
    x = {"x": tf.constant([1.0])}
    assert float(one.task.evaluate(x).per_example[0]) == 4.0
    with one.bindings():
        assert float(one.task.evaluate(x).per_example[0]) == 4.5


@pytest.mark.long
def test_checkpoint_that_is_replaced_meanwhile_is_followed_by_the_next(trained, tmp_path, monkeypatch):
    path = tmp_path / "going_on"
    shutil.copytree(trained, path)
    restore, seen = checkpoint.restore, []

    def late(manifest, variables, **settings):
        seen.append(manifest.step)
        if manifest.step == 20:
            shutil.rmtree(manifest.path)
        restore(manifest, variables, **settings)

    monkeypatch.setattr(load.checkpoint, "restore", late)
    assert trainers.load(path).step == 10
    assert seen == [20, 10]


def test_load_refuses_anything_but_a_run(trained, folder, tmp_path):
    path = trained
    with pytest.raises(ConfigurationError, match=r"doesn't exist: give a run's folder.* Did you mean"):
        trainers.load(f"{path}s")
    with pytest.raises(ConfigurationError, match="is no run and contains none"):
        trainers.load(tmp_path)
    with pytest.raises(ConfigurationError, match="is a folder of runs: give one, as"):
        trainers.load(folder)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"has no `config/given\.gin`.*hasn't started, or failed to"):
        trainers.load(tmp_path / "empty")
    for nothing in ("", None, 3):
        with pytest.raises(ConfigurationError, match=r"^`workdir` is .*give the folder of the run, as 'runs/mine'"):
            trainers.load(nothing)
    for step in ("400", "newest", 20.0, True, -1):
        with pytest.raises(ConfigurationError, match=r"^`step` is .*the step of a checkpoint such as 400, or 'best'"):
            trainers.load(path, step=step)


def test_workdir_below_home_or_the_working_directory_is_found(trained, monkeypatch):
    monkeypatch.setenv("HOME", str(trained.parent))
    monkeypatch.chdir(trained.parent)
    for name in ("~/digits", "digits/"):
        one = trainers.load(name)
        monkeypatch.chdir("/")  # a notebook may
        assert one.path.is_dir()
        monkeypatch.chdir(trained.parent)


def test_users_modules_are_found_in_the_working_directory(bent, monkeypatch, tmp_path):
    path, before = tmp_path / "run", [*sys.path]
    shutil.copytree(bent[0], path)
    given = path / "config" / "given.gin"
    given.write_text("import only_here\n" + given.read_text())
    (tmp_path / "only_here.py").touch()
    with pytest.raises(ConfigurationError, match="there is no module `only_here`"):
        trainers.load(path)
    monkeypatch.chdir(tmp_path)
    assert trainers.load(path).step == 2
    assert sys.path == before


@pytest.mark.long
def test_evaluations_of_many_loaded_runs_warn_of_nothing(bent):
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        for _ in range(6):  # TensorFlow warns of the fifth trace of one function
            trainers.load(bent[0]).evaluate()
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    assert not heard


def test_load_refuses_a_checkpoint_that_does_not_fit_or_is_damaged(trained, tmp_path):
    def copy(name, old="", new=""):
        given = shutil.copytree(trained, tmp_path / name) / "config" / "given.gin"
        given.write_text(given.read_text().replace(old, new))
        return tmp_path / name

    with pytest.raises(CheckpointError, match=r"doesn't fit this model:\n.*\n +misshapen +task/net/"):
        trainers.load(copy("wider", "[64, 128, 10]", "[64, 130, 10]"))
    with pytest.raises(ConfigurationError, match=r"there is no module `nowhere_at_all`"):
        trainers.load(copy("elsewhere", "Experiment.task", "import nowhere_at_all\nExperiment.task"))
    damaged = copy("damaged")
    shard = damaged / "checkpoints" / "step-000000020" / "variables.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff\x00")
    with pytest.warns(UserWarning, match="is damaged and was skipped"):
        assert trainers.load(damaged).step == 10
    with pytest.warns(UserWarning, match="was skipped"), pytest.raises(CheckpointError, match="no complete checkpoint"):
        trainers.load(damaged, step=20)
