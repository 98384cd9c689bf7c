"""Makes variables that have shapes but no values, to inspect a task with little time and memory.

    with shapes_only():
        assembly = assemble(make_task, strategy)

Steps of this `assembly` can be inspected and traced, but not run.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf

from core.random import undrawn
from core.tensorflow_private import UninitializedVariable, flattened

T = TypeVar("T")

_asked: contextvars.ContextVar[bool] = contextvars.ContextVar("shapes_only", default=False)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """In its `with` block, `assemble` creates variables without values."""
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def asked_for_shapes() -> bool:
    """Says whether the caller runs within `shapes_only()`."""
    return _asked.get()


def made(make: Callable[[], T], scope: Callable[[], AbstractContextManager[Any]]) -> T:
    """Calls `make()` within `scope()`, and returns its result.

    In `shapes_only`, the variables that `make` creates have no values. If `make` needs values, they have them.
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
    """Says whether the module `made` holds a symbolic tensor of its own graph: no other graph can read it."""
    return isinstance(made, tf.Module) and bool([*flattened(made, tf.is_symbolic_tensor)])
