"""`Experiment.eval_sources`: named sources are evaluated together and written separately."""

import json

import numpy as np
import pytest

from core.data import ArraySource, Stream, digits
from core.errors import ConfigurationError, DataError
from core.optimizers import chain, ema, sgd
from models.classifiers.linear import LinearClassifier
from tests.commands import CHECKOUT, CONFIGS, passed, run
from tests.toys import points
from tests.trainers.trainer_lab import HELD_OUT, Small, hashes, idle, make, newest, train
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.evaluation.evaluator import Evaluations, Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.runs.read import read_run
from trainers.settings import Settings


def part(count, noise=0.0):
    """Returns the first held-out points, with noise."""
    arrays = {name: values[:count] for name, values in points(360, seed=1).items()}
    noisy = arrays["x"] + noise * np.random.RandomState(0).randn(count, 3)
    return ArraySource({**arrays, "x": noisy.astype("float32")}, name="part")


def figures_of(lines, step=40):
    return {split: figures for at, split, figures in lines if at == step and split != "train"}


@pytest.mark.long
def test_each_source_has_the_figures_that_it_has_alone(tmp_path):
    """Averages of weights and traces are shared, and the order of tracing changes nothing."""

    class Averaging(Small):
        optimizer = chain(sgd(0.3), ema(0.8, debias=False))

    sources = {"clean": HELD_OUT, "noisy": part(360, noise=20.0), "few": part(7)}
    trainer = make(tmp_path, task=Averaging, eval_source=part(100), eval_sources=sources)
    found = figures_of(train(trainer))
    assert list(found) == ["eval", "eval/clean", "eval/noisy", "eval/few"]
    for split in ("eval/noisy", "eval/few"):  # of all rows, and of another number
        alone = Evaluator(trainer.experiment, trainer.experiment.held_out[split]).evaluate()
        assert found[split] == alone, split
    assert found["eval/noisy"]["loss"] > found["eval/clean"]["loss"]
    evaluators = trainer.evaluations._evaluators
    assert evaluators["eval/noisy"].sums is evaluators["eval/clean"].sums
    assert evaluators["eval/few"].sums is not evaluators["eval/clean"].sums
    assert len({id(each.averaged.task) for each in evaluators.values()}) == 1


@pytest.mark.long
def test_eval_sources_change_no_weight_and_their_figures_are_remembered(tmp_path):
    sources = {"noisy": part(20, noise=2.0)}
    trainer = make(tmp_path, "with", eval_source=HELD_OUT, eval_sources=sources, evaluate_every=20)
    lines = train(trainer)
    alone = make(tmp_path, "without", eval_source=HELD_OUT, evaluate_every=20)
    assert train(alone) == [line for line in lines if line[1] != "eval/noisy"]
    assert hashes(trainer) == hashes(alone)
    assert trainer.evaluation.keys() == {"loss", "accuracy", "noisy/loss", "noisy/accuracy"}
    resumed = make(tmp_path, "with", eval_sources=sources)
    resumed.state.restore(newest(trainer))
    assert resumed.evaluation == trainer.evaluation


def test_named_sources_alone_are_evaluated(tmp_path):
    trainer = idle(make(tmp_path, eval_sources={"few": part(7)}, evaluate_every=20, log_every=None))
    evaluated = [(step, split) for step, split, _ in train(trainer) if split != "train"]
    assert evaluated == [(20, "eval/few"), (40, "eval/few")]
    assert trainer.evaluation.keys() == {"few/loss", "few/accuracy"}


def linear(*, rng):
    return LinearClassifier(rng=rng, in_size=64, num_classes=10, optimizer=sgd(0.1))


large = ArraySource({"image": np.zeros([4, 9, 9, 1], "float32"), "label": np.zeros([4], "int32")}, name="large")


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({"": HELD_OUT}, "calls a source ''"),
        ({"a/b": HELD_OUT}, "calls a source 'a/b'"),
        ({"..": HELD_OUT}, r"calls a source '\.\.'"),
        (
            {"accuracy": digits("test")},
            "calls a source `accuracy`, which is already a metric of `Linear",
        ),
        ({"a": part(4)}, r"`Experiment.eval_sources\['a'\]`: .*`part`"),
        ({"a": large}, r"eval_sources\['a'\]` .* `image` of shape \(9, 9, 1\), not \(8, 8, 1\)\. .* error is: "),
        ({"a": Stream(lambda seed, epoch: iter([{"x": 1.0}]))}, r"`Experiment.eval_sources\['a'\]` is the stream"),
    ],
)
def test_unusable_names_and_sources_are_refused(sources, says):
    with pytest.raises((ConfigurationError, DataError), match=says):
        Evaluations(Experiment(task=linear, train_source=digits("test"), eval_sources=sources))


NAMED = (
    "Experiment.eval_sources = {'clean': @test/digits(), 'train': @learnt/digits()}",
    "test/digits.split = 'test'",
    "learnt/digits.split = 'train'",
)
SHORT = ("steps = 20", "chunk_steps = 10", "log_every = 10", "evaluate_every = 10", "checkpoint_every = 20")
FLAGS = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", *(f"--gin_param=Trainer.{text}" for text in SHORT)]


@pytest.mark.long
def test_from_gin_into_every_file_of_a_run(tmp_path):
    """A run that began without named sources resumes with them: they aren't part of its identity."""
    assert run(*FLAGS, "--workdir=run", cwd=tmp_path).returncode == 0
    named = [*FLAGS, *(f"--gin_param={text}" for text in NAMED), "--gin_param=Trainer.steps = 40"]
    passed(*named, "--workdir=run", cwd=tmp_path)
    folder = tmp_path / "run"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = {line["split"]: line for line in lines if line["step"] == 40}
    assert list(last) == ["train", "eval", "eval/clean", "eval/train"]
    assert {**last["eval/clean"], "split": "eval"} == last["eval"]  # the same examples
    result = json.loads((folder / "result.json").read_text())["evaluation"]
    assert result["clean/accuracy"] == result["accuracy"] == last["eval"]["accuracy"]
    assert result["train/loss"] == last["eval/train"]["loss"] != result["loss"]
    assert list((folder / "events" / "eval" / "clean").glob("events.*"))
    curves = read_run(folder).figures
    assert curves["eval/train/loss"].steps == (30, 40)


def bound(*params):
    configuration = read([str(CONFIGS / "digits_linear.gin")], params, search=[CHECKOUT])
    configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (["eval_sources = {'a': @noisy/digits()}", "nosiy/digits.split = 'test'"], "Did you mean `noisy`"),
        (["eval_sources = {'a': @adamw()}"], r"`eval_sources` is given .* `Mapping\[str, Source\]`"),
        (["eval_sources = {'a': @digist()}"], r"Did you mean `digits`\?"),
        (["eval_sources = {'a': @digits(), 'a': @digits()}"], "'a' is twice in one dictionary"),
    ],
)
def test_mistake_in_gin_is_named_before_anything_is_made(params, says):
    with pytest.raises(ConfigurationError, match=says):
        bound(f"Experiment.{params[0]}", *params[1:])
