"""Rotary positions (Su et al., 2021, "RoFormer"): a score depends only on the distance from query to key."""

import dataclasses
import math
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import check_positive
from core.layers.shapes import check_axes, check_floats, widen


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Slows the rotations that take long, for texts longer than `context` (Llama 3.1; Grattafiori et al., 2024).

    Pairs that turn at least `high` times within `context` positions stay as they are. Those that turn at most `low`
    times become `factor` times slower. Between them, the share that stays grows linearly with the number of turns.
    """

    factor: float
    context: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        check_positive(factor=self.factor, context=self.context, low=self.low, high=self.high)
        if self.low >= self.high:
            raise ValueError(
                f"`low` of `RotaryScaling` is {self.low}, not below `high`, {self.high}: give other turns."
            )

    def scaled(self, turns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the scaled turns per position of each pair."""
        kept = np.clip((self.context * turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return turns * (kept + (1.0 - kept) / self.factor)


def rotary(
    x: tf.Tensor, positions: tf.Tensor, base: float = 10000.0, scaling: RotaryScaling | None = None
) -> tf.Tensor:
    """Rotates `x` `[batch, time, heads, size]` by its `positions`, `[time]` or `[batch, time]`.

    The pair of values `i` and `i + size / 2` of a head is rotated by `position / base ** (2 i / size)` radians. The
    paper pairs values `2 i` and `2 i + 1` instead. `scaling` slows pairs down.
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
    if scaling is not None:
        per_position = scaling.scaled(per_position)
    turns = tf.cast(positions, tf.float64)[..., tf.newaxis, tf.newaxis] * per_position
    angles = 2.0 * math.pi * tf.cast(turns - tf.round(turns), widen(x).dtype)
    cos, sin = tf.cast(tf.cos(angles), x.dtype), tf.cast(tf.sin(angles), x.dtype)
    first, second = tf.split(x, 2, -1)
    return tf.concat([first * cos - second * sin, second * cos + first * sin], -1)
