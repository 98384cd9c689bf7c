"""The order of training: one permutation of the examples per epoch, as a pure function of (rng, epoch).

Any part of any epoch is computed by itself, so a run resumes anywhere in its data without replaying what came before.
"""

import tensorflow as tf

from core.random import Rng

# `RandomIndexShuffle` walks through at least 2**16 numbers in search of one below `size`, so for few examples, where
# the walk is long, drawing a number for each and sorting them is cheaper.
_SORTED_UP_TO = 4096


def shuffled(positions: tf.Tensor, *, size: int, rng: Rng, span: int) -> tf.Tensor:
    """Returns the examples (int64 [n]) at `positions` (int64 [n]) of an endless shuffled stream over `size` examples.

    The stream is one permutation after the other. `span` bounds how far positions lie apart.
    """
    epochs = positions // size
    first_epoch = tf.reduce_min(epochs)
    num_epochs = (span - 1) // size + 2  # the most that `span` positions in a row can touch
    # Rows of one draw, one row an epoch: epochs are as unrelated as random words, and each is reached at once.
    rows = rng._replace(first_row=first_epoch).rows
    index, row = positions % size, epochs - first_epoch
    if size <= _SORTED_UP_TO:
        permutations = tf.math.top_k(rows.bits(num_epochs, size), k=size).indices
        return tf.cast(tf.gather(tf.reshape(permutations, [-1]), row * size + index), tf.int64)
    # The raw operation, because the public wrapper mangles a seed per index. Its key is three words long.
    return tf.raw_ops.RandomIndexShuffle(
        index=index,
        seed=tf.gather(rows.bits(num_epochs, 3), row),
        max_index=tf.fill(tf.shape(index), tf.constant(size - 1, tf.int64)),
        rounds=4,
    )
