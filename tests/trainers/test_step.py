"""One step: exact sums against NumPy and Optax, and refusals; `test_specification.py` combines all features."""

import functools

import numpy as np
import optax
import pytest
import tensorflow as tf

from core import layers
from core.engine import accumulate_gradients
from core.errors import ConfigurationError
from core.module import Module, named_variables
from core.optimizers import adam, sgd
from core.optimizers.norms import global_norm
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from core.task.statistics import Statistics
from core.testing import Run, assemble, replicas

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")
ROWS = 24


def make(task_class, *, microbatches, values, **arguments):
    """Returns a task, its optimizers and a traced step."""
    assembly = assemble(functools.partial(task_class, **arguments), STRATEGY, seed=1)
    return assembly.task, assembly.optimizers, Run(assembly, values, microbatches=microbatches, seed=7)


def take(step, index, values):
    """Takes a step that is traced already, on other values."""
    step._values, _ = replicas._spread(values, step.strategy, step.microbatches)
    return step(index)


def ragged(seed=0):
    random = np.random.RandomState(seed)
    weight = random.choice([0.0, 0.5, 1.0, 3.0], ROWS).astype("float32")
    return {
        "x": tf.constant(random.randn(ROWS, 5), tf.float32),
        "y": tf.constant(random.randn(ROWS), tf.float32),
        "weight": tf.constant(weight),
    }


def state_of(task, optimizers):
    """Returns all variables by path."""
    found = dict(named_variables(task))
    for optimizer in optimizers.values():
        found |= optimizer.variables
    return {path: v.numpy() for path, v in found.items()}


def bits(state):
    return {path: x.tobytes() for path, x in state.items()}


class Line(Task):
    """y = x w, whose gradients are easy to write down."""

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
    """Two networks: a Compute whose output both updates read, an update every third step, outputs for later phases."""

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
    """Asks for more rows than it gets."""

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(rng.rows.normal(ROWS, 2), 1))


def test_random_rows_of_another_number_are_refused():
    rng = Rng.from_seed(0)._replace(num_rows=8)
    with pytest.raises(ValueError, match=rf"asked for {ROWS} rows, but this call of the step function sees 8"):
        Rowless().loss({}, rng)


class Critic(Module):
    """Has untrained state of both kinds: batch norm and spectral norm."""

    def __init__(self, *, rng):
        super().__init__()
        self.norm = layers.BatchNorm(5, decay=0.9)
        self.linear = layers.SpectralNorm(layers.Linear(5, 3, rng=rng.fold("linear")), rng=rng.fold("vector"))

    def __call__(self, x, statistics=None):
        return self.linear(self.norm(x, statistics=statistics))


class Adversaries(Task):
    """Trains the critic in `d`; `g` only reads it, though it runs its layers in training mode."""

    def __init__(self, *, rng, optimizer):
        super().__init__()
        self.critic, self.g = Critic(rng=rng), layers.Linear(5, 5, rng=rng.fold("g"))
        self.optimizer = optimizer

    def phases(self):
        return [
            Update("d", loss=self.d_loss, trains=self.critic, optimizer=self.optimizer, every=2),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=self.optimizer),
        ]

    def d_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.reduce_sum(self.critic(batch["x"], statistics), 1), batch["weight"], statistics=statistics)

    def g_loss(self, batch, rng):
        statistics = Statistics()
        return Loss(tf.reduce_sum(self.critic(self.g(batch["x"]), statistics), 1), statistics=statistics)


@pytest.mark.long
def test_untrained_state_moves_with_the_phase_that_trains_its_module_alone():
    """An update that is skipped moves none either."""
    values = ragged()
    task, optimizers, step = make(Adversaries, microbatches=3, values=values, optimizer=sgd(0.01))
    norm, vector = task.critic.norm, task.critic.linear.vector
    before = state_of(task.critic, {"d": optimizers["d"]})
    step(1)  # only `g` is due
    take(step, 2, values | {"weight": tf.zeros([ROWS])})  # `d` is due, and skipped
    assert bits(state_of(task.critic, {"d": optimizers["d"]})) == bits(before)
    at_first = vector.numpy()
    take(step, 2, values)
    x = values["x"].numpy()
    np.testing.assert_allclose(norm.moving_mean, x.mean(0), atol=1e-6)
    # The vector is refreshed from the kernel after the update.
    kernel = task.critic.linear.layer.w.numpy()
    expected = kernel.T @ (kernel @ at_first)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-4)
