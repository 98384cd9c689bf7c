"""Convolutions: channels last, kernels `[*window, in_channels / groups, out_channels]`."""

from collections.abc import Sequence

import tensorflow as tf

from core import initializers
from core.arguments import check_groups, check_size
from core.initializers import Initializer
from core.layers.conv_gradients import convolve_image, pays
from core.layers.rows import for_any_rows
from core.layers.shapes import add_bias, check_axes, check_last
from core.layers.windows import (
    SPACE,
    Ints,
    Padding,
    Pairs,
    half_kernel,
    pad_space,
    per_axis,
    read_padding,
    same_padding,
    slide,
    split_groups,
)
from core.module import Module
from core.random import Rng
from core.tracing import computes_by_parts


class ConvBase(Module):
    """The common part of convolutions and transposed convolutions: everything except the arithmetic."""

    rank: int  # number of spatial axes

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        *,
        rng: Rng,
        stride: Ints = 1,
        padding: Padding = "SAME",
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ):
        super().__init__()
        check_size(in_channels=in_channels, out_channels=out_channels, groups=groups)
        check_groups("groups", groups, in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.groups = in_channels, groups
        self.stride, self.dilation = per_axis("stride", stride, self.rank), per_axis("dilation", dilation, self.rank)
        self.padding = read_padding(padding, self.rank)
        shape = [*per_axis("kernel_size", kernel_size, self.rank), in_channels // groups, out_channels]
        w_init, b_init = w_init or initializers.lecun_normal(), b_init or initializers.zeros()
        self.w = tf.Variable(w_init(rng.fold("w"), shape), name="w")
        self.b = tf.Variable(b_init(rng.fold("b"), [out_channels]), name="b") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.compute(x, self.w)

    def compute(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        """Returns the layer's output with the kernel `w` in place of its own."""
        check_axes(self, x, f"batch, {SPACE[self.rank]}, channels")
        check_last(self, x, self.in_channels, "in_channels")
        return for_any_rows(lambda x: add_bias(self._convolve(x, w), self.b), x)

    def _convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        # DTensor can't lay out a mirrored kernel, or rows in place of channels.
        turned = not computes_by_parts(self.w)
        return convolve(x, w, self.stride, self.padding, self.dilation, self.groups, turned=turned)


class Conv1D(ConvBase):
    """A convolution of `[batch, length, channels]`; `padding=[(dilation * (kernel_size - 1), 0)]` makes it causal."""

    rank = 1


class Conv2D(ConvBase):
    """A convolution of `[batch, height, width, channels]`."""

    rank = 2


class Conv3D(ConvBase):
    """A convolution of `[batch, depth, height, width, channels]`."""

    rank = 3


def convolve(
    x: tf.Tensor,
    w: tf.Tensor,
    stride: Sequence[int],
    padding: str | Pairs,
    dilation: Sequence[int],
    groups: int = 1,
    *,
    turned: bool = True,
) -> tf.Tensor:
    """Returns a convolution in the dtype of `x`, with gradients on every device.

    If `turned` is true, gradients may be convolutions of transposed tensors, where that is faster.
    """

    def op(x: tf.Tensor, stride: Sequence[int], padding: str) -> tf.Tensor:
        # TensorFlow's CPU kernels have no gradient for dilation. `tf.nn.convolution`, unlike `tf.nn.conv2d`, moves
        # space to the batch and makes plain convolutions. It takes a stride or a dilation, not both.
        def convolution(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
            if rank == 2 and max(*stride, *dilation) == 1:
                padded = pad_space(x, same_padding(x, w.shape[:2], stride, dilation)) if padding == "SAME" else x
                if turned and pays(padded, w):
                    return convolve_image(padded, w)
            # Named, because the second derivative of an eager convolution fails with the default format, None.
            layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[rank]
            return tf.nn.convolution(x, w, list(stride), padding, layout, list(dilation))

        return half_kernel(lambda x, w: split_groups(convolution, x, w, groups), x, w)

    rank, skip = len(stride), max(stride) > 1 and max(dilation) > 1
    return slide(op, x, w.shape[:-2], stride, padding, dilation, skip=skip)
