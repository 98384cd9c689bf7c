"""RandAugment (Cubuk et al., 2020): operations drawn at random from a fixed list, all of one strength.

Each row draws its operations by itself. All geometric operations are one gather of pixels. Operations on colours are
computed for all rows, and each row takes the one it drew.
"""

import math

import gin
import tensorflow as tf

from core.arguments import check_size
from core.data.colours import blended, blurred, checked, grey
from core.random import Rng

STRONGEST = 30.0
GEOMETRIC = ("shear_x", "shear_y", "shift_x", "shift_y", "rotate")
COLOURS = ("brightness", "saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast")
OPERATIONS = ("identity", *GEOMETRIC, *COLOURS)


@gin.configurable
def rand_augment(images: tf.Tensor, rng: Rng, *, operations: int = 2, magnitude: float = 9.0) -> tf.Tensor:
    """Applies `operations` random operations, of `magnitude` 0 to 30, to each image [rows, height, width, channels].

    Levels are in [0, 1]. The operations are torchvision's, without `equalize`. At magnitude 30, shears are 0.3, shifts
    150/331 of the image, rotations 30 degrees, and factors of colours 0.1 or 1.9. Pixels are not interpolated.
    """
    check_size(operations=operations)
    if not 0.0 <= magnitude <= STRONGEST:
        raise ValueError(f"`magnitude` is {magnitude}; give a number from 0 to {STRONGEST:g}.")
    wide = checked("rand_augment", images)
    for i in range(operations):
        choice, sign = tf.unstack(rng.fold(i).wide.rows.uniform(wide.shape[0] or tf.shape(wide)[0], 2), axis=1)
        which = tf.cast(choice * len(OPERATIONS), tf.int32)
        strength = tf.where(sign < 0.5, -1.0, 1.0) * (magnitude / STRONGEST)
        wide = _coloured(_moved(wide, which, strength), which, strength)
    return tf.cast(wide, images.dtype)


def _chosen(which: tf.Tensor, name: str, values: tf.Tensor | float, otherwise: tf.Tensor | float) -> tf.Tensor:
    """Returns `values` in rows whose operation is `name`, and `otherwise` in others."""
    here = which == OPERATIONS.index(name)
    rank = max(tf.convert_to_tensor(x).shape.rank for x in (values, otherwise))
    return tf.where(tf.reshape(here, [-1, *[1] * (rank - 1)]), values, otherwise)


def _moved(images: tf.Tensor, which: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Shears, shifts or rotates the rows whose operation does so: a pixel is the nearest one of the old image."""
    _, height, width, channels = images.shape
    shear_x, shear_y = (_chosen(which, f"shear_{axis}", 0.3 * strength, 0.0)[:, None, None] for axis in "xy")
    right = _chosen(which, "shift_x", 150.0 / 331.0 * width * strength, 0.0)[:, None, None]
    down = _chosen(which, "shift_y", 150.0 / 331.0 * height * strength, 0.0)[:, None, None]
    turn = _chosen(which, "rotate", math.radians(30.0) * strength, 0.0)[:, None, None]
    y = tf.reshape(tf.range(float(height)) - 0.5 * (height - 1.0), [1, height, 1]) - down
    x = tf.reshape(tf.range(float(width)) - 0.5 * (width - 1.0), [1, 1, width]) - right
    y, x = y + shear_y * x, x + shear_x * y
    y, x = tf.cos(turn) * y - tf.sin(turn) * x, tf.sin(turn) * y + tf.cos(turn) * x
    y, x = (
        tf.cast(tf.math.floor(place + 0.5 * size), tf.int32) for place, size in ((y, height), (x, width))
    )  # half a pixel more than the middle: rounds to the nearest
    seen = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    rows = tf.range(tf.shape(images)[0])[:, None, None]
    places = (rows * height + tf.clip_by_value(y, 0, height - 1)) * width + tf.clip_by_value(x, 0, width - 1)
    found = tf.gather(tf.reshape(images, [-1, channels]), places)
    return tf.where(seen[..., None], found, 0.0)


def _coloured(images: tf.Tensor, which: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Changes the colours of the rows whose operation does so."""
    factor, share = (1.0 + 0.9 * strength)[:, None, None, None], tf.abs(strength)[:, None, None, None]
    grain = tf.pow(2.0, 8.0 - tf.round(4.0 * share))  # levels that remain
    low, high = (f(images, [1, 2], keepdims=True) for f in (tf.reduce_min, tf.reduce_max))
    made = {
        "brightness": blended(0.0, images, factor),
        "saturation": blended(grey(images), images, factor),
        "contrast": blended(tf.reduce_mean(grey(images), [1, 2], keepdims=True), images, factor),
        "sharpness": blended(blurred(images), images, factor),
        "posterize": tf.floor(images * grain) / grain,
        "solarize": tf.where(images >= 1.0 - share, 1.0 - images, images),
        "autocontrast": tf.where(high > low, tf.math.divide_no_nan(images - low, high - low), images),
    }
    for name, values in made.items():
        images = _chosen(which, name, values, images)
    return images
