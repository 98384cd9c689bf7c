"""Rotary positions (Su et al., 2021, "RoFormer"): a score depends only on the distance from query to key."""

import math

import numpy as np
import tensorflow as tf

from core.arguments import check_positive
from core.layers.shapes import check_axes, check_floats, widen


def rotary(x: tf.Tensor, positions: tf.Tensor, base: float = 10000.0) -> tf.Tensor:
    """Rotates `x` `[batch, time, heads, size]` by its `positions`, `[time]` or `[batch, time]`.

    The pair of values `i` and `i + size / 2` of a head is rotated by `position / base ** (2 i / size)` radians. The
    paper pairs values `2 i` and `2 i + 1` instead.
    """
    check_axes("rotary", x, "batch, time, heads, size")
    check_floats("rotary", x)
    check_positive(base=base)
    positions = tf.convert_to_tensor(positions)
    rank = positions.shape.rank
    if rank not in (1, 2) or not positions.shape.is_compatible_with(x.shape[2 - rank : 2]):
        raise ValueError(
            f"`positions` of `rotary` has shape {positions.shape} for `x` of shape {x.shape}; give one for each time, "
            f"[{x.shape[1]}], or for each of each example, {x.shape[:2]}."
        )
    size = x.shape[-1]
    if size is None:
        raise ValueError(
            f"`x` of `rotary` has shape {x.shape}, whose last axis isn't known while tracing; give it by "
            "`tf.ensure_shape`."
        )
    if size % 2:
        raise ValueError(
            f"`x` of `rotary` has shape {x.shape}; planes need an even last axis: take another `head_size`."
        )
    # Only the fraction of the turns matters, and a position may be millions of turns away. float64 keeps its digits;
    # beyond 1e7, float32 has none left for the fraction.
    per_position = base ** (-2.0 * np.arange(size // 2) / size) / (2.0 * math.pi)
    turns = tf.cast(positions, tf.float64)[..., tf.newaxis, tf.newaxis] * per_position
    angles = 2.0 * math.pi * tf.cast(turns - tf.round(turns), widen(x).dtype)
    cos, sin = tf.cast(tf.cos(angles), x.dtype), tf.cast(tf.sin(angles), x.dtype)
    first, second = tf.split(x, 2, -1)
    return tf.concat([first * cos - second * sin, second * cos + first * sin], -1)
