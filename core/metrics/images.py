"""Similarity of two images: metrics per example, which the engine averages like the loss."""

from typing import Any

import numpy as np
import tensorflow as tf

from core import arguments

_FILTER, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03  # the paper's


def psnr(images: Any, targets: Any, *, max_value: float) -> tf.Tensor:
    """Returns 10 · log₁₀(max_value² / mean squared error), in decibels, of images [batch, ...]: one value per example.

    The result is at most 138 dB, the limit of float32. Equal images, whose ratio is infinite, get this value.
    """
    images, targets = _scaled(images, targets, max_value, min_rank=2, axes="[batch, ...]")
    rows = tf.reshape(tf.square(images - targets), [tf.shape(images)[0], tf.reduce_prod(tf.shape(images)[1:])])
    error = tf.maximum(tf.reduce_mean(rows, axis=1), np.finfo(np.float32).eps ** 2)
    return tf.cast(-10.0 / np.log(10.0) * tf.math.log(error), tf.float32)


def ssim(images: Any, targets: Any, *, max_value: float) -> tf.Tensor:
    """Returns the structural similarity (Wang et al., 2004) of images [batch, height, width, channels]: [batch].

    Means, variances and covariances are taken in an 11x11 Gaussian window that stays inside the image. The result is
    the mean over window positions and channels.
    """
    images, targets = _scaled(images, targets, max_value, min_rank=4, axes="[batch, height, width, channels]")
    if images.shape.rank not in (4, None):
        raise ValueError(f"`images` has shape {images.shape}; it needs the axes [batch, height, width, channels].")
    for size in images.shape[1:3]:
        if size is not None and size < _FILTER:
            raise ValueError(
                f"`images` has shape {images.shape}; its window needs {_FILTER} by {_FILTER} pixels: resize."
            )
    channels = images.shape[-1]
    if channels is None:
        raise ValueError(
            f"`images` of `ssim` has shape {images.shape}, whose channels aren't known while tracing; give them by "
            "`tf.ensure_shape`."
        )
    moments = [images, targets, images * images, targets * targets, images * targets]
    x, y, xx, yy, xy = tf.split(_windowed(tf.concat(moments, axis=-1)), 5, axis=-1)
    c1, c2 = _K1**2, _K2**2  # for a dynamic range of one
    luminance = (2.0 * x * y + c1) / (x * x + y * y + c1)
    structure = (2.0 * (xy - x * y) + c2) / (xx - x * x + yy - y * y + c2)
    return tf.cast(tf.reduce_mean(luminance * structure, axis=[1, 2, 3]), tf.float32)


def _windowed(x: tf.Tensor) -> tf.Tensor:
    """Returns the Gaussian-weighted mean of each 11x11 window and channel, with a separable filter."""
    places = np.arange(_FILTER) - _FILTER // 2
    window = np.exp(-(places**2) / (2.0 * _SIGMA**2))
    window = tf.constant(window / window.sum(), x.dtype)
    for shape in ([_FILTER, 1, 1, 1], [1, _FILTER, 1, 1]):
        kernel = tf.tile(tf.reshape(window, shape), [1, 1, x.shape[-1], 1])
        x = tf.nn.depthwise_conv2d(x, kernel, strides=[1, 1, 1, 1], padding="VALID")
    return x


def _scaled(images: Any, targets: Any, max_value: float, *, min_rank: int, axes: str) -> tuple[tf.Tensor, tf.Tensor]:
    arguments.check_positive(max_value=max_value)
    images = arguments.floats("images", images, min_rank=min_rank, axes=axes)
    targets = arguments.targets_like("targets", targets, "images", images)
    return images / max_value, targets / max_value
