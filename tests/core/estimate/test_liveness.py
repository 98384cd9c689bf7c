"""The order of operations, on which the memory of a step depends."""

import pytest
import tensorflow as tf

from core import optimizers
from core.estimate.liveness import fullest, timeline
from core.estimate.memory import bytes_of
from core.optimizers import Optimizer, adam

COUNT, SIZE = 6, 4 * 1000


def most(function):
    graph = tf.function(function, autograph=False).get_concrete_function().graph
    return max(held.all for held in fullest(timeline(graph, bytes_of)))


def sums(*, in_order):
    """Sums `COUNT` tensors, each computed after the previous sum if `in_order`."""
    total = tf.zeros([])
    for i in range(COUNT):
        with tf.control_dependencies([total] if in_order else []):
            x = tf.fill([1000], float(i + 1))
        total += tf.reduce_sum(tf.exp(x))
    return total


def test_operations_wait_for_their_control_dependencies():
    assert SIZE <= most(lambda: sums(in_order=True)) < 2 * SIZE
    assert most(lambda: sums(in_order=False)) >= COUNT * SIZE


@pytest.mark.long
@pytest.mark.parametrize("slots", ["bfloat16", "int8"])
def test_narrow_slots_are_wide_for_one_parameter_at_a_time(slots, monkeypatch):
    monkeypatch.setattr(optimizers.optimizer, "KERNELS_FROM", 0)

    def peak(count):
        params = {str(i): tf.Variable(tf.zeros([64, 64])) for i in range(count)}
        optimizer = Optimizer(adam(0.1, slots=slots), params)
        gradients = {path: tf.Variable(tf.zeros([64, 64])) for path in params}
        return most(lambda: optimizer.apply({path: v.read_value() for path, v in gradients.items()}))

    few = peak(3)
    assert few <= 9 * 4 * 64 * 64
    assert peak(12) <= 1.05 * few
