"""The training loop of most tutorials: a graph loop that takes its batches from an iterator."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from core.data import Source


def batches_of(source: Source, features: Sequence[str], batch: int) -> tf.data.Dataset:
    """Returns a data set of in-memory examples, shuffled each epoch, batched and prefetched."""
    examples = source.gather(tf.range(len(source), dtype=tf.int64))
    data = tf.data.Dataset.from_tensor_slices(tuple(examples[name] for name in features))
    # Repeated before it is batched, so that an epoch's last examples aren't dropped.
    return data.shuffle(len(source), seed=0).repeat().batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def looped(
    step: Callable[..., tf.Tensor], batches: tf.data.Dataset, *, figures: int, steps: int
) -> Callable[[], tf.Tensor]:
    """Returns a function that runs `step` a given number of times and sums its metrics."""
    iterator = iter(batches)

    @tf.function
    def loop(iterator: Any) -> tf.Tensor:
        sums = tf.zeros([figures])
        for _ in tf.range(steps):
            sums += step(*next(iterator))
        return sums

    return lambda: loop(iterator)
