"""Microbatches save memory: the loop over them holds one at a time."""

import tensorflow as tf

from core.engine import accumulate_gradients
from core.layers import Linear
from core.random import Rng
from core.task import Loss


def test_the_loop_over_them_takes_one_at_a_time():
    """TensorFlow would be free to run ten of them in parallel, and to hold the activations of all."""
    net = Linear(4, 1, rng=Rng.from_seed(0))

    @tf.function(autograph=False)
    def step():
        values = {"x": tf.ones([6, 2, 4])}
        loss = lambda batch, rng: Loss(net(batch["x"])[:, 0])  # noqa: E731
        return accumulate_gradients(loss, net.parameters(), values, Rng.from_seed(0))[0].gradients

    loops = [op for op in step.get_concrete_function().graph.get_operations() if "While" in op.type]
    assert [op.get_attr("parallel_iterations") for op in loops] == [1]
