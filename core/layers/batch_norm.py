"""Batch normalisation that returns its statistics instead of assigning them."""

import functools

import tensorflow as tf

from core.arguments import check_fraction
from core.choice import one_of
from core.layers.channels import channel_affine, channel_moments
from core.layers.norm import Norm, spread
from core.layers.shapes import check_last, widen
from core.task.statistics import Statistics, Sums, Values
from core.tracing import computes_by_parts


class BatchNorm(Norm):
    """Normalises each channel to zero mean and unit variance over the batch and space (Ioffe and Szegedy, 2015).

    `layer(x, statistics=statistics)` trains: it normalises with the batch's mean and variance, and adds the batch's
    sums to `statistics`. The engine computes new moving averages from these sums (see `core.task.statistics`).
    `layer(x)` evaluates: it normalises with the moving averages. With `sync`, the batch is that of all replicas
    together.

    A moving average weighs the batch of `k` updates ago by `decay ** k`, and divides by the sum of the weights. This
    bias correction (Kingma and Ba, 2015) makes the average right from the first update on, for every `decay`.

    The variance is Σ (x − mean)² / n, in training and in the moving average, as in Flax and the paper's training. The
    paper's inference and PyTorch's `running_var` divide by n − 1. PyTorch's `momentum` is `1 - decay`.

    In evaluation, an output is the difference of two products. Its error is about 1e-7 times |mean| / deviation: 1e-3
    if the mean is ten thousand deviations from zero. Training centres the batch first, and has no such error.
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
        if statistics is None:
            centred, rest = wide, tf.cast(self.moving_mean, wide.dtype)
            variance = tf.cast(self.moving_variance, wide.dtype)
        else:
            centred, rest, variance = self._batch(wide, statistics)
        factor = tf.math.rsqrt(variance + self.epsilon)
        # Scale and offset are merged into the small tensors, so the large one is multiplied and added to once.
        if self.scale is not None:
            factor *= tf.cast(self.scale, wide.dtype)
        shift = -rest * factor
        if self.offset is not None:
            shift += tf.cast(self.offset, wide.dtype)
        return tf.cast(channel_affine(centred, factor, shift, merge=self._merge), x.dtype)

    @property
    def _merge(self) -> bool:
        """Says whether axes may be merged, which a mesh can't if they are sharded."""
        return not computes_by_parts(self.moving_mean)

    @property
    def moving(self) -> tuple[tf.Variable, ...]:
        """Returns `(moving_mean, moving_variance)`, in the order of `moments`."""
        return self.moving_mean, self.moving_variance

    def moments(self, sums: Sums) -> Values:
        """Returns the mean and variance that `sums` give. If `sums.count` is 0, returns the moving averages."""
        old_mean, old_variance = (tf.cast(v, tf.float64) for v in self.moving)
        distance, variance = _moments(sums)
        variance = one_of(sums.count > 0.0, variance, old_variance)  # `distance` is 0 then
        return {
            self.moving_mean.ref(): tf.cast(old_mean + distance, self.moving_mean.dtype),
            self.moving_variance.ref(): tf.cast(variance, self.moving_variance.dtype),
        }

    def averages(self, sums: Sums) -> Values:
        """Returns the moving averages after an update with `sums`. If `sums.count` is 0, they don't change."""
        old_mean, old_variance = (tf.cast(v, tf.float64) for v in (self.moving_mean, self.moving_variance))
        distance, variance = _moments(sums)
        seen = sums.count > 0.0
        weight = tf.where(seen, self.decay * self.moving_weight + (1.0 - self.decay), self.moving_weight)
        rate = tf.cast(tf.where(seen, (1.0 - self.decay) / tf.where(seen, weight, 1.0), 0.0), tf.float64)

        return {
            self.moving_mean.ref(): tf.cast(old_mean + rate * distance, self.moving_mean.dtype),
            self.moving_variance.ref(): tf.cast(
                old_variance + rate * (variance - old_variance), self.moving_variance.dtype
            ),
            self.moving_weight.ref(): weight,
        }

    def _batch(self, x: tf.Tensor, statistics: Statistics) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Adds the batch to `statistics`. Returns `x - constant`, and the mean and variance of this difference."""
        seen = spread(x, 0, functools.partial(channel_moments, merge=self._merge))
        rest, variance = seen.rest, seen.variance
        # The sums are about the moving mean, which all microbatches and replicas of a step share. It may be far from
        # the values, most of all in the first step, where squares cancel in float32 but not in float64.
        away = tf.cast(seen.about, tf.float64) - tf.cast(self.moving_mean, tf.float64)
        distance = away + tf.cast(rest, tf.float64)
        count = tf.cast(tf.size(x, tf.int64) // self.size, tf.float64)  # zero in an empty batch
        sums = Sums(count, count * distance, count * (tf.cast(variance, tf.float64) + tf.square(distance)))
        if self.sync:
            distance, wide = _moments(statistics.sum_over_replicas(sums))
            rest, variance = tf.cast(distance - away, x.dtype), tf.cast(wide, x.dtype)
        statistics.add(self, Sums(*(tf.stop_gradient(s) for s in sums)))
        return seen.centred, rest, variance


def _moments(sums: Sums) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(distance, variance)` of `sums`. The mean is `distance` plus the reference point of `sums`."""
    some = tf.maximum(sums.count, 1.0)
    distance = sums.total / some
    return distance, tf.maximum(sums.square / some - tf.square(distance), 0.0)
