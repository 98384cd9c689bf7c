"""Copies of variables as they were at one moment: what a process writes of them while they train on."""

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # which no strategy's scope makes another of

from core.checkpoint.parts import Box, InParts, shape_and_slice, whole_of


class Copy(tf.__internal__.tracking.Trackable):
    """One variable as it was: what this process writes of it, in memory of its own.

    `tf.train.Checkpoint` saves it under the names of the variable itself.
    """

    def __init__(self, variable: tf.Variable):
        self.shape, self.dtype = variable.shape, variable.dtype
        self.writers = variable.writers() if isinstance(variable, InParts) else {0}
        self._held: dict[Box, ResourceVariable] = {}
        self.take(variable)

    def take(self, variable: tf.Variable) -> None:
        """Copies the value of this moment over the one from before: fresh memory would take many times as long."""
        whole = whole_of(self.shape)
        values = variable.slices() if isinstance(variable, InParts) else {whole: variable.read_value()}
        with tf.device("CPU:0"):
            for box, value in values.items():
                if box in self._held:
                    self._held[box][...].assign(value)
                else:  # a variable shares the memory of what it is made of: that of `value` is going to change
                    self._held[box] = ResourceVariable(tf.raw_ops.DeepCopy(x=value), trainable=False)

    def slices(self) -> dict[Box, tf.Tensor]:
        return {box: held.read_value() for box, held in self._held.items()}

    def _serialize_to_tensors(self) -> dict[str, dict[str, tf.Tensor]]:
        return {"VARIABLE_VALUE": {shape_and_slice(self.shape, box): value for box, value in self.slices().items()}}


Copies = Mapping[str, Copy]  # by path


def copied(variables: Mapping[str, tf.Variable], *, worker: int, into: Copies) -> Copies:
    """Returns copies of what `worker` is to write: the first writes all but what others alone hold.

    Copies of the same variables from before are taken `into`.
    """
    own = {path: v for path, v in variables.items() if worker == 0 or isinstance(v, InParts)}
    if own.keys() != into.keys():
        return {path: Copy(variable) for path, variable in own.items()}
    for path, variable in own.items():
        into[path].take(variable)
    return into


def writers_of(copies: Copies) -> list[int]:
    """Returns the numbers of the processes that write; the first always does."""
    return sorted({0}.union(*(copy.writers for copy in copies.values())))
