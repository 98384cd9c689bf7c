"""The loop: chunks, intervals, metric lines, resuming, evaluation."""

import numpy as np
import pytest
import tensorflow as tf

from core import metrics
from core.data import ArraySource
from core.errors import DriftError, NotFiniteError
from core.module import named_variables
from core.optimizers import chain, ema, sgd
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from tests.trainers.trainer_lab import HELD_OUT, Crash, Small, hashes, make, newest, train
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.hooks import Hook


class Steps(Hook):
    """Records the steps at which it is called."""

    def __init__(self, every):
        super().__init__(every)
        self.seen = []

    def __call__(self, run):
        self.seen.append(run.step)


def scalar(loss, *, w=0.0, rate=0.0):
    """Returns a task of one number, `w`, whose loss is `loss(batch, w)`."""

    class Scalar(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.w = tf.Variable(w, name="w")

        def phases(self):
            return [Update("scalar", loss=self.loss, trains=self, optimizer=sgd(rate))]

        def loss(self, batch, rng):
            return loss(batch, self.w)

        def evaluate(self, batch):
            return loss(batch, self.w)

    return Scalar


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose last chunk is half as long as the others, and its metric lines."""
    trainer = make(tmp_path_factory.mktemp("whole"), steps=45, hooks=[Steps(20)])
    return trainer, train(trainer)


def test_chunk_traces_once_and_hooks_are_called_at_their_steps_and_the_end(whole):
    trainer, _ = whole
    assert trainer.chunk.experimental_get_tracing_count() == 1
    assert next(hook for hook in trainer.hooks if isinstance(hook, Steps)).seen == [20, 40, 45]


def test_chunk_length_changes_no_bit(whole, tmp_path):
    trainer = make(tmp_path, steps=45, chunk_steps=1)
    assert train(trainer) == whole[1]
    assert hashes(trainer) == hashes(whole[0])


@pytest.mark.long
def test_compiled_chunks_compute_the_same(whole, tmp_path):
    """`test_same_numbers.py` has more, with replicas and microbatches."""
    plain, lines = whole
    compiled = make(tmp_path, steps=45, compile=True)
    for one, other in zip(lines, train(compiled), strict=True):
        assert other[:2] == one[:2]
        assert other[2] == pytest.approx(one[2], rel=1e-4)
    for path, variable in plain.state.variables.items():
        np.testing.assert_allclose(compiled.state.variables[path].numpy(), variable.numpy(), atol=2e-5, err_msg=path)
    # One program for all chunks, whatever their begin and end.
    assert compiled.chunk.experimental_get_tracing_count() == 1


@pytest.mark.long
def test_resume_at_any_chunk_gives_the_same_bits_and_lines(whole, tmp_path):
    # The checkpoint of step 10 holds the sums of half a metric line.
    with pytest.raises(RuntimeError, match="crash"):
        train(make(tmp_path, "crashed", steps=45, checkpoint_every=10, hooks=[Crash(20)]))
    resumed = make(tmp_path, "crashed", steps=45)
    resumed.state.restore(newest(resumed))
    assert resumed.step == 10
    assert train(resumed) == whole[1]
    assert hashes(resumed) == hashes(whole[0])


def test_another_batch_size_keeps_the_place_in_the_data(whole, tmp_path):
    resumed = make(tmp_path, steps=50, global_batch_size=64)
    resumed.state.restore(newest(whole[0]))
    train(resumed)
    assert newest(resumed).examples == 45 * 32 + 5 * 64


def test_replicas_that_drifted_apart_are_not_kept(tmp_path):
    trainer = make(tmp_path, strategy=on_virtual_cpus(2))
    trainer.save()
    kept = hashes(trainer)
    variable = next(iter(trainer.state.variables.values()))
    trainer.experiment.strategy.experimental_local_results(variable)[1].assign(variable * 0.0 + 1.0)
    trainer.state.advance(5)
    with pytest.raises(DriftError, match=r"^replica 1 of 2 no longer hold"):
        trainer.save()
    assert hashes(trainer) == kept


def test_metric_line_is_the_weighted_mean_since_the_last(tmp_path):
    x, w = np.arange(8), np.array([1, 1, 1, 1, 0, 2, 1, 1])
    source = ArraySource({"x": x.astype("float32"), "w": w.astype("float32")}, name="eight")

    def loss(batch, w):
        return Loss(batch["x"] + w, weight=batch["w"], metrics={"square": tf.square(batch["x"])})

    # Four steps of two examples are one epoch: each line is the weighted mean of all eight.
    settings = {"steps": 12, "global_batch_size": 2, "chunk_steps": 2, "log_every": 4}
    lines = train(make(tmp_path, task=scalar(loss), source=source, eval_source=source, **settings))
    expected = {"loss": (w * x).sum() / w.sum(), "square": (w * x**2).sum() / w.sum()}
    assert [line[:2] for line in lines] == [(4, "train"), (8, "train"), (12, "train"), (12, "eval")]
    for _, split, figures in lines:
        of_training = {"gradient_norm": 1.0, "learning_rate": 0.0} if split == "train" else {}
        assert figures == pytest.approx({**expected, **of_training})


@pytest.mark.long
def test_additive_metrics_are_merged_over_batches_and_lines(tmp_path):
    random = np.random.RandomState(0)
    x, y = random.randn(48).astype("float32"), (random.rand(48) < 0.4).astype("int32")
    source = ArraySource({"x": x, "y": y}, name="scores")

    def loss(batch, w):
        scores = batch["x"] + w
        return Loss(tf.square(scores), metrics={"auc": metrics.AUC.of(tf.sigmoid(scores), batch["y"])})

    settings = {"source": source, "eval_source": source, "steps": 6, "global_batch_size": 16, "chunk_steps": 3}
    trainer = make(tmp_path, task=scalar(loss), log_every=3, microbatches=2, **settings)
    lines = train(trainer)
    positive, negative = x[y == 1], x[y == 0]
    exact = np.mean(positive[:, None] > negative[None])
    assert len(lines) == 3
    for _, _, figures in lines:
        assert figures["auc/roc"] == pytest.approx(exact, abs=2e-3)
        assert figures.keys() - {"gradient_norm", "learning_rate"} == {"loss", "auc/roc", "auc/pr"}
    assert newest(trainer)


def test_evaluation_counts_each_of_360_examples_once():
    untrained = Experiment(task=Small, train_source=HELD_OUT)
    direct = untrained.task.evaluate(HELD_OUT.gather(tf.range(360, dtype=tf.int64)))
    for size in (7, 1000):
        figures = Evaluator(untrained, HELD_OUT, global_batch_size=size).evaluate()
        assert figures["accuracy"] == pytest.approx(np.mean(direct.metrics["accuracy"]), abs=1e-7)
        assert figures["loss"] == pytest.approx(np.mean(direct.per_example, dtype="float64"), rel=1e-6)


class Averaging(Small):
    optimizer = chain(sgd(0.3), ema(0.8, debias=False))


@pytest.mark.long
def test_evaluation_reads_the_average_of_the_weights(tmp_path):
    trainer = make(tmp_path, task=Averaging, eval_source=HELD_OUT, steps=10, chunk_steps=1, log_every=None)
    task = trainer.experiment.task
    average = {path: v.numpy() for path, v in named_variables(task).items()}

    class Follow(Hook):
        def __call__(self, run):
            for path, v in named_variables(task).items():
                average[path] = 0.8 * average[path] + 0.2 * v.numpy()

    trainer.hooks.insert(0, Follow(1))
    lines = train(trainer)
    peer = Averaging(rng=Rng.from_seed(5))
    for path, v in named_variables(peer).items():
        v.assign(average[path])
    examples = HELD_OUT.gather(tf.range(360, dtype=tf.int64))
    expected, raw = (float(tf.reduce_mean(t.evaluate(examples).per_example)) for t in (peer, task))
    assert lines[-1][2]["loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(raw - expected) > 1e-3


def test_chunk_is_chosen_to_fit_into_memory(tmp_path):
    large = ArraySource({"image": np.zeros([4, 1024, 1024], "float32"), "label": np.zeros([4], "int32")}, name="large")
    task = scalar(lambda batch, w: Loss(batch["image"][:, 0, 0] * w))
    settings = {"source": large, "chunk_steps": None, "log_every": 8, "global_batch_size": 4}
    assert make(tmp_path, task=task, **settings).input.chunk_steps == 2


def failed(tmp_path, value, *, steps=20, **task):
    """Trains on `x`, all of one value, until a step is not finite; returns the error and the trainer."""
    source = ArraySource({"x": np.full([16], value, "float32")}, name="same")
    trainer = make(tmp_path, task=scalar(**task), source=source, steps=steps, global_batch_size=4)
    with pytest.raises(NotFiniteError) as error:
        train(trainer)
    assert not list(trainer.workdir.checkpoints.glob("*"))
    return str(error.value), trainer.experiment.task


def test_a_step_that_is_not_finite_stops_the_run_and_is_named(tmp_path):
    # The weight grows by 1e20 a step, and the loss with it by 1e38: soon too much for float32.
    error, task = failed(tmp_path, 1e18, loss=lambda batch, w: Loss(-batch["x"] * w), w=1e-12, rate=100.0)
    assert error.startswith("step 1 is not finite: in phase `scalar`, `loss` is -inf"), error
    assert np.isfinite(task.w.numpy())


def test_gradient_that_is_not_finite_stops_the_run_though_the_loss_is_finite(tmp_path):
    # The root of zero has no finite slope.
    error, _ = failed(tmp_path, 0.0, loss=lambda batch, w: Loss(tf.sqrt(batch["x"] * w) + w), w=1.0, rate=0.1)
    assert "step 0 is not finite: the loss of phase `scalar` was, but not the gradient of `w`" in error


def test_an_update_that_overflows_is_not_saved(tmp_path):
    error, _ = failed(tmp_path, 1e18, loss=lambda batch, w: Loss(batch["x"] * w), rate=1e30, steps=1)
    assert "`task/w` is not finite" in error
