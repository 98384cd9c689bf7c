"""A plain convolution of images, with gradients that CPUs compute faster than TensorFlow's own.

Both gradients of a convolution are convolutions too. That of the kernel is one of `x` with the gradient of `y`, rows in
the place of channels; that of `x` is one of the gradient of `y` with the mirrored kernel. So they run on the kernel of
the forward pass, which is the best that Eigen has: many times faster where one side has few channels, like the first
and the last layer of a generator.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from core.layers.windows import same_padding

_OUTPUTS = 100  # of an image; where there are fewer, turning the tensors costs what it brings

Ends = list[tuple[int, int]]


def borders(x: tf.Tensor, w: tf.Tensor, padding: str) -> Ends:
    """What is added before and after the axes of space, of known sizes."""
    return list(same_padding(x, w.shape[:2], [1, 1], [1, 1])) if padding == "SAME" else [(0, 0), (0, 0)]


def pays(x: tf.Tensor, w: tf.Tensor, padding: str) -> bool:
    """Whether `convolve_image` is the faster way."""
    if x.dtype.size < 4 or None in x.shape:
        return False
    # oneDNN, which TensorFlow takes on processors with AVX-512, has good kernels for gradients.
    eigen = not _pywrap_util_port.IsMklEnabled()
    ends = borders(x, w, padding)
    height, width = (n + sum(end) - k + 1 for n, end, k in zip(x.shape[1:3], ends, w.shape, strict=False))
    return eigen and height * width >= _OUTPUTS and _only_cpus()


def convolve_image(x: tf.Tensor, w: tf.Tensor, ends: Ends) -> tf.Tensor:
    """`x` of `[rows, height, width, in]` with `w` of `[height, width, in, out]`, zeros added at the `ends` of space."""
    pads = [(0, 0), *ends, (0, 0)]

    @tf.custom_gradient
    def run(x: tf.Tensor, w: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return by_input(dy), by_kernel(dy)

        def by_kernel(dy: tf.Tensor) -> tf.Tensor:
            turned = convolve_image(tf.transpose(x, [3, 1, 2, 0]), tf.transpose(dy, [1, 2, 0, 3]), ends)
            return tf.transpose(turned, [1, 2, 0, 3])

        def by_input(dy: tf.Tensor) -> tf.Tensor:
            if w.shape[2] < w.shape[3]:  # TensorFlow's own is good at few inputs
                return tf.compat.v1.nn.conv2d_backprop_input(x.shape, w, dy, [1, 1, 1, 1], pads)
            mirrored = tf.transpose(tf.reverse(w, [0, 1]), [0, 1, 3, 2])
            rest = [(k - 1 - before, k - 1 - after) for k, (before, after) in zip(w.shape, ends, strict=False)]
            return convolve_image(dy, mirrored, rest)

        return tf.nn.conv2d(x, w, 1, pads), gradient

    return run(x, w)


def _only_cpus() -> bool:
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
