"""How large the norm of a gradient has been of late, by update: a step is a spike where one is many times as large.

What counts of late is the largest norm of an applied update, less 1 % for each update since. It hangs on no scale, and
in healthy runs the next norm is seldom twice as large, however widely the norms are spread below it. A mean would be no
measure: late in a training most steps have hardly a gradient, and one with an example that is still wrong has 100 times
their mean.
"""

from typing import NamedTuple

import tensorflow as tf

DECAY = 0.99
WARM_UP = 100  # updates that have to be applied before anything is a spike


class Late(NamedTuple):
    """The largest norm of late, and the number of updates applied, at most `WARM_UP`: float32, by update."""

    norm: tf.Tensor
    count: tf.Tensor

    def limits(self, factor: float) -> tf.Tensor:
        """Returns the norms from which on updates are spikes."""
        most = tf.fill(self.norm.shape, tf.float32.max)
        return tf.where(self.count >= WARM_UP, tf.minimum(factor * self.norm, most), most)

    def after(self, norms: tf.Tensor, *, applied: tf.Tensor) -> "Late":
        """Returns what is late after a step with these norms; 0 is the norm of an update that wasn't due."""
        counts = applied & (norms > 0.0)
        norm = tf.where(counts, tf.maximum(norms, DECAY * self.norm), self.norm)
        return Late(norm, tf.where(counts, tf.minimum(self.count + 1.0, WARM_UP), self.count))
