"""A plain convolution of images, with gradients that CPUs compute faster than TensorFlow's.

Both gradients of a convolution are convolutions. The kernel's gradient convolves `x` with the gradient of `y`, with
rows in place of channels. The gradient of `x` convolves the gradient of `y` with the mirrored kernel. So they run on
the forward kernel, Eigen's best: many times faster if one side has few channels, as in a generator's first and last
layers.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

_OUTPUTS = 100  # of an image; with fewer, transposing the tensors costs as much as it saves


def pays(x: tf.Tensor, w: tf.Tensor) -> bool:
    """Says whether `convolve_image` is the faster way."""
    if x.dtype.size < 4 or not all(x.shape):  # a size is unknown or zero
        return False
    if w.shape[:2] == [1, 1]:  # a matmul
        return False
    height, width = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    # oneDNN, which TensorFlow uses on newer processors, has fast gradient kernels.
    eigen = not _pywrap_util_port.IsMklEnabled()
    return eigen and height * width >= _OUTPUTS and _only_cpus()


@tf.custom_gradient
def convolve_image(x: tf.Tensor, w: tf.Tensor) -> Any:
    """Convolves `x` `[rows, height, width, in]` with `w` `[height, width, in, out]`; the kernel must fit into `x`."""
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


def _only_cpus() -> bool:
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
