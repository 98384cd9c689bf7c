"""Evaluation of averaged weights uses the normalisation statistics of the same steps."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint, layers, losses
from core.data import digits
from core.module import named_variables
from core.optimizers import adam, chain, ema, groups, lookahead, polyak, schedule_free_adamw, sgd
from core.task import Loss, Statistics, Task, Update
from core.task.statistics import averaged as averaged_by_path
from core.task.statistics import commit
from tests.trainers.trainer_lab import HELD_OUT, make, newest
from trainers.evaluation.averaged_weights import where_averages_lie

DECAY = 0.8
SLOTS = {
    f"optimizer/net/statistics/{layer}/moving_{kind}" for layer in ("first", "second") for kind in ("mean", "variance")
}


class Net(tf.Module):
    """Normalises its input, and its output."""

    def __init__(self, rng):
        super().__init__()
        self.first, self.second = layers.BatchNorm(3, sync=True), layers.BatchNorm(8, sync=True)
        self.hidden, self.out = layers.Linear(3, 8, rng=rng.fold(0)), layers.Linear(8, 1, rng=rng.fold(1))

    def __call__(self, x, statistics=None):
        x = self.hidden(self.first(x, statistics=statistics))
        return self.out(tf.nn.relu(self.second(x, statistics=statistics)))[:, 0]


class Normalised(Task):
    optimizer = chain(sgd(0.3), ema(DECAY))

    def __init__(self, *, rng):
        super().__init__()
        self.net = Net(rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer, mixes_rows=True)]

    def loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.square(self.net(batch["x"], statistics) - batch["y"]), statistics=statistics)

    def evaluate(self, batch):
        return Loss(tf.square(self.net(batch["x"]) - batch["y"]))


def trained(tmp_path, name="run", steps=20, **settings):
    trainer = make(tmp_path, name, task=settings.pop("task", Normalised), steps=steps, **settings)
    trainer.train()
    return trainer


def values(trainer):
    return {path: v.numpy() for path, v in trainer.state.variables.items()}


def statistics_of(trainer):
    return {path: x for path, x in values(trainer).items() if "/statistics/" in path}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("statistics"), eval_source=HELD_OUT, checkpoint_every=10)


@pytest.mark.long
def test_averaged_statistics_are_the_weighted_means_of_the_batches(run):
    chunks = run.input.chunks_from(0)
    batches = [x for _ in range(2) for x in next(chunks)["x"].numpy()[:, 0]]
    weights = DECAY ** np.arange(20)[::-1]
    found = statistics_of(run)
    assert set(found) == SLOTS
    for kind, of_batch in (("mean", np.mean), ("variance", np.var)):
        expected = np.average([of_batch(x, 0) for x in batches], axis=0, weights=weights)
        np.testing.assert_allclose(
            found[f"optimizer/net/statistics/first/moving_{kind}"], expected, rtol=1e-5, atol=1e-6
        )


class Ahead(Normalised):
    optimizer = lookahead(sgd(0.3), sync_period=5, slow_step_size=0.5)


@pytest.mark.long
def test_statistics_of_slow_weights_are_those_of_the_batches_before_they_moved(tmp_path):
    run = trained(tmp_path, task=Ahead)
    chunks = run.input.chunks_from(0)
    batches = [x for _ in range(2) for x in next(chunks)["x"].numpy()[:, 0]]
    expected = batches[0].mean(0)
    for batch in batches[4::5]:
        expected += 0.5 * (batch.mean(0) - expected)
    found = statistics_of(run)["optimizer/net/statistics/first/moving_mean"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_evaluation_reads_the_averaged_statistics(run):
    twin = run.evaluations.averaged
    twin.update()
    read = named_variables(twin.task)
    for path, value in statistics_of(run).items():
        np.testing.assert_array_equal(read[path.replace("optimizer/net/statistics", "net")], value)


class Digits(Task):
    """Weights move far in the averaged steps, and the layers' own averages are short."""

    def __init__(self, *, rng):
        super().__init__()
        sizes = [64, 32, 32, 10]
        self.linear = [layers.Linear(a, b, rng=rng.fold(a)) for a, b in itertools.pairwise(sizes)]
        self.norms = [layers.BatchNorm(size, decay=0.9) for size in sizes[1:-1]]

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=chain(adam(0.03), ema(0.99)))]

    def judged(self, batch, statistics=None):
        x = tf.reshape(batch["image"], [-1, 64])
        for linear, norm in zip(self.linear, self.norms, strict=False):
            x = tf.nn.relu(norm(linear(x), statistics=statistics))
        return Loss(losses.softmax_cross_entropy(self.linear[-1](x), batch["label"]), statistics=statistics)

    def loss(self, batch, rng):
        return self.judged(batch, Statistics())

    def evaluate(self, batch):
        return self.judged(batch)


@pytest.mark.long
def test_averaged_statistics_come_nearer_to_one_pass_over_the_data_than_moving_ones(tmp_path):
    run = trained(tmp_path, steps=200, task=Digits, source=digits(), eval_source=digits("test"))
    twin, raw = run.evaluations.averaged, named_variables(run.experiment.task)
    twin.update()
    everything = {key: tf.constant(x) for key, x in digits().gather(np.arange(len(digits()))).items()}

    def loss():
        return float(tf.reduce_mean(twin.task.evaluate(everything).per_example))

    averaged = loss()
    for path, variable in averaged_by_path(twin.task).items():
        variable.assign(raw[path])
    beside_moving = loss()
    for norm in twin.task.norms:
        norm.moving_weight.assign(0.0)
    commit(twin.task.loss(everything, None).statistics.averages())
    assert abs(averaged - loss()) < 0.5 * abs(beside_moving - loss())


@pytest.mark.long
def test_run_that_resumes_has_the_same_averaged_statistics_to_the_bit(run):
    whole = values(run)
    run.state.restore(newest(run, up_to=10))
    assert any(np.any(whole[path] != value) for path, value in statistics_of(run).items())
    run.train()
    for path, value in values(run).items():
        np.testing.assert_array_equal(value, whole[path], err_msg=path)


def test_checkpoint_without_averaged_statistics_begins_them_at_the_moving_ones(run, tmp_path, capsys):
    variables = {path: v for path, v in run.state.variables.items() if path not in SLOTS}
    checkpoint.save(tmp_path / "old", variables, step=20, examples=640, config_hash="")
    manifest = checkpoint.newest(tmp_path / "old", warn=pytest.fail)
    later = make(tmp_path, "later", task=Normalised)
    capsys.readouterr()
    later.state.restore(manifest)
    assert capsys.readouterr().out.count("was saved by a version that didn't average the statistics") == 1
    for path, value in statistics_of(later).items():
        raw = path.replace("optimizer/net/statistics", "task/net")
        np.testing.assert_array_equal(value, run.state.variables[raw])
    later.state.restore(manifest)
    assert not capsys.readouterr().out  # said once


def test_checkpoint_says_where_the_averaged_statistics_lie(run):
    places = where_averages_lie(run.experiment.assembly)
    assert set(places.values()) >= SLOTS
    assert places["net/first/moving_mean"] == "optimizer/net/statistics/first/moving_mean"


class Unaveraged(Normalised):
    optimizer = adam(0.01)


class Free(Normalised):
    optimizer = schedule_free_adamw(0.01)


class OneGroup(Normalised):
    optimizer = groups({"second/*": chain(sgd(0.1), polyak())}, otherwise=sgd(0.1))


@pytest.mark.long
@pytest.mark.parametrize(("task", "layers"), [(Unaveraged, set()), (Free, {"first", "second"}), (OneGroup, {"second"})])
def test_statistics_have_averages_where_their_layer_has(task, layers, tmp_path):
    trainer = make(tmp_path, task=task)
    found = {path.split("/")[-2] for path in trainer.state.variables if "/statistics/" in path}
    assert found == layers


class Still(Normalised):
    """Trains the weights with moving averages that stay."""

    optimizer = chain(sgd(0.01), ema(DECAY))

    def loss(self, batch, rng):
        return self.evaluate(batch)


def test_statistics_that_nothing_moves_are_read_as_they_are(tmp_path):
    trainer = make(tmp_path, task=Still, steps=10)
    trainer.experiment.task.net.first.moving_mean.assign([1.0, 2.0, 3.0])
    trainer.train()
    np.testing.assert_array_equal(statistics_of(trainer)["optimizer/net/statistics/first/moving_mean"], [1.0, 2.0, 3.0])
