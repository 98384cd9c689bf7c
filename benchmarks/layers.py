"""Layers against the shortest hand-written TensorFlow: `python -m benchmarks.layers [--pairs=15]`

Each run is a forward and a backward pass, with gradients of the input and of all parameters.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core import layers
from core.random import Rng
from core.task import Statistics

RNG = Rng.from_seed(0)
SEQUENCE, IMAGES = RNG.normal([8, 256, 256]), RNG.normal([16, 32, 32, 64])
LARGE, COLOURS = RNG.normal([1, 128, 128, 32]), RNG.normal([8, 64, 64, 3])


def attention(causal: bool) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Attention with eight heads over the variables of Tapeloop's layer, written out."""

    def call(layer: Any, x: tf.Tensor) -> tf.Tensor:
        batch, time, size = x.shape

        def heads(projection: Any) -> tf.Tensor:
            y = tf.reshape(x @ projection.w + projection.b, [batch, time, 8, size // 8])
            return tf.transpose(y, [0, 2, 1, 3])

        q, k, v = heads(layer.query), heads(layer.key), heads(layer.value)
        scores = tf.matmul(q, k, transpose_b=True) * (size // 8) ** -0.5
        if causal:
            past = tf.linalg.band_part(tf.ones([time, time], tf.bool), -1, 0)
            scores = tf.where(past, scores, -1e9)
        y = tf.transpose(tf.nn.softmax(scores) @ v, [0, 2, 1, 3])
        return tf.reshape(y, [batch, time, size]) @ layer.out.w + layer.out.b

    return call


def moments_norm(axes: list[int], shape: list[int] | None = None) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Normalises over `axes`; reshapes `x` first if a shape is given."""

    def call(layer: Any, x: tf.Tensor) -> tf.Tensor:
        y = x if shape is None else tf.reshape(x, shape)
        mean, variance = tf.nn.moments(y, axes, keepdims=True)
        y = tf.reshape((y - mean) * tf.math.rsqrt(variance + layer.epsilon), x.shape)
        return y * layer.scale + layer.offset

    return call


def rms_norm(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """Divides by the root mean square."""
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + layer.epsilon) * layer.scale


def convolution(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """TensorFlow's convolution."""
    return tf.nn.conv2d(x, layer.w, 1, "SAME") + layer.b


def max_pool(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """TensorFlow's max pooling."""
    return tf.nn.max_pool2d(x, layer.window, layer.stride, layer.padding)


def bilinear(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """TensorFlow's bilinear resize."""
    return tf.image.resize(x, layer.size)


def plain(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """Calls Tapeloop's layer."""
    return layer(x)


def training(layer: Any, x: tf.Tensor) -> tf.Tensor:
    """Calls batch norm with the batch's statistics."""
    return layer(x, statistics=Statistics())


CASES = {
    "MultiHeadAttention": (layers.MultiHeadAttention(256, 8, rng=RNG), plain, attention(False), SEQUENCE),
    "MultiHeadAttention, causal": (
        layers.MultiHeadAttention(256, 8, rng=RNG, causal=True),
        plain,
        attention(True),
        SEQUENCE,
    ),
    "LayerNorm": (layers.LayerNorm(256), plain, moments_norm([-1]), SEQUENCE),
    "RMSNorm": (layers.RMSNorm(256), plain, rms_norm, SEQUENCE),
    "BatchNorm": (layers.BatchNorm(64), training, moments_norm([0, 1, 2]), IMAGES),
    "InstanceNorm": (layers.InstanceNorm(64), plain, moments_norm([1, 2]), IMAGES),
    "Conv2D, 7x7, 3 to 32": (layers.Conv2D(3, 32, 7, rng=RNG), plain, convolution, COLOURS),
    "Conv2D, 7x7, 32 to 3": (layers.Conv2D(32, 3, 7, rng=RNG), plain, convolution, LARGE),
    "Conv2D, 3x3, 64 to 64": (layers.Conv2D(64, 64, 3, rng=RNG), plain, convolution, IMAGES),
    "MaxPool, 2x2": (layers.MaxPool(2), plain, max_pool, IMAGES),
    "Resize, twice as large": (layers.Resize(size=64), plain, bilinear, IMAGES),
    "GroupNorm": (layers.GroupNorm(64, 8), plain, moments_norm([1, 2, 4], [16, 32, 32, 8, 8]), IMAGES),
}


def main() -> None:
    """Prints one row per layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    pairs = parser.parse_args().pairs
    table = Table("layer", "ours, ms", "by hand, ms", "ratio of pairs", "95 % interval", "largest difference")
    for name, (layer, ours, peer, x) in CASES.items():
        runs = {"ours": waited(pass_of(ours, layer, x)), "peer": waited(pass_of(peer, layer, x))}
        difference = max(
            np.abs(a - b).max() / max(1.0, np.abs(b).max()) for a, b in zip(runs["ours"](), runs["peer"](), strict=True)
        )
        seconds = interleaved(runs, pairs=pairs)
        median, low, high = ratio(seconds["ours"], seconds["peer"])
        times = [f"{sorted(seconds[key])[pairs // 2] * 1e3:.1f}" for key in runs]
        table.add_row(name, *times, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{difference:.0e}")
    Console(width=120).print(table)


def pass_of(call: Callable[[Any, tf.Tensor], tf.Tensor], layer: Any, x: tf.Tensor) -> Callable[[], Any]:
    """Traces a forward and backward pass."""

    @tf.function(autograph=False)
    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(call(layer, x)))
        return tape.gradient(loss, [x, *layer.trainable_variables])

    return run


def waited(run: Callable[[], Any]) -> Callable[[], Any]:
    """Makes a pass return once its gradients are computed."""
    return lambda: [np.asarray(gradient) for gradient in run()]


if __name__ == "__main__":
    main()
