"""The loop: chunks, intervals, figures, resuming, evaluation."""

import json

import numpy as np
import pytest
import tensorflow as tf

from core import metrics
from core.data import ArraySource, digits
from core.errors import ConfigurationError, DriftError, NotFiniteError
from core.module import named_variables
from core.optimizers import chain, ema, sgd
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import Crash, hashes, make, newest, small_mlp, train
from trainers.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.hooks.base import Hook
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


def test_what_has_drifted_apart_is_not_kept(tmp_path):
    strategy = on_virtual_cpus(2)
    workdir = Workdir(tmp_path / "run")
    workdir.create()
    settings = Settings(steps=10, global_batch_size=32, log_every=10, evaluate_every=None, checkpoint_every=None)
    trainer = Trainer(Experiment(task=small_mlp, train_source=digits("train"), strategy=strategy), workdir, settings)
    trainer.save()
    kept = hashes(trainer)
    variable = next(iter(trainer.state.variables.values()))
    strategy.experimental_local_results(variable)[1].assign(variable * 0.0 + 1.0)
    trainer.state.step = 5
    with pytest.raises(DriftError, match=r"^replica 1 of 2 no longer hold"):
        trainer.save()
    assert hashes(trainer) == kept


def test_chunk_length_changes_no_bit(tmp_path):
    results = []
    for chunk_steps in (1, 5, 20):
        trainer = make(tmp_path, f"{chunk_steps}", chunk_steps=chunk_steps)
        lines = train(trainer)
        results.append((hashes(trainer), lines))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("replicas", [1, 2])
def test_compiled_chunks_compute_the_same(replicas, tmp_path):
    plain = make(tmp_path, "plain")
    compiled = make(tmp_path, "compiled", compile=True, strategy=on_virtual_cpus(replicas) if replicas > 1 else None)
    for one, other in zip(train(plain), train(compiled), strict=True):
        assert other[:2] == one[:2]
        assert other[2] == pytest.approx(one[2], rel=1e-4)
    for path, variable in plain.state.variables.items():
        np.testing.assert_allclose(compiled.state.variables[path].numpy(), variable.numpy(), atol=2e-5, err_msg=path)
    # One program for all chunks, begun and ended anywhere.
    assert compiled.chunk.experimental_get_tracing_count() == 1


def test_resume_at_any_chunk_gives_the_same_bits_and_lines(tmp_path):
    whole = make(tmp_path, "whole", steps=60)
    expected = train(whole)
    # The checkpoint of step 10 holds the sums of half a metric line; the run crashes twice.
    first = make(tmp_path, "crashed", steps=60, checkpoint_every=10)
    first.hooks.append(Crash(10))
    with pytest.raises(RuntimeError, match="crash"):
        train(first)
    second = make(tmp_path, "crashed", steps=60, checkpoint_every=10)
    second.state.restore(newest(second))
    second.hooks.append(Crash(50))
    with pytest.raises(RuntimeError, match="crash"):
        train(second)
    third = make(tmp_path, "crashed", steps=60)
    third.state.restore(newest(third))
    assert third.step == 50
    assert train(third) == expected[-1:]
    assert hashes(third) == hashes(whole)


def test_going_on_with_another_batch_size_keeps_the_place_in_the_data(tmp_path):
    first = make(tmp_path, steps=10, global_batch_size=32)
    train(first)
    second = make(tmp_path, steps=20, global_batch_size=64)
    second.state.restore(newest(second))
    train(second)
    assert newest(second).examples == 10 * 32 + 10 * 64


def test_a_metric_line_is_the_weighted_mean_since_the_last(tmp_path):
    source = ArraySource(
        {"x": np.arange(8, dtype="float32"), "w": np.array([1, 1, 1, 1, 0, 2, 1, 1], "float32")}, name="eight"
    )

    class Mean(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.b = tf.Variable(0.0, name="b")

        def phases(self):
            return [Update("mean", loss=self.loss, trains=self, optimizer=sgd(0.0))]

        def loss(self, batch, rng):
            return Loss(batch["x"] + self.b, weight=batch["w"], metrics={"square": tf.square(batch["x"])})

        def evaluate(self, batch):
            return self.loss(batch, None)

    # Four steps of two examples are one epoch: each line is the weighted mean of all eight.
    trainer = make(
        tmp_path,
        task=Mean,
        source=source,
        eval_source=source,
        steps=12,
        global_batch_size=2,
        chunk_steps=2,
        log_every=4,
    )
    lines = train(trainer)
    x, w = np.arange(8), np.array([1, 1, 1, 1, 0, 2, 1, 1])
    expected = {"loss": (w * x).sum() / w.sum(), "square": (w * x**2).sum() / w.sum()}
    assert [line[:2] for line in lines] == [(4, "train"), (8, "train"), (12, "train"), (12, "eval")]
    for _, split, figures in lines:
        of_training = {"gradient_norm": 1.0, "learning_rate": 0.0} if split == "train" else {}
        assert figures == pytest.approx({**expected, **of_training})


@pytest.mark.parametrize("size", [1, 7, 64, 360, 1000])
def test_evaluation_counts_each_example_once(size):
    source = digits("test")
    examples = source.gather(tf.range(len(source), dtype=tf.int64))
    experiment = Experiment(task=small_mlp, train_source=source)
    direct = experiment.task.evaluate(examples)
    figures = Evaluator(experiment, source, global_batch_size=size).evaluate()
    assert figures["accuracy"] == pytest.approx(np.mean(direct.metrics["accuracy"]), abs=1e-7)
    assert figures["loss"] == pytest.approx(np.mean(direct.per_example, dtype="float64"), rel=1e-6)


def test_additive_metrics_are_merged_over_batches_and_lines(tmp_path):
    random = np.random.RandomState(0)
    x, y = random.randn(48).astype("float32"), (random.rand(48) < 0.4).astype("int32")
    source = ArraySource({"x": x, "y": y}, name="scores")

    class Scores(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.b = tf.Variable(0.0, name="b")

        def phases(self):
            return [Update("scores", loss=self.loss, trains=self, optimizer=sgd(0.0))]

        def loss(self, batch, rng):
            scores = batch["x"] + self.b
            return Loss(tf.square(scores), metrics={"auc": metrics.AUC.of(tf.sigmoid(scores), batch["y"])})

        def evaluate(self, batch):
            return self.loss(batch, None)

    settings = {"source": source, "eval_source": source, "steps": 6, "global_batch_size": 16, "chunk_steps": 3}
    trainer = make(tmp_path, task=Scores, log_every=3, microbatches=2, **settings)
    lines = train(trainer)
    positive, negative = x[y == 1], x[y == 0]
    exact = np.mean(positive[:, None] > negative[None])
    assert len(lines) == 3
    for _, _, figures in lines:
        assert figures["auc/roc"] == pytest.approx(exact, abs=2e-3)
        assert figures.keys() - {"gradient_norm", "learning_rate"} == {"loss", "auc/roc", "auc/pr"}
    assert newest(trainer)


def test_evaluation_reads_the_average_of_the_weights(tmp_path):
    def averaging(*, rng):
        return MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=chain(sgd(0.3), ema(0.8, debias=False)))

    trainer = make(tmp_path, task=averaging, eval_source=digits("test"), steps=10, chunk_steps=1, log_every=None)
    task = trainer.experiment.task
    average = {path: v.numpy() for path, v in named_variables(task).items()}

    class Follow(Hook):
        def __call__(self, run):
            for path, v in named_variables(task).items():
                average[path] = 0.8 * average[path] + 0.2 * v.numpy()

    trainer.hooks.insert(0, Follow(1))
    lines = train(trainer)
    peer = averaging(rng=Rng.from_seed(5))
    for path, v in named_variables(peer).items():
        v.assign(average[path])
    examples = digits("test").gather(tf.range(360, dtype=tf.int64))
    expected, raw = (float(tf.reduce_mean(t.evaluate(examples).per_example)) for t in (peer, task))
    assert lines[-1][2]["loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(raw - expected) > 1e-3


def test_the_chunk_is_chosen_to_fit_intervals_and_memory(tmp_path):
    assert make(tmp_path, chunk_steps=None, log_every=100, checkpoint_every=250).input.chunk_steps == 50
    assert make(tmp_path, chunk_steps=None, log_every=12, checkpoint_every=30).input.chunk_steps == 6
    large = ArraySource({"image": np.zeros([4, 1024, 1024], "float32"), "label": np.zeros([4], "int32")}, name="large")

    def any_task(*, rng):
        return MlpClassifier(rng=rng, sizes=[1024 * 1024, 2], optimizer=sgd(0.1))

    settings = {"source": large, "chunk_steps": None, "log_every": 8, "global_batch_size": 4}
    assert make(tmp_path, task=any_task, **settings).input.chunk_steps == 2


def test_an_interval_within_a_chunk_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`Trainer.log_every` is 25.*Use 20"):
        make(tmp_path, log_every=25)


def test_hooks_of_ones_own(tmp_path):
    seen = []

    class Steps(Hook):
        def __call__(self, run):
            seen.append(run.step)

    train(make(tmp_path, hooks=[Steps(20)], steps=50, log_every=None))
    assert seen == [20, 40, 50]


def test_a_step_that_is_not_finite_stops_the_run_and_is_named(tmp_path):
    source = ArraySource({"x": np.full([16], 1e18, "float32")}, name="huge")

    class Overflow(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.w = tf.Variable(1e-12, name="w")

        def phases(self):
            return [Update("flow", loss=self.loss, trains=self, optimizer=sgd(100.0))]

        def loss(self, batch, rng):
            return Loss(-batch["x"] * self.w)

    # The weight grows by 1e20 a step, and the loss with it by 1e38: soon too much for float32.
    trainer = make(tmp_path, task=Overflow, source=source, steps=20, global_batch_size=4)
    with pytest.raises(NotFiniteError, match=r"step \d+ is not finite: in phase `flow`, `loss` is -inf"):
        train(trainer)
    assert np.isfinite(trainer.experiment.task.w.numpy())
    assert not list(trainer.workdir.checkpoints.glob("*"))


def test_a_gradient_that_is_not_finite_stops_the_run_though_the_loss_is(tmp_path):
    source = ArraySource({"x": np.zeros([16], "float32")}, name="zeros")

    class Root(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.w, self.b = tf.Variable(1.0, name="w"), tf.Variable(1.0, name="b")

        def phases(self):
            return [Update("root", loss=self.loss, trains=self, optimizer=sgd(0.1))]

        def loss(self, batch, rng):
            return Loss(tf.sqrt(batch["x"] * self.w) + self.b)  # the root of zero has no finite slope

    trainer = make(tmp_path, task=Root, source=source, steps=20, global_batch_size=4)
    text = "step 0 is not finite: the loss of phase `root` was, but not the gradient of `w`"
    with pytest.raises(NotFiniteError, match=text):
        train(trainer)
    assert not list(trainer.workdir.checkpoints.glob("*"))


def test_an_update_that_overflows_is_not_saved(tmp_path):
    source = ArraySource({"x": np.full([16], 1e18, "float32")}, name="huge")

    class Leap(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.w = tf.Variable(0.0, name="w")

        def phases(self):
            return [Update("leap", loss=self.loss, trains=self, optimizer=sgd(1e30))]

        def loss(self, batch, rng):
            return Loss(batch["x"] * self.w)

    trainer = make(tmp_path, task=Leap, source=source, steps=1, global_batch_size=4)
    with pytest.raises(NotFiniteError, match="`task/w` is not finite"):
        train(trainer)
    assert not list(trainer.workdir.checkpoints.glob("*"))


def test_a_chunk_traces_once(tmp_path):
    trainer = make(tmp_path, steps=45, chunk_steps=10, log_every=20)
    train(trainer)
    assert trainer.chunk.experimental_get_tracing_count() == 1


def test_result_of_a_run_is_json(tmp_path):
    trainer = make(tmp_path)
    trainer.workdir.write_result(step=3, exit_code=0, reason="finished", evaluation={"loss": 1.0})
    assert json.loads(trainer.workdir.result.read_text())["evaluation"] == {"loss": 1.0}
