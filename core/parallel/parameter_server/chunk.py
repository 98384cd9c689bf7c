"""A chunk of steps in asynchronous training: it hands them out to workers, and doesn't wait for them."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.engine.step import TrainStep
from core.errors import ConfigurationError
from core.parallel.parameter_server.exchange import ServedExchange
from core.parallel.parameter_server.scheduler import Handout
from core.parallel.parameter_server.state import Book
from core.task import Batch, Update


class ServedChunk:
    """`chunk(stacked, place)`, where `place` is three steps: the chunk's first, where to begin, where to end.

    Those after a step that isn't finite write nothing, as elsewhere.
    """

    def __init__(
        self,
        train_step: TrainStep,
        exchange: ServedExchange,
        stacked_spec: Mapping[str, tf.TensorSpec],
        *,
        bad_step: tf.Variable,
        sums: Mapping[str, Any],
    ):
        updates = [plan.name for plan in train_step.plans if isinstance(plan.phase, Update)]
        exchange.book = Book(
            updates, bad_step, sums, server=exchange.device, max_staleness=exchange.served.max_staleness
        )
        self._train_step, self._exchange = train_step, exchange
        self._variables = list(train_step.variables.values())
        batches = {key: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for key, x in stacked_spec.items()}
        signature = (batches, tf.TensorSpec([], tf.int64))
        self._take = tf.function(self._take_steps, input_signature=signature, autograph=False)
        self._look = tf.function(self._look_up, input_signature=(), autograph=False)

    def get_concrete_function(self) -> "ServedChunk":
        """Traces what workers and chief run; returns what to call."""
        exchange = self._exchange
        look = self._look.get_concrete_function()
        exchange.handout = Handout(exchange.served, self._take.get_concrete_function(), look)
        return self

    @property
    def python_function(self) -> Any:
        """Refuses to take steps without tracing."""
        raise ConfigurationError(
            "`--eager` takes a step in this process, but by parameter servers workers take them: leave the runtime's "
            "`--gin_file` out."
        )

    def __call__(self, stacked: Batch, place: tf.Tensor) -> None:
        """Hands out the steps; without any it looks, so that TensorFlow has what that takes while all workers live."""
        first, begin, end = place.numpy().tolist()
        if begin == end:
            self._exchange.handout.look()

        def batches_of(begin: int, end: int) -> Batch:
            return {key: x[begin - first : end - first] for key, x in stacked.items()}

        self._exchange.handout.hand_out(begin, end, batches_of)

    def _take_steps(self, batches: Batch, first: tf.Tensor) -> None:
        """Takes steps from `first` on, at a worker."""
        exchange, end = self._exchange, first + tf.shape(next(iter(batches.values())), tf.int64)[0]

        def attempt(step: tf.Tensor) -> tuple[tf.Tensor]:
            batch = {key: tf.gather(x, step - first) for key, x in batches.items()}
            with tf.device(exchange.device):  # which is told the step once, and says what is next
                exchange.step = tf.identity(step)
            healthy = self._train_step(batch, step).healthy
            with tf.device(exchange.device):
                # Either its weights had become too old, and it is taken again, or nothing is written any more.
                otherwise = tf.where(exchange.over, tf.int64.max, exchange.step)
                return (tf.where(healthy, exchange.step + 1, otherwise),)

        with self._exchange.taking_steps(self._variables):
            tf.while_loop(lambda step: step < end, attempt, (first,), parallel_iterations=1)

    def _look_up(self) -> tf.Tensor:
        return self._exchange.locked(self._exchange.book.pushing.read_value)
