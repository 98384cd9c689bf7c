"""Recent gradient norms of each update: a step whose norm is many times the recent norm is a spike.

Each applied update lowers the recent norm by 1 %, or raises it to the update's own norm if that norm is larger. In
healthy runs the next norm is seldom twice the recent norm, whatever the scale and however widely smaller norms vary. A
mean would be unsuitable: late in training, most gradients are almost zero. A step with one misclassified example then
has 100 times the mean norm.
"""

from typing import NamedTuple

import tensorflow as tf

DECAY = 0.99
WARM_UP = 100  # updates that must be applied before anything is a spike


class Late(NamedTuple):
    """For each update, the recent norm and the number of applied updates (at most `WARM_UP`): float32 vectors."""

    norm: tf.Tensor
    count: tf.Tensor

    def limits(self, factor: float) -> tf.Tensor:
        """Returns each update's limit: `factor` times its recent norm; during warm-up, the largest float32."""
        most = tf.fill(self.norm.shape, tf.float32.max)
        return tf.where(self.count >= WARM_UP, tf.minimum(factor * self.norm, most), most)

    def after(self, norms: tf.Tensor, *, applied: tf.Tensor) -> "Late":
        """Returns the `Late` after a step with these gradient `norms`; 0 stands for an update that wasn't due."""
        counts = applied & (norms > 0.0)
        norm = tf.where(counts, tf.maximum(norms, DECAY * self.norm), self.norm)
        return Late(norm, tf.where(counts, tf.minimum(self.count + 1.0, WARM_UP), self.count))
