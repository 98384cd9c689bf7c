"""Variables with shapes but no values, to inspect a task without the time and memory for values.

    with shapes_only():
        assembly = assemble(make_task, strategy)

Its steps can be inspected and traced, but not run.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from core.random import undrawn

T = TypeVar("T")

_asked: contextvars.ContextVar[bool] = contextvars.ContextVar("shapes_only", default=False)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Makes `assemble` create variables without values in its context."""
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def asked_for_shapes() -> bool:
    """Says whether the code runs in `shapes_only`."""
    return _asked.get()


def made(make: Callable[[], T], scope: Callable[[], AbstractContextManager[Any]]) -> T:
    """Returns what `make()` makes in a `scope()`.

    In `shapes_only`, its variables hold nothing, unless it reads values too.
    """

    def in_scope() -> T:
        with scope():
            return make()

    if not _asked.get():
        return in_scope()
    results: list[T] = []
    # Code that needs a value, or has a mistake, raises again below. The creator is outside the scope, which wraps
    # variables as it needs them; in a graph that never runs, nothing is drawn.
    with contextlib.suppress(Exception), undrawn(), tf.variable_creator_scope(_without_value):
        tf.function(lambda: results.append(in_scope()), autograph=False).get_concrete_function()
    return in_scope() if not results or _keeps_tensors(results[-1]) else results[-1]


def _without_value(_: Any, **kwargs: Any) -> tf.Variable:
    value = kwargs.pop("initial_value")
    value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.pop("dtype", None))
    with tf.init_scope():
        return UninitializedVariable(**{**kwargs, "shape": value.shape, "dtype": value.dtype})


def _keeps_tensors(made: object) -> bool:
    """Says whether a module keeps a tensor of the graph that it was made in, which no other graph can read."""
    return isinstance(made, tf.Module) and bool([*made._flatten(predicate=tf.is_symbolic_tensor)])
