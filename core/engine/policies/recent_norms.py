"""Recent gradient norms of each update. A step whose norm is many times the recent norm is a spike.

Each applied update lowers the recent norm by 1 %, or raises it to its own norm if that is larger. In healthy runs the
next norm is seldom twice the recent norm, at any scale, even if smaller norms vary widely. A mean would be unsuitable:
late in training most gradients are almost zero, and one misclassified example gives 100 times the mean norm.
"""

from typing import NamedTuple

import tensorflow as tf

DECAY = 0.99
WARM_UP = 100  # updates that must be applied before anything is a spike


class Late(NamedTuple):
    """Recent norms and numbers of applied updates (at most `WARM_UP`): float32 vectors with one entry per update."""

    norm: tf.Tensor
    count: tf.Tensor

    def limits(self, factor: float) -> tf.Tensor:
        """Returns each update's limit: `factor` times its recent norm. During warm-up, it is the largest float32."""
        most = tf.fill(self.norm.shape, tf.float32.max)
        return tf.where(self.count >= WARM_UP, tf.minimum(factor * self.norm, most), most)

    def after(self, norms: tf.Tensor, *, applied: tf.Tensor) -> "Late":
        """Returns the `Late` after a step with these gradient `norms`. A norm of 0 means that the update wasn't due."""
        counts = applied & (norms > 0.0)
        norm = tf.where(counts, tf.maximum(norms, DECAY * self.norm), self.norm)
        return Late(norm, tf.where(counts, tf.minimum(self.count + 1.0, WARM_UP), self.count))
