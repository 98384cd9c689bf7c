"""Layers that drop values at random in training, and do nothing in evaluation (`rng=None`)."""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.arguments import check_fraction
from core.layers.shapes import check_floats, check_rank, sizes, widen
from core.module import Module, original
from core.random import Rng, pinned

_calls: contextvars.ContextVar[dict[Module, list[bool]] | None] = contextvars.ContextVar("calls", default=None)


@contextlib.contextmanager
def noticing_calls() -> Iterator[Mapping[Module, Sequence[bool]]]:
    """Records dropout calls in its `with` block: yields `{layer: [True, False]}`, true for a call with `rng`."""
    found: dict[Module, list[bool]] = {}
    token = _calls.set(found)
    try:
        yield found
    finally:
        _calls.reset(token)


class _Dropper(Module):
    """Drops values with probability `rate`, and multiplies the others by `1 / (1 - rate)` to keep the mean."""

    def __init__(self, rate: float):
        super().__init__()
        check_fraction(rate=rate)
        self.rate = rate

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        if (noticed := _calls.get()) is not None and self.rate:
            noticed.setdefault(original(self), []).append(rng is not None)
        if rng is None:
            return x
        check_rank(self, x)
        check_floats(self, x)
        return drop(x, rng, self.rate, self._mask_shape(x))

    def _mask_shape(self, x: tf.Tensor) -> list[Any]:
        return sizes(x)


class Dropout(_Dropper):
    """Drops each value independently (Srivastava et al., 2014)."""


class SpatialDropout(_Dropper):
    """Drops whole channels of `[batch, ..., channels]` (Tompson et al., 2015)."""

    def _mask_shape(self, x: tf.Tensor) -> list[Any]:
        batch, *space, channels = sizes(x)
        return [batch, *(1 for _ in space), channels]


class StochasticDepth(_Dropper):
    """Drops all values of an example (Huang et al., 2016). Put it last in the inner layer of a `Residual`."""

    def _mask_shape(self, x: tf.Tensor) -> list[Any]:
        batch, *rest = sizes(x)
        return [batch, *(1 for _ in rest)]


def drop(x: tf.Tensor, rng: Rng, rate: float, mask_shape: list[Any]) -> tf.Tensor:
    """Drops values of `x`. Along an axis of size 1 in `mask_shape`, all values are dropped or kept together."""
    # Sixteen bits decide on each value: half the draws, for a rate exact to 1e-5. The scale uses the rounded rate, so
    # the mean is exact.
    threshold = min(round(rate * 2**16), 2**16 - 1)
    if threshold == 0:
        return x
    rows, *rest = mask_shape
    if not all(isinstance(size, int) for size in rest):
        raise ValueError(
            f"`x` of a dropout has shape {x.shape}; only its first axis may be unknown while tracing: give the others "
            "by `tf.ensure_shape`."
        )
    width = math.prod(rest)
    words = rng.rows.bits(rows, -(-width // 2))
    halves = tf.bitwise.bitwise_and(words, 0xFFFF), tf.bitwise.right_shift(words, 16)
    keep = tf.concat([half >= threshold for half in halves], 1)
    keep = tf.reshape(pinned(keep[:, :width]), [tf.shape(words)[0], *rest])
    # In bfloat16 the scale itself would be up to 0.4 % off, for all values alike.
    scaled = tf.cast(widen(x) * (2**16 / (2**16 - threshold)), x.dtype)
    # Selects instead of multiplying, so that a dropped infinity doesn't become NaN.
    return tf.where(keep, scaled, tf.zeros([], x.dtype))
