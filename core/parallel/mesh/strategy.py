"""What stands where a strategy of TensorFlow's does, when a model is cut: a mesh of devices, one logical replica.

TensorFlow's DTensor runs one program on all devices: it is traced as if for one, and each operation is then cut as the
layouts of what it reads ask for. So a step on a mesh is the step on one device, but for what `MeshBackend` lays out.
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
from tensorflow.python.eager import context

from core.parallel.mesh.devices import make_mesh
from core.parallel.mesh.layouts import WHOLE
from core.parallel.mesh.plan import BATCH, MODEL, MeshPlan, OnMesh
from core.parallel.mesh.variable import MeshVariable, laid_out, layout, whole
from core.random import pinning

# Says of each variable, by its shape and in the order in which they are made, along which axes it is cut.
AxesOf = Callable[[Sequence[int]], tuple[str, ...]]

_numbers = itertools.count()
_CARRIERS = {tf.int32: tf.float64, tf.float32: tf.float64, tf.int64: tf.uint64}
_FEW = 1024  # values; TensorFlow's own limit is lower


class MeshStrategy:
    """Devices in the rows and columns of a plan: GPUs where there are any, unless `virtual` CPUs are asked for."""

    num_replicas_in_sync = 1

    def __init__(self, plan: MeshPlan, *, virtual: bool = False):
        self.plan, self.mesh = plan, make_mesh(plan, virtual=virtual)

    @property
    def extended(self) -> "MeshStrategy":
        """Returns what TensorFlow's strategies keep apart."""
        return self

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Returns where what runs once runs: wherever the mesh is."""
        return ("",)

    def variable_created_in_scope(self, variable: tf.Variable) -> bool:
        """Says whether a variable is one of this mesh."""
        found = getattr(variable, "on_mesh", None)
        return found is not None and found.strategy is self

    def axes_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """Returns along which axes one of its variables is cut, and "-" for where it isn't."""
        axes: tuple[str, ...] = variable.on_mesh.axes
        return axes

    def bytes_a_device(self, variable: tf.Variable) -> int:
        """Returns how much of it each device holds."""
        parts = math.prod(self.plan.sizes.get(axis, 1) for axis in self.axes_of(variable))
        return int(variable.dtype.size * math.prod(variable.shape) // parts)

    @contextlib.contextmanager
    def scope(self, axes_of: AxesOf | None = None, *, empty: bool = False) -> Iterator[None]:
        """Makes of variables, within it, variables of the mesh: whole on each device, unless `axes_of` says otherwise.

        Those that are `empty` are left as whoever stands around makes them.
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
        """Returns the axes of what isn't cut."""
        return (WHOLE,) * len(shape)

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Calls `fn`: of all devices together."""
        with pinning(self._pinned), self.names():
            return fn(*args)

    def names(self) -> AbstractContextManager[Any]:
        """Returns a scope of names that no other has: DTensor calls the bodies of loops by name, in the whole process.

        Two of one name are an error where TensorFlow has let go of a third in between.
        """
        return tf.name_scope(f"mesh_{next(_numbers)}")

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns a value as the one of the one replica."""
        return (value,)

    def experimental_distribute_values_from_function(self, value_of: Callable[[Any], Any]) -> Any:
        """Returns what `value_of` makes for the one replica, as `handed` has it."""
        return tf.nest.map_structure(self.handed, value_of(tf.distribute.get_replica_context()))

    def handed(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value of the host, whole on every device, for a traced function that casts it back.

        Few numbers of these types would be taken for constants, and the function compiled anew for others, into bodies
        of loops of the same names.
        """
        carrier = _CARRIERS.get(value.dtype) if value.shape.num_elements() < _FEW else None
        return laid_out(tf.cast(value, carrier) if carrier else value, self.mesh, self.whole(value.shape))

    def first_alike(self, variable: tf.Variable) -> list[int]:
        """Returns for each device the first that holds the same part of a variable as it does, itself perhaps."""
        axes, sizes = self.axes_of(variable), (self.plan.sizes[BATCH], self.plan.sizes[MODEL])
        numbers = np.arange(self.plan.devices).reshape(sizes)
        for i, axis in enumerate((BATCH, MODEL)):
            if axis not in axes:
                numbers = np.broadcast_to(numbers.take([0], axis=i), sizes)
        return [int(number) for number in numbers.ravel()]

    def local_parts(self, variable: tf.Variable) -> Sequence[tf.Tensor]:
        """Returns what each device of this process holds of a variable."""
        # Read as a whole, what is whole on every device would be the first's on all of them. A read of one device isn't
        # put behind an assignment on all of them, which may still be under way.
        context.async_wait()
        handles = dtensor.unpack(variable.handle)
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype) for handle in handles]

    def rows_of_devices(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns a row for each device of the mesh, where each process has those of its own."""
        if len(rows) == self.plan.devices:
            return rows
        before = self.mesh.local_device_ids()[0]
        return self.sum_of_processes(tf.pad(rows, [[before, self.plan.devices - before - len(rows)], [0, 0]]))

    def sum_of_processes(self, value: tf.Tensor) -> tf.Tensor:
        """Adds up what each process hands in: all have to call it, and none within a traced function."""
        value = tf.convert_to_tensor(value)[tf.newaxis, tf.newaxis]
        others = [tf.zeros_like(value)] * (self.mesh.num_local_devices() - 1)
        every = dtensor.pack([value, *others], layout(self.mesh, (BATCH, MODEL, *self.whole(value.shape[2:]))))
        return tf.convert_to_tensor(whole(tf.reduce_sum(every, [0, 1])))

    def _pinned(self, value: tf.Tensor) -> tf.Tensor:
        """Keeps a draw whole: cut as whoever reads it is, each device would draw the first numbers for its part."""
        return dtensor.relayout(value, dtensor.Layout.replicated(self.mesh, value.shape.rank))
