"""Recent gradient norms by update: a step many times above them is a spike.

The recent norm is the largest one of an applied update, less 1 % for each update since. It is independent of scale, and
in healthy runs the next norm is seldom twice as large, however widely norms vary below it. A mean would be unsuitable:
late in training most steps have almost no gradient, and one with a still misclassified example has 100 times their
mean.
"""

from typing import NamedTuple

import tensorflow as tf

DECAY = 0.99
WARM_UP = 100  # updates that must be applied before anything is a spike


class Late(NamedTuple):
    """The recent norm and the number of applied updates, at most `WARM_UP`: float32, by update."""

    norm: tf.Tensor
    count: tf.Tensor

    def limits(self, factor: float) -> tf.Tensor:
        """Returns the norms from which updates are spikes."""
        most = tf.fill(self.norm.shape, tf.float32.max)
        return tf.where(self.count >= WARM_UP, tf.minimum(factor * self.norm, most), most)

    def after(self, norms: tf.Tensor, *, applied: tf.Tensor) -> "Late":
        """Returns the recent norms after a step with these norms; 0 means an update that wasn't due."""
        counts = applied & (norms > 0.0)
        norm = tf.where(counts, tf.maximum(norms, DECAY * self.norm), self.norm)
        return Late(norm, tf.where(counts, tf.minimum(self.count + 1.0, WARM_UP), self.count))
