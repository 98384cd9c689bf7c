"""State that stays on the device between chunks of steps. The host reads it for metric lines."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.distribution.registry import backend_of
from core.engine.inspect_phase import zeros
from core.task.loss import Sums

ALL_WELL = -1


class Progress:
    """The number of a step that wasn't finite, if any, and the sums of the current metric line.

    The number and the sums are variables, so they stay on the device between chunks. All replicas would have the same
    values, so each variable is stored once.
    """

    def __init__(self, sums: Mapping[str, Any], *, strategy: tf.distribute.Strategy | None = None):
        with backend_of(strategy).kept_once() if strategy else contextlib.nullcontext():
            self.bad_step = tf.Variable(ALL_WELL, dtype=tf.int64, trainable=False, name="bad_step")
            self.sums = tf.nest.map_structure(lambda spec: tf.Variable(zeros(spec), trainable=False), dict(sums))

    def read_sums(self) -> dict[str, Sums]:
        """Returns the sums so far, `{phase: {metric: tensor}}`."""
        return dict(tf.nest.map_structure(lambda variable: variable.read_value(), self.sums))

    def write_sums(self, sums: Mapping[str, Sums]) -> None:
        """Replaces the stored sums by `sums`."""
        tf.nest.map_structure(lambda variable, x: variable.assign(x), self.sums, dict(sums))

    def take_sums(self) -> dict[str, Sums]:
        """Returns the sums so far as host arrays, and resets them to zero for the next metric line.

        Sums of one dtype and shape are copied together, with eager operations. Calling a traced function would take
        longer than a short step.
        """
        variables, taken = tf.nest.flatten(self.sums), dict[int, Any]()
        for alike in self._kinds:
            read = [tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype) for v in alike]
            taken |= dict(zip(map(id, alike), tf.raw_ops.Pack(values=read).numpy(), strict=True))
        for variable, zero in zip(variables, self._zeros, strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zero)
        return dict(tf.nest.pack_sequence_as(self.sums, [taken[id(variable)] for variable in variables]))

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Returns the variables of the sums for a checkpoint, `{"figures/net/loss/0": variable}`."""
        return {
            f"figures/{phase}/{name}/{i}": v
            for phase, sums in self.sums.items()
            for name, x in sums.items()
            for i, v in enumerate(tf.nest.flatten(x))
        }

    @functools.cached_property
    def _kinds(self) -> list[list[tf.Variable]]:
        """Returns the variables that store the sums, in groups of equal dtype and shape."""
        kinds: dict[Any, list[tf.Variable]] = {}
        for variable in tf.nest.flatten(self.sums):
            kinds.setdefault((variable.dtype, tuple(variable.shape)), []).append(variable)
        return [*kinds.values()]

    @functools.cached_property
    def _zeros(self) -> list[tf.Tensor]:
        return [tf.zeros_like(variable) for variable in tf.nest.flatten(self.sums)]
