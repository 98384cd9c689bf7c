"""The training order. Each epoch has its own permutation of the examples, computed from `rng` and the epoch.

Any part of an epoch can be computed alone, so a run resumes anywhere in its data without replaying earlier parts.
"""

import tensorflow as tf

from core.random import Rng

# `RandomIndexShuffle` searches at least 2**16 numbers for one below `size`. For few examples that takes long, and
# drawing a number for each and sorting them is cheaper.
_SORTED_UP_TO = 4096


def shuffled(positions: tf.Tensor, *, size: int, rng: Rng, span: int) -> tf.Tensor:
    """Returns the indices of the examples (int64 [n]) at `positions` (int64 [n]) of an endless shuffled order.

    Each epoch of `size` positions is a permutation. All positions must be within a range of `span`.
    """
    epochs = positions // size
    first_epoch = tf.reduce_min(epochs)
    num_epochs = (span - 1) // size + 2  # the most that `span` successive positions can touch
    # One draw with a row per epoch: epochs are independent, and each is computed directly.
    rows = rng._replace(first_row=first_epoch).rows
    index, row = positions % size, epochs - first_epoch
    if size <= _SORTED_UP_TO:
        permutations = tf.math.top_k(rows.bits(num_epochs, size), k=size).indices
        return tf.cast(tf.gather(tf.reshape(permutations, [-1]), row * size + index), tf.int64)
    # The raw operation, because the public wrapper derives a new seed per index. Its key is three words long.
    return tf.raw_ops.RandomIndexShuffle(
        index=index,
        seed=tf.gather(rows.bits(num_epochs, 3), row),
        max_index=tf.fill(tf.shape(index), tf.constant(size - 1, tf.int64)),
        rounds=4,
    )
