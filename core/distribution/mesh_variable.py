"""A variable of a mesh: each device holds its part, the program sees the whole."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.distribution.layouts import WHOLE


class MeshVariable(dtensor.DVariable):
    """A `tf.Variable` that is cut along axes of a mesh."""

    @property
    def is_shared(self) -> bool:
        """Says whether other processes hold parts or copies of it too."""
        return bool(self.layout.mesh.num_local_devices() < self.layout.mesh.size)

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Looks rows up; in a table that is cut by rows by a product with ones, as DTensor can't otherwise."""
        by_rows = self.layout.sharding_specs[0]
        if by_rows == dtensor.UNSHARDED:
            return super().sparse_read(indices, name)
        ones = tf.one_hot(tf.reshape(indices, [-1]), self.shape[0], dtype=self.dtype)
        free = next(axis for axis in self.layout.mesh.dim_names if axis != by_rows)
        ones = dtensor.relayout(ones, dtensor.Layout([free, by_rows], self.layout.mesh))
        return tf.reshape(tf.matmul(ones, self.read_value()), [*indices.shape, *self.shape[1:]])

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Gives it a value: of the mesh, or of the host, of which each device takes its part."""
        if tf.executing_eagerly() and not dtensor.is_dtensor(value):
            replicated = dtensor.Layout.replicated(self.layout.mesh, self.layout.rank)
            value = dtensor.copy_to_mesh(tf.convert_to_tensor(value, self.dtype), replicated)
            value = dtensor.relayout(value, self.layout)
        return super().assign(value, *args, **kwargs)

    def numpy(self) -> npt.NDArray[Any]:
        """Returns the whole value."""
        return whole(self.read_value())


def layout(mesh: dtensor.Mesh, axes: tuple[str, ...]) -> dtensor.Layout:
    """Returns TensorFlow's layout of a tensor that is cut so."""
    return dtensor.Layout([dtensor.UNSHARDED if axis == WHOLE else axis for axis in axes], mesh)


def laid_out(value: Any, mesh: dtensor.Mesh, axes: tuple[str, ...]) -> tf.Tensor:
    """Returns `value`, of one device or of the mesh, cut along these axes."""
    value = tf.convert_to_tensor(value)
    if not dtensor.is_dtensor(value):
        value = dtensor.copy_to_mesh(value, dtensor.Layout.replicated(mesh, value.shape.rank))
    return dtensor.relayout(value, layout(mesh, axes))


def whole(value: tf.Tensor) -> npt.NDArray[Any]:
    """Returns a value of a mesh as an array."""
    laid = dtensor.fetch_layout(value)
    every = dtensor.relayout(value, dtensor.Layout.replicated(laid.mesh, laid.rank))
    return np.asarray(dtensor.unpack(every)[0].numpy())


def gathered(variables: Mapping[str, tf.Variable], *, keep: bool) -> dict[str, tf.Variable]:
    """Returns variables that this process can save alone: those of a mesh over several as copies on the host.

    All processes call it, as each has parts that the others lack; those that don't `keep` copies return nothing.
    """
    found = {}
    for path, variable in sorted(variables.items()):
        if not isinstance(variable, MeshVariable) or not variable.is_shared:
            found[path] = variable
            continue
        value = variable.numpy()
        if keep:
            with tf.device("CPU:0"):
                found[path] = tf.Variable(value, trainable=False)
    return found if keep else {}
