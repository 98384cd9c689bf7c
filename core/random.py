"""Random numbers from an explicit `Rng` argument; long because an `Rng` draws every distribution.

An `Rng` is a value: the same `Rng` always draws the same numbers, and `fold` makes a new one for each purpose.

    >>> rng = Rng.from_seed(0)
    >>> noise = rng.fold("noise").normal([2, 3])          # shared by all replicas
    >>> latents = rng.fold("latents").rows.normal(8, 16)  # one row per example

The generator is Philox (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). It is counter-based, so it
can start anywhere in its stream. `rng.rows` uses this to draw only this replica's rows of *one* draw over the global
batch. So results don't depend on the number of replicas or microbatches.

The `Rng` of a step function also has `rng.step`, and `rng.progress` from 0 to 1. Use them for values that change during
a run, such as an annealed weight. They don't affect any draw.
"""

import contextlib
import contextvars
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier

from core.precision import compute_dtype
from core.tracing import in_xla

_PHILOX = 1
_DIGITS = {tf.float32: 24, tf.float16: 11, tf.bfloat16: 8}  # binary ones of a number's fraction
_FOLDS = 1 << 63  # counters from here on are reserved for `fold`, which therefore never overlaps a draw
_NAMES = 1 << 62  # and above this one for names, which never overlap numbers
_INT64 = 1 << 63  # the range of int64: from minus this to below it

_pin: contextvars.ContextVar[Callable[[tf.Tensor], tf.Tensor]] = contextvars.ContextVar("pin", default=lambda x: x)


def pinned(draw: tf.Tensor) -> tf.Tensor:
    """Marks a random tensor `draw`. An engine then shards it only when an operation reads it."""
    return _pin.get()(draw)


@contextlib.contextmanager
def pinning(pin: Callable[[tf.Tensor], tf.Tensor]) -> Iterator[None]:
    """In its context, passes each random tensor to `pin`, which controls how an engine shards the tensor."""
    token = _pin.set(pin)
    try:
        yield
    finally:
        _pin.reset(token)


_undrawn: contextvars.ContextVar[bool] = contextvars.ContextVar("undrawn", default=False)


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """In its context, all initial values are zero. Tracing is faster, and the graph must never run."""
    token = _undrawn.set(True)
    try:
        yield
    finally:
        _undrawn.reset(token)


def is_undrawn() -> bool:
    """Says whether this code runs in the context of `undrawn`."""
    return _undrawn.get()


class Drawn(NamedTuple):
    """The draws and folds of a traced function, in order, with their seeds."""

    draws: list[tuple[tf.Tensor, tf.Tensor]]  # a seed, and its draw
    folds: list[tuple[tf.Tensor, Any, tf.Tensor]]  # a seed, the data folded into it, the new seed
    again: list[tf.Tensor]  # seeds that repeat the draws of others on purpose

    def meant(self) -> list[tf.Tensor]:
        """Returns the draws that repeat others on purpose: their seeds are in `again`, or were folded from those."""
        ids = {id(seed) for seed in self.again}
        for parent, _, seed in self.folds:
            if id(parent) in ids:
                ids.add(id(seed))
        return [words for seed, words in self.draws if id(seed) in ids]


_drawn: contextvars.ContextVar[Drawn | None] = contextvars.ContextVar("drawn", default=None)


@contextlib.contextmanager
def noticing_draws() -> Iterator[Drawn]:
    """Records the draws made in its context, to check them. Functions that are called there are traced, not run."""
    token = _drawn.set(drawn := Drawn([], [], []))
    try:
        yield drawn
    finally:
        _drawn.reset(token)


class Moment(NamedTuple):
    """The number of the training step in which a step function is called, and the length of the run."""

    step: tf.Tensor  # int64, from 0
    steps: int | None = None  # of the whole run, if that is known
    progress: tf.Tensor | None = None  # in place of step / steps


class Rng(NamedTuple):
    """A stateless random generator: a seed, this replica's rows of the global batch, and the training step."""

    seed: tf.Tensor  # int32 [2], not negative: XLA and the CPU kernel extend a negative seed differently
    first_row: Any = 0
    num_rows: int | None = None
    runs: int = 1  # the holder's rows may be several runs of equal length,
    stride: int = 0  # each starting this many rows of the global batch after the previous one
    moment: Moment | None = None  # None outside a step: initial values, sampling
    dtype: tf.DType = tf.float32  # of the draws, except `bits`: the dtype in which the phase computes

    @classmethod
    def from_seed(cls, seed: int, *, step: Any = None, progress: Any = None) -> "Rng":
        """Makes an `Rng` from an integer `seed`.

        Its draws are float32; in a phase, they have the phase's dtype. A unit test can also set the `step` (default 0)
        and the `progress` that a step function reads.

        >>> rng = Rng.from_seed(0, step=30, progress=0.25).fold("noise")
        >>> int(rng.step), float(rng.progress)
        (30, 0.25)
        """
        moment = None
        if step is not None or progress is not None:
            so_far = None if progress is None else tf.convert_to_tensor(progress, tf.float32)
            moment = Moment(tf.convert_to_tensor(0 if step is None else step, tf.int64), None, so_far)
        words = tf.constant([seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF], tf.int32)
        return cls(words, moment=moment, dtype=compute_dtype())

    @property
    def step(self) -> tf.Tensor:
        """Returns the number of the training step, from 0: an int64 scalar."""
        return self._moment("step").step

    @property
    def progress(self) -> tf.Tensor:
        """Returns the completed fraction of the run, `step / Trainer.steps`: a float32 scalar in [0, 1)."""
        moment = self._moment("progress")
        if moment.progress is not None:
            return moment.progress
        if moment.steps is None:
            raise ValueError(
                "`rng.progress` was read, but the run's number of steps isn't known: give `TrainStep(..., steps=...)`, "
                "or in a unit test `Rng.from_seed(0, step=30, progress=0.25)`."
            )
        # In float64, rounded once: XLA and Grappler multiply by 1/steps instead, which would show in float32.
        return tf.cast(tf.cast(moment.step, tf.float64) / float(moment.steps), tf.float32)

    def _moment(self, name: str) -> Moment:
        if self.moment is None:
            raise ValueError(
                f"`rng.{name}` was read, but this `Rng` belongs to no training step: only step functions get one that "
                "does (initial values, samples and evaluation are outside steps). In a unit test, give "
                "`Rng.from_seed(0, step=30, progress=0.25)`."
            )
        return self.moment

    def fold(self, data: Any) -> "Rng":
        """Returns an independent `Rng` for `data`: a purpose such as "noise", or the number of a step or an item."""
        if _undrawn.get() and not tf.executing_eagerly():
            # A graph that never runs needs no real fold, and real ones would take 4 of the 18 seconds of
            # `text_70b.gin`.
            return self._replace(seed=tf.identity(self.seed))
        given = data
        if isinstance(data, str):
            digest = hashlib.blake2b(data.encode(), digest_size=8).digest()
            data = _NAMES | int.from_bytes(digest, "big") >> 2
        if isinstance(data, int) and -_INT64 <= data < _INT64:  # adds no operation: a step has dozens of these
            words = self._words([2], _FOLDS + data)
        else:
            offset = tf.constant(_FOLDS, tf.uint64) + tf.cast(tf.convert_to_tensor(data, None, tf.int64), tf.uint64)
            words = self._words([2], offset)
        seed = tf.bitcast(tf.bitwise.bitwise_and(words, tf.constant(0x7FFFFFFF, tf.uint32)), tf.int32)
        if noticed := _drawn.get():
            noticed.folds.append((self.seed, given, seed))
        return self._replace(seed=seed)

    def again(self) -> "Rng":
        """Returns an `Rng` that draws the same numbers. It tells `assert_draws` that the repetition is on purpose.

        >>> rng = Rng.from_seed(0).fold("shift")
        >>> shifts = [rng.normal([2]), rng.again().normal([2])]  # of an image, and of its mask
        >>> bool(tf.reduce_all(shifts[0] == shifts[1]))
        True
        """
        noticed = _drawn.get()
        if noticed is None or tf.executing_eagerly():
            return self
        noticed.again.append(tf.identity(self.seed))
        return self._replace(seed=noticed.again[-1])

    @property
    def wide(self) -> "Rng":
        """Returns this `Rng` with float32 draws, for values such as times that need more than half precision."""
        return self._replace(dtype=tf.float32)

    @property
    def rows(self) -> "RowRng":
        """Returns a generator that draws one row per example of the global batch."""
        return RowRng(self)

    def uniform(self, shape: Any, low: float = 0.0, high: float = 1.0) -> tf.Tensor:
        """Draws numbers in [low, high) of `dtype`, the same on every replica."""
        unit = _unit(self._flat_bits(shape), self.dtype)
        if self.dtype == tf.float32:
            return low + (high - low) * unit
        return _between(low, high, unit)

    def normal(self, shape: Any) -> tf.Tensor:
        """Draws standard normal numbers, the same on every replica."""
        return tf.cast(_box_muller(self._flat_bits([2, *shape]), axis=0), self.dtype)

    def truncated_normal(self, shape: Any) -> tf.Tensor:
        """Draws standard normal numbers cut off at two standard deviations, the same on every replica."""
        edge = math.erf(2.0 / math.sqrt(2.0))
        # The half step keeps the argument strictly inside (-edge, edge).
        u = _unit(self._flat_bits(shape)) + 2.0**-25
        return tf.cast(math.sqrt(2.0) * tf.math.erfinv(edge * (2.0 * u - 1.0)), self.dtype)

    def bits(self, shape: Any) -> tf.Tensor:
        """Draws uniform uint32, the same on every replica."""
        return self._flat_bits(shape)

    def _flat_bits(self, shape: Any) -> tf.Tensor:
        return self._noticed(self._words(shape, 0))

    def _noticed(self, words: tf.Tensor) -> tf.Tensor:
        if noticed := _drawn.get():
            noticed.draws.append((self.seed, words))
        return words

    def _words(self, shape: Any, offset: int | tf.Tensor) -> tf.Tensor:
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=self.seed)
        if isinstance(offset, int):
            counter += np.array([offset % 2**64, 0], np.uint64)  # in a graph, `tf.constant` makes floats of a list
        else:
            counter += tf.stack([offset, tf.constant(0, tf.uint64)])
        if in_xla():
            # Otherwise XLA computes the key again for each number, which takes 10 to 30 times as long.
            key, counter = xla_optimization_barrier([key, counter])
        # Integers only: TensorFlow's float draws change when compiled with XLA, its integer draws don't.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=tf.uint32
        )
        return pinned(words)


class RowRng(NamedTuple):
    """Draws this replica's rows of one draw over the global batch. A shape begins with the number of rows."""

    rng: Rng

    def uniform(self, *shape: Any) -> tf.Tensor:
        """Draws numbers in [0, 1), one row per example."""
        return _unit(self.bits(*shape), self.rng.dtype)

    def normal(self, *shape: Any) -> tf.Tensor:
        """Draws standard normal numbers, one row per example."""
        rows, *rest = shape
        width = math.prod(rest)
        # Eigen uses other code, with other rounding, for the rest of a tensor that doesn't fill a vector of 16. If
        # every row fills whole vectors, its bits don't depend on where its tensor begins and ends.
        normals = _box_muller(self.bits(rows, 2, -(-width // 16) * 16), axis=1)
        return tf.cast(tf.reshape(normals[:, :width], [rows, *rest]), self.rng.dtype)

    def categorical(self, logits: tf.Tensor) -> tf.Tensor:
        """Draws indices [rows, ...] of int32 from the softmax over the last axis of `logits` [rows, ..., classes]."""
        # The largest of logits plus Gumbel noise is a sample of their softmax (Gumbel, 1954). A uniform number of zero
        # would give minus infinity, which marks excluded classes.
        uniform = tf.maximum(self.rng.wide.rows.uniform(*logits.shape), 2.0**-25)
        noise = -tf.math.log(-tf.math.log(uniform))
        return tf.argmax(tf.cast(logits, tf.float32) + noise, -1, tf.int32)

    def numbers(self, rows: int) -> tf.Tensor:
        """Returns the numbers of this part's rows in the whole batch or sample, from 0: int32 [rows]."""
        return tf.cast(self.rng.first_row, tf.int32) + tf.range(rows)

    def bits(self, *shape: Any) -> tf.Tensor:
        """Draws uniform uint32, one row per example."""
        rows, *rest = shape
        expected = self.rng.num_rows
        if expected is not None:
            if not isinstance(rows, int):  # unknown while tracing, when the engine's count is the right one
                rows = expected
            if rows != expected:
                raise ValueError(
                    f"`rng.rows` was asked for {rows} rows, but this call of the step function sees {expected}: "
                    "draw one row per example (`x.shape[0]`), or use `rng.normal(shape)` for values that all share."
                )
        width = math.prod(rest)
        padded = -(-width // 4) * 4  # one count of Philox gives four words, so each row starts on a whole count
        runs = [
            self.rng._words(
                [rows // self.rng.runs, padded],
                tf.cast(self.rng.first_row + run * self.rng.stride, tf.uint64) * tf.constant(padded // 4, tf.uint64),
            )
            for run in range(self.rng.runs)
        ]
        words = self.rng._noticed(runs[0] if len(runs) == 1 else tf.concat(runs, 0))
        return tf.reshape(words[:, :width], [rows, *rest])


def _unit(bits: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Converts uint32 to `dtype` in [0, 1), from as many upper bits as `dtype` has digits: none rounds up to 1."""
    digits = _DIGITS[dtype]
    unit = tf.cast(tf.bitwise.right_shift(bits, tf.constant(32 - digits, tf.uint32)), tf.float32) * 2.0**-digits
    return tf.cast(unit, dtype)


def _between(low: Any, high: Any, unit: tf.Tensor) -> tf.Tensor:
    """Returns `low + (high - low) * unit` in the dtype of `unit`, rounded to a number in [low, high)."""
    dtype, (low, high) = unit.dtype, (tf.cast(x, tf.float32) for x in (low, high))
    # More than half a digit of `dtype`, and at most one and a quarter: added and rounded, this is the next number.
    step = 1.25 * 2.0 ** -_DIGITS[dtype]
    first, last = tf.cast(low, dtype), tf.cast(high, dtype)
    first = tf.where(tf.cast(first, tf.float32) < low, tf.cast(low + step * tf.abs(low), dtype), first)
    last = tf.where(tf.cast(last, tf.float32) >= high, tf.cast(high - step * tf.abs(high), dtype), last)
    return tf.clip_by_value(tf.cast(low + (high - low) * tf.cast(unit, tf.float32), dtype), first, last)


def _box_muller(bits: tf.Tensor, axis: int) -> tf.Tensor:
    """Converts pairs of random bits along `axis`, of size 2, to one normal number each (Box and Muller, 1958)."""
    radius, angle = tf.unstack(_unit(bits), axis=axis)
    return tf.sqrt(-2.0 * tf.math.log(1.0 - radius)) * tf.cos(2.0 * math.pi * angle)
