"""The exchange of asynchronous training. A worker reads a snapshot of all weights, and writes under one lock."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.exchange import Exchange, Messages
from core.errors import ConfigurationError
from core.parallel.parameter_server.state import Book
from core.parallel.parameter_server.strategy import ServedStrategy
from core.parallel.parameter_server.variable import ServedVariable, at_worker, copies_of
from core.tensorflow_private import device

T = TypeVar("T")

_LARGE = 1 << 18  # numbers: copying fewer takes less time than another message


class ServedExchange(Exchange):
    """The exchange between a worker and the servers, for the trace of a worker's step."""

    def __init__(self, strategy: ServedStrategy, *, reduce_in: tf.DType | None = None):
        super().__init__(strategy, reduce_in=reduce_in)
        if reduce_in is not None:
            raise ConfigurationError(
                "`Trainer.reduce_gradients_in` is for gradients that replicas add up; with parameter servers none are: "
                "leave it out."
            )
        self.served = strategy
        with tf.device(self.device):  # the resource is released where it is made
            self._section = tf.CriticalSection(name="servers")
        self._book: Book
        self._variables: Sequence[ServedVariable] = ()
        self._clocks: Mapping[str, tf.Tensor] | None = None  # when the current weights were pulled
        self.step: tf.Tensor  # the current step
        self.over: tf.Tensor  # whether writing had ended when the step began

    @contextlib.contextmanager
    def taking_steps(self, variables: Sequence[ServedVariable], book: Book) -> Iterator[None]:
        """In its `with` block, variables are the worker's copies. `refresh` fills them; `book` counts updates."""
        self._variables, self._book = variables, book
        with at_worker(copies_of(variables)):
            yield

    def begin(self, step: tf.Tensor) -> None:
        """Prepares the trace of `step`: its first `refresh` reads new weights."""
        super().begin(step)
        self._clocks = None
        with tf.device(self.device):  # which gets the step once, and returns the next
            self.step = tf.identity(step)

    def refresh(self) -> None:
        """Reads a consistent snapshot of all weights from the servers. A snapshot that is still current is kept."""
        if self._clocks is not None:
            return
        by_server = _by(self._variables, lambda variable: variable.server)
        messages, parcels = dict[str, Messages](), dict[str, list[tf.Tensor]]()

        def read() -> Any:
            for server, found in by_server.items():
                with tf.device(server):
                    values = [variable.read_value() for variable in found]
                    messages[server] = Messages(values, large=_LARGE)
                    parcels[server] = messages[server].pack(values)
            return {name: clock.read_value() for name, clock in self._book.clocks.items()}, self._book.over(), parcels

        self._clocks, self.over, arrived = self.locked(read)
        for server, found in by_server.items():
            for variable, value in zip(found, messages[server].unpack(arrived[server]), strict=True):
                variable.assign(value)

    def at_variables(self, write: Callable[..., Any], *values: Any, phase: str, parameters: Mapping[str, Any]) -> Any:
        """Calls `write` on the servers, under the lock. A step that was counted before writes nothing."""
        assert self._clocks is not None
        gradients, others, healthy = values
        seen, self._clocks = self._clocks[phase], None
        elsewhere = tf.nest.map_structure(lambda _: self.device, (others, healthy))
        servers = {path: parameters[path].server for path in gradients}
        (gradients, (others, healthy)), parcels = self._sent((gradients, (others, healthy)), (servers, elsewhere))

        def section() -> Any:
            def apply(take: tf.Tensor, age: tf.Tensor) -> Any:
                given = gradients
                if self.served.divide_by_staleness:  # Zhang et al., 2016: Staleness-aware Async-SGD
                    given = {path: _divided(x, tf.maximum(age, 1)) for path, x in gradients.items()}
                with device(beside_variables):
                    return write(given, others, take)

            return self._book.enter(phase, self.step, seen, healthy, apply)

        well = self.locked(section, after=parcels)
        # The metrics stay on the server, which sums them.
        return well, tf.nest.map_structure(lambda own: tf.zeros(own.shape, own.dtype), self._book.sums[phase])

    def locked(self, fn: Callable[[], Any], *, after: Sequence[tf.Tensor] = ()) -> Any:
        """Calls `fn` on the first server under the lock. Returns its result after all its writes.

        The lock is requested once the tensors `after` have arrived, so that its holder never waits for a worker.
        """
        traced = tf.function(fn, autograph=False)

        def held() -> Any:
            result = traced()
            with tf.control_dependencies(tf.nest.flatten(result)):
                return tf.nest.map_structure(tf.identity, result)

        def alone() -> Any:
            there = []
            for x in after:  # an operation inside: a function's operations don't wait for all inputs of its call
                with tf.device(x.device):
                    there.append(tf.identity(x))
            with tf.control_dependencies(there):
                return self._section.execute(held)

        # In a separate function, of which a worker waits only for the result. The server releases the lock too, since a
        # worker may be stopped at any moment.
        with at_worker(None), tf.device(self.device):
            return tf.function(alone, autograph=False)()

    def _sent(self, nest: Any, servers: Any) -> tuple[Any, list[tf.Tensor]]:
        """Sends each value of `nest` to its server. Returns the sent values, and the messages that carried them."""
        flat, found, all_parcels = tf.nest.flatten(nest), dict[int, tf.Tensor](), list[tf.Tensor]()
        for server, numbers in _by(range(len(flat)), tf.nest.flatten(servers).__getitem__).items():
            values = [flat[i] for i in numbers]
            messages = Messages(values, large=_LARGE)
            parcels = messages.pack(values)
            with tf.device(server):
                parcels = [tf.identity(parcel) for parcel in parcels]
                found |= zip(numbers, messages.unpack(parcels), strict=True)
            all_parcels += parcels
        return tf.nest.pack_sequence_as(nest, [found[i] for i in range(len(flat))]), all_parcels


def beside_variables(op: tf.Operation) -> str:
    """Returns the server of the first variable that `op` reads, as the device for `op`. So slots are never sent."""
    return next((x.device for x in op.inputs if "/job:ps" in x.device), op.device)


def _divided(gradient: Any, by: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(gradient.values, by), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(by, gradient.dtype)


def _by(values: Iterable[T], server_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Groups values by server: `{server: [value, ...]}`."""
    found: dict[str, list[T]] = {}
    for value in values:
        found.setdefault(server_of(value), []).append(value)
    return found
