"""A variable on a parameter server. A worker's step reads a local copy.

In `at_worker`, reads, lookups and gradients of a variable use the worker's copy. The copy is a resource with a name,
which the traced step makes on the worker that runs the step. So a restarted worker needs no set-up.
"""

import contextlib
import contextvars
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.tensorflow_private import ResourceVariable


class ServedVariable(ResourceVariable):
    """A `tf.Variable` that is stored whole on one server."""

    def __init__(self, value: Any, *, strategy: Any, server: str, name: str | None, trainable: bool):
        self.strategy, self.server = strategy, server
        with tf.device(server):
            super().__init__(value, name=name, trainable=trainable)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        """Reads the value on the variable's device. Later operations then run there too."""
        with tf.device(self.device):
            return super()._read_variable_op(no_copy)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the value on the chief's host, for `tf.train.Checkpoint`. Otherwise the server would write files."""
        with tf.device("/job:chief/CPU:0"):
            return {"VARIABLE_VALUE": tf.identity(self.read_value())}

    def beside(self) -> contextlib.AbstractContextManager[None]:
        """Returns a scope that makes variables on this variable's server, as kernels need."""
        return on_server(self.server)

    @property
    def handle(self) -> tf.Tensor:
        """Returns the variable's handle. In `at_worker`, it is the handle of the worker's copy."""
        copies = _copies.get()
        if copies is None:
            return self._handle
        if id(self) not in copies:
            raise ConfigurationError(
                f"a step reads the variable `{self.name}`, of which workers have no copy, because it isn't part of the "
                "task: keep it in a `Module` that is an attribute of the task. (An average that a loss reads with "
                "`averaged`? It stays on the servers: train on replicas, `@mirrored()`. Part of a variable that a "
                "partitioner has cut? Leave that out: each lies whole on one server, and servers share them by size.)"
            )
        return copies[id(self)]

    @property
    def device(self) -> str:
        """Returns the variable's server. In `at_worker` it is "", because any worker may run the step."""
        return self.server if _copies.get() is None else ""


_server: contextvars.ContextVar[str | None] = contextvars.ContextVar("server", default=None)


@contextlib.contextmanager
def on_server(server: str) -> Iterator[None]:
    """In its `with` block, variables are made on `server`."""
    token = _server.set(server)
    try:
        yield
    finally:
        _server.reset(token)


def asked_server() -> str | None:
    """Returns the server of the surrounding `on_server`, or None."""
    return _server.get()


_copies: contextvars.ContextVar[Mapping[int, tf.Tensor] | None] = contextvars.ContextVar("copies", default=None)


def copies_of(variables: Iterable[ServedVariable]) -> dict[int, tf.Tensor]:
    """Makes handles of a worker's copies in a traced function: `{id(variable): handle}`."""
    trace = uuid.uuid4().hex  # a worker may have served another chief before
    return {
        id(variable): tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=f"{trace}_{i}")
        for i, variable in enumerate(variables)
    }


@contextlib.contextmanager
def at_worker(copies: Mapping[int, tf.Tensor] | None) -> Iterator[None]:
    """In its `with` block, variables are the worker's `copies`. None makes them the servers' variables again."""
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)
