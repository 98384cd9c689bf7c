"""One step: exact sums, one division in any number of microbatches, and untrained state."""

import numpy as np
import optax
import pytest
import tensorflow as tf
from step_lab import ROWS, Adversaries, bits, make, ragged, state_of, take

from core import layers
from core.engine import accumulate_gradients
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import adam, sgd
from core.optimizers.norms import global_norm
from core.random import Rng
from core.task import Compute, Loss, Task, Update


class Regression(Task):
    """Ragged weights, a metric, dropout and noise: everything that a wrong scaling would show in."""

    def __init__(self, *, rng, optimizer, weighted=True, sequence=False):
        super().__init__()
        self.first = layers.Linear(5, 16, rng=rng.fold("first"))
        self.dropout = layers.Dropout(0.2)
        self.second = layers.Linear(16, 1, rng=rng.fold("second"))
        self.optimizer, self.weighted = optimizer, weighted

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        x = batch["x"] + 0.1 * rng.fold("noise").rows.normal(*batch["x"].shape)
        x = self.dropout(tf.nn.tanh(self.first(x)), rng.fold("dropout"))
        error = self.second(x)[:, 0] - batch["y"]
        return Loss(
            tf.square(error),
            weight=batch["weight"] if self.weighted else None,
            metrics={"absolute": tf.abs(error)},
        )


@pytest.mark.parametrize(
    ("optimizer", "weighted"),
    [(adam(0.01), True), pytest.param(sgd(0.1, momentum=0.9, nesterov=True), False, marks=pytest.mark.long)],
)
def test_microbatches_equal_one_batch(optimizer, weighted):
    results = []
    for microbatches in (1, 4):
        task, optimizers, step = make(
            Regression, microbatches=microbatches, values=ragged(), optimizer=optimizer, weighted=weighted
        )
        for index in range(20):
            result = step(index)
        results.append((state_of(task, optimizers), {k: float(x) for k, x in result.sums["net"].items()}))
    for one, other in zip(*results, strict=True):
        for name, x in one.items():
            np.testing.assert_allclose(other[name], x, rtol=0, atol=1e-6 * max(1.0, np.max(np.abs(x))), err_msg=name)


class Line(Task):
    """y = x w, whose gradients can be written down."""

    def __init__(self, *, rng, optimizer):
        super().__init__()
        self.w = tf.Variable(tf.zeros([5]), name="w")
        self.optimizer = optimizer

    def phases(self):
        return [Update("line", loss=self.loss, trains=self, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        return Loss(tf.square(tf.linalg.matvec(batch["x"], self.w) - batch["y"]), weight=batch["weight"])


@pytest.fixture(scope="module")
def traced_line():
    return make(Line, microbatches=3, values=ragged(3), optimizer=adam(0.05))


@pytest.fixture
def line(traced_line):
    """A step of `Line` that is traced once, before its first update."""
    task, optimizers, _ = traced_line
    task.w.assign(tf.zeros([5]))
    for variable in optimizers["line"].variables.values():
        variable.assign(tf.zeros_like(variable))
    return traced_line


def test_weighted_mean_equals_numpy_and_optax(line):
    values, (task, _, step) = ragged(3), line
    x, y, weight = (values[key].numpy().astype("float64") for key in ("x", "y", "weight"))
    w = np.zeros(5)
    peer = optax.adam(0.05)
    state = peer.init(w.astype("float32"))
    for index in range(20):
        error = x @ w - y
        sums = take(step, index, values).sums["line"]
        np.testing.assert_allclose(sums["loss"] / sums["weight"], (weight * error**2).sum() / weight.sum(), rtol=1e-4)
        gradient = 2 * (weight * error) @ x / weight.sum()
        np.testing.assert_allclose(sums["gradient_norm"] / sums["weight"], np.linalg.norm(gradient), rtol=1e-4)
        updates, state = peer.update(gradient.astype("float32"), state)
        w = w + np.asarray(updates, "float64")
    np.testing.assert_allclose(task.w.numpy(), w, atol=2e-5)


def test_infinite_loss_of_weight_zero_adds_nothing(line):
    values, (_, _, step) = ragged(), line
    weight, y = values["weight"].numpy(), values["y"].numpy()
    weight[5], y[5] = 0.0, np.inf
    result = take(step, 0, values | {"weight": tf.constant(weight), "y": tf.constant(y)})
    rest = np.arange(ROWS) != 5
    assert float(result.sums["line"]["loss"]) == pytest.approx((weight[rest] * y[rest] ** 2).sum(), rel=1e-5)


def test_update_without_weight_is_skipped_and_the_step_is_healthy(line):
    task, optimizers, step = line
    before = state_of(task, optimizers)
    result = take(step, 0, ragged() | {"weight": tf.zeros([ROWS])})
    assert bool(result.healthy)
    assert float(result.sums["line"]["weight"]) == 0.0
    assert bits(state_of(task, optimizers)) == bits(before)


def test_step_that_is_not_finite_writes_nothing(line):
    task, optimizers, step = line
    before = state_of(task, optimizers)
    assert not bool(take(step, 0, ragged() | {"y": tf.fill([ROWS], np.float32("inf"))}).healthy)
    assert bits(state_of(task, optimizers)) == bits(before)


class Pair(Task):
    """Two networks: a Compute whose output both updates read, an update every third step, outputs handed on."""

    def __init__(self, *, rng, optimizer):
        super().__init__()
        self.a, self.b = layers.Linear(5, 5, rng=rng.fold("a")), layers.Linear(5, 5, rng=rng.fold("b"))
        self.optimizer = optimizer

    def phases(self):
        return [
            Compute("noise", self.noise),
            Update("a", loss=self.a_loss, trains=self.a, optimizer=self.optimizer),
            Update("b", loss=self.b_loss, trains=self.b, optimizer=self.optimizer, every=3),
        ]

    def noise(self, batch, rng):
        return {"z": rng.rows.normal(*batch["x"].shape)}

    def a_loss(self, batch, rng):
        made = self.a(batch["x"] + batch["z"])
        return Loss(tf.reduce_sum(tf.square(made), 1), outputs={"made": made})

    def b_loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.b(batch["z"]) - batch["made"]), 1))


def test_phases_run_in_order_and_hand_values_on_in_any_number_of_microbatches():
    losses = []
    for microbatches in (1, 2):
        task, optimizers, step = make(Pair, microbatches=microbatches, values=ragged(), optimizer=sgd(0.01))
        losses.append([])
        for index in range(5):
            before = state_of(task, optimizers)
            sums = step(index).sums
            after = state_of(task, optimizers)
            assert not np.array_equal(before["a/w"], after["a/w"])
            assert np.array_equal(before["b/w"], after["b/w"]) == (index % 3 != 0)
            assert float(sums["b"]["weight"]) == (ROWS if index % 3 == 0 else 0.0)
            losses[-1] += [float(sums[phase]["loss"]) for phase in ("a", "b")]
        assert int(optimizers["b"].step) == 2
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6)


class TooRare(Pair):
    def phases(self):
        _, a, b = super().phases()
        return [Compute("noise", self.noise, every=2), a, b]


class Misspelt(Pair):
    def noise(self, batch, rng):
        return {"z": batch["wieght"]}


class MadeTwice(Pair):
    def noise(self, batch, rng):
        return {"x": batch["y"]}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (TooRare, r"phase `a` reads `z`, but phase `noise` makes it only every 2 steps .* can read `x`, `y`, `weight`"),
        (Misspelt, r"phase `noise` reads `wieght`, but .* Did you mean `weight`\?"),
        (MadeTwice, "phase `noise` makes `x`, which comes from the source already"),
    ],
)
def test_value_that_is_not_there_or_made_twice_is_refused(task, says):
    with pytest.raises(ConfigurationError, match=says):
        make(task, microbatches=1, values=ragged(), optimizer=sgd(0.01))


def test_update_that_trains_a_variable_twice_is_refused():
    task = Pair(rng=Rng.from_seed(0), optimizer=sgd(0.1))
    with pytest.raises(ValueError, match="holds one variable twice, as `0/a/b` and `1/b`"):
        Update("both", loss=task.a_loss, trains=[task, task.a], optimizer=sgd(0.1))


class Tied(Task):
    """One matrix under two names."""

    def __init__(self, *, rng, optimizer):
        super().__init__()
        self.a, self.b = layers.Linear(5, 5, rng=rng, bias=False), layers.Linear(5, 5, rng=rng, bias=False)
        self.b.w = self.a.w
        self.optimizer = optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.b(self.a(batch["x"])), 1))


def test_tied_weights_are_one_parameter_with_the_sum_of_both_gradients():
    task, optimizers, step = make(Tied, microbatches=2, values=ragged(), optimizer=sgd(0.1))
    assert list(optimizers["net"].parameters) == ["a/w"]
    x, w, ones = ragged()["x"].numpy(), task.a.w.numpy(), np.ones([ROWS, 5], "float32")
    gradient = (x.T @ (ones @ w.T) + (x @ w).T @ ones) / ROWS
    step(0)
    np.testing.assert_allclose(task.a.w.numpy(), w - 0.1 * gradient, atol=1e-5)


def test_global_norm_of_large_gradients_is_finite_in_any_width():
    half, double = tf.fill([100], tf.constant(1000.0, tf.float16)), tf.constant([1e39], tf.float64)
    assert float(global_norm({"half": half})) == 1e4
    assert float(global_norm({"half": half, "double": double})) == 1e39
    assert not np.isfinite(global_norm({"half": half / 0, "double": double}))


def test_accumulate_gradients_equals_numpy():
    """A custom loop calls it."""
    values = ragged()
    task = Line(rng=Rng.from_seed(0), optimizer=sgd(1.0))
    cut = {key: tf.reshape(x, [3, 8, *x.shape[1:]]) for key, x in values.items()}
    accumulated, outputs = accumulate_gradients(task.loss, task.parameters(), cut, Rng.from_seed(0))
    x, y, weight = (values[key].numpy() for key in ("x", "y", "weight"))
    np.testing.assert_allclose(accumulated.mean_gradients()["w"], -2 * (weight * y) @ x / weight.sum(), rtol=1e-5)
    assert outputs == {}


class Rowless(Module):
    """Asks for more rows than it sees."""

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(rng.rows.normal(ROWS, 2), 1))


def test_random_rows_of_another_number_are_refused():
    rng = Rng.from_seed(0)._replace(num_rows=8)
    with pytest.raises(ValueError, match=rf"asked for {ROWS} rows, but this call of the step function sees 8"):
        Rowless().loss({}, rng)


@pytest.mark.parametrize("microbatches", [pytest.param(1, marks=pytest.mark.long), 3])
def test_untrained_state_moves_with_the_phase_that_trains_its_module_alone(microbatches):
    """An update that is skipped moves none either."""
    values = ragged()
    task, optimizers, step = make(Adversaries, microbatches=microbatches, values=values, optimizer=sgd(0.01))
    norm, vector = task.critic.norm, task.critic.linear.vector
    before = state_of(task.critic, {"d": optimizers["d"]})
    step(1)  # only `g` is due
    take(step, 2, values | {"weight": tf.zeros([ROWS])})  # `d` is due, and skipped
    assert bits(state_of(task.critic, {"d": optimizers["d"]})) == bits(before)
    at_first = vector.numpy()
    take(step, 2, values)
    x = values["x"].numpy()
    np.testing.assert_allclose(norm.moving_mean, x.mean(0), atol=1e-6)
    if microbatches == 1:
        np.testing.assert_allclose(norm.moving_variance, x.var(0), rtol=1e-5)
    # The vector is refreshed from the kernel as the update left it.
    kernel = task.critic.linear.layer.w.numpy()
    expected = kernel.T @ (kernel @ at_first)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-4)
