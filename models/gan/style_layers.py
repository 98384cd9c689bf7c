"""Layers of StyleGAN2 (Karras et al., 2020): equalised weights, modulated convolutions, and filters for resampling."""

import math
from collections.abc import Callable

import tensorflow as tf

from core import initializers, layers
from core.layers.rows import for_any_rows
from core.layers.shapes import add_bias, widen
from core.module import Module
from core.random import Rng

_TAPS = (0.125, 0.375, 0.375, 0.125)  # along each axis: [1, 3, 3, 1] / 8


class Equalised(Module):
    """Multiplies the kernel of a layer by `rate / √fan_in` in each call (Karras et al., 2018).

    The kernel starts with a standard deviation of `1 / rate`. So Adam, whose steps don't depend on the gradient's size,
    changes all layers at one relative speed; `rate` is the layer's learning rate relative to others. `bias` is the
    initial value of the biases; None is for no biases.
    """

    def __init__(self, layer: layers.Linear | layers.Conv2D, *, rate: float = 1.0, bias: float | None = 0.0):
        super().__init__()
        self.layer, self.rate = layer, rate
        self.scale = rate / math.sqrt(math.prod(layer.w.shape[:-1]))
        self.b = None
        if bias is not None:
            self.b = tf.Variable(tf.fill([layer.w.shape[-1]], bias / rate), name="b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return add_bias(self.layer.compute(x, self.kernel()), None if self.b is None else self.rate * self.b)

    def kernel(self) -> tf.Tensor:
        """Returns the kernel that the layer computes with."""
        return self.scale * self.layer.w


def linear(in_size: int, out_size: int, *, rng: Rng, rate: float = 1.0, bias: float = 0.0) -> Equalised:
    """Makes an equalised linear layer."""
    w_init = initializers.normal(1.0 / rate)
    return Equalised(layers.Linear(in_size, out_size, rng=rng, bias=False, w_init=w_init), rate=rate, bias=bias)


def convolution(
    in_channels: int, out_channels: int, size: int, *, rng: Rng, down: bool = False, bias: float | None = 0.0
) -> Equalised:
    """Makes an equalised convolution with `size`² pixels in its window. With `down`, it keeps every other output."""
    stride, padding = (2, "VALID") if down else (1, "SAME")
    w_init = initializers.normal()
    made = layers.Conv2D(
        in_channels, out_channels, size, rng=rng, stride=stride, padding=padding, bias=False, w_init=w_init
    )
    return Equalised(made, bias=bias)


class ModulatedConv(Module):
    """Convolves `x` [rows, height, width, in] with a kernel whose input channels are scaled by each row's style.

    An affine map computes the scales from `style` [rows, style_size]. With `up`, the image's sides are doubled.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        style_size: int,
        *,
        rng: Rng,
        demodulated: bool = True,
        up: bool = False,
    ):
        super().__init__()
        self.demodulated, self.up = demodulated, up
        self.scales = linear(style_size, in_channels, rng=rng.fold("scales"), bias=1.0)
        kind, stride, padding = (layers.ConvTranspose2D, 2, "VALID") if up else (layers.Conv2D, 1, "SAME")
        w_init = initializers.normal()
        made = kind(in_channels, out_channels, size, rng=rng, stride=stride, padding=padding, bias=False, w_init=w_init)
        self.conv = Equalised(made, bias=None)

    def __call__(self, x: tf.Tensor, style: tf.Tensor) -> tf.Tensor:
        y = modulated(self.conv, x, self.conv.kernel(), self.scales(style), demodulated=self.demodulated)
        return filtered(y, 1, 1, gain=4.0) if self.up else y


def modulated(
    convolve: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, w: tf.Tensor, scales: tf.Tensor, *, demodulated: bool
) -> tf.Tensor:
    """Returns `convolve(x)` as if its kernel `w` [height, width, in, out] were different for each row.

    With input i, output j and window k, equation 1 of the paper is w'ijk = si · wijk for `scales` s [rows, in], and
    equation 3 is w''ijk = w'ijk / √(Σik w'ijk² + ε). A convolution is linear, so scaling its inputs and outputs by row
    has the same effect as a kernel per row. All rows share one plain convolution, and no row depends on another.
    """
    y = convolve(x * scales[:, tf.newaxis, tf.newaxis, :])
    if not demodulated:
        return y
    squares = tf.reduce_sum(tf.square(w), [0, 1])
    sizes = tf.matmul(tf.square(widen(scales)), tf.cast(squares, widen(scales).dtype))
    return y * tf.cast(tf.math.rsqrt(sizes + 1e-8), y.dtype)[:, tf.newaxis, tf.newaxis, :]


def filtered(x: tf.Tensor, before: int, after: int, *, gain: float = 1.0) -> tf.Tensor:
    """Smooths `x` with [1, 3, 3, 1] along both axes, after `before` and `after` zeros were added to each axis."""
    wide, channels = widen(x), x.shape[-1]
    taps = tf.constant([[gain * a * b for a in _TAPS] for b in _TAPS], wide.dtype)
    kernel = tf.tile(taps[:, :, tf.newaxis, tf.newaxis], [1, 1, channels, 1])

    def smooth(x: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(x, [(0, 0), (before, after), (before, after), (0, 0)])
        # Sums of slices would do as well, but the gradient of each slice is as large as the image.
        return tf.nn.depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID")

    return tf.cast(for_any_rows(smooth, wide), x.dtype)


def doubled(x: tf.Tensor) -> tf.Tensor:
    """Doubles the sides of the images `x`: puts zeros between pixels, and smooths."""
    height, width, channels = x.shape[1:]
    x = tf.pad(x[:, :, tf.newaxis, :, tf.newaxis, :], [(0, 0), (0, 0), (0, 1), (0, 0), (0, 1), (0, 0)])
    return filtered(tf.reshape(x, [-1, 2 * height, 2 * width, channels]), 2, 1, gain=4.0)


def activated(x: tf.Tensor) -> tf.Tensor:
    """Returns √2 times the leaky rectifier of `x`, which about keeps the size of its values."""
    return math.sqrt(2.0) * tf.nn.leaky_relu(x, 0.2)


def minibatch_deviation(x: tf.Tensor, group: int) -> tf.Tensor:
    """Adds a channel to `x` [rows, height, width, channels]: how much images of a group differ (Karras et al., 2018).

    The channel holds one number per group of `group` consecutive rows: the standard deviation of each value over the
    group, averaged. The paper's code takes rows at a distance of rows / `group`.
    """
    _, height, width, channels = x.shape
    groups = tf.reshape(widen(x), [-1, group, height, width, channels])
    centred = groups - tf.reduce_mean(groups, 1, keepdims=True)
    deviation = tf.reduce_mean(tf.sqrt(tf.reduce_mean(tf.square(centred), 1, keepdims=True) + 1e-8), [2, 3, 4])
    of_row = tf.reshape(tf.broadcast_to(deviation, [tf.shape(deviation)[0], group]), [-1, 1, 1, 1])
    rows = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    return tf.concat([x, tf.cast(tf.broadcast_to(of_row, [rows, height, width, 1]), x.dtype)], -1)
