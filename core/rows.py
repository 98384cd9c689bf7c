"""Gathers the rows of all replicas, for losses that compare examples, such as in-batch contrast.

    def loss(self, batch, rng):  # of a phase with `mixes_rows=True`
        z = tf.math.l2_normalize(self.net(batch["image"], rng), axis=-1)
        similarities = tf.matmul(z, all_rows(z), transpose_b=True)  # [own rows, all rows]
        places = own_rows(tf.range(tf.shape(similarities)[1]))  # the positions of the own rows among all

A step function sees only its replica's rows. `all_rows` gathers the rows of all replicas, in the order of the global
batch or microbatch. `own_rows` selects this replica's rows from them. Without replicas, as in a unit test, both return
their argument:

    >>> all_rows(tf.constant([[1.0], [2.0]])).numpy().tolist()
    [[1.0], [2.0]]
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf


class SharedRows(Protocol):
    """A batch whose rows are divided among replicas."""

    def all(self, x: tf.Tensor) -> tf.Tensor:
        """Gathers `x` [rows, ...] of all replicas to [all rows, ...]. It has a gradient."""

    def own(self, x: tf.Tensor) -> tf.Tensor:
        """Selects this replica's rows from `x` [all rows, ...]."""


class _Alone:
    """The only replica, which holds the whole batch."""

    def all(self, x: tf.Tensor) -> tf.Tensor:
        return x

    def own(self, x: tf.Tensor) -> tf.Tensor:
        return x


_shared: contextvars.ContextVar[SharedRows] = contextvars.ContextVar("shared_rows")


def all_rows(x: Any) -> tf.Tensor:
    """Gathers `x` [rows, ...] of all replicas, in the order of the global batch.

    It costs one collective, and one more in the backward pass. The gradient is the sum over replicas, each with the
    loss of its own rows. Set `mixes_rows=True` on the phase. In evaluation, replicas may have different numbers of
    rows, or none.
    """
    return _shared.get(_Alone()).all(tf.convert_to_tensor(x))


def own_rows(x: Any) -> tf.Tensor:
    """Selects this replica's rows from `x` [all rows, ...], without communication: `own_rows(all_rows(x))` is `x`."""
    return _shared.get(_Alone()).own(tf.convert_to_tensor(x))


@contextlib.contextmanager
def sharing_rows(rows: SharedRows) -> Iterator[None]:
    """Makes `all_rows` and `own_rows` use `rows` in its `with` block. Engines call step functions in it."""
    token = _shared.set(rows)
    try:
        yield
    finally:
        _shared.reset(token)
