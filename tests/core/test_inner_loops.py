"""Modules compute with values other than their variables', and meta-gradients flow through them."""

import concurrent.futures
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.module import Module, named_variables, original, with_values
from core.optimizers import sgd
from core.random import Rng
from core.task import Loss, Statistics, Task, Update
from core.testing import Run, assemble, on_virtual_cpus
from tests.commands import CHECKOUT
from tests.conformance.in_numpy import in_numpy

RNG = Rng.from_seed(0)
X = tf.constant(np.random.RandomState(0).randn(4, 3), tf.float32)


class Net(Module):
    """Has lists, dicts, tied weights, averages, and a part that is held twice."""

    def __init__(self, *, rng=RNG):
        super().__init__()
        self.layers = [layers.Linear(3, 4, rng=rng.fold(0)), {"norm": layers.BatchNorm(4, sync=True, decay=0.5)}]
        self.last = layers.Linear(4, 3, rng=rng.fold(1))
        self.again = self.layers[0]
        self.tied = self.last.w

    def __call__(self, x, statistics=None):
        x = tf.tanh(self.layers[1]["norm"](self.layers[0](x), statistics=statistics))
        return self.again(self.last(x)) @ self.tied


def values_of(net, scale):
    return {path: scale * tf.convert_to_tensor(v) for path, v in net.parameters().items()}


def test_a_copy_computes_with_the_values_and_the_module_stays():
    net, other = Net(), Net()
    before = net(X).numpy()
    for variable in other.parameters().values():
        variable.assign(0.5 * variable)
    copy = with_values(net, values_of(net, 0.5))
    np.testing.assert_array_equal(copy(X), other(X))
    np.testing.assert_array_equal(net(X), before)
    assert copy.layers[0] is copy.again is not net.again
    assert copy.last.w is copy.tied
    assert copy.layers[1]["norm"].moving_mean is net.layers[1]["norm"].moving_mean
    assert set(named_variables(copy)) == set(named_variables(net)) - set(net.parameters())
    assert original(with_values(copy, {})) is net is original(net)
    np.testing.assert_array_equal(with_values(net, {})(X), before)


def test_some_values_leave_the_other_variables_in_place():
    net = Net()
    copy = with_values(net, {"last/b": tf.ones([3])})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(copy(X)))
    reached = {path: g is not None for path, g in tape.gradient(loss, net.parameters()).items()}
    assert reached == {path: path != "last/b" for path in net.parameters()}


def test_values_that_dont_fit_are_refused():
    net = Net()
    with pytest.raises(ValueError, match=r"`last/bb`.*Did you mean `last/b`"):
        with_values(net, {"last/bb": tf.ones([3])})
    with pytest.raises(
        ValueError, match=r"`last/b` is float32 of shape \(4,\); the variable is float32 of shape \(3,\)"
    ):
        with_values(net, {"last/b": tf.ones([4])})
    with pytest.raises(ValueError, match="`last/b` is float64"):
        with_values(net, {"last/b": tf.ones([3], tf.float64)})


def test_threads_dont_see_each_others_values():
    net = Net()
    scales = [0.1 * i for i in range(16)]
    expected = [with_values(net, values_of(net, scale))(X).numpy() for scale in scales]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda scale: with_values(net, values_of(net, scale))(X).numpy(), scales))
    np.testing.assert_array_equal(found, expected)


class Convolved(Module):
    """A convolution, whose gradients are the project's own."""

    def __init__(self):
        super().__init__()
        self.conv = layers.Conv2D(1, 2, 3, rng=RNG.fold("conv"))
        self.last = layers.Linear(2, 1, rng=RNG.fold("last"))

    def __call__(self, x):
        return self.last(tf.reduce_sum(tf.tanh(self.conv(x)), [1, 2]))


def by_hand(values, x):
    y = tf.nn.conv2d(x, values["conv/w"], 1, "SAME") + values["conv/b"]
    return tf.reduce_sum(tf.tanh(y), [1, 2]) @ values["last/w"] + values["last/b"]


def test_second_derivatives_go_through_layers_with_gradients_of_their_own():
    net, x = Convolved(), tf.reshape(tf.constant(np.random.RandomState(1).randn(50), tf.float32), [2, 5, 5, 1])

    def meta_gradient(forward):
        with tf.GradientTape() as outer:
            fast = {path: tf.convert_to_tensor(v) for path, v in net.parameters().items()}
            with tf.GradientTape() as inner:
                inner.watch(fast)
                loss = tf.reduce_mean(tf.square(forward(fast, x) - 1.0))
            gradients = inner.gradient(loss, fast)
            fast = {path: v - 0.05 * gradients[path] for path, v in fast.items()}
            after = tf.reduce_mean(tf.square(forward(fast, 2.0 * x) + 1.0))
        return outer.gradient(after, net.parameters())

    found, expected = meta_gradient(lambda values, x: with_values(net, values)(x)), meta_gradient(by_hand)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-4, atol=1e-5, err_msg=path)


class Averaged(Task):
    """Learns as two copies of its network see its rows; both copies' statistics are the network's."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = Net(rng=rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1), mixes_rows=True)]

    def loss(self, batch, rng):
        statistics = Statistics()
        copies = [with_values(self.net, values_of(self.net, scale)) for scale in (0.5, 2.0)]
        y = [copy(batch["x"], statistics) for copy in copies]  # a collective each, which replicas reach in turn
        return Loss(tf.reduce_sum(tf.square(y[0] - y[1]), 1), statistics=statistics)


@pytest.mark.long
def test_copies_add_what_they_see_to_the_averages_of_their_original():
    assembly = assemble(Averaged, on_virtual_cpus(2))
    first = assembly.task.net.layers[0]
    seen = np.concatenate([X @ (scale * first.w.numpy()) + scale * first.b.numpy() for scale in (0.5, 2.0)])
    outcome = Run(assembly, {"x": X}).train(1)
    np.testing.assert_allclose(outcome.variables["net/layers/1/norm/moving_mean"], seen.mean(0), atol=1e-6)
    np.testing.assert_allclose(outcome.variables["net/layers/1/norm/moving_variance"], seen.var(0), rtol=1e-5)


# --- MAML against JAX ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sines():
    spec = importlib.util.spec_from_file_location("sines", CHECKOUT / "examples" / "inner_loop" / "sines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def maml_in_jax(parameters, batch, inner_steps, inner_rate):
    """Returns the mean loss after adaptation, in float64 with JAX's gradients."""

    def net(p, x):
        x = jnp.tanh(x @ p["first/w"] + p["first/b"])
        return jnp.tanh(x @ p["middle/w"] + p["middle/b"]) @ p["last/w"] + p["last/b"]

    def error(p, x, y):
        return jnp.mean((net(p, x) - y) ** 2)

    def one(p, row):
        for _ in range(inner_steps):
            p = jax.tree.map(lambda w, g: w - inner_rate * g, p, jax.grad(error)(p, row["x"], row["y"]))
        return error(p, row["query_x"], row["query_y"])

    return in_numpy(jax.value_and_grad(lambda p: jnp.mean(jax.vmap(lambda row: one(p, row))(batch))))(parameters)


@pytest.mark.parametrize(
    ("replicas", "microbatches", "inner_steps"), [(1, 1, 1), pytest.param(2, 2, 3, marks=pytest.mark.long)]
)
def test_the_meta_gradient_is_that_of_jax(sines, replicas, microbatches, inner_steps):
    def make_task(*, rng):
        return sines.Maml(rng=rng, width=8, inner_steps=inner_steps, optimizer=sgd(1.0))

    batch = {key: x.numpy() for key, x in sines.sines(count=8).gather(tf.range(8, dtype=tf.int64)).items()}
    assembly = assemble(make_task, on_virtual_cpus(replicas))
    before = {path: v.numpy().astype("float64") for path, v in named_variables(assembly.task.net).items()}
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        doubles = {key: jnp.asarray(x, jnp.float64) for key, x in batch.items()}
        loss, gradients = maml_in_jax(before, doubles, inner_steps, 0.1)
        gradients = {path: np.asarray(g) for path, g in gradients.items()}
    outcome = Run(assembly, batch, microbatches=microbatches).train(1)
    np.testing.assert_allclose(outcome.figures["net/loss"], [float(loss)], rtol=1e-5)
    for path, gradient in gradients.items():  # a step of rate 1 is the gradient
        moved = before[path] - outcome.variables[f"net/{path}"]
        np.testing.assert_allclose(moved, gradient, rtol=1e-4, atol=2e-6, err_msg=path)
