"""A variable of a mesh: each device holds its part, the program sees the whole.

It is an `InParts` of `core.checkpoint`: what is saved, hashed and restored never is gathered on one host.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.checkpoint.parts import Box, in_order
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
            value = laid(tf.convert_to_tensor(value, self.dtype), self.layout)
        return super().assign(value, *args, **kwargs)

    def numpy(self) -> npt.NDArray[Any]:
        """Returns the whole value."""
        return _put_together(self._held(), tuple((0, size) for size in self.shape), self.dtype)

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in parts of at most so many bytes."""
        held = self._held()
        for box in in_order(tuple(self.shape), max(1, most_bytes // self.dtype.size)):
            yield _put_together(held, box, self.dtype)

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Takes the value that `read` returns box by box; a host holds what is one device's, and only for a while."""
        boxes = boxes_of(self.layout, self.shape)
        found = dict[Box, tf.Tensor]()
        for box, device in zip(boxes, self.layout.mesh.local_devices(), strict=True):
            if box not in found:
                value = read(box)
                with tf.device(device):
                    found[box] = tf.identity(value)
        self.assign(dtensor.pack([found[box] for box in boxes], self.layout))

    def _held(self) -> Mapping[Box, tf.Tensor]:
        """Returns what the devices hold, by its box; where some lie in other processes, the whole: all have to ask."""
        value, mesh = self.read_value(), self.layout.mesh
        if mesh.num_local_devices() < mesh.size and not self.layout.is_fully_replicated():
            return {tuple((0, size) for size in self.shape): tf.convert_to_tensor(whole(value))}
        return dict(zip(boxes_of(self.layout, self.shape), dtensor.unpack(value), strict=True))


def layout(mesh: dtensor.Mesh, axes: tuple[str, ...]) -> dtensor.Layout:
    """Returns TensorFlow's layout of a tensor that is cut so."""
    return dtensor.Layout([dtensor.UNSHARDED if axis == WHOLE else axis for axis in axes], mesh)


def boxes_of(lies: dtensor.Layout, shape: tf.TensorShape) -> list[Box]:
    """Returns which part of a tensor each of this process' devices holds."""

    def bounds(place: Mapping[str, int], axis: str, size: int) -> tuple[int, int]:
        if axis == dtensor.UNSHARDED:
            return 0, size
        each = size // lies.mesh.dim_size(axis)
        return place[axis] * each, (place[axis] + 1) * each

    return [
        tuple(bounds(place, axis, size) for axis, size in zip(lies.sharding_specs, shape, strict=True))
        for place in lies.mesh.local_device_locations()
    ]


def laid_out(value: Any, mesh: dtensor.Mesh, axes: tuple[str, ...]) -> tf.Tensor:
    """Returns `value`, of one device or of the mesh, cut along these axes."""
    return laid(tf.convert_to_tensor(value), layout(mesh, axes))


def laid(value: tf.Tensor, lies: dtensor.Layout) -> tf.Tensor:
    """Returns the same in a layout of TensorFlow's."""
    if dtensor.is_dtensor(value):
        return dtensor.relayout(value, lies)
    if tf.executing_eagerly() and not lies.is_fully_replicated():  # no device is handed more than its part
        return dtensor.pack([value[_slices(box)] for box in boxes_of(lies, value.shape)], lies)
    return dtensor.relayout(dtensor.copy_to_mesh(value, dtensor.Layout.replicated(lies.mesh, lies.rank)), lies)


def whole(value: tf.Tensor) -> npt.NDArray[Any]:
    """Returns a value of a mesh as an array."""
    every = dtensor.relayout(value, dtensor.Layout.replicated(dtensor.fetch_layout(value).mesh, value.shape.rank))
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


def _put_together(held: Mapping[Box, tf.Tensor], wanted: Box, dtype: tf.DType) -> npt.NDArray[Any]:
    """Returns one box out of others, fetching from each device no more than what is wanted."""
    together = np.empty([last - first for first, last in wanted], dtype.as_numpy_dtype)
    for box, value in held.items():
        both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
        if any(first >= last for first, last in both):
            continue
        with tf.device(value.device):
            found = np.asarray(value[_slices(_seen_from(box, both))].numpy())
        if both == wanted:
            return found
        together[_slices(_seen_from(wanted, both))] = found
    return together


def _seen_from(outer: Box, inner: Box) -> Box:
    return tuple((first - origin, last - origin) for (first, last), (origin, _) in zip(inner, outer, strict=True))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in box)
