"""Batch normalisation that returns its statistics instead of assigning them."""

import tensorflow as tf

from core.arguments import check_fraction
from core.layers.norm import Norm
from core.layers.shapes import check_last, widen
from core.task.statistics import Statistics, Sums, Values


class BatchNorm(Norm):
    """Ioffe and Szegedy (2015): each channel with zero mean and unit variance over the batch and space.

    `layer(x, statistics=statistics)` trains: it normalises by the batch and adds what it saw to `statistics`, from
    which the engine takes the new moving averages (see `core.task.statistics`). `layer(x)` normalises by those
    averages. With `sync`, the batch is that of all replicas together.

    The averages weigh all batches since the first, those `k` updates ago by `decay ** k`, and are divided by the sum of
    the weights (Kingma and Ba's correction of the start, 2015). So they are right from the first update on, whatever
    the decay, and the first batch counts no more than later ones, as it would if the averages began with it.
    """

    def __init__(
        self,
        size: int,
        *,
        decay: float = 0.99,
        epsilon: float = 1e-5,
        scale: bool = True,
        offset: bool = True,
        sync: bool = False,
    ):
        super().__init__(size, epsilon=epsilon, scale=scale, offset=offset)
        check_fraction(decay=decay)
        self.decay, self.sync = decay, sync
        self.moving_mean = tf.Variable(tf.zeros([size]), trainable=False, name="moving_mean")
        self.moving_variance = tf.Variable(tf.ones([size]), trainable=False, name="moving_variance")
        self.moving_weight = tf.Variable(0.0, trainable=False, name="moving_weight")  # 1 - decay ** updates

    def __call__(self, x: tf.Tensor, *, statistics: Statistics | None = None) -> tf.Tensor:
        check_last(self, x, self.size, "size")
        wide = widen(x)
        mean, variance = self._averages_of(wide.dtype) if statistics is None else self._batch(wide, statistics)
        factor = tf.math.rsqrt(variance + self.epsilon)
        # Scale and offset join the small tensors, so the large one is multiplied once and added to once.
        if self.scale is not None:
            factor *= tf.cast(self.scale, wide.dtype)
        shift = -mean * factor
        if self.offset is not None:
            shift += tf.cast(self.offset, wide.dtype)
        return tf.cast(wide * factor + shift, x.dtype)

    def averages(self, sums: Sums) -> Values:
        """Returns the moving averages after an update with these sums; without any values, those of before."""
        mean, variance = _moments(sums, self.moving_mean)
        seen = sums.count > 0.0
        weight = tf.where(seen, self.decay * self.moving_weight + (1.0 - self.decay), self.moving_weight)
        rate = tf.where(seen, (1.0 - self.decay) / tf.where(seen, weight, 1.0), 0.0)

        def moved(old: tf.Variable, new: tf.Tensor) -> tf.Tensor:
            return old + rate * (new - old)

        return {
            self.moving_mean.ref(): moved(self.moving_mean, mean),
            self.moving_variance.ref(): moved(self.moving_variance, variance),
            self.moving_weight.ref(): weight,
        }

    def _averages_of(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(self.moving_mean, dtype), tf.cast(self.moving_variance, dtype)

    def _batch(self, x: tf.Tensor, statistics: Statistics) -> tuple[tf.Tensor, tf.Tensor]:
        axes = list(range(x.shape.rank - 1))
        count = tf.cast(tf.size(x) // self.size, x.dtype)
        some = tf.maximum(count, 1.0)  # an empty batch has sums of zero, and no mean
        mean = tf.reduce_sum(x, axes) / some
        variance = tf.reduce_sum(tf.math.squared_difference(x, mean), axes) / some
        # The sums are about the moving mean, which is the same for all microbatches and replicas of a step: about zero,
        # the squares of a mean that is large next to its deviation would cancel.
        distance = mean - tf.cast(self.moving_mean, x.dtype)
        sums = Sums(count, count * distance, count * (variance + tf.square(distance)))
        if self.sync:
            mean, variance = _moments(statistics.sum_over_replicas(sums), self.moving_mean)
        statistics.add(self, Sums(*(tf.stop_gradient(tf.cast(s, self.moving_mean.dtype)) for s in sums)))
        return mean, variance


def _moments(sums: Sums, about: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance from sums about a value."""
    some = tf.maximum(sums.count, 1.0)
    distance = sums.total / some
    variance = tf.maximum(sums.square / some - tf.square(distance), 0.0)
    return tf.cast(about, distance.dtype) + distance, variance
