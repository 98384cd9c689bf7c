"""Depthwise and separable convolutions."""

from collections.abc import Sequence

import tensorflow as tf

from core import initializers
from core.arguments import check_size
from core.initializers import Initializer
from core.layers.conv import Conv2D
from core.layers.rows import for_any_rows
from core.layers.shapes import add_bias, check_axes, check_last, widen
from core.layers.windows import SPACE, Ints, Padding, per_axis, read_padding, slide
from core.module import Module
from core.random import Rng


class DepthwiseConv2D(Module):
    """Convolves each channel of `[batch, height, width, channels]` with `multiplier` separate filters.

    The kernel is `[height, width, 1, channels * multiplier]`, as in a convolution with one group per channel.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Ints,
        *,
        rng: Rng,
        multiplier: int = 1,
        stride: Ints = 1,
        padding: Padding = "SAME",
        dilation: Ints = 1,
        bias: bool = True,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(channels=channels, multiplier=multiplier)
        self.channels, self.multiplier = channels, multiplier
        self.stride, self.dilation = per_axis("stride", stride, 2), per_axis("dilation", dilation, 2)
        self.padding = read_padding(padding, 2)
        shape = [*per_axis("kernel_size", kernel_size, 2), 1, channels * multiplier]
        w_init, b_init = w_init or initializers.lecun_normal(), b_init or initializers.zeros()
        self.w = tf.Variable(w_init(rng.fold("w"), shape), name="w")
        self.b = tf.Variable(b_init(rng.fold("b"), [shape[-1]]), name="b") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.compute(x, self.w)

    def compute(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        """Returns the layer's output for `x`, computed with the kernel `w` in place of `self.w`."""
        check_axes(self, x, f"batch, {SPACE[2]}, channels")
        check_last(self, x, self.channels, "channels")
        height, width = w.shape[:2]
        # TensorFlow sums the kernel's gradient in the dtype of the input; half precision is too short for that.
        wide = widen(x)
        kernel = tf.reshape(tf.cast(w, wide.dtype), [height, width, self.channels, self.multiplier])

        def op(x: tf.Tensor, stride: Sequence[int], padding: str) -> tf.Tensor:
            return tf.nn.depthwise_conv2d(x, kernel, [1, *stride, 1], padding, dilations=self.dilation)

        # TensorFlow's kernel takes one stride for both axes, and no stride with a dilation.
        skip = self.stride[0] != self.stride[1] or (max(self.stride) > 1 and max(self.dilation) > 1)

        def layer(x: tf.Tensor) -> tf.Tensor:
            y = slide(op, x, [height, width], self.stride, self.padding, self.dilation, skip=skip)
            return add_bias(y, self.b)

        return tf.cast(for_any_rows(layer, wide), x.dtype)


class SeparableConv2D(Module):
    """A depthwise convolution, then a 1x1 convolution that mixes the channels (Chollet, 2017, "Xception")."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        *,
        rng: Rng,
        multiplier: int = 1,
        stride: Ints = 1,
        padding: Padding = "SAME",
        dilation: Ints = 1,
        bias: bool = True,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(in_channels=in_channels, out_channels=out_channels)
        self.depthwise = DepthwiseConv2D(
            in_channels,
            kernel_size,
            rng=rng.fold("depthwise"),
            multiplier=multiplier,
            stride=stride,
            padding=padding,
            dilation=dilation,
            bias=False,
            w_init=w_init,
        )
        self.pointwise = Conv2D(
            in_channels * multiplier,
            out_channels,
            1,
            rng=rng.fold("pointwise"),
            bias=bias,
            w_init=w_init,
            b_init=b_init,
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.pointwise(self.depthwise(x))
