"""Pooling over space, for inputs `[batch, ..., channels]` with one, two or three axes of space."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from core.layers.shapes import sizes
from core.layers.windows import Ints, Padding, Pairs, pad_space, per_axis, read_padding
from core.module import Module

_Pool = Callable[..., tf.Tensor]  # of TensorFlow: (x, window, stride, padding)


class _Pooling(Module):
    """A window that slides over space; its stride is its size unless given."""

    def __init__(self, window: Ints, *, stride: Ints | None = None, padding: Padding = "VALID"):
        super().__init__()
        self.window, self.stride, self.padding = window, window if stride is None else stride, padding

    def _settings(self, x: tf.Tensor) -> tuple[list[int], list[int], str | Pairs]:
        if x.shape.rank not in (3, 4, 5):
            raise ValueError(
                f"`x` of `{type(self).__name__}` has shape {x.shape}; its axes are [batch, ..., channels] with one to "
                "three axes of space between them."
            )
        rank = x.shape.rank - 2
        window, padding = per_axis("window", self.window, rank), read_padding(self.padding, rank)
        if not isinstance(padding, str) and any(max(pair) >= k for pair, k in zip(padding, window, strict=True)):
            raise ValueError(
                f"`padding` is {self.padding!r} for `window={self.window}`; a window of padding holds nothing."
            )
        for size, k in zip(x.shape[1:-1], window, strict=True):
            if padding == "VALID" and size is not None and size < k:
                raise ValueError(f"`window` is {self.window}, larger than `x` of shape {x.shape}; take a smaller one.")
        return window, per_axis("stride", self.stride, rank), padding


class MaxPool(_Pooling):
    """The largest value in each window; padding never is."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        window, stride, padding = self._settings(x)
        if not isinstance(padding, str):
            x, padding = pad_space(x, padding, float("-inf")), "VALID"
        return _pool(tf.nn.max_pool, x, window, stride, padding)


class AveragePool(_Pooling):
    """The mean of each window; padding doesn't count."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        window, stride, padding = self._settings(x)
        if isinstance(padding, str):
            return _pool(tf.nn.avg_pool, x, window, stride, padding)
        ones = tf.ones([1, *sizes(x)[1:-1], 1], x.dtype)
        y = _pool(tf.nn.avg_pool, pad_space(x, padding), window, stride, "VALID")
        return y / _pool(tf.nn.avg_pool, pad_space(ones, padding), window, stride, "VALID")


def global_average_pool(x: tf.Tensor) -> tf.Tensor:
    """The mean over all of space: [batch, ..., channels] to [batch, channels]."""
    return tf.reduce_mean(x, _space(x))


def global_max_pool(x: tf.Tensor) -> tf.Tensor:
    """The largest value over all of space: [batch, ..., channels] to [batch, channels]."""
    return tf.reduce_max(x, _space(x))


def _space(x: tf.Tensor) -> list[int]:
    if x.shape.rank is None or x.shape.rank < 3:
        raise ValueError(
            f"`x` of a global pool has shape {x.shape}; its axes are [batch, ..., channels] with space between."
        )
    return list(range(1, x.shape.rank - 1))


def _pool(pool: _Pool, x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    if len(window) < 3:
        return pool(x, window, stride, padding)
    # The kernels for three axes take fewer dtypes; depth first, then height and width, is the same.
    batch, depth, height, width, channels = sizes(x)
    x = pool(tf.reshape(x, [batch, depth, height * width, channels]), [window[0], 1], [stride[0], 1], padding)
    depth = sizes(x)[1]
    y = pool(tf.reshape(x, [batch * depth, height, width, channels]), window[1:], stride[1:], padding)
    return tf.reshape(y, [batch, depth, *sizes(y)[1:]])
