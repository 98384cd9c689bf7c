"""Pooling over space, for inputs `[batch, ..., channels]` with one, two or three spatial axes."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from core.choice import nan
from core.layers.rows import for_any_rows
from core.layers.shapes import check_floats, check_rank, sizes, widen
from core.layers.windows import SPACE, Ints, Padding, Pairs, pad_space, per_axis, read_padding
from core.module import Module
from core.tracing import in_xla

_Pool = Callable[..., tf.Tensor]  # TensorFlow's: (x, window, stride, padding)


class _Pooling(Module):
    """Slides a window over the spatial axes. The default stride is the window's size."""

    def __init__(self, window: Ints, *, stride: Ints | None = None, padding: Padding = "VALID"):
        super().__init__()
        self.window, self.stride, self.padding = window, window if stride is None else stride, padding
        # Lists with one value per axis give the number of spatial axes; without lists, the first call's input does.
        lists = [v for v in (window, stride, padding) if isinstance(v, Sequence) and not isinstance(v, str)]
        rank = len(lists[0]) if lists else 2
        if rank not in SPACE:
            raise ValueError(f"`{type(self).__name__}` got {lists[0]!r}; there are one to three axes of space to pool.")
        self._windows(rank)

    def _windows(self, rank: int) -> tuple[list[int], list[int], str | Pairs]:
        window, stride = per_axis("window", self.window, rank), per_axis("stride", self.stride, rank)
        padding = read_padding(self.padding, rank)
        if not isinstance(padding, str) and any(max(pair) >= k for pair, k in zip(padding, window, strict=True)):
            raise ValueError(
                f"`padding` is {self.padding!r} for `window={self.window}`; a window of padding holds nothing."
            )
        return window, stride, padding

    def _settings(self, x: tf.Tensor) -> tuple[list[int], list[int], str | Pairs]:
        check_rank(self, x)
        if x.shape.rank not in (3, 4, 5):
            raise ValueError(
                f"`x` of `{type(self).__name__}` has shape {x.shape}; its axes are [batch, ..., channels] with one to "
                "three axes of space between them."
            )
        window, stride, padding = self._windows(x.shape.rank - 2)
        for size, k in zip(x.shape[1:-1], window, strict=True):
            if padding == "VALID" and size is not None and size < k:
                raise ValueError(f"`window` is {self.window}, larger than `x` of shape {x.shape}; take a smaller one.")
        return window, stride, padding


class MaxPool(_Pooling):
    """Returns each window's largest value. Padding is ignored. A window with a NaN gives NaN."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        window, stride, padding = self._settings(x)

        def pool(x: tf.Tensor) -> tf.Tensor:
            if isinstance(padding, str):
                return _pool(max_pool, x, window, stride, padding)
            return _pool(max_pool, pad_space(x, padding, float("-inf")), window, stride, "VALID")

        return for_any_rows(lambda x: _largest(pool, x), x)


class AveragePool(_Pooling):
    """Returns the mean of each window's values. Padding isn't counted (PyTorch's default counts it as zeros)."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        window, stride, padding = self._settings(x)
        check_floats(self, x)
        wide = widen(x)  # a window's sum needs more digits and range than its mean
        if isinstance(padding, str):
            return tf.cast(_pool(tf.nn.avg_pool, wide, window, stride, padding), x.dtype)
        ones = tf.ones([1, *sizes(x)[1:-1], 1], wide.dtype)
        y = _pool(tf.nn.avg_pool, pad_space(wide, padding), window, stride, "VALID")
        counted = _pool(tf.nn.avg_pool, pad_space(ones, padding), window, stride, "VALID")
        return tf.cast(y / counted, x.dtype)


def global_average_pool(x: tf.Tensor) -> tf.Tensor:
    """Returns the mean over all spatial axes: [batch, ..., channels] to [batch, channels]."""
    axes = _space(x)
    check_floats("global pool", x)
    return tf.cast(tf.reduce_mean(widen(x), axes), x.dtype)


def global_max_pool(x: tf.Tensor) -> tf.Tensor:
    """Returns the largest value over all spatial axes: [batch, ..., channels] to [batch, channels]."""
    axes = _space(x)
    if not x.dtype.is_floating:
        return tf.reduce_max(x, axes)
    # In float32: the gradient is split between equal values, whose number float16 may not hold.
    return tf.cast(_largest(lambda x: tf.reduce_max(x, axes), widen(x)), x.dtype)


def _space(x: tf.Tensor) -> list[int]:
    check_rank("global pool", x)
    if x.shape.rank < 3:
        raise ValueError(
            f"`x` of `global pool` has shape {x.shape}; its axes are [batch, ..., channels] with space between."
        )
    return list(range(1, x.shape.rank - 1))


def _largest(pool: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns `pool(x)`, with right results for windows of `nan` or minus infinity.

    A window with a `nan` gives `nan`. A window of minus infinity alone gives minus infinity. The kernels of TensorFlow
    and XLA skip such values, or return the dtype's lowest finite number.
    """
    y = pool(x)
    if not x.dtype.is_floating:
        return y

    def marked(y: tf.Tensor) -> tf.Tensor:
        found = pool(tf.cast(tf.math.is_nan(x), x.dtype)) > 0.0
        right = y + tf.where(y <= x.dtype.min, tf.constant(float("-inf"), x.dtype), tf.zeros_like(y))
        return tf.where(found, nan(x.dtype), right)

    # With custom gradients: a mesh can't lay out what TensorFlow stores for the gradient of a condition.
    @tf.custom_gradient
    def chosen(y: tf.Tensor) -> Any:
        # A sum of squares is finite only if every value is finite; the other branch handles the rest.
        finite = tf.math.is_finite(tf.nn.l2_loss(tf.stop_gradient(widen(x))))
        value = tf.cond(finite, lambda: y, lambda: marked(y))

        @tf.custom_gradient
        def passed(dy: tf.Tensor) -> Any:
            def numbers() -> tf.Tensor:
                return tf.where(tf.math.is_nan(value), tf.zeros([], dy.dtype), dy)

            return tf.cond(finite, lambda: dy, numbers), passed  # the selection is its own transpose

        return value, passed

    return chosen(y)


def _pool(pool: _Pool, x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    if len(window) < 3:
        return pool(x, window, stride, padding)
    # The kernels for three axes take fewer dtypes. Pooling depth first, then height and width, gives the same.
    batch, depth, height, width, channels = sizes(x)
    x = pool(tf.reshape(x, [batch, depth, height * width, channels]), [window[0], 1], [stride[0], 1], padding)
    depth = sizes(x)[1]
    y = pool(tf.reshape(x, [batch * depth, height, width, channels]), window[1:], stride[1:], padding)
    return tf.reshape(y, [batch, depth, *sizes(y)[1:]])


def max_pool(x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    """Returns `tf.nn.max_pool`. Among equal values the first gets the gradient, with and without XLA.

    XLA's own gradient chooses another of the equal values. On a CPU it takes 10 to 30 times as long as TensorFlow's.
    """
    return _by_slices(x, window, stride, padding) if in_xla() else tf.nn.max_pool(x, window, stride, padding)


def _by_slices(x: tf.Tensor, window: Sequence[int], stride: Sequence[int], padding: str) -> tf.Tensor:
    """Returns `tf.nn.max_pool(x, ...)`. The gradient loops over the positions within a window."""

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> Any:
        y = tf.nn.max_pool(x, window, stride, padding)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            (batch, *space, channels), out = sizes(x), sizes(y)[1:-1]
            lacking = [(m - 1) * s + k - n for n, m, k, s in zip(space, out, window, stride, strict=True)]
            around = [_halves(n) if padding == "SAME" else (0, 0) for n in lacking]
            # NaN equals nothing, so no gradient goes to the padding.
            padded = tf.pad(x, [(0, 0), *around, (0, 0)], constant_values=float("nan"))
            shape, strides = [batch, *sizes(padded)[1:-1], channels], [1, *stride, 1]
            dx, free = tf.zeros_like(padded), tf.ones_like(y, tf.bool)
            for place in itertools.product(*map(range, window)):
                begin = [0, *place, 0]
                end = [batch, *(i + (m - 1) * s + 1 for i, m, s in zip(place, out, stride, strict=True)), channels]
                here = free & (tf.strided_slice(padded, begin, end, strides) == y)
                free &= ~here
                given = tf.where(here, dy, tf.zeros([], dy.dtype))
                dx += tf.raw_ops.StridedSliceGrad(shape=shape, begin=begin, end=end, strides=strides, dy=given)
            return tf.slice(dx, [0, *(before for before, _ in around), 0], tf.shape(x))

        return y, gradient

    return pooled(x)


def _halves(lacking: Any) -> tuple[Any, Any]:
    """Splits a total padding of `lacking` values into (before, after) as `"SAME"` does, for example 3 into (1, 2)."""
    lacking = tf.maximum(lacking, 0) if tf.is_tensor(lacking) else max(lacking, 0)
    return lacking // 2, lacking - lacking // 2
