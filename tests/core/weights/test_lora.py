"""LoRA: the numbers of the paper's equation, the network that stays, replicas, merging, and refusals."""

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.layers import Conv2D, Embedding, Linear, Sequential
from core.module import named_variables, with_values
from core.optimizers import adam
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import Run, assemble, assert_task, on_virtual_cpus
from core.weights import Lora, merge_all

RNG = Rng.from_seed(0)


def network():
    return Sequential([Linear(5, 7, rng=RNG.fold(0)), tf.tanh, Linear(7, 3, rng=RNG.fold(1))])


def with_changes(lora, seed=0):
    """Gives `b` random values, which begins as zero."""
    for path, change in lora.changes.items():
        change.b.assign(RNG.fold(seed).fold(path).normal(change.b.shape))
    return lora


class Regression(Task):
    frozen = ("net",)

    def __init__(self, *, rng):
        super().__init__()
        self.net = network()
        self.lora = with_changes(Lora(self.net, patterns=["*/w"], rank=2, rng=rng))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.lora, optimizer=adam(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.lora(self.net)(batch["x"]) - batch["y"]), 1))

    def evaluate(self, batch):
        return self.loss(batch, None)


def batch(rows=8):
    random = np.random.RandomState(0)
    return {"x": tf.constant(random.randn(rows, 5), tf.float32), "y": tf.constant(random.randn(rows, 3), tf.float32)}


def test_outputs_and_gradients_are_those_of_the_equation():
    net = Sequential([Linear(5, 7, rng=RNG)])
    lora, x = with_changes(Lora(net, patterns=["*/w"], rank=2, alpha=3.0, rng=RNG)), batch()["x"]
    with tf.GradientTape() as tape:
        y = lora(net)(x)
        loss = tf.reduce_sum(tf.square(y)) / 2
    change, w = lora.changes["layers/0/w"], net.layers[0].w.numpy()
    a, b = change.a.numpy(), change.b.numpy()
    slope = 1.5 * x.numpy().T @ y.numpy()
    np.testing.assert_allclose(y, x @ (w + 1.5 * a @ b) + net.layers[0].b, rtol=1e-5, atol=1e-5)
    of_a, of_b, of_w = tape.gradient(loss, [change.a, change.b, net.layers[0].w])
    np.testing.assert_allclose(of_a, slope @ b.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_b, a.T @ slope, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, slope / 1.5, rtol=1e-5, atol=1e-5)


def test_task_passes_all_checks_also_in_bfloat16():
    assert_task(Regression(rng=RNG), batch(), precision="bfloat16")


def test_training_leaves_the_network_and_is_the_same_on_replicas_and_in_microbatches():
    one = Run(assemble(Regression, on_virtual_cpus(1)), batch()).train(3)
    other = Run(assemble(Regression, on_virtual_cpus(2)), batch(), microbatches=2).train(3)
    for path, value in one.variables.items():
        np.testing.assert_allclose(other.variables[path], value, rtol=1e-5, atol=1e-6, err_msg=path)
    made = {f"net/{path}": v.numpy() for path, v in named_variables(network()).items()}
    for path, value in made.items():
        np.testing.assert_array_equal(one.variables[path], value, err_msg=path)


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (Sequential([Conv2D(2, 3, 3, rng=RNG)]), tf.ones([1, 4, 4, 2])),
        (Sequential([Embedding(6, 4, rng=RNG)]), tf.constant([[0, 5]])),
        (Sequential([Linear(5, 7, rng=RNG), tf.tanh, Linear(7, 3, rng=RNG)]), tf.ones([2, 5])),
    ],
    ids=["convolution", "table", "two layers"],
)
def test_merged_network_computes_what_the_changed_copy_did(net, x):
    task = tf.Module()
    task.net, task.lora = net, with_changes(Lora(net, patterns=["*/w"], rank=2, rng=RNG))
    before, of_copy = net(x), task.lora(net)(x)
    np.testing.assert_array_equal(net(x), before)
    values = {path: v.read_value() for path, v in named_variables(task).items()}
    twice = with_values(task, values)  # as inner loops and exports do
    np.testing.assert_array_equal(twice.lora(twice.net)(x), of_copy)
    traced = tf.function(lambda: task.lora(net)(x), autograph=False)
    traced()
    merge_all(task)
    merge_all(task)
    np.testing.assert_allclose(traced(), of_copy, rtol=1e-6, atol=1e-6)
    assert task.lora(net) is net
    np.testing.assert_array_equal(net(x), of_copy)
    assert np.abs(of_copy - before).max() > 0.1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"patterns": ["*/v"]}, r"`Lora.patterns` has the pattern '\*/v', which matches no variable"),
        ({"patterns": ["layers/0/*"]}, r"matches `layers/0/b`, float32 of shape \[7\], which isn't a trainable matrix"),
        ({"rank": 0}, "`rank` is 0"),
        ({"rank": 4}, r"`Lora.rank` is 4, but `layers/2/w` of shape \[7, 3\] has the rank 3 at most"),
        ({"alpha": -1.0}, "`alpha` is -1"),
    ],
)
def test_unusable_settings_are_refused(settings, says):
    with pytest.raises((ConfigurationError, ValueError), match=says):
        Lora(network(), rng=RNG, **{"patterns": ["*/w"], "rank": 2, **settings})
