"""Training from Python: the command's results, stopped and resumed, and found again."""

import functools
import json
import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

import trainers
from core.data import Stream, digits
from core.distribution import mirrored
from core.errors import ConfigurationError, PreemptedError
from core.optimizers import sgd, warmup_cosine
from core.parallel.mesh import mesh
from core.weights import checkpoint
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, passed, run
from trainers import Experiment, Settings
from trainers.hooks import EarlyStopping, Hook
from trainers.process.signals import Preemption
from trainers.python_api.identity import described
from trainers.runs.read import read_run

FLAGS = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--workdir=command"]
FLAGS += [f"--gin_param=MlpClassifier.{x}" for x in ("sizes = [64, 10]", "optimizer = @sgd()")]
FLAGS += [f"--gin_param=sgd.{x}" for x in ("learning_rate = @warmup_cosine()", "momentum = 0.9")]
FLAGS += [f"--gin_param=Trainer.{x}" for x in ("steps = 20", "log_every = 10", "evaluate_every = 10")]


def mlp(rng, dropout=0.0, peak_rate=3e-3):
    rate = warmup_cosine(peak_rate, warmup_steps=100, total_steps=3000)
    return MlpClassifier(rng=rng, sizes=[64, 10], dropout=dropout, optimizer=sgd(rate, momentum=0.9))


def experiment(task=mlp, **changed):
    return Experiment(**{"task": task, "train_source": digits("train"), "eval_source": digits("test"), **changed})


def settings(**changed):
    return Settings(**{"steps": 20, "global_batch_size": 32, "log_every": 10, "evaluate_every": 10, **changed})


def hashes(one):
    return {path: saved.sha256 for path, saved in one.manifest.variables.items()}


class At(Hook):
    """Calls a function at one step, once."""

    def __init__(self, step, what):
        super().__init__(step)
        self.what = what

    def due(self, step, steps):
        return step == self.every

    def __call__(self, run):
        self.what()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("python_run")


@pytest.fixture(scope="module")
def whole(folder):
    """Returns an undisturbed run."""
    return trainers.train(experiment(), settings(), folder / "whole", quiet=True)


@pytest.mark.long
def test_results_are_those_of_the_command(whole, folder):
    passed(*FLAGS, cwd=folder)
    loaded = trainers.load(folder / "command")
    assert hashes(loaded) == hashes(whole)
    result = json.loads((folder / "command" / "result.json").read_text())
    assert whole.evaluate() == loaded.evaluate() == result["evaluation"]
    assert json.loads((folder / "whole" / "result.json").read_text()) == result
    with pytest.raises(ConfigurationError, match="holds a run made from gin files"):
        trainers.train(experiment(), settings(), folder / "command", quiet=True)
    refused = run(FLAGS[0], "--workdir=whole", cwd=folder)
    assert refused.returncode == ConfigurationError.exit_code
    assert "+ Experiment.task = @MlpClassifier" in refused.stderr


@pytest.mark.long
def test_run_that_failed_or_was_stopped_resumes_and_longer_settings_continue_it(whole, folder, capsys):
    path, before = folder / "stopped", signal.getsignal(signal.SIGINT)

    def fail():
        raise RuntimeError("the hook's own")

    trainers.train(experiment(), settings(steps=10), path, quiet=True)
    assert capsys.readouterr().out == ""
    with pytest.raises(RuntimeError, match="the hook's own"):
        trainers.train(experiment(), settings(hooks=[At(20, fail)]), path)
    assert "resuming from step 10 (`step-000000010`)" in capsys.readouterr().out
    assert read_run(path).reason == "RuntimeError: the hook's own"
    one, stopping = experiment(), settings(hooks=[At(12, interrupt)])
    with pytest.raises(PreemptedError, match="stopped by SIGINT after step 14 of 20; everything is in"):
        trainers.train(one, stopping, path, quiet=True)
    assert signal.getsignal(signal.SIGINT) == before
    assert read_run(path).state == "stopped"
    found = []
    thread = threading.Thread(target=lambda: found.append(trainers.train(one, stopping, path, quiet=True)))
    thread.start()
    thread.join()
    assert hashes(found[0]) == hashes(whole)
    assert found[0].evaluate() == whole.evaluate()


@pytest.mark.long
def test_run_on_two_devices_has_the_results_of_one(whole, tmp_path):
    run = trainers.train(experiment(strategy=mesh(batch=2)), settings(), tmp_path / "run", quiet=True)
    assert run.evaluate() == pytest.approx(whole.evaluate(), rel=1e-5)


def test_experiment_that_was_trained_before_is_refused(whole, tmp_path):
    with pytest.raises(ConfigurationError, match=r"`experiment` was trained before.*`Experiment\(\.\.\.\)`"):
        trainers.train(whole.experiment, settings(), tmp_path / "second", quiet=True)


def test_finished_run_is_returned_as_it_is_by_any_path(whole, folder, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    again = trainers.train(experiment(), settings(), "~/whole")
    assert capsys.readouterr().out.startswith("already finished: 20 steps, loss ")
    assert (hashes(again), again.step, repr(again)) == (hashes(whole), 20, repr(whole))
    assert again.path == folder / "whole"


def test_run_is_listed_like_any_other(whole, folder):
    found = read_run(folder / "whole")
    assert (found.state, found.step, found.steps, found.damage) == ("finished", 20, 20, ())
    assert found.configuration["Experiment.task"] == "'MlpClassifier'"
    assert found.figures["eval/accuracy"].steps == whole.figures["eval/accuracy"].steps == (10, 20)
    with pytest.raises(
        ConfigurationError, match=r"calls of Python, .* `trainers\.train`, which returns a finished run"
    ):
        trainers.load(folder / "whole")


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "set_otherwise", "says"),
    [
        ({"seed": 1}, {}, "- Experiment.seed = 0\n+ Experiment.seed = 1"),
        ({"task": functools.partial(mlp, dropout=0.1)}, {}, "- task/net/dropout/rate = 0.0\n+ task/net/dropout/rate"),
        ({"task": lambda rng: mlp(rng, peak_rate=1e-3)}, {}, "- net.learning_rate = '0 at 0, 0.003 at 100, "),
        ({"train_source": digits("test")}, {}, "- Experiment.train_source = '1437 examples of digits"),
        ({}, {"global_batch_size": 16}, "- Trainer.global_batch_size = 32\n+ Trainer.global_batch_size = 16"),
    ],
)
def test_another_run_in_the_folder_is_refused(whole, folder, changed, set_otherwise, says):
    with pytest.raises(ConfigurationError, match="holds a run of another configuration") as refused:
        trainers.train(experiment(**changed), settings(**set_otherwise), folder / "whole", quiet=True)
    assert says in str(refused.value)
    assert str(refused.value).endswith("or call `trainers.train` with the same arguments as before.")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"settings": {"steps": 20}}, r"^`settings` is {'steps': 20}; give a `trainers\.Settings\(\.\.\.\)`"),
        ({"experiment": mlp}, r"^`experiment` is <function mlp .*; give a `trainers\.Experiment\(\.\.\.\)`"),
        ({"workdir": ""}, r"^`workdir` is ''; give the folder of the run"),
        ({"workdir": None}, r"^`workdir` is None; give the folder of the run"),
    ],
)
def test_arguments_of_another_type_are_refused(changed, says, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"experiment": whole.experiment, "settings": settings(), "workdir": "run", **changed}
    with pytest.raises(ConfigurationError, match=says):
        trainers.train(**given, quiet=True)
    assert not list(tmp_path.iterdir())


def endless(seed, epoch):
    while True:
        yield {"x": np.float32(1.0)}


def test_sources_of_another_type_are_refused(whole):
    with pytest.raises(ConfigurationError, match=r"^`source` is the stream `endless`.*a source with a length"):
        whole.evaluate(Stream(endless))
    for wrong, says in (
        (digits, r"`digits` itself.*: call it: `digits\(\.\.\.\)`"),
        (tf.data.Dataset.range(3), r"a dataset,.*`core\.data\.Stream\(make\)`"),
        (np.ones([3]), r"of type ndarray,.*`core\.data\.ArraySource\("),
        ({"x": np.ones([3])}, r"of type dict,.*`core\.data\.ArraySource\("),
    ):
        with pytest.raises(ConfigurationError, match=rf"^`source` is {says}"):
            whole.evaluate(wrong)
        for name in ("train_source", "eval_source"):
            with pytest.raises(ConfigurationError, match=rf"^`Experiment\.{name}` is {says}"):
                experiment(**{name: wrong})
        with pytest.raises(ConfigurationError, match=rf"^`Experiment\.eval_sources\['more'\]` is {says}"):
            experiment(eval_sources={"more": wrong})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"strategy": "mirrored"},
            r"^`Experiment\.strategy` is 'mirrored'; give a strategy made by a call: `core\.distr",
        ),
        (
            {"strategy": mirrored},
            r"^`Experiment\.strategy` is <function mirrored .*: `core\.distribution\.mirrored\(\)`",
        ),
        ({"seed": "a"}, r"^`Experiment\.seed` is 'a'; .* Give a whole number"),
        ({"seed": 0.5}, r"^`Experiment\.seed` is 0\.5; .* Give a whole number"),
        ({"seed": -1}, r"^`Experiment\.seed` is -1; it must be at least 0"),
    ],
)
def test_experiment_of_wrong_values_is_refused(changed, says):
    with pytest.raises(ConfigurationError, match=says):
        experiment(**changed)


def test_interruption_never_ends_the_process_of_a_notebook():
    preemption = Preemption(ends_process=False)
    with preemption.granted():
        interrupt()
        for _ in range(3):  # the first asks for an end
            with pytest.raises(KeyboardInterrupt, match="a second Ctrl-C"):
                interrupt()


@pytest.mark.long
def test_hook_of_another_experiment_is_refused(folder):
    stopping = settings(
        hooks=[EarlyStopping("min loss", every=10, patience=1, least_change=100.0)],
        keep_best="min loss",
        checkpoint_every=10,
    )
    one = experiment()
    first = trainers.train(one, stopping, folder / "early", quiet=True)
    assert trainers.train(experiment(), stopping, folder / "early", quiet=True).step == first.step == 20  # no more
    with pytest.raises(
        ConfigurationError, match=r"a `EarlyStopping` that was used in a run of another experiment.*new one with"
    ):
        trainers.train(experiment(), stopping, folder / "late", quiet=True)


def test_description_names_the_weights_that_a_run_starts_from():
    one = experiment(start_from=checkpoint("a", take=["net/*"], rename={"body": "net"}))
    assert described(one, settings())["Experiment.start_from"] == (
        "{'path': 'a', 'take': ['net/*'], 'rename': {'body': 'net'}, 'transpose': {}}"
    )
    assert "Experiment.start_from" not in described(experiment(), settings())
