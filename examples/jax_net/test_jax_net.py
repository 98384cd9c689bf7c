"""The step in JAX, without a trainer."""

import jax
import numpy as np
import tensorflow as tf
from jax_net import JaxClassifier, apply

from core.data import digits
from core.optimizers import adamw
from core.random import Rng
from core.testing import assert_accumulation_invariant, assert_replica_invariant, assert_task

batch = digits().gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None):
    return JaxClassifier(rng=rng or Rng.from_seed(0), optimizer=adamw(1e-3, epsilon=1e-3))


def test_the_task_is_right():
    assert_task(make_task(), batch)


def test_gradients_are_those_of_jax():
    task = make_task()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(task.loss(batch, None).per_example)
    found = tape.gradient(loss, task.net.parameters())

    def mean(params):
        log_p = jax.nn.log_softmax(apply(params, batch["image"].numpy()))
        return -log_p[np.arange(16), batch["label"].numpy()].mean()

    params = {layer: {name: v.numpy() for name, v in part.items()} for layer, part in task.net.params.items()}
    for path, expected in jax.tree_util.tree_leaves_with_path(jax.grad(mean)(params)):
        name = "/".join(["params", *(key.key for key in path)])
        np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)


def test_replicas_and_microbatches_change_nothing():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=5)
    assert_accumulation_invariant(make_task, batch, microbatches=(1, 2), steps=5)
