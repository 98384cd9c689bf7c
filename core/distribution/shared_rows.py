"""Implements `all_rows` and `own_rows`, with which a step function reads the rows of all replicas.

To gather rows, each replica places its rows among zeros, and the results are summed. The gradient is a sum too, and
each replica takes its own rows of it. If replicas have different numbers of rows, a mask removes the padding.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.distribution.ledger import ROWS
from core.rows import sharing_rows
from core.task.statistics import summing_over_replicas

_SUMMED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class EqualRows:
    """Gathers the rows of replicas that each have `rows` rows, as in training. Call its methods in replica context.

    `rows` may consist of several `runs`, one per microbatch of the trainer. The gathered batch has the first runs of
    all replicas, then the second runs.
    """

    def __init__(self, exchange: Exchange, phase: str, rows: int, runs: int = 1):
        self.exchange, self.phase, self.rows, self.runs = exchange, phase, rows, runs

    def all(self, x: tf.Tensor) -> tf.Tensor:
        if x.shape.rank == 0 or x.shape[0] not in (None, self.rows):
            raise ValueError(
                f"phase `{self.phase}` asks for `all_rows` of shape {x.shape}, but sees {self.rows} rows: give one row "
                "for each example of the batch. Several views of an example go in one row: `tf.stack(views, axis=1)`."
            )
        gathered = _gather(x, self.exchange, self.phase, self.rows)
        if self.runs == 1:
            return gathered
        apart = tf.reshape(gathered, [self.exchange.replicas, self.runs, self.rows // self.runs, *x.shape[1:]])
        return tf.reshape(tf.stack(tf.unstack(apart, axis=1)), gathered.shape)

    def own(self, x: tf.Tensor) -> tf.Tensor:
        apart = tf.reshape(x, [self.runs, self.exchange.replicas, self.rows // self.runs, *x.shape[1:]])
        return tf.reshape(tf.gather(apart, _place(), axis=1), [self.rows, *x.shape[1:]])


class UnlikeRows:
    """Gathers the rows of replicas that have different numbers of `rows`, from 0 to `most`, as in evaluation."""

    def __init__(self, exchange: Exchange, phase: str, rows: tf.Tensor, *, most: int):
        self.exchange, self.phase, self.rows, self.most = exchange, phase, rows, most
        here = tf.one_hot(_place(), exchange.replicas, on_value=rows, off_value=0, dtype=tf.int32)
        self.counts = exchange.sum(here, phase=phase, what=ROWS)

    def all(self, x: tf.Tensor) -> tf.Tensor:
        right = tf.debugging.assert_equal(
            tf.shape(x)[0],
            self.rows,
            f"`{self.phase}` asks for `all_rows` of another number of rows than its batch has: give one row for each "
            "example. Several views of an example go in one row: `tf.stack(views, axis=1)`.",
        )
        with tf.control_dependencies([right]):
            x = tf.identity(x)
        padded = tf.pad(x, [[0, self.most - self.rows], *([0, 0] for _ in x.shape[1:])])
        gathered = _gather(tf.reshape(padded, [self.most, *x.shape[1:]]), self.exchange, self.phase, self.most)
        return tf.boolean_mask(gathered, tf.reshape(tf.sequence_mask(self.counts, self.most), [-1]))

    def own(self, x: tf.Tensor) -> tf.Tensor:
        first = tf.reduce_sum(self.counts[: _place()])
        return x[first : first + self.rows]


@contextlib.contextmanager
def mixing(exchange: Exchange, phase: str, rows: int, runs: int = 1) -> Iterator[None]:
    """Lets a step function use the rows of all replicas, in its `with` block on each replica."""
    if exchange.replicas == 1:
        yield
        return
    shared = EqualRows(exchange, phase, rows, runs)
    with summing_over_replicas(exchange.sum_statistics(phase)), sharing_rows(shared):
        yield


@contextlib.contextmanager
def mixing_unlike(exchange: Exchange, phase: str, rows: tf.Tensor, *, most: int) -> Iterator[None]:
    """Does the same as `mixing`, for replicas with different numbers of `rows`, from 0 to `most`."""
    shared = UnlikeRows(exchange, phase, rows, most=most)
    with summing_over_replicas(exchange.sum_statistics(phase)), sharing_rows(shared):
        yield


def _gather(x: tf.Tensor, exchange: Exchange, phase: str, rows: int) -> tf.Tensor:
    """Gathers `x` [rows, ...] of all replicas; returns [replicas * rows, ...]."""
    inner = x.shape[1:]
    if not inner.is_fully_defined():
        raise ValueError(
            f"phase `{phase}` asks for `all_rows` of shape {x.shape}, which must be known while tracing: use "
            "`tf.ensure_shape`."
        )
    if not (x.dtype in _SUMMED or x.dtype == tf.bool or (x.dtype.is_integer and x.dtype.size < 4)):
        raise TypeError(
            f"phase `{phase}` asks for `all_rows` of {x.dtype.name}; numbers and booleans can be gathered: convert "
            "it to numbers."
        )
    sent = x if x.dtype in _SUMMED else tf.cast(x, tf.int32)
    if exchange.networked and sent.dtype == tf.bfloat16:
        sent = tf.cast(x, tf.float32)
    # Selects instead of multiplying: a NaN of one replica stays in its own rows.
    mine = tf.reshape(tf.range(exchange.replicas) == _place(), [-1, 1, *(1 for _ in inner)])
    placed = tf.where(mine, tf.reshape(sent, [1, rows, *inner]), tf.zeros([], sent.dtype))
    gathered = exchange.sum(placed, phase=phase, what=ROWS)
    return tf.cast(tf.reshape(gathered, [exchange.replicas * rows, *inner]), x.dtype)


def _place() -> tf.Tensor:
    return tf.distribute.get_replica_context().replica_id_in_sync_group
