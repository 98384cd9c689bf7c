"""Embedding tables, indexed by id or by position."""

import math

import tensorflow as tf

from core import initializers
from core.arguments import check_size
from core.casts import cast_to
from core.initializers import Initializer
from core.layers.products import product
from core.layers.shapes import add_wide, check_axes, check_last, check_rank, merge_leading, nan_unless
from core.module import Module
from core.precision import compute_dtype
from core.random import Rng


class Embedding(Module):
    """Looks up a vector for each id below `num_embeddings`. `logits` reuses the table (Press and Wolf, 2017).

    It maps integer ids [...] to vectors [..., size]. The `dtype` of a call is by default the phase's.
    """

    def __init__(self, num_embeddings: int, size: int, *, rng: Rng, w_init: Initializer | None = None):
        super().__init__()
        check_size(num_embeddings=num_embeddings, size=size)
        self.size = size
        # Logits of unit vectors then have unit variance.
        w_init = w_init or initializers.normal(1.0 / math.sqrt(size))
        self.w = tf.Variable(w_init(rng.fold("w"), [num_embeddings, size]), name="w")

    def __call__(self, ids: tf.Tensor, *, dtype: tf.DType | None = None) -> tf.Tensor:
        check_rank(self, ids, "ids")
        if not ids.dtype.is_integer:
            raise ValueError(f"`ids` of `Embedding` are {ids.dtype.name}; give integers, one id per vector.")
        # Gathered before the cast: the gradient then has a row per id, not per vector of the table.
        vectors = tf.cast(tf.gather(self.w, ids), dtype or compute_dtype())
        # Without an error from TensorFlow (XLA clamps ids, GPUs give zeros), a wrong id gives NaN.
        return nan_unless((ids >= 0) & (ids < self.w.shape[0]), vectors)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the matrix product of `x` with the table: [..., size] to [..., num_embeddings]."""
        check_last(self, x, self.size, "size")
        rows, leading = merge_leading(x, 1)
        y = product(rows, cast_to(self.w, x.dtype), transpose_b=True)
        return tf.reshape(y, [*leading, self.w.shape[0]])


class LearnedPositions(Module):
    """Adds a learned vector per position to `[batch, time, size]`, up to `max_length` positions."""

    def __init__(self, max_length: int, size: int, *, rng: Rng, w_init: Initializer | None = None):
        super().__init__()
        check_size(max_length=max_length, size=size)
        self.max_length, self.size = max_length, size
        w_init = w_init or initializers.normal(0.02)
        self.w = tf.Variable(w_init(rng.fold("w"), [max_length, size]), name="w")

    def __call__(self, x: tf.Tensor, first: tf.Tensor | int = 0) -> tf.Tensor:
        """Adds position vectors to `x`. `first` is the position of `x[:, 0]`, for decoding."""
        check_last(self, x, self.size, "size")
        check_axes(self, x, "batch, time, size")
        time, start = x.shape[1], tf.get_static_value(first)
        if start is not None and start < 0:
            raise ValueError(f"`first` of `LearnedPositions` is {start}; positions begin at 0.")
        if time is not None and time + (start or 0) > self.max_length:
            raise ValueError(
                f"`x` of `LearnedPositions` has shape {x.shape} and starts at {start or 0}, beyond `max_length="
                f"{self.max_length}`; make the layer with a larger one."
            )
        positions = first + tf.range(tf.shape(x)[1])
        vectors = tf.gather(self.w, positions)
        return add_wide(x, nan_unless((positions >= 0) & (positions < self.max_length), vectors))
