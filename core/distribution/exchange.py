"""`Exchange`: all communication between replicas. Each collective is logged in the ledger.

Values are `[microbatches, rows, ...]`, and their rows are sharded over the replicas.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from core.distribution.ledger import GRADIENTS, PRECONDITIONERS, STATISTICS, VALUES, Collective, Ledger
from core.errors import ConfigurationError
from core.optimizers.sharing import Sharing, sharing
from core.tensorflow_private import cross_device_ops

_LARGE = 1 << 14  # numbers
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def replica_here() -> int | None:
    """Returns the number of the replica being traced. None means outside of replicas, or one trace for all (TPUs)."""
    context = tf.distribute.get_replica_context()
    number = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return None if number is None else int(number)


class Exchange:
    """Communication between replicas that each hold all variables. Subclasses serve other strategies."""

    def __init__(self, strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None):
        self.strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self.reduce_in = reduce_in  # a narrower dtype for sending float32 gradients
        self.device: str = strategy.extended.worker_devices[0]  # of one-device phases
        self.networked = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.ledger = Ledger()
        operations = cross_device_ops(strategy)
        nccl = self.replicas > 1 and isinstance(operations, tf.distribute.NcclAllReduce)
        if reduce_in == tf.bfloat16 and nccl:
            raise ConfigurationError(
                "`Trainer.reduce_gradients_in` is 'bfloat16', which TensorFlow's NCCL doesn't add up between the GPUs "
                "of one process: leave it out. It is for workers on a network."
            )

    def begin(self, step: tf.Tensor) -> None:
        """Clears the ledger. Call it before `step` is traced."""
        self.ledger.clear()

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica. Each replica gets its own part of the per-replica values in `args`."""
        return self.strategy.run(fn, args=args)

    def refresh(self) -> None:
        """Makes the next phase read the current weights. Replicas hold these already, so this does nothing."""

    def at_variables(self, write: Callable[..., Any], *values: Any, phase: str, parameters: Mapping[str, Any]) -> Any:
        """Calls `write(*values)` on each device that stores `parameters`; returns the first device's result.

        `phase` names the update. `values` are its gradients, its other sums (loss, weight, metrics), and whether
        the step is healthy.
        """
        return self.first(self.run(write, *values))

    def first(self, values: Any) -> Any:
        """Replaces each per-replica value in the nest `values` by the part of this process's first replica."""
        return tf.nest.map_structure(lambda x: self.strategy.experimental_local_results(x)[0], values)

    def sum(self, values: Any, *, phase: str, what: str) -> Any:
        """Sums each tensor in the nest `values` over the replicas, in replica context. The gradient is a sum too."""
        if self.replicas == 1:
            return values
        flat = tf.nest.flatten(values)
        messages = Messages(flat)
        summed = self._all_reduce(messages.pack(flat), phase, what)
        return tf.nest.pack_sequence_as(values, messages.unpack(summed))

    def reduce(self, values: Any, *, phase: str, what: str) -> Any:
        """Sums each per-replica value in the nest `values`, in cross-replica context; returns one copy of each sum."""
        if self.replicas == 1:
            return self.first(values)
        flat = tf.nest.flatten(values)
        messages = Messages(self.first(flat))
        summed = []
        for message in self.run(lambda *parts: messages.pack(parts), *flat):
            part = self.first(message)
            size = part.dtype.size * part.shape.num_elements()
            self.ledger.add(Collective(phase, what, part.dtype.name, size))
            summed.append(self.strategy.reduce(tf.distribute.ReduceOp.SUM, message, axis=None))
        return tf.nest.pack_sequence_as(values, messages.unpack(summed))

    def gather(self, value: Any, phase: str) -> tf.Tensor:
        """Gathers the replicas' rows of `value` onto one device, in the order of the replicas."""
        part = self.first(value)
        carrier = self._carrier(part.dtype, phase)
        self.ledger.add(Collective(phase, VALUES, carrier.name, carrier.size * part.shape.num_elements()))
        if carrier != part.dtype:
            value = self.run(lambda x: tf.cast(x, carrier), value)
        with tf.device(self.device):
            whole = tf.cast(self.strategy.gather(value, axis=1), part.dtype)
        return tf.ensure_shape(whole, [part.shape[0], part.shape[1] * self.replicas, *part.shape[2:]])

    def split(self, value: tf.Tensor, phase: str) -> Any:
        """Scatters a value [microbatches, rows, ...] from one device: each replica gets only its own rows."""
        rows = value.shape[1] // self.replicas
        size = value.dtype.size * value.shape.num_elements() // self.replicas
        self.ledger.add(Collective(phase, VALUES, value.dtype.name, size))

        def part(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group * rows
            return value[:, first : first + rows]

        return self.strategy.experimental_distribute_values_from_function(part)

    def note_broadcast(self, values: Any, phase: str) -> None:
        """Logs that `values` are sent from one device to every replica. It sends nothing."""
        if self.replicas > 1:
            flat = tf.nest.flatten(values)
            size = sum(x.dtype.size * x.shape.num_elements() for x in flat)
            dtypes = " + ".join(dict.fromkeys(x.dtype.name for x in flat))
            self.ledger.add(Collective(phase, GRADIENTS, dtypes, size))

    def sharing(self, phase: str) -> AbstractContextManager[None]:
        """Returns a context in which rules with `sharded=True` split their work over the replicas of this one."""
        if self.replicas == 1 or tf.distribute.in_cross_replica_context():
            return contextlib.nullcontext()
        total = functools.partial(self.sum, phase=phase, what=PRECONDITIONERS)
        return sharing(Sharing(replica_here(), self.replicas, total))

    def sum_statistics(self, phase: str) -> Callable[[Any], Any]:
        """Returns a function that sums `Statistics` over the replicas, for synchronised layers of `phase`."""
        return lambda sums: self.sum(sums, phase=phase, what=STATISTICS)

    def _all_reduce(self, values: list[Any], phase: str, what: str) -> list[Any]:
        if any(isinstance(x, tf.IndexedSlices) for x in values):
            return self._reduced(values, phase, what)

        @tf.custom_gradient
        def summed(*xs: tf.Tensor) -> Any:
            return self._reduced(list(xs), phase, what), lambda *dys: self._reduced(list(dys), phase, what)

        return list(summed(*values)) if len(values) > 1 else [tf.reshape(summed(*values), values[0].shape)]

    def _reduced(self, values: list[Any], phase: str, what: str) -> list[Any]:
        if not self.networked:
            return self._reduced_at_once(values, phase, what)
        # Between processes TensorFlow sends one type at a time.
        found = list(values)
        for dtype in dict.fromkeys(x.dtype for x in values):
            group = [i for i, x in enumerate(values) if x.dtype == dtype]
            for i, x in zip(group, self._reduced_at_once([values[i] for i in group], phase, what), strict=True):
                found[i] = x
        return found

    def _reduced_at_once(self, values: list[Any], phase: str, what: str) -> list[Any]:
        context = tf.distribute.get_replica_context()
        parts = [part for x in values for part in ([x.values, x.indices] if isinstance(x, tf.IndexedSlices) else [x])]
        dtypes = " + ".join(dict.fromkeys(part.dtype.name for part in parts))
        size = sum(part.dtype.size * part.shape.num_elements() for part in parts)
        self.ledger.add(Collective(phase, what, dtypes, size, replica_here()))
        return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))

    def _carrier(self, dtype: tf.DType, phase: str) -> tf.DType:
        """Returns the dtype in which to send values of `dtype`. Between processes, TensorFlow supports few dtypes."""
        if not self.networked or dtype in _SENT:
            return dtype
        if dtype == tf.bool or (dtype.is_integer and dtype.size < 4):
            return tf.int32
        if dtype == tf.bfloat16:
            return tf.float32
        raise ConfigurationError(
            f"phase `{phase}` reads a value of {dtype.name} that was made on every replica, and such values can't be "
            "sent between processes. Let both phases run in one place, or make numbers of it."
        )


class Messages:
    """Packs values for sending: joins small values of one dtype to one message. Large values are sent uncopied."""

    def __init__(self, flat: Sequence[Any], *, large: int = _LARGE):
        self.shapes = [x.shape for x in flat]
        small: dict[tf.DType, list[int]] = {}
        for i, x in enumerate(flat):
            if isinstance(x, tf.Tensor) and x.shape.num_elements() < large:
                small.setdefault(x.dtype, []).append(i)
        self.groups = list(small.values())
        self.large = [i for i in range(len(flat)) if not any(i in group for group in self.groups)]

    def pack(self, flat: Sequence[Any]) -> list[Any]:
        """Returns the messages: one vector for each dtype of small values, then each large value."""
        packed = [tf.concat([tf.reshape(flat[i], [-1]) for i in group], 0) for group in self.groups]
        return [*packed, *(flat[i] for i in self.large)]

    def unpack(self, messages: Sequence[Any]) -> list[Any]:
        """Returns the values of `messages` in their original order and shapes."""
        flat = dict(zip(self.large, messages[len(self.groups) :], strict=True))
        for group, vector in zip(self.groups, messages, strict=False):
            parts = tf.split(vector, [self.shapes[i].num_elements() for i in group])
            flat |= {i: tf.reshape(part, self.shapes[i]) for i, part in zip(group, parts, strict=True)}
        return [flat[i] for i in range(len(flat))]
