"""The functions that a task serves, traced, and copies of these functions with exported weights."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, shown
from core.layers.rows import some_rows
from core.module import named_variables, with_values
from core.precision import FLOAT32, SERVE, Precision
from core.task import Batch, Served, Task
from core.task.serve import checked_serve

# Smaller variables stay in float32: biases and scales take few bytes, and rounding them costs much accuracy.
LEAST_ELEMENTS = 1024
LARGEST = 127.0  # symmetric int8 range


class Weights(tf.Module):
    """Stores one variable's value in the given weight type; `float32` leaves the value unchanged."""

    def __init__(self, value: tf.Tensor, weights: str):
        super().__init__()
        self.dtype, self.scale = value.dtype, None
        if not value.dtype.is_floating or value.shape.rank < 2 or value.shape.num_elements() < LEAST_ELEMENTS:
            weights = "float32"
        if weights == "int8":
            value, scale = quantised(value)
            self.scale = tf.Variable(scale, trainable=False)
        elif weights == "bfloat16":
            value = tf.cast(value, tf.bfloat16)
        self.stored = tf.Variable(value, trainable=False)

    def read(self) -> tf.Tensor:
        value = self.stored.read_value()
        if value.dtype == self.dtype:
            return value
        value = tf.cast(value, self.dtype)
        return value if self.scale is None else value * self.scale


def quantised(w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns int8 values and scales whose product approximates `w` (symmetric quantisation).

    There is one scale per index of the last axis, a layer's outputs, because magnitudes of outputs may differ much.
    """
    largest = tf.reduce_max(tf.abs(w), axis=tuple(range(w.shape.rank - 1)))
    scale = tf.where(largest > 0, largest / LARGEST, tf.ones_like(largest))
    return tf.cast(tf.round(w / scale), tf.int8), scale


Functions = Mapping[str, Any]  # {name: concrete function over dicts of tensors}


class Program:
    """The functions that `task` serves, for a source whose examples have the specs `spec`."""

    def __init__(self, task: Task, spec: Mapping[str, tf.TensorSpec], precision: Precision = FLOAT32):
        self.task, self.precision = task, precision
        self.features = {name: tf.TensorSpec([None, *x.shape], x.dtype) for name, x in spec.items()}
        self.served = self._served_by(task)
        self.functions: Functions = {
            name: self._traced(name, functools.partial(self._inspected, name, served))
            for name, served in self.served.items()
        }

    def exported(self, weights: str) -> tuple[tf.Module, Functions]:
        """Returns a module that holds the weights in the type `weights`, and the functions that compute with it."""
        module = tf.Module()
        used = {v.ref() for function in self.functions.values() for v in function.graph.variables}
        module.weights = {
            path: Weights(tf.convert_to_tensor(v), weights)
            for path, v in named_variables(self.task).items()
            if v.ref() in used
        }
        functions = {
            name: self._traced(name, functools.partial(self._computed, module.weights, name)) for name in self.served
        }
        # A function that bypasses the task's modules still reads the task's own variables.
        module.read = list({id(v): v for f in functions.values() for v in f.graph.variables}.values())
        return module, functions

    def _inspected(self, name: str, served: Served, batch: Batch) -> Batch:
        who = f"`{name}`, which `{type(self.task).__name__}` serves,"
        return inspected(self.task, who, lambda: self._narrowly(served, batch), say=print, exported=True)

    def _computed(self, weights: Mapping[str, Weights], name: str, batch: Batch) -> Batch:
        copy = with_values(self.task, {path: x.read() for path, x in weights.items()})
        with some_rows():
            return self._narrowly(self._served_by(copy)[name], batch)

    def _narrowly(self, served: Served, batch: Batch) -> Batch:
        """Computes in the task's precision. Inputs and outputs keep the types of the signature."""
        made: Batch = self.precision.narrowing(SERVE, served.inputs).call(served, batch)
        return made

    def _served_by(self, task: Task) -> dict[str, Served]:
        return checked_serve(type(self.task).__name__, task.serve(self.features), self.features)

    def _traced(self, name: str, function: Callable[[Batch], Batch]) -> Any:
        def call(**batch: tf.Tensor) -> Batch:
            return self._checked(name, function(batch))

        inputs = {key: tf.TensorSpec(x.shape, x.dtype, name=key) for key, x in self.served[name].inputs.items()}
        return tf.function(call, autograph=False).get_concrete_function(**inputs)

    def _checked(self, name: str, outputs: Any) -> dict[str, tf.Tensor]:
        named = isinstance(outputs, Mapping) and outputs and all(map(str.isidentifier, outputs))
        if not (named and all(map(tf.is_tensor, outputs.values()))):
            raise ConfigurationError(
                f"`{name}`, which `{type(self.task).__name__}` serves, returned {shown(outputs)}; return tensors by "
                'names of letters, digits and _, as in `{"logits": self.net(batch["image"])}`.'
            )
        return dict(outputs)
