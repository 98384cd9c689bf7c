"""The sums of a metric line are read exactly, from any device, and reset."""

import numpy as np
import pytest
import tensorflow as tf

from core.engine import Progress
from core.metrics import Perplexity
from core.task.loss import means
from core.testing.replicas import on_virtual_cpus, on_virtual_mesh

COUNTS = tf.TensorSpec([2, 3], tf.float64)
NUMBER = tf.TensorSpec([], tf.float32)
PERPLEXITY = Perplexity(tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.float64))
SUMS = {
    "g": {"weight": NUMBER, "loss": NUMBER, "perplexity": PERPLEXITY},
    "d": {"weight": NUMBER, "loss": NUMBER, "counts": COUNTS, "accuracy": NUMBER},
}


def values(seed):
    random = np.random.RandomState(seed)
    return tf.nest.map_structure(lambda spec: random.uniform(1, 2, spec.shape).astype(spec.dtype.name), SUMS)


@pytest.mark.parametrize(
    "strategy",
    [lambda: None, lambda: on_virtual_cpus(2), lambda: on_virtual_mesh(2, 1)],
    ids=["one device", "two replicas", "mesh"],
)
def test_sums_are_handed_over_to_the_bit_and_begin_anew(strategy):
    progress = Progress(SUMS, strategy=strategy())
    for seed in (1, 2):
        progress.write_sums(values(seed))
        before, taken = progress.read_sums(), progress.take_sums()
        assert [*taken] == [*before]
        for phase, sums in taken.items():
            assert [*sums] == [*before[phase]]
        tf.nest.map_structure(np.testing.assert_array_equal, taken, values(seed))
        dtypes = tf.nest.map_structure(lambda x: x.dtype.name, taken)
        assert dtypes == tf.nest.map_structure(lambda spec: spec.dtype.name, SUMS)
        assert means(taken["g"]) == means(before["g"])
        assert all(not np.any(x.numpy()) for x in tf.nest.flatten(progress.read_sums()))


def test_sums_of_no_phase_are_empty():
    assert Progress({}).take_sums() == {}
