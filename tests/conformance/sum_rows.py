"""Parts that add up 100,000 terms, in half precision: in the forward pass, or in a gradient.

Terms have one sign, or a mean far from zero, so that a sum in bfloat16 would stop at a few hundred.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from core import layers, losses
from core.initializers import Initializer

from .battery import Arrays, Row, evaluate, train

MANY = 100_000
IMAGE = (250, 400)  # pixels
VOLUME = (50, 50, 40)


def near(mean: float, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator, int], Arrays]:
    """Returns values with a deviation of a fifth around `mean`; `rows` don't count."""
    return lambda rng, rows: tuple((mean + 0.2 * rng.normal(size=shape)).astype(np.float32) for shape in shapes)


def alike(rng: Any, shape: Any, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Initializes weights so that a sum of many products is about one, and each term counts."""
    return tf.cast((0.5 + rng.uniform(shape)) / max(1, np.prod(shape[:-1])), dtype)


def of_ids(part: Any, like: tf.Tensor) -> tf.Tensor:
    """Looks up the same id many times, in the dtype of `like`."""
    return part(tf.zeros([MANY], tf.int32), dtype=like.dtype)


def scored(part: Any, x: tf.Tensor) -> tf.Tensor:
    return part.logits(x)


INIT: dict[str, Initializer] = {"w_init": alike}
L = layers

# part, case, layer, inputs, call
SUMS: list[tuple[str, str, Callable[[Any], Any], Callable[..., Arrays], Callable[..., Any]]] = [
    ("Linear", "many inputs", lambda rng: L.Linear(MANY, 2, rng=rng, **INIT), near(1.0, (1, MANY)), train),
    ("Linear", "many rows", lambda rng: L.Linear(3, 2, rng=rng), near(1.0, (MANY, 3)), train),
    ("Bilinear", "many inputs", lambda rng: L.Bilinear(MANY, 1, 2, rng=rng, **INIT), near(1.0, (1, MANY), (1, 1)),
        train),
    ("Bilinear", "many rows", lambda rng: L.Bilinear(1, 1, 1, rng=rng), near(1.0, (MANY, 1), (MANY, 1)), train),
    ("Conv1D", "many channels", lambda rng: L.Conv1D(MANY, 2, 1, rng=rng, **INIT), near(1.0, (1, 1, MANY)), train),
    ("Conv1D", "many steps", lambda rng: L.Conv1D(1, 2, 3, rng=rng), near(1.0, (1, MANY, 1)), train),
    ("Conv2D", "many channels", lambda rng: L.Conv2D(MANY // 25, 2, 5, rng=rng, padding="VALID", **INIT),
        near(1.0, (1, 5, 5, MANY // 25)), train),
    ("Conv2D", "many pixels", lambda rng: L.Conv2D(1, 2, 3, rng=rng), near(1.0, (1, *IMAGE, 1)), train),
    ("Conv3D", "many channels", lambda rng: L.Conv3D(MANY // 8, 1, 2, rng=rng, padding="VALID", **INIT),
        near(1.0, (1, 2, 2, 2, MANY // 8)), train),
    ("Conv3D", "many voxels", lambda rng: L.Conv3D(1, 1, 2, rng=rng), near(1.0, (1, *VOLUME, 1)), train),
    ("ConvTranspose1D", "many channels", lambda rng: L.ConvTranspose1D(MANY, 1, 1, rng=rng, **INIT),
        near(1.0, (1, 1, MANY)), train),
    ("ConvTranspose1D", "many steps", lambda rng: L.ConvTranspose1D(1, 1, 2, rng=rng, stride=2),
        near(1.0, (1, MANY, 1)), train),
    ("ConvTranspose2D", "many channels", lambda rng: L.ConvTranspose2D(MANY, 1, 1, rng=rng, **INIT),
        near(1.0, (1, 1, 1, MANY)), train),
    ("ConvTranspose2D", "many pixels", lambda rng: L.ConvTranspose2D(1, 1, 2, rng=rng, stride=2),
        near(1.0, (1, *IMAGE, 1)), train),
    ("ConvTranspose3D", "many channels", lambda rng: L.ConvTranspose3D(MANY, 1, 1, rng=rng, **INIT),
        near(1.0, (1, 1, 1, 1, MANY)), train),
    ("DepthwiseConv2D", "many pixels", lambda rng: L.DepthwiseConv2D(1, 2, rng=rng), near(1.0, (1, *IMAGE, 1)), train),
    ("LayerNorm", "a large axis", lambda rng: L.LayerNorm(MANY), near(100.0, (1, MANY)), train),
    ("LayerNorm", "many rows", lambda rng: L.LayerNorm(4), near(1.0, (MANY, 4)), train),
    ("RMSNorm", "a large axis", lambda rng: L.RMSNorm(MANY), near(100.0, (1, MANY)), train),
    ("GroupNorm", "many pixels", lambda rng: L.GroupNorm(2, 1), near(100.0, (1, *IMAGE, 2)), train),
    ("InstanceNorm", "many pixels", lambda rng: L.InstanceNorm(1), near(100.0, (1, *IMAGE, 1)), train),
    ("BatchNorm", "many rows", lambda rng: L.BatchNorm(2), near(100.0, (MANY, 2)), train),
    ("AveragePool", "a large window", lambda rng: L.AveragePool(IMAGE), near(1.0, (1, *IMAGE, 1)), train),
    ("global_average_pool", "many pixels", lambda rng: L.global_average_pool, near(1.0, (1, *IMAGE, 1)), train),
    ("MaxPool", "a large window", lambda rng: L.MaxPool(IMAGE), near(1.0, (1, *IMAGE, 1)), train),
    ("global_max_pool", "equal pixels", lambda rng: L.global_max_pool,
        lambda rng, rows: (np.zeros((1, *IMAGE, 1), np.float32),), train),
    ("Resize", "one pixel to many", lambda rng: L.Resize(size=IMAGE), near(1.0, (1, 1, 1, 1)), train),
    ("Resize", "nearest, one pixel to many", lambda rng: L.Resize(size=IMAGE, method="nearest"),
        near(1.0, (1, 1, 1, 1)), train),
    ("Resize", "nearest, one pixel by an index to many", lambda rng: L.Resize(size=(401, 251), method="nearest"),
        near(1.0, (1, 2, 2, 1)), train),
    ("Embedding", "one id many times", lambda rng: L.Embedding(2, 3, rng=rng), near(1.0, (1,)), of_ids),
    ("Embedding", "logits of large vectors", lambda rng: L.Embedding(2, MANY, rng=rng, **INIT), near(1.0, (1, MANY)),
        scored),
    ("LearnedPositions", "many rows", lambda rng: L.LearnedPositions(1, 2, rng=rng), near(1.0, (MANY, 1, 2)), train),
    ("attend", "many keys", lambda rng: L.attend, near(0.1, (1, 1, 1, 2), (1, MANY, 1, 2), (1, MANY, 1, 2)), evaluate),
    ("SpectralNorm", "many inputs", lambda rng: L.SpectralNorm(L.Linear(MANY, 2, rng=rng, **INIT), rng=rng),
        near(1.0, (1, MANY)), train),
    ("WeightNorm", "many inputs", lambda rng: L.WeightNorm(L.Linear(MANY, 2, rng=rng, **INIT)), near(1.0, (1, MANY)),
        train),
]  # fmt: skip

ROWS_OF_SUMS = [
    Row(part, make, inputs, lambda *_: None, "", case=case, call=call, roundings=4 if part == "attend" else 2)
    for part, case, make, inputs, call in SUMS
]


def classes(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(1, MANY)).astype(np.float32), np.array([7])


def mask(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(1, MANY)).astype(np.float32), rng.integers(0, 2, (1, MANY))


def shares(rng: np.random.Generator, rows: int) -> Arrays:
    odds = rng.random((1, MANY))
    return rng.normal(size=(1, MANY)).astype(np.float32), (odds / odds.sum()).astype(np.float32)


LONG_LOSSES: list[tuple[str, Callable[..., Any], Callable[..., Arrays]]] = [
    ("softmax_cross_entropy", losses.softmax_cross_entropy, classes),
    ("kl_divergence", losses.kl_divergence, shares),
    ("dice", losses.dice, mask),
    ("cosine_distance", losses.cosine_distance, near(1.0, (1, MANY), (1, MANY))),
    ("triplet", losses.triplet, near(1.0, (1, MANY), (1, MANY), (1, MANY))),
    ("info_nce", losses.info_nce, near(0.0, (2, MANY), (2, MANY))),
    ("nt_xent", losses.nt_xent, near(0.0, (2, MANY), (2, MANY))),
]
ROWS_OF_LONG_LOSSES = [
    Row(part, lambda rng, loss=loss: loss, inputs, lambda *_: None, "", call=evaluate)
    for part, loss, inputs in LONG_LOSSES
]
