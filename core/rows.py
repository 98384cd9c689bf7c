"""The rows of all replicas, for what compares examples with each other: in-batch contrast, for one.

    def loss(self, batch, rng):  # of a phase that says `mixes_rows=True`
        z = tf.math.l2_normalize(self.net(batch["image"], rng), axis=-1)
        similarities = tf.matmul(z, all_rows(z), transpose_b=True)  # [own rows, all rows]
        places = own_rows(tf.range(tf.shape(similarities)[1]))  # where each own row stands among all

A step function sees the rows of its own replica. `all_rows` gathers those of all, in the order of the global batch (of
a microbatch, where there are several), and `own_rows` goes back. Where nobody shares a batch, as in a unit test, both
return what they are given:

    >>> all_rows(tf.constant([[1.0], [2.0]])).numpy().tolist()
    [[1.0], [2.0]]
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf


class SharedRows(Protocol):
    """A batch of which each replica holds a part."""

    def all(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [all rows, ...] of this replica's [rows, ...]; differentiable."""

    def own(self, x: tf.Tensor) -> tf.Tensor:
        """Returns this replica's [rows, ...] of [all rows, ...]."""


class _Alone:
    """Holds the whole batch."""

    def all(self, x: tf.Tensor) -> tf.Tensor:
        return x

    def own(self, x: tf.Tensor) -> tf.Tensor:
        return x


_shared: contextvars.ContextVar[SharedRows] = contextvars.ContextVar("shared_rows")


def all_rows(x: Any) -> tf.Tensor:
    """Gathers `x` [rows, ...] of all replicas, in the order of the global batch; one collective, and one backward.

    Gradients come back summed over the replicas, of which each has a loss of its own rows. The phase says
    `mixes_rows=True`. In evaluation padding is left out, so that replicas may hold unlike numbers of rows, or none.
    """
    return _shared.get(_Alone()).all(tf.convert_to_tensor(x))


def own_rows(x: Any) -> tf.Tensor:
    """Returns this replica's rows of `x` [all rows, ...]: `own_rows(all_rows(x))` is `x`. Nothing is exchanged."""
    return _shared.get(_Alone()).own(tf.convert_to_tensor(x))


@contextlib.contextmanager
def sharing_rows(rows: SharedRows) -> Iterator[None]:
    """Lets `all_rows` gather by `rows`, within it: for engines, around a step function."""
    token = _shared.set(rows)
    try:
        yield
    finally:
        _shared.reset(token)
