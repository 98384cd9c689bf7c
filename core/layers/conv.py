"""Convolutions: channels last, kernels `[*window, in_channels / groups, out_channels]`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from core import initializers
from core.arguments import check_groups, check_size
from core.initializers import Initializer
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
from core.tensorflow_private import uses_onednn
from core.tracing import computes_by_parts, only_cpus


class ConvBase(Module):
    """The common base of convolutions and transposed convolutions, without the arithmetic."""

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
        """Returns the layer's output for `x`, computed with the kernel `w` in place of `self.w`."""
        check_axes(self, x, f"batch, {SPACE[self.rank]}, channels")
        check_last(self, x, self.in_channels, "in_channels")
        return for_any_rows(lambda x: add_bias(self._convolve(x, w), self.b), x)

    def _convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        # DTensor can't lay out a mirrored kernel, or rows in place of channels.
        turned = not computes_by_parts(self.w)
        return convolve(x, w, self.stride, self.padding, self.dilation, self.groups, turned=turned)


class Conv1D(ConvBase):
    """Convolves `[batch, length, channels]`. For a causal one: `padding=[(dilation * (kernel_size - 1), 0)]`."""

    rank = 1


class Conv2D(ConvBase):
    """Convolves `[batch, height, width, channels]`."""

    rank = 2


class Conv3D(ConvBase):
    """Convolves `[batch, depth, height, width, channels]`."""

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
    """Returns the convolution of `x` with `w` in the dtype of `x`, with gradients on every device.

    `turned` allows gradients to be computed as convolutions of transposed tensors if those are faster.
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

        # Without oneDNN, TensorFlow's kernel for volumes sums bfloat16 in bfloat16; with it, float16 may give NaN.
        return half_kernel(lambda x, w: split_groups(convolution, x, w, groups), x, w, sums_wide=rank < 3)

    rank, skip = len(stride), max(stride) > 1 and max(dilation) > 1
    return slide(op, x, w.shape[:-2], stride, padding, dilation, skip=skip)


_OUTPUTS = 100  # of an image; with fewer, transposing the tensors costs as much as it saves


def pays(x: tf.Tensor, w: tf.Tensor) -> bool:
    """Says whether `convolve_image(x, w)` is faster than TensorFlow's convolution with its gradients."""
    if x.dtype.size < 4 or not all(x.shape):  # a size is unknown or zero
        return False
    if w.shape[:2] == [1, 1]:  # a matmul
        return False
    height, width = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    # oneDNN, which TensorFlow uses on newer processors, has fast gradient kernels.
    eigen = not uses_onednn()
    return eigen and height * width >= _OUTPUTS and only_cpus()


@tf.custom_gradient
def convolve_image(x: tf.Tensor, w: tf.Tensor) -> Any:
    """Convolves `x` `[rows, height, width, in]` with `w` `[height, width, in, out]`; the kernel must fit into `x`.

    Both gradients are convolutions too, so they run on Eigen's forward kernel, which is its fastest. The gradient of
    `w` convolves `x` with `dy`, with the axes of rows and channels swapped. The gradient of `x` convolves `dy` with the
    mirrored `w`. The gain is largest if `in` or `out` is small, as in a generator's first and last layers.
    """
    y = tf.nn.conv2d(x, w, 1, "VALID")

    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dy = tf.ensure_shape(tf.convert_to_tensor(dy), y.shape)
        return by_input(dy), by_kernel(dy)

    def by_kernel(dy: tf.Tensor) -> tf.Tensor:
        turned = convolve_image(tf.transpose(x, [3, 1, 2, 0]), tf.transpose(dy, [1, 2, 0, 3]))
        return tf.transpose(turned, [1, 2, 0, 3])

    def by_input(dy: tf.Tensor) -> tf.Tensor:
        if w.shape[2] < w.shape[3]:  # TensorFlow's gradient is fast for few inputs
            return tf.raw_ops.Conv2DBackpropInput(
                input_sizes=x.shape, filter=w, out_backprop=dy, strides=[1, 1, 1, 1], padding="VALID"
            )
        height, width = (k - 1 for k in w.shape[:2])
        around = tf.pad(dy, [(0, 0), (height, height), (width, width), (0, 0)])
        return convolve_image(around, tf.transpose(tf.reverse(w, [0, 1]), [0, 1, 3, 2]))

    return y, gradient
