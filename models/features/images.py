"""Images as pretrained networks take them: three channels, and one size."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core import arguments


def in_colour(image: Any) -> tf.Tensor:
    """Returns `image` [rows, height, width, channels] with three channels: grey is repeated."""
    image = arguments.floats("image", image, min_rank=4, axes="[rows, height, width, channels]")
    if image.shape.rank != 4 or image.shape[3] not in (1, 3):
        raise ValueError(
            f"`image` has shape {image.shape}; it needs the axes [rows, height, width, channels], with 1 or 3 "
            "channels: remove others, such as transparency."
        )
    return tf.repeat(image, 3, axis=3) if image.shape[3] == 1 else image


def resized(image: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Returns `image` with height and width `size`: bilinear between pixels' centres, without antialiasing.

    PyTorch's `interpolate` with `align_corners=False` computes the same.
    """
    return tf.image.resize(image, size)  # returns float32
