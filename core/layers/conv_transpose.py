"""Transposed convolutions, which upsample. Each computes the gradient of a convolution with respect to its input.

Inputs have channels last. Kernels are `[*window, in_channels / groups, out_channels]`, as in a convolution.
"""

from collections.abc import Sequence

import tensorflow as tf

from core.layers.conv import ConvBase
from core.layers.shapes import sizes
from core.layers.windows import Pairs, half_kernel, split_groups


class _ConvTranspose(ConvBase):
    """The base of the transposed convolutions. `padding` is the padding of the convolution whose gradient is computed.

    Let `span = (kernel_size - 1) * dilation + 1`. `"SAME"` turns `n` values into `n * stride`. `"VALID"` turns `n`
    values into `(n - 1) * stride + max(span, stride)`. An explicit padding is cut off both ends of `(n - 1) * stride +
    span` values.
    """

    def _convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return transposed_convolve(x, w, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose1D(_ConvTranspose):
    """Computes a transposed convolution of `[batch, length, channels]`."""

    rank = 1


class ConvTranspose2D(_ConvTranspose):
    """Computes a transposed convolution of `[batch, height, width, channels]`."""

    rank = 2


class ConvTranspose3D(_ConvTranspose):
    """Computes a transposed convolution of `[batch, depth, height, width, channels]`."""

    rank = 3


def transposed_convolve(
    x: tf.Tensor, w: tf.Tensor, stride: Sequence[int], padding: str | Pairs, dilation: Sequence[int], groups: int = 1
) -> tf.Tensor:
    """Returns the transposed convolution of `x` with `w` in the dtype of `x`, with gradients on every device."""
    # No CPU kernel takes a dilation; zeros between the taps of the kernel have the same effect.
    w = spread_taps(w, dilation)
    batch, *space, _ = sizes(x)
    window = w.shape[:-2]
    if padding == "SAME":
        larger = [n * s for n, s in zip(space, stride, strict=True)]
    else:
        larger = [(n - 1) * s + max(k, s) for n, s, k in zip(space, stride, window, strict=True)]
    rank = len(stride)

    def op(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        swapped = tf.transpose(w, [*range(rank), rank + 1, rank])  # TensorFlow's kernel is that of the convolution
        kind = padding if isinstance(padding, str) else "VALID"
        return tf.nn.conv_transpose(x, swapped, tf.stack([batch, *larger, w.shape[-1]]), list(stride), kind)

    # Without oneDNN, TensorFlow's CPU kernel sums bfloat16 in bfloat16.
    y = half_kernel(lambda x, w: split_groups(op, x, w, groups), x, w, sums_wide=False)
    if isinstance(padding, str):
        return y
    ends = [(n - 1) * s + k for n, s, k in zip(space, stride, window, strict=True)]
    for axis, ((before, after), end) in enumerate(zip(padding, ends, strict=True), 1):
        if not isinstance(end, int):
            tf.debugging.assert_greater(end, before + after, f"`padding` is {list(padding)}, which leaves nothing")
        elif x.shape[axis] and end <= before + after:
            raise ValueError(
                f"`padding` is {list(padding)}, which takes {before + after} off the {end} values that `x` of shape "
                f"{x.shape} becomes along axis {axis}; take off less."
            )
    kept = [slice(before, end - after) for (before, after), end in zip(padding, ends, strict=True)]
    kept.insert(0, slice(None))
    return y[tuple(kept)]


def spread_taps(w: tf.Tensor, dilation: Sequence[int]) -> tf.Tensor:
    """Returns `w` dilated: with `dilation - 1` zeros between neighbouring values along each spatial axis."""
    for axis, (k, d) in enumerate(zip(w.shape[:-2], dilation, strict=True)):
        if d > 1:
            before, after = w.shape[:axis].as_list(), w.shape[axis + 1 :].as_list()
            gaps = tf.zeros([*before, k, d - 1, *after], w.dtype)
            spread = tf.concat([tf.expand_dims(w, axis + 1), gaps], axis + 1)
            w = tf.reshape(spread, [*before, k * d, *after])
            w = tf.gather(w, range((k - 1) * d + 1), axis=axis)
    return w
