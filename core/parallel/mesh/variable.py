"""A variable of a mesh. Each device stores a shard, and programs see the whole variable.

It implements `InParts` of `core.checkpoint`: saving, hashing and restoring never gather a variable on one host.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.checkpoint.parts import Box, in_order, shape_and_slice
from core.parallel.mesh.layouts import WHOLE


class MeshVariable(dtensor.DVariable):
    """A `tf.Variable` that is sharded along axes of a mesh."""

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Returns the rows at `indices`. If rows are sharded, it uses a one-hot matmul, as DTensor needs."""
        by_rows = self.layout.sharding_specs[0]
        if by_rows == dtensor.UNSHARDED:
            return super().sparse_read(indices, name)
        # An invalid id would give a row of zeros; the lookup kernel reports it, as on other devices.
        inside = tf.gather(1 + tf.range(self.shape[0]), indices) - 1
        ones = tf.one_hot(tf.reshape(inside, [-1]), self.shape[0], dtype=self.dtype)
        mesh = self.layout.mesh
        free = next(axis for axis in mesh.dim_names if axis != by_rows)
        rows = free if (ones.shape[0] or 1) % mesh.dim_size(free) == 0 else dtensor.UNSHARDED
        ones = dtensor.relayout(ones, dtensor.Layout([rows, by_rows], mesh))
        leading = [-1 if n is None else n for n in indices.shape]
        return tf.reshape(tf.matmul(ones, self.read_value()), [*leading, *self.shape[1:]])

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value of the mesh. A value of the host is first split into the devices' shards."""
        if tf.executing_eagerly() and not dtensor.is_dtensor(value):
            value = laid(tf.convert_to_tensor(value, self.dtype), self.layout)
        return super().assign(value, *args, **kwargs)

    def numpy(self) -> npt.NDArray[Any]:
        """Returns the whole value as an array. If several processes hold shards, all must call `numpy`."""
        if not self.is_here():
            return whole(self.read_value())
        return _put_together(dict(self._held()), tuple((0, size) for size in self.shape), self.dtype)

    def is_here(self) -> bool:
        """Says whether the devices of this process hold all shards of the variable."""
        return set(boxes_of(self.layout, self.shape)) == set(self._writers())

    def writers(self) -> set[int]:
        """Returns the numbers of the processes that have slices of the variable to save."""
        return set(self._writers().values())

    def slices(self) -> dict[Box, tf.Tensor]:
        """Returns the shards that this process saves, `{box: shard}`: those that no earlier process holds."""
        mesh, held = self.layout.mesh, dict(self._held())
        own = mesh.local_device_ids()[0] // mesh.num_local_devices()
        return {box: held[box] for box, worker in self._writers().items() if worker == own}

    def parts(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the value in row-major order, in parts of at most `most_bytes`. This process must hold all shards."""
        held = dict(self._held())
        for box in in_order(tuple(self.shape), max(1, most_bytes // self.dtype.size)):
            yield _put_together(held, box, self.dtype)

    def assign_parts(self, read: Callable[[Box], tf.Tensor]) -> None:
        """Assigns each shard from `read(box)`. It reads one after another, so the host holds one shard at a time."""
        boxes = boxes_of(self.layout, self.shape)
        found = dict[Box, tf.Tensor]()
        for box, device in zip(boxes, self.layout.mesh.local_devices(), strict=True):
            if box not in found:
                value = read(box)
                with tf.device(device):
                    found[box] = tf.identity(value)
        self.assign(dtensor.pack([found[box] for box in boxes], self.layout))

    def agrees(self, read: Callable[[Box], tf.Tensor]) -> bool:
        """Says whether each shard in this process has exactly the bytes of `read(box)`."""
        held: dict[Box, list[tf.Tensor]] = {}
        for box, value in self._held():
            held.setdefault(box, []).append(value)
        for box, values in held.items():
            expected = _bytes(read(box))
            if not all(np.array_equal(_bytes(value), expected) for value in values):
                return False
        return True

    def _held(self) -> list[tuple[Box, tf.Tensor]]:
        """Returns `(box, shard)` for each device of this process."""
        # Reading through its device handles could overtake a write that is still under way.
        return list(zip(boxes_of(self.layout, self.shape), dtensor.unpack(self.read_value()), strict=True))

    def _writers(self) -> dict[Box, int]:
        """Returns `{box: process}`: for each shard, the first process that holds it."""
        mesh, found = self.layout.mesh, dict[Box, int]()
        places = (dict(zip(mesh.dim_names, index, strict=True)) for index in np.ndindex(*mesh.shape()))
        for device, box in enumerate(_boxes(self.layout, self.shape, places)):
            found.setdefault(box, device // mesh.num_local_devices())
        return found

    def _serialize_to_tensors(self) -> dict[str, dict[str, tf.Tensor]]:
        """Returns this process's slices, for `tf.train.Checkpoint`.

        DTensor's own method needs all processes at once: they would wait in a collective for a failed process.
        """
        return {"VARIABLE_VALUE": {shape_and_slice(self.shape, box): value for box, value in self.slices().items()}}


def layout(mesh: dtensor.Mesh, axes: tuple[str, ...]) -> dtensor.Layout:
    """Returns DTensor's layout of a tensor that is sharded along `axes`."""
    return dtensor.Layout([dtensor.UNSHARDED if axis == WHOLE else axis for axis in axes], mesh)


def boxes_of(lies: dtensor.Layout, shape: tf.TensorShape) -> list[Box]:
    """Returns the box that each device of this process holds of a tensor with this layout and shape."""
    return _boxes(lies, shape, lies.mesh.local_device_locations())


def _boxes(lies: dtensor.Layout, shape: tf.TensorShape, places: Iterable[Mapping[str, int]]) -> list[Box]:
    """Returns the box that each device in `places` of the mesh holds of a tensor with this layout and shape."""

    def bounds(place: Mapping[str, int], axis: str, size: int) -> tuple[int, int]:
        if axis == dtensor.UNSHARDED:
            return 0, size
        each = size // lies.mesh.dim_size(axis)
        return place[axis] * each, (place[axis] + 1) * each

    return [
        tuple(bounds(place, axis, size) for axis, size in zip(lies.sharding_specs, shape, strict=True))
        for place in places
    ]


def laid_out(value: Any, mesh: dtensor.Mesh, axes: tuple[str, ...]) -> tf.Tensor:
    """Returns `value` sharded along `axes`. `value` is a tensor of one device or of the mesh."""
    return laid(tf.convert_to_tensor(value), layout(mesh, axes))


def laid(value: tf.Tensor, lies: dtensor.Layout) -> tf.Tensor:
    """Returns `value` in the DTensor layout `lies`. `value` is a tensor of one device or of the mesh."""
    if dtensor.is_dtensor(value):
        return dtensor.relayout(value, lies)
    if tf.executing_eagerly() and not lies.is_fully_replicated():  # each device gets only its shard
        return dtensor.pack([value[_slices(box)] for box in boxes_of(lies, value.shape)], lies)
    return dtensor.relayout(dtensor.copy_to_mesh(value, dtensor.Layout.replicated(lies.mesh, lies.rank)), lies)


def whole(value: tf.Tensor) -> npt.NDArray[Any]:
    """Returns a tensor of the mesh as one NumPy array."""
    every = dtensor.relayout(value, dtensor.Layout.replicated(dtensor.fetch_layout(value).mesh, value.shape.rank))
    # A failed operation cancels all others of DTensor until a value is copied from a mesh, not from one device alone.
    return np.asarray(every.numpy())


def _put_together(held: Mapping[Box, tf.Tensor], wanted: Box, dtype: tf.DType) -> npt.NDArray[Any]:
    """Assembles the box `wanted` from the shards in `held`. It copies only the overlap from each device."""
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


def _bytes(value: tf.Tensor) -> npt.NDArray[np.uint8]:
    return np.asarray(value.numpy()).reshape(-1).view(np.uint8)


def _seen_from(outer: Box, inner: Box) -> Box:
    return tuple((first - origin, last - origin) for (first, last), (origin, _) in zip(inner, outer, strict=True))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in box)
