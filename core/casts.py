"""Casts of weights to the dtype that a layer computes in. Each is made once, before the loops that read it.

>>> w = tf.Variable(tf.ones([2, 2]))
>>> casts = [(w, tf.bfloat16)]
>>> with casting_once(casts, made_casts(casts)):
...     used = [cast_to(w, tf.bfloat16) for microbatch in range(2)]   # of the same cast
"""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

Cast = tuple[tf.Variable, tf.DType]

_noticed: contextvars.ContextVar[list[Cast] | None] = contextvars.ContextVar("noticed", default=None)
_made: contextvars.ContextVar[Mapping[Any, tf.Tensor]] = contextvars.ContextVar("made", default={})  # noqa: B039


def cast_to(w: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the weight `w` (a variable or tensor) in `dtype`. The gradient of `w` keeps the dtype of `w`."""
    if w.dtype == dtype or not isinstance(w, tf.Variable):
        return tf.cast(w, dtype)
    if (noticed := _noticed.get()) is not None:
        noticed.append((w, dtype))
    made = _made.get().get((id(w), dtype))
    if made is None:
        return tf.cast(w, dtype)

    @tf.custom_gradient
    def linked(value: tf.Tensor) -> Any:  # the cast in place of `value`, with the gradient of a cast
        return tf.identity(made), lambda dy: tf.cast(dy, value.dtype)

    return linked(tf.convert_to_tensor(w))


@contextlib.contextmanager
def noticing_casts() -> Iterator[list[Cast]]:
    """Records the variables that `cast_to` casts in its context: yields a list of variables and new dtypes."""
    found = list[Cast]()
    token = _noticed.set(found)
    try:
        yield found
    finally:
        _noticed.reset(token)


def made_casts(casts: Sequence[Cast]) -> list[tf.Tensor]:
    """Makes the `casts`. Pass the result to `casting_once`."""
    return [tf.stop_gradient(tf.cast(w, dtype)) for w, dtype in casts]


@contextlib.contextmanager
def casting_once(casts: Sequence[Cast], made: Sequence[tf.Tensor]) -> Iterator[None]:
    """Makes `cast_to` return the casts in `made`, in its context, instead of new ones."""
    token = _made.set({(id(w), dtype): x for (w, dtype), x in zip(casts, made, strict=True)})
    try:
        yield
    finally:
        _made.reset(token)
