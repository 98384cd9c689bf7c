"""The strategy of a mesh, in place of a `tf.distribute.Strategy`: devices that together are one logical replica.

TensorFlow's DTensor runs one program on all devices. The program is traced as if for one device. Then each operation is
sharded according to the layouts of its inputs. So a step on a mesh is that of one device, except for layouts.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.parallel.mesh.devices import make_mesh
from core.parallel.mesh.layouts import WHOLE
from core.parallel.mesh.plan import BATCH, MODEL, MeshPlan, OnMesh
from core.parallel.mesh.variable import MeshVariable, laid_out, layout, whole
from core.random import pinning
from core.tensorflow_private import async_wait

# Returns each variable's mesh axes, given its shape; called in order of creation.
AxesOf = Callable[[Sequence[int]], tuple[str, ...]]

_numbers = itertools.count()
_CARRIERS = {tf.int32: tf.float64, tf.float32: tf.float64, tf.int64: tf.uint64}
_FEW = 1024  # values; TensorFlow's own limit is lower


class MeshStrategy:
    """Devices arranged as `plan` says: GPUs, or virtual CPUs if there are no GPUs or with `virtual`."""

    num_replicas_in_sync = 1

    def __init__(self, plan: MeshPlan, *, virtual: bool = False):
        self.plan, self.mesh = plan, make_mesh(plan, virtual=virtual)

    @property
    def extended(self) -> "MeshStrategy":
        """Returns `self`, which has the attributes of a TensorFlow strategy's `extended` too."""
        return self

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Returns `("",)`: values that are computed once have no fixed device."""
        return ("",)

    def variable_created_in_scope(self, variable: tf.Variable) -> bool:
        """Says whether `variable` was made in this mesh's scope."""
        found = getattr(variable, "on_mesh", None)
        return found is not None and found.strategy is self

    def axes_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """Returns the axes of a variable of this mesh, such as `("model", "-")`. A "-" stands for a whole dimension."""
        axes: tuple[str, ...] = variable.on_mesh.axes
        return axes

    def bytes_a_device(self, variable: tf.Variable) -> int:
        """Returns the number of bytes of `variable` on each device."""
        parts = math.prod(self.plan.sizes.get(axis, 1) for axis in self.axes_of(variable))
        return int(variable.dtype.size * math.prod(variable.shape) // parts)

    @contextlib.contextmanager
    def scope(self, axes_of: AxesOf | None = None, *, empty: bool = False) -> Iterator[None]:
        """In its `with` block, variables are made on the mesh: sharded by `axes_of(shape)`, or by default whole.

        With `empty`, an outer variable creator makes them, without values.
        """

        def create(following: Any, **kwargs: Any) -> tf.Variable:
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
            axes = (axes_of or self.whole)(value.shape)
            if empty:
                variable = following(**{**kwargs, "initial_value": value})
            else:
                trainable = kwargs.get("trainable") is not False
                variable = MeshVariable(laid_out(value, self.mesh, axes), name=kwargs.get("name"), trainable=trainable)
            variable.on_mesh = OnMesh(self, axes)
            return variable

        with tf.variable_creator_scope(create):
            yield

    def whole(self, shape: Sequence[int]) -> tuple[str, ...]:
        """Returns the axes of an unsharded value of `shape`: `("-", "-")` for a matrix."""
        return (WHOLE,) * len(shape)

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Calls `fn` once, for all devices together."""
        with pinning(self._pinned), self.names():
            return fn(*args)

    def names(self) -> AbstractContextManager[Any]:
        """Returns a scope of unique names. DTensor finds loop bodies by names that are global to the process.

        With equal names, DTensor may raise an error once TensorFlow has freed a loop body.
        """
        return tf.name_scope(f"mesh_{next(_numbers)}")

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns `(value,)`, the values of the one replica."""
        return (value,)

    def experimental_distribute_values_from_function(self, value_of: Callable[[Any], Any]) -> Any:
        """Calls `value_of` for the one replica, and returns its result, converted by `handed`."""
        return tf.nest.map_structure(self.handed, value_of(tf.distribute.get_replica_context()))

    def handed(self, value: tf.Tensor) -> tf.Tensor:
        """Converts a value of the host to one that is whole on every device.

        Small values are cast, and `MeshBackend.taken` casts them back. DTensor would treat a small value in its own
        dtype as a constant. Then it would recompile the function for each value, with loop bodies of the same names.
        """
        carrier = _CARRIERS.get(value.dtype) if value.shape.num_elements() < _FEW else None
        return laid_out(tf.cast(value, carrier) if carrier else value, self.mesh, self.whole(value.shape))

    def first_alike(self, variable: tf.Variable) -> list[int]:
        """Returns for each device the number of the first device with the same shard of `variable`."""
        axes, sizes = self.axes_of(variable), (self.plan.sizes[BATCH], self.plan.sizes[MODEL])
        numbers = np.arange(self.plan.devices).reshape(sizes)
        for i, axis in enumerate((BATCH, MODEL)):
            if axis not in axes:
                numbers = np.broadcast_to(numbers.take([0], axis=i), sizes)
        return [int(number) for number in numbers.ravel()]

    def local_parts(self, variable: tf.Variable) -> Sequence[tf.Tensor]:
        """Returns each local device's shard of a variable."""
        # A whole read would return the first device's copy for all. A read of one device doesn't wait for an assignment
        # on all of them, which may still be under way.
        async_wait()
        handles = dtensor.unpack(variable.handle)
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype) for handle in handles]

    def rows_of_devices(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns one row per device of the mesh, collected from each process's `rows` for its own devices."""
        if len(rows) == self.plan.devices:
            return rows
        before = self.mesh.local_device_ids()[0]
        return self.sum_of_processes(tf.pad(rows, [[before, self.plan.devices - before - len(rows)], [0, 0]]))

    def sum_of_processes(self, value: tf.Tensor) -> tf.Tensor:
        """Sums a value over all processes. Each of them must call this method, outside traced functions."""
        value = tf.convert_to_tensor(value)[tf.newaxis, tf.newaxis]
        others = [tf.zeros_like(value)] * (self.mesh.num_local_devices() - 1)
        every = dtensor.pack([value, *others], layout(self.mesh, (BATCH, MODEL, *self.whole(value.shape[2:]))))
        return tf.convert_to_tensor(whole(tf.reduce_sum(every, [0, 1])))

    def _pinned(self, value: tf.Tensor) -> tf.Tensor:
        """Keeps random numbers unsharded. Otherwise each device would draw the same first numbers for its shard."""
        return dtensor.relayout(value, dtensor.Layout.replicated(self.mesh, value.shape.rank))
