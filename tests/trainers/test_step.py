"""The engine's arithmetic: exact sums, one division, whatever way the batch is cut up."""

import numpy as np
import optax
import pytest
import tensorflow as tf
from step_lab import ROWS, make, ragged, state_of

from core import layers
from core.engine import accumulate_gradients
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import adam, sgd
from core.optimizers.norms import global_norm
from core.random import Rng
from core.task import Compute, Loss, Task, Update

RULES = {
    "sgd": sgd(0.1),
    "momentum": sgd(0.1, momentum=0.9),
    "nesterov": sgd(0.1, momentum=0.9, nesterov=True),
    "adam": adam(0.01),
}


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


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_microbatches_equal_one_batch(rule, weighted):
    results = {}
    for microbatches in (1, 2, 4):
        task, optimizers, step = make(
            Regression, microbatches=microbatches, values=ragged(), optimizer=RULES[rule], weighted=weighted
        )
        for index in range(20):
            result = step(index)
        results[microbatches] = (state_of(task, optimizers), {k: float(x) for k, x in result.sums["net"].items()})
    for microbatches in (2, 4):
        for one, other in zip(results[1], results[microbatches], strict=True):
            for name, x in one.items():
                np.testing.assert_allclose(
                    other[name], x, rtol=0, atol=1e-6 * max(1.0, np.max(np.abs(x))), err_msg=name
                )


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


@pytest.mark.parametrize("microbatches", [1, 3])
def test_weighted_mean_against_numpy_and_optax(microbatches):
    values = ragged(3)
    task, _, step = make(Line, microbatches=microbatches, values=values, optimizer=adam(0.05))
    x, y, weight = (values[key].numpy().astype("float64") for key in ("x", "y", "weight"))
    w = np.zeros(5)
    peer = optax.adam(0.05)
    state = peer.init(w.astype("float32"))
    for index in range(20):
        error = x @ w - y
        sums = step(index).sums["line"]
        np.testing.assert_allclose(sums["loss"] / sums["weight"], (weight * error**2).sum() / weight.sum(), rtol=1e-4)
        gradient = 2 * (weight * error) @ x / weight.sum()
        np.testing.assert_allclose(sums["gradient_norm"] / sums["weight"], np.linalg.norm(gradient), rtol=1e-4)
        updates, state = peer.update(gradient.astype("float32"), state)
        w = w + np.asarray(updates, "float64")
    np.testing.assert_allclose(task.w.numpy(), w, atol=2e-5)


def test_nothing_leaks_from_where_the_weight_is_zero():
    values = ragged()
    weight = values["weight"].numpy()
    weight[5] = 0.0
    y = values["y"].numpy()
    y[5] = np.inf
    values |= {"weight": tf.constant(weight), "y": tf.constant(y)}
    _, _, step = make(Line, microbatches=2, values=values, optimizer=sgd(0.0))
    sums = step(0).sums["line"]
    rest = np.arange(ROWS) != 5
    assert float(sums["loss"]) == pytest.approx((weight[rest] * y[rest] ** 2).sum(), rel=1e-5)


def test_no_weight_at_all_skips_the_update_and_the_run_goes_on():
    values = ragged() | {"weight": tf.zeros([ROWS])}
    task, optimizers, step = make(Line, microbatches=2, values=values, optimizer=adam(0.1))
    before = state_of(task, optimizers)
    result = step(0)
    assert bool(result.healthy)
    assert float(result.sums["line"]["weight"]) == 0.0
    assert {k: x.tobytes() for k, x in state_of(task, optimizers).items()} == {
        k: x.tobytes() for k, x in before.items()
    }


def test_a_step_that_is_not_finite_writes_nothing():
    values = ragged() | {"y": tf.fill([ROWS], np.float32("inf"))}
    task, optimizers, step = make(Line, microbatches=1, values=values, optimizer=sgd(0.1, momentum=0.9))
    before = state_of(task, optimizers)
    assert not bool(step(0).healthy)
    assert {k: x.tobytes() for k, x in state_of(task, optimizers).items()} == {
        k: x.tobytes() for k, x in before.items()
    }


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


def test_phases_run_in_order_and_each_trains_its_own():
    task, optimizers, step = make(Pair, microbatches=2, values=ragged(), optimizer=sgd(0.01))
    for index in range(5):
        before = state_of(task, optimizers)
        sums = step(index).sums
        after = state_of(task, optimizers)
        assert not np.array_equal(before["a/w"], after["a/w"])
        assert np.array_equal(before["b/w"], after["b/w"]) == (index % 3 != 0)
        assert float(sums["b"]["weight"]) == (ROWS if index % 3 == 0 else 0.0)
    assert int(optimizers["b"].step) == 2


def test_values_handed_on_are_the_same_for_every_number_of_microbatches():
    losses = []
    for microbatches in (1, 2, 4):
        _, _, step = make(Pair, microbatches=microbatches, values=ragged(), optimizer=sgd(0.01))
        losses.append([float(step(i).sums[phase]["loss"]) for i in range(4) for phase in ("a", "b")])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=2e-6)


def test_a_phase_reads_only_what_is_made_whenever_it_is_due():
    class Wrong(Pair):
        def phases(self):
            _, a, b = super().phases()
            return [Compute("noise", self.noise, every=2), a, b]

    text = r"phase `a` reads `z`, but phase `noise` makes it only every 2 steps .* It can read `x`, `y`, `weight`"
    with pytest.raises(ConfigurationError, match=text):
        make(Wrong, microbatches=1, values=ragged(), optimizer=sgd(0.01))


def test_a_value_that_nobody_makes_is_named():
    class Wrong(Pair):
        def noise(self, batch, rng):
            return {"z": batch["wieght"]}

    with pytest.raises(ConfigurationError, match=r"phase `noise` reads `wieght`, but .* Did you mean `weight`\?"):
        make(Wrong, microbatches=1, values=ragged(), optimizer=sgd(0.01))


def test_a_value_is_made_once():
    class Twice(Pair):
        def noise(self, batch, rng):
            return {"x": batch["y"]}

    with pytest.raises(ConfigurationError, match="phase `noise` makes `x`, which comes from the source already"):
        make(Twice, microbatches=1, values=ragged(), optimizer=sgd(0.01))


def test_a_variable_is_trained_once_per_phase():
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


def test_large_gradients_of_any_width_have_a_norm():
    half, double = tf.fill([100], tf.constant(1000.0, tf.float16)), tf.constant([1e39], tf.float64)
    assert float(global_norm({"half": half})) == 1e4
    assert float(global_norm({"half": half, "double": double})) == 1e39
    assert not np.isfinite(global_norm({"half": half / 0, "double": double}))


def test_accumulate_gradients_by_hand():
    """The public pieces, as a bespoke loop uses them."""
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


def test_another_number_of_random_rows_is_an_error():
    rng = Rng.from_seed(0)._replace(num_rows=8)
    with pytest.raises(ValueError, match=rf"asked for {ROWS} rows, but this call of the step function sees 8"):
        Rowless().loss({}, rng)
