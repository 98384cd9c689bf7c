"""Sliding windows of convolutions and pooling: sizes per axis, and padding at the borders."""

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import tensorflow as tf

from core.casts import cast_to
from core.layers.shapes import sizes, widen
from core.tracing import only_cpus

Ints = int | Sequence[int]
Padding = str | int | Sequence[int | tuple[int, int]]  # as a caller gives it
Pairs = Sequence[tuple[Any, Any]]  # before and after, per axis

SPACE = {1: "length", 2: "height, width", 3: "depth, height, width"}


def per_axis(name: str, value: Ints, rank: int) -> list[int]:
    """Returns one number per spatial axis. `value` is a number for all axes, or a sequence."""
    values: list[Any] = [value] * rank if _whole(value) else _items(value)
    if len(values) != rank or not all(_whole(v) and v >= 1 for v in values):
        raise ValueError(
            f"`{name}` is {value!r}; give a whole number of at least 1, or one for each of [{SPACE[rank]}]."
        )
    return [int(v) for v in values]


def read_padding(padding: Padding, rank: int) -> str | Pairs:
    """Returns `"SAME"`, `"VALID"` or `[(before, after), ...]`. `padding` may also be one number, or one per axis."""
    if isinstance(padding, str) and padding in ("SAME", "VALID"):
        return padding
    values: list[Any] = [padding] * rank if _whole(padding) else _items(padding)
    if len(values) == rank:
        pairs = [[v, v] if _whole(v) else _items(v) for v in values]
        if all(len(pair) == 2 and all(_whole(v) and v >= 0 for v in pair) for pair in pairs):
            return [(int(before), int(after)) for before, after in pairs]
    raise ValueError(
        f"`padding` is {padding!r}; give 'SAME', 'VALID', or what to add: a number, or (before, after) for each of "
        f"[{SPACE[rank]}]."
    )


def _whole(value: Any) -> bool:
    """Says whether `value` is an integer of Python or NumPy."""
    return isinstance(value, Integral)


def _items(value: Any) -> list[Any]:
    """Returns `value` as a list if it is a sequence. Strings and all else give an empty list."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []


def pad_space(x: tf.Tensor, pairs: Pairs, value: float = 0.0) -> tf.Tensor:
    return tf.pad(x, [(0, 0), *pairs, (0, 0)], constant_values=tf.cast(value, x.dtype))


def same_padding(x: tf.Tensor, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pairs:
    """Returns the `[(before, after), ...]` of `"SAME"`, for `ceil(size / stride)` outputs; `after` gets the odd one."""
    pairs = []
    for size, k, s, d in zip(sizes(x)[1:-1], window, stride, dilation, strict=True):
        short = (-(-size // s) - 1) * s + (k - 1) * d + 1 - size
        total = max(short, 0) if isinstance(short, int) else tf.maximum(short, 0)
        pairs.append((total // 2, total - total // 2))
    return pairs


def slide(
    op: Callable[[tf.Tensor, Sequence[int], str], tf.Tensor],
    x: tf.Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: str | Pairs,
    dilation: Sequence[int],
    *,
    skip: bool,
) -> tf.Tensor:
    """Returns `op(x, stride, padding)` for any padding. A padding that `op` doesn't know is added to `x` first.

    `skip` is for an `op` without strides: it computes every output, and this function keeps every `stride`-th.
    """
    if skip and padding == "SAME":
        padding = same_padding(x, window, stride, dilation)
    if not isinstance(padding, str):
        x, padding = pad_space(x, padding), "VALID"
    for size, k, d in zip(x.shape[1:-1], window, dilation, strict=True):
        if padding == "VALID" and size is not None and size < (k - 1) * d + 1:
            raise ValueError(
                f"`x` has {size} values (padding included) along an axis where `kernel_size={k}` with `dilation={d}` "
                f"spans {(k - 1) * d + 1}; pad it, or take a smaller window."
            )
    if not skip:
        return op(x, stride, padding)
    y = op(x, [1] * len(stride), padding)
    kept = (slice(None), *(slice(None, None, step) for step in stride))
    return y[kept]


def half_kernel(
    op: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, w: tf.Tensor, *, sums_wide: bool
) -> tf.Tensor:
    """Returns the bilinear `op(x, w)` in the dtype of `x`. Half precision is summed in float32.

    `sums_wide` says that the CPU kernel of `op` sums in float32 itself. Otherwise `op` gets float32 operands.
    """
    if x.dtype.size >= 4 or not only_cpus():
        return op(x, cast_to(w, x.dtype))
    w = tf.convert_to_tensor(w)

    # TensorFlow's CPU kernels sum a gradient in the dtype of the input. In bfloat16, a kernel's gradient over a few
    # thousand pixels is then a fifth off, and takes ten times as long as in float32. Other devices sum in float32.
    @tf.custom_gradient
    def run(x: tf.Tensor, w: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            wide_x, wide_w = widen(x), widen(tf.cast(w, x.dtype))
            with tf.GradientTape() as tape:
                tape.watch([wide_x, wide_w])
                y = op(wide_x, wide_w)
            dx, dw = tape.gradient(y, [wide_x, wide_w], widen(upstream))
            return tf.cast(dx, x.dtype), tf.cast(dw, w.dtype)

        if sums_wide:
            return op(x, tf.cast(w, x.dtype)), gradient
        return tf.cast(op(widen(x), widen(tf.cast(w, x.dtype))), x.dtype), gradient

    return run(x, w)


def split_groups(op: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, w: tf.Tensor, groups: int) -> tf.Tensor:
    """Splits the channels of `x` and `w` into `groups`, calls `op` for each group, and concatenates the outputs.

    TensorFlow's grouped convolutions have no gradient on CPU.
    """
    if groups == 1:
        return op(x, w)
    parts = zip(tf.split(x, groups, -1), tf.split(w, groups, -1), strict=True)
    return tf.concat([op(part, kernel) for part, kernel in parts], -1)
