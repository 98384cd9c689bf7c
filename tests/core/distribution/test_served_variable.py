"""A variable of a server's, as a worker reads it."""

import pytest
import tensorflow as tf

from core.distribution.served_variable import ServedVariable, at_worker, copies_of
from core.errors import ConfigurationError

SERVER = "/job:localhost/replica:0/task:0/device:CPU:0"


def served(value, name):
    return ServedVariable(value, strategy=None, server=SERVER, name=name, trainable=True)


def test_what_the_task_does_not_hold_is_named_where_a_step_reads_it():
    known, other = served(1.0, "known"), served(tf.zeros([4]), "p/part_0")

    @tf.function(autograph=False)
    def step():
        with at_worker(copies_of([known])):
            known.assign(2.0)
            return known + other[0]

    with pytest.raises(
        ConfigurationError, match=r"reads the variable `p/part_0:0`.*isn't part of the task.*partitioner"
    ):
        step()
    assert float(known) == 1.0
