"""Lookups in a row-sharded table equal those in a whole table, for any number of ids."""

import numpy as np
import pytest
import tensorflow as tf

from core.parallel.mesh.variable import MeshVariable, laid_out, whole
from core.testing import on_virtual_mesh

VALUES = np.random.RandomState(0).randn(8, 4).astype("f4")


def looked_up(ids):
    """Returns rows of a table on 2x2, and the gradient of their squared sum."""
    mesh = on_virtual_mesh(2, 2).mesh
    table = MeshVariable(laid_out(VALUES, mesh, ("model", "-")), name="w")

    def step(ids):
        with tf.GradientTape() as tape:
            y = tf.gather(table, ids)
            loss = tf.reduce_sum(y * y)
        return y, tf.convert_to_tensor(tape.gradient(loss, table))

    ids = laid_out(tf.constant(ids), mesh, ("-",) * np.ndim(ids))
    return [whole(x) for x in tf.function(step, autograph=False)(ids)]


@pytest.mark.parametrize("ids", [[[1, 2], [7, 0]], [[1, 2, 1]], [5]], ids=["four", "three", "one"])
def test_rows_and_their_gradients_are_those_of_the_table(ids):
    rows, gradient = looked_up(ids)
    np.testing.assert_array_equal(rows, VALUES[np.array(ids)])
    np.testing.assert_allclose(gradient, 2 * VALUES * np.bincount(np.ravel(ids), minlength=8)[:, np.newaxis])


@pytest.mark.parametrize("strange", [8, -1])
def test_an_id_outside_the_table_is_an_error(strange):
    # TensorFlow raises one of its devices' errors: the kernel's, or that of an operation which this error cancelled.
    errors = (tf.errors.InvalidArgumentError, tf.errors.CancelledError)
    with pytest.raises(errors, match=r"is not in \[0, 8\)|was cancelled"):
        looked_up([[1, 2], [strange, 0]])
    looked_up([5])  # the error cancelled no later operation


def test_the_number_of_ids_may_be_unknown():
    table = MeshVariable(laid_out(VALUES, on_virtual_mesh(1, 2).mesh, ("model", "-")), name="w")
    read = tf.function(lambda ids: tf.gather(table, ids), autograph=False)
    assert read.get_concrete_function(tf.TensorSpec([None, 3], tf.int32)).structured_outputs.shape[1:] == [3, 4]
