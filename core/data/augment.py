"""Chance changes to images, for step functions: an image's change follows its place in the global batch.

>>> from core.random import Rng
>>> images = tf.reshape(tf.range(2.0 * 6 * 6), [2, 6, 6, 1])
>>> random_crop_and_flip(images, 4, Rng.from_seed(0)).shape
TensorShape([2, 4, 4, 1])
"""

import tensorflow as tf

from core.random import Rng


def random_crop_and_flip(images: tf.Tensor, size: int, rng: Rng | None) -> tf.Tensor:
    """Cuts a random square of `size` pixels of each image [rows, height, width, channels], and mirrors every other.

    The same `rng` cuts the same squares: give both images of a pair one, and images of two domains
    `rng.fold("a")` and `rng.fold("b")`. Without one, for evaluation, it is the middle, as it is.
    """
    rows, height, width, _ = images.shape
    if rows is None:
        rows = tf.shape(images)[0]
    if height is None or width is None or min(height, width) < size:
        raise ValueError(
            f"`images` has shape {images.shape}, from which no square of {size} pixels can be cut; load them larger "
            "(`load_size` of the source), or ask for less."
        )
    if rng is None:
        top, left = (height - size) // 2, (width - size) // 2
        return images[:, top : top + size, left : left + size]
    y, x, mirrored = tf.unstack(rng.rows.uniform(rows, 3), axis=1)
    places = tf.range(size)
    down = _offset(y, height - size)[:, None] + places
    across = tf.where(mirrored[:, None] < 0.5, places[::-1], places) + _offset(x, width - size)[:, None]
    # By the pixel's number in the whole batch, because one plain gather takes about half the time of two batched ones.
    numbers = (tf.range(rows)[:, None, None] * height + down[:, :, None]) * width + across[:, None, :]
    return tf.gather(tf.reshape(images, [-1, images.shape[3]]), numbers)


def _offset(unit: tf.Tensor, largest: int) -> tf.Tensor:
    """Takes a number of [0, 1) to one of 0, ..., `largest`, each as likely."""
    return tf.cast(unit * (largest + 1.0), tf.int32)
