"""Extreme inputs of layers, with float64 definitions: means far from zero, a NaN, long times.

A row checks its outputs, eager and compiled, and its gradients against those of the same layer in float64.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from core import layers
from core.layers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm

from . import layer_peers as peers
from .battery import Arrays, Row, normal

Array = np.ndarray


def far(*shape: int, one_side: bool = False) -> Callable[[np.random.Generator, int], Arrays]:
    """Returns values with a deviation of one around 10,000, or every other channel around -1,000."""

    def inputs(rng: np.random.Generator, rows: int) -> Arrays:
        mean = 1e4 if one_side else np.resize([1e4, -1e3], shape[-1])
        return ((rng.normal(size=(rows, *shape)) + mean).astype(np.float32),)

    return inputs


def standard(axes: tuple[int, ...], epsilon: float, groups: int = 0) -> Callable[..., Array]:
    """Normalises to zero mean and unit variance over `axes`; with groups, splits the last axis first."""

    def peer(part: object, x: Array) -> Array:
        wide = x.astype(np.float64)
        wide = wide.reshape(*x.shape[:-1], groups, -1) if groups else wide
        variance = wide.var(axes, keepdims=True)
        return ((wide - wide.mean(axes, keepdims=True)) / np.sqrt(variance + epsilon)).reshape(x.shape)

    return peer


def root_mean_square(part: object, x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)


def spoilt(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns images of which the first has one NaN, and a corner of them."""
    x = rng.normal(size=(rows, 6, 6, 4)).astype(np.float32)
    x[:1, 1, 2, 0] = x[:1, 4:, 4:, 1] = np.nan
    return (x,)


def ruled_out(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns images whose first has windows, and a channel, of minus infinity only; and a NaN among some."""
    x = rng.normal(size=(rows, 6, 6, 4)).astype(np.float32)
    x[:1, :2, :2, 0] = x[:1, ..., 1] = x[:1, 4:, 4:, 2] = -np.inf
    x[:1, 5, 5, 2] = np.nan
    return (x,)


def largest(part: object, x: Array) -> Array:
    """Returns the largest of each two by two pixels; NumPy's is NaN if there is one."""
    return x.reshape(len(x), 3, 2, 3, 2, 4).max((2, 4))


def one_key(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns five queries, and one key with its value."""
    return tuple(rng.normal(size=(rows, time, 2, 4)).astype(np.float32) for time in (5, 1, 1))


def sharp(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns queries, keys and values with scores around 10,000 and -10,000; one query has a NaN."""
    q, k, v = (rng.normal(size=(rows, 5, 2, 4)).astype(np.float32) for _ in range(3))
    k = 100.0 * np.sign(k).astype(np.float32)
    q = 100.0 * np.where(k[:, ::-1] > 0, 1.0, -1.0).astype(np.float32)
    q[:1, 3, 0, 0] = np.nan
    return q, k, v


def with_infinite_bias(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns also a bias that hides one key from all queries, and all keys from one query."""
    q, k, v = (rng.normal(size=(rows, 5, 2, 4)).astype(np.float32) for _ in range(3))
    bias = rng.normal(size=(rows, 2, 5, 5)).astype(np.float32)
    bias[..., 1] = bias[:, :, 2] = -np.inf
    return q, k, v, bias


def definition(part: object, q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> Array:
    return peers.attention_by_definition(q, k, v, bias)


HAND = "NumPy, float64"

EXTREME_ROWS = [
    Row("LayerNorm", lambda rng: LayerNorm(32), far(32, one_side=True), standard((-1,), 1e-6), HAND),
    Row("RMSNorm", lambda rng: RMSNorm(32), far(32), root_mean_square, HAND),
    Row("GroupNorm", lambda rng: GroupNorm(6, 2), far(20, 20, 6, one_side=True), standard((1, 2, 4), 1e-6, 2), HAND),
    Row("InstanceNorm", lambda rng: InstanceNorm(4), far(20, 20, 4), standard((1, 2), 1e-6), HAND),
    Row("BatchNorm", lambda rng: BatchNorm(4), far(20, 20, 4), standard((0, 1, 2), 1e-5), HAND),
    Row("BatchNorm", lambda rng: BatchNorm(4, sync=True), far(20, 20, 4), standard((0, 1, 2), 1e-5), HAND, case="sync"),
    Row("MaxPool", lambda rng: layers.MaxPool(2), spoilt, largest, "NumPy"),
    Row("MaxPool", lambda rng: layers.MaxPool(2), ruled_out, largest, "NumPy", case="minus infinity"),
    Row("global_max_pool", lambda rng: layers.global_max_pool, ruled_out, lambda part, x: x.max((1, 2)), "NumPy",
        case="minus infinity"),
    Row("global_max_pool", lambda rng: layers.global_max_pool, spoilt, lambda part, x: x.max((1, 2)), "NumPy"),
    *(
        Row("attend", lambda rng: layers.attend, inputs, definition, HAND, case=f"{case}, {form}", tolerance=1e-5,
            call=lambda part, q, k, v, bias=None, size=size: part(q, k, v, bias=bias, chunk_size=size))
        for case, inputs in (("one key", one_key), ("scores of 10,000", sharp), ("bias of -inf", with_infinite_bias))
        for form, size in (("dense", None), ("in tiles", 2))
    ),
    *(
        Row(
            "rotary",
            lambda rng: layers.rotary,
            normal((4, 2, 6)),
            lambda part, x, first=first: peers.rotated(x, np.arange(first, first + 4)),
            HAND,
            case=f"position {first:,}",
            call=lambda part, x, first=first: part(x, tf.range(first, first + 4)),
        )
        for first in (10_000, 30_000_000)
    ),
]  # fmt: skip
