"""Random changes of an image's colours, each row by its own draws.

Levels are in [0, 1], before and after. Images have one channel, or three: red, green and blue.
"""

import gin
import tensorflow as tf

from core.arguments import check_fraction
from core.random import Rng

GREY = (0.2989, 0.587, 0.114)  # the weights of red, green and blue (ITU-R BT.601)


@gin.configurable
def colour_jitter(
    images: tf.Tensor,
    rng: Rng,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.0,
) -> tf.Tensor:
    """Changes brightness, contrast, saturation and hue of each image [rows, height, width, channels], in this order.

    Factors are drawn from 1 - x to 1 + x. The hue turns by up to `hue` of a whole turn. torchvision's `ColorJitter`
    has the same operations, in random order.
    """
    check_fraction(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    wide = checked("colour_jitter", images)
    chance = 2.0 * rng.wide.rows.uniform(wide.shape[0] or tf.shape(wide)[0], 4) - 1.0
    light, spread, strength, turn = tf.unstack(chance[:, :, None, None, None], axis=1)
    wide = blended(0.0, wide, 1.0 + brightness * light)
    wide = blended(tf.reduce_mean(grey(wide), [1, 2], keepdims=True), wide, 1.0 + contrast * spread)
    wide = blended(grey(wide), wide, 1.0 + saturation * strength)
    if hue and wide.shape[-1] == 3:
        angle, *others = tf.unstack(tf.image.rgb_to_hsv(wide), axis=-1)
        turned = tf.math.floormod(angle + hue * turn[..., 0], 1.0)
        wide = tf.image.hsv_to_rgb(tf.stack([turned, *others], -1))
    return tf.cast(wide, images.dtype)


def checked(name: str, images: tf.Tensor) -> tf.Tensor:
    """Returns `images` in float32. Images without one or three channels raise a `ValueError`."""
    if images.shape.rank != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(f"`images` of `{name}` has shape {images.shape}; give [rows, height, width, 1 or 3].")
    return tf.cast(images, tf.float32)


def blended(other: tf.Tensor | float, images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns `other + factor * (images - other)`, cut to [0, 1]."""
    return tf.clip_by_value(other + factor * (images - other), 0.0, 1.0)


def grey(images: tf.Tensor) -> tf.Tensor:
    """Returns the brightness of each pixel, [rows, height, width, 1]."""
    if images.shape[-1] == 1:
        return images
    return tf.reduce_sum(images * tf.constant(GREY, images.dtype), -1, keepdims=True)


def blurred(images: tf.Tensor) -> tf.Tensor:
    """Returns means of 3×3 pixels, of which the middle counts five times; pixels at the border stay."""
    inner = images[:, 1:-1, 1:-1]
    _, height, width, _ = images.shape
    near = sum(images[:, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3))
    middle = tf.pad((near + 4.0 * inner) / 13.0 - inner, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return images + middle
