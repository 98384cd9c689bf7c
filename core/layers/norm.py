"""Layers that normalise each example separately, with statistics in float32 for every input dtype."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.arguments import check_finite, check_groups, check_size
from core.layers.channels import channel_sums
from core.layers.shapes import add_bias, check_last, merge_leading, sizes, widen
from core.module import Module
from core.tracing import computes_by_parts, in_xla_on_cpu


class Norm(Module):
    """The common base of the norms. Scale and offset per channel are optional; `epsilon` is added under the root."""

    def __init__(self, size: int, *, epsilon: float, scale: bool, offset: bool):
        super().__init__()
        check_size(size=size)
        check_finite(epsilon=epsilon)
        if epsilon <= 0.0:
            raise ValueError(f"`epsilon` is {epsilon}; give a small positive number: it keeps a constant input finite.")
        self.size, self.epsilon = size, epsilon
        self.scale = tf.Variable(tf.ones([size]), name="scale") if scale else None
        self.offset = tf.Variable(tf.zeros([size]), name="offset") if offset else None

    def _in_rows(self) -> bool:
        """Says whether to reshape the input to [rows, size]. A mesh can't: it doesn't merge sharded axes."""
        return self.scale is not None and not computes_by_parts(self.scale)

    def _of_rows(self, x: tf.Tensor, *, centred: bool) -> tf.Tensor:
        rows, leading = merge_leading(widen(x), 1)
        scale = tf.cast(self.scale, rows.dtype)
        offset = None if self.offset is None else tf.cast(self.offset, rows.dtype)
        y = normalised(rows, scale, offset, epsilon=self.epsilon, centred=centred)
        return tf.cast(tf.reshape(y, [*leading, self.size]), x.dtype)


class LayerNorm(Norm):
    """Normalises the last axis to zero mean and unit variance, then scales and shifts it (Ba et al., 2016)."""

    def __init__(self, size: int, *, epsilon: float = 1e-6, scale: bool = True, offset: bool = True):
        super().__init__(size, epsilon=epsilon, scale=scale, offset=offset)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_last(self, x, self.size, "size")
        if self._in_rows():
            return self._of_rows(x, centred=True)
        wide = widen(x)
        centred = wide - tf.stop_gradient(wide[..., :1])  # avoids rounding with a large mean: see `spread`
        centred -= mean(centred, [-1])
        y = centred * tf.math.rsqrt(mean(tf.square(centred), [-1]) + self.epsilon)
        return tf.cast(affine(y, self.scale, self.offset), x.dtype)


class RMSNorm(Norm):
    """Divides the last axis by its root mean square, then scales it (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, *, epsilon: float = 1e-6, scale: bool = True):
        super().__init__(size, epsilon=epsilon, scale=scale, offset=False)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_last(self, x, self.size, "size")
        if self._in_rows():
            return self._of_rows(x, centred=False)
        wide = widen(x)
        y = wide * tf.math.rsqrt(tf.reduce_mean(tf.square(wide), -1, keepdims=True) + self.epsilon)
        return tf.cast(affine(y, self.scale, None), x.dtype)


class GroupNorm(Norm):
    """Normalises each group of channels to zero mean and unit variance over space (Wu and He, 2018)."""

    def __init__(self, size: int, groups: int, *, epsilon: float = 1e-6, scale: bool = True, offset: bool = True):
        super().__init__(size, epsilon=epsilon, scale=scale, offset=offset)
        check_size(groups=groups)
        check_groups("groups", groups, size=size)
        self.groups = groups

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_last(self, x, self.size, "size")
        if x.shape.rank < 3:
            raise ValueError(
                f"`x` of `{type(self).__name__}` has shape {x.shape}; its axes are [batch, ..., channels] with space "
                "between them: use `LayerNorm` for plain vectors."
            )
        shape = sizes(x)
        wide = tf.reshape(widen(x), [shape[0], math.prod(shape[1:-1]), self.size])
        seen = spread(wide, 1, self._group_moments)
        factor = tf.math.rsqrt(seen.variance + self.epsilon)
        # Scale and offset are merged into the small tensors, so the large one is multiplied and added to once.
        if self.scale is not None:
            factor *= tf.cast(self.scale, wide.dtype)
        shift = -seen.rest * factor
        if self.offset is not None:
            shift += tf.cast(self.offset, wide.dtype)
        return tf.cast(tf.reshape(seen.centred * factor + shift, shape), x.dtype)

    def _group_moments(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        average = self._group_mean(x)
        return average, tf.maximum(self._group_mean(tf.square(x)) - tf.square(average), 0.0)

    def _group_mean(self, x: tf.Tensor) -> tf.Tensor:
        """Returns for each channel the mean over space and the channels of its group."""
        # Groups are formed in small tensors: TensorFlow broadcasts slowly along axes as short as a group.
        of_channels = mean(x, [1])
        if self.groups == self.size:
            return of_channels
        groups = [*sizes(of_channels)[:-1], self.groups, self.size // self.groups]
        of_groups = mean(tf.reshape(of_channels, groups), [len(groups) - 1])
        return tf.reshape(tf.broadcast_to(of_groups, groups), sizes(of_channels))


class InstanceNorm(GroupNorm):
    """Normalises each channel of each example to zero mean and unit variance over space (Ulyanov et al., 2016).

    It has a scale and an offset by default. PyTorch's `InstanceNorm` has neither.
    """

    def __init__(self, size: int, *, epsilon: float = 1e-6, scale: bool = True, offset: bool = True):
        super().__init__(size, size, epsilon=epsilon, scale=scale, offset=offset)


class Spread(NamedTuple):
    """Values minus a constant `about` near their mean, and the mean and variance of these differences."""

    about: tf.Tensor
    centred: tf.Tensor
    rest: tf.Tensor  # their mean is `about + rest`
    variance: tf.Tensor


def spread(x: tf.Tensor, axis: int, moments: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Spread:
    """Measures the mean and variance of `x` by `moments`, exactly even if the mean is far from zero.

    The rounding error of a mean grows with the size of the values. It may exceed the differences between them. So the
    mean of an eighth of the values, the first of `axis`, is subtracted first, as a constant. This subtraction is exact
    and leaves small values: their mean is at most √7 deviations, so no more than a digit of the variance cancels.
    """
    # Not `tf.nn.moments`: its variance treats the mean as constant, which gives wrong second derivatives.
    eighth = (slice(None),) * axis + (slice(sizes(x)[axis] // 8 + 1),)
    about = tf.stop_gradient(moments(x[eighth])[0])
    centred = x - about
    return Spread(about, centred, *moments(centred))


def mean(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Returns the mean of `x` over `axes`, or zero for no values. The gradient is divided before it is broadcast."""
    shape = sizes(x)
    count = tf.cast(tf.maximum(math.prod(shape[axis] for axis in axes), 1), x.dtype)
    return tf.reduce_sum(x, axes, keepdims=True) / count


def affine(y: tf.Tensor, scale: tf.Tensor | None, offset: tf.Tensor | None) -> tf.Tensor:
    """Returns `y * scale + offset` over the last axis."""
    if scale is not None:
        y *= tf.cast(scale, y.dtype)
    return add_bias(y, offset)


def normalised(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor | None, *, epsilon: float, centred: bool) -> tf.Tensor:
    """Normalises each row of `x` [rows, size]: `(x - mean) / deviation * scale + offset`.

    The mean is subtracted only if `centred`. The gradient makes few passes over `x`.
    """
    size = x.shape[-1]

    @tf.custom_gradient
    def run(x: tf.Tensor, scale: tf.Tensor, *offset: tf.Tensor) -> Any:
        share = tf.fill([size], tf.constant(1.0 / size, x.dtype))
        wide = x
        if centred:
            wide = x - x[:, :1]  # avoids rounding with a large mean: see `spread`
            wide -= _along_rows(wide, share)
        factor = tf.math.rsqrt(_along_rows(tf.square(wide), share) + epsilon)
        unit = wide * factor
        y = unit * scale

        def gradient(dy: tf.Tensor) -> Any:
            dscale = dy * unit
            dx = dy * scale - unit * _along_rows(dscale, scale * share)
            if centred:
                dx -= _along_rows(dy, scale * share)
            sums = [channel_sums(z, merge=True) for z in ([dscale, dy] if offset else [dscale])]
            return dx * factor, *sums

        return (tf.nn.bias_add(y, offset[0]) if offset else y), gradient

    return run(x, scale, *([] if offset is None else [offset]))


def _along_rows(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns each row's sum of `x * weights`, [rows, 1], for `x` [rows, size] and `weights` [size]."""
    # XLA adds numbers up one after another, each waiting for the last.
    if in_xla_on_cpu():
        return tf.matmul(x, weights[:, tf.newaxis])
    return tf.reduce_sum(x * weights, -1, keepdims=True)
