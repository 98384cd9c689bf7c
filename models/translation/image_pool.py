"""A history of generated images, which shows a discriminator old fakes among the new (Shrivastava et al., 2017).

A discriminator that only sees the newest fakes forgets the defects of earlier fakes, and the two networks chase each
other in circles. In a task, the pool is the state of a `Compute`:

    self.pool.phase("pool", "fake", "shown")    # shows `shown` in place of `fake`

The engine calls this phase once per step, with the whole global batch in row order. So the pool is the same for any
number of replicas and microbatches. If the task's `one_device` names the pool, it is stored only once.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import Module
from core.random import Rng
from core.task import Batch, Compute


class ImagePool(Module):
    """Stores up to `size` images of `image_shape`, and their number. With `size=0`, it has no variables."""

    def __init__(self, size: int, image_shape: Sequence[int]):
        super().__init__()
        if size < 0:
            raise ConfigurationError(f"`size` of an image pool is {size}; it counts images: give 0 or more.")
        self.size = size
        if size:
            self.images = tf.Variable(tf.zeros([size, *image_shape]), trainable=False, name="images")
            self.count = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="count")

    def __call__(self, images: tf.Tensor, rng: Rng) -> tuple[tf.Tensor, dict[Any, tf.Tensor]]:
        """Returns the images to show in place of `images`, and the pool's new state, `{variable.ref(): value}`."""
        draws = rng.wide.rows.uniform(images.shape[0], 2)
        pool, count = self.images.read_value(), self.count.read_value()
        shown, pool, count = exchange(pool, count, tf.cast(images, pool.dtype), draws)
        return shown, {self.images.ref(): pool, self.count.ref(): count}

    def phase(self, name: str, images: str, shown: str) -> Compute:
        """Makes a phase that reads the feature `images` and outputs `shown`. With `size=0`, both are equal."""
        if not self.size:
            return Compute(name, lambda batch, rng: {shown: batch[images]})

        def remember(batch: Batch, rng: Rng) -> tuple[Batch, dict[Any, tf.Tensor]]:
            result, state = self(batch[images], rng)
            return {shown: result}, state

        return Compute(name, remember, state=self)


def exchange(
    pool: tf.Tensor, count: tf.Tensor, images: tf.Tensor, draws: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the image shown for each of `images`, the new pool, and the new number of images in the pool.

    Images enter one by one, in row order. While the pool isn't full, each image is stored and shown. Afterwards a coin
    decides (`draws[:, 0]`). Either the image itself is shown, or it replaces a pool image (`draws[:, 1]`), which is
    shown instead. That pool image may be from an earlier row of the same batch. The result is computed without a loop.
    """
    size, rows = pool.shape[0], images.shape[0]
    row, place = tf.range(rows, dtype=tf.int64), tf.range(size, dtype=tf.int64)
    filling = count + row < size
    swapping = ~filling & (draws[:, 0] < 0.5)
    slot = tf.where(filling, count + row, tf.cast(draws[:, 1] * size, tf.int64))
    keeping = filling | swapping

    def newest(wanted: tf.Tensor) -> tf.Tensor:
        """Returns for each line of `wanted` the index in `both` of its last true stored row, or -1."""
        return tf.reduce_max(tf.where(wanted & keeping, size + row, tf.constant(-1, tf.int64)), axis=1)

    before = newest((slot[:, tf.newaxis] == slot) & (row[:, tf.newaxis] > row))
    after = newest(place[:, tf.newaxis] == slot)
    both = tf.concat([pool, images], 0)
    shown = tf.gather(both, tf.where(swapping, tf.where(before < 0, slot, before), size + row))
    return shown, tf.gather(both, tf.where(after < 0, place, after)), tf.minimum(count + rows, size)
