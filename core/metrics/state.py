"""`State`, the interface of additive metrics, and simple additive metrics: means, and functions of means."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where

Figures: TypeAlias = tf.Tensor | Mapping[str, tf.Tensor]  # a scalar, or scalars by the suffix of their names


@runtime_checkable
class State(Protocol):
    """A named tuple of sums over examples. Adding two states field by field gives the state of all their examples."""

    def result(self) -> Figures:
        """Returns the metrics of this state's sums, eagerly or in a graph. Without measurements they are `nan`."""


_StateT = TypeVar("_StateT", bound=State)


def merge(a: _StateT, b: _StateT) -> _StateT:
    """Adds two states field by field. `a` and `b` must have the same type and shapes."""
    tf.nest.assert_same_structure(a, b)
    fields = getattr(a, "_fields", ())
    sums = []
    for i, pair in enumerate(zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)):
        x, y = map(tf.convert_to_tensor, pair)
        name = fields[i] if i < len(fields) else str(i)
        sums.append(x + arguments.shaped_like(f"b.{name}", y, f"a.{name}", x))
    merged: _StateT = tf.nest.pack_sequence_as(a, sums)
    return merged


class Mean(NamedTuple):
    """The weighted mean of a value, for weights that differ from the loss's weights."""

    total: tf.Tensor
    weight: tf.Tensor

    @classmethod
    def of(cls, values: Any, weight: Any = None) -> "Mean":
        """Adds up one value per example, times one weight per value (1 by default)."""
        return cls(*weighted_mean(arguments.floats("values", values), "values", weight))

    def result(self) -> tf.Tensor:
        """Returns Σ weight · value / Σ weight."""
        return ratio(self.total, self.weight)


class Perplexity(NamedTuple):
    """exp(mean cross-entropy per token): the number of equally likely tokens to choose from (Jelinek et al., 1977)."""

    total: tf.Tensor
    weight: tf.Tensor

    @classmethod
    def of(cls, cross_entropies: Any, weight: Any = None) -> "Perplexity":
        """Adds up one cross-entropy (in nats) per token, times one weight per token."""
        values = arguments.floats("cross_entropies", cross_entropies)
        return cls(*weighted_mean(values, "cross_entropies", weight))

    def result(self) -> tf.Tensor:
        """Returns exp(Σ weight · cross-entropy / Σ weight)."""
        return tf.exp(ratio(self.total, self.weight))


class BitsPerByte(NamedTuple):
    """Bits per byte of text. Unlike perplexity, it can be compared between tokenizers."""

    total: tf.Tensor
    bytes: tf.Tensor

    @classmethod
    def of(cls, cross_entropies: Any, bytes: Any, weight: Any = None) -> "BitsPerByte":
        """Adds up cross-entropies (in nats) and numbers of bytes, one per token, times one weight per token."""
        values = arguments.floats("cross_entropies", cross_entropies)
        weights = weights_of(values, "cross_entropies", weight)
        bytes = arguments.targets_like("bytes", bytes, "cross_entropies", values)
        return cls(weighted_sum(values, weights), weighted_sum(bytes, weights))

    def result(self) -> tf.Tensor:
        """Returns Σ weight · cross-entropy / (ln 2 · Σ weight · bytes)."""
        return ratio(self.total / math.log(2.0), self.bytes)


def weighted_mean(values: tf.Tensor, name: str, weight: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(Σ weight · value, Σ weight)`, whose ratio is the mean. Errors call the values `name`."""
    weights = weights_of(values, name, weight)
    return weighted_sum(values, weights), tf.reduce_sum(weights)


def weights_of(values: tf.Tensor, name: str, weight: Any) -> tf.Tensor:
    """Returns `weight` in float64 after checking its shape, or ones if `weight` is None.

    Float32 can't count beyond 2²⁴ = 16.8 million, and one batch may have more pixels. In float64, integer weights add
    up exactly, in any order.
    """
    if weight is None:
        return tf.ones_like(values, tf.float64)
    weight = tf.cast(tf.convert_to_tensor(weight), tf.float64)
    return arguments.shaped_like("weight", weight, name, values)


def weighted_sum(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns Σ weight · value; values with weight zero are ignored, even NaN and infinity."""
    return tf.reduce_sum(weights * zero_where(tf.equal(weights, 0.0), tf.cast(values, tf.float64)))


def ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    """Returns `numerator / denominator` in float32; `nan` if `denominator` is zero (nothing was measured)."""
    zero = tf.equal(denominator, 0.0)
    quotient = numerator / tf.where(zero, tf.ones_like(denominator), denominator)
    return tf.cast(tf.where(zero, nan(quotient.dtype), quotient), tf.float32)


def poisoned(sums: tf.Tensor, sane: tf.Tensor) -> tf.Tensor:
    """Returns `sums` if all of `sane` is true, else `nan`, because invalid input must not give a plausible result."""
    return tf.where(tf.reduce_all(sane), sums, nan(sums.dtype))
