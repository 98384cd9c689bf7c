"""A chunk of steps in asynchronous training: the chief schedules the steps on workers, and doesn't wait."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.cluster.server_pool import release_workers
from core.engine import Progress, TrainStep
from core.errors import ConfigurationError
from core.parallel.parameter_server.exchange import ServedExchange
from core.parallel.parameter_server.scheduler import Handout
from core.parallel.parameter_server.state import Book
from core.task import Batch


class ServedChunk:
    """The functions of a chunk that workers and chief trace. It takes the place of a `tf.function`."""

    def __init__(self, train_step: TrainStep, stacked_spec: Mapping[str, tf.TensorSpec], progress: Progress):
        exchange = train_step.exchange
        assert isinstance(exchange, ServedExchange)
        server, most = exchange.device, exchange.served.max_staleness
        self._book = Book(train_step.updates, progress.bad_step, progress.sums, server=server, max_staleness=most)
        self._train_step, self._exchange = train_step, exchange
        self._variables = list(train_step.variables.values())
        batches = {key: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for key, x in stacked_spec.items()}
        signature = (batches, tf.TensorSpec([], tf.int64))
        self._take = tf.function(self._take_steps, input_signature=signature, autograph=False)
        self._look = tf.function(self._look_up, input_signature=(), autograph=False)

    def get_concrete_function(self) -> "ServedProgram":
        """Traces the functions of workers and chief. Returns the `ServedProgram` to call."""
        look = self._look.get_concrete_function()
        handout = Handout(self._exchange.served, self._take.get_concrete_function(), look)
        return ServedProgram(handout, self._book)

    @property
    def python_function(self) -> Any:
        """Raises a `ConfigurationError`: workers run only traced steps."""
        raise ConfigurationError(
            "`--eager` takes a step in this process, but with parameter servers workers take them: leave the runtime's "
            "`--gin_file` out."
        )

    def _take_steps(self, batches: Batch, first: tf.Tensor) -> None:
        """Runs one step for each of `batches` on a worker. `first` is the number of the first step."""
        exchange, end = self._exchange, first + tf.shape(next(iter(batches.values())), tf.int64)[0]

        def attempt(step: tf.Tensor) -> tuple[tf.Tensor]:
            batch = {key: tf.gather(x, step - first) for key, x in batches.items()}
            healthy = self._train_step(batch, step).healthy
            with tf.device(exchange.device):
                # Either its weights had become too old and it is repeated, or writing has ended.
                otherwise = tf.where(exchange.over, tf.int64.max, exchange.step)
                return (tf.where(healthy, exchange.step + 1, otherwise),)

        with self._exchange.taking_steps(self._variables, self._book):
            tf.while_loop(lambda step: step < end, attempt, (first,), parallel_iterations=1)

    def _look_up(self) -> tf.Tensor:
        return self._exchange.locked(self._book.pushing.read_value)


class ServedProgram:
    """`program(stacked, place)`, where `place` is `[first, begin, end]`.

    `first` is the chunk's first step. The steps from `begin` up to `end` are run. As with other strategies, steps after
    one that isn't finite write nothing.
    """

    def __init__(self, handout: Handout, book: Book):
        self._handout, self.figures = handout, book.figures

    def __call__(self, stacked: Batch, place: tf.Tensor) -> None:
        """Schedules the steps. Without steps, it checks the servers' state, so that TensorFlow sets up early."""
        first, begin, end = place.numpy().tolist()
        if begin == end:
            self._handout.look()

        def batches_of(begin: int, end: int) -> Batch:
            return {key: x[begin - first : end - first] for key, x in stacked.items()}

        self._handout.hand_out(begin, end, batches_of)

    def settle(self) -> None:
        """Waits until all scheduled steps are done. Then workers that were asked to stop may leave."""
        self._handout.settle()
        release_workers()
