"""Layers that pad, shuffle or resize images `[batch, height, width, channels]`."""

from typing import Any

import tensorflow as tf

from core.arguments import check_choice, check_size
from core.layers.rows import for_any_rows
from core.layers.shapes import check_axes, check_floats, sizes, widen
from core.layers.windows import SPACE, Ints, Padding, pad_space, per_axis, read_padding
from core.module import Module


class Pad(Module):
    """Adds a border of zeros (`"CONSTANT"`), or of the image mirrored at its edge pixels (`"REFLECT"`)."""

    def __init__(self, padding: Padding, *, mode: str = "REFLECT"):
        super().__init__()
        check_choice("mode", mode, ("REFLECT", "CONSTANT"))
        pairs = read_padding(padding, 2)
        if isinstance(pairs, str):
            raise ValueError(f"`padding` of `Pad` is {padding!r}; give the number of pixels to add.")
        self.pairs, self.mode = tuple(pairs), mode

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_axes(self, x, f"batch, {SPACE[2]}, channels")
        if self.mode == "CONSTANT":
            return pad_space(x, self.pairs)
        for axis, (before, after) in enumerate(self.pairs, 1):
            if x.shape[axis] is not None and x.shape[axis] <= max(before, after):
                raise ValueError(
                    f"`padding` is {list(self.pairs)}, but `x` has shape {x.shape}: a mirror image at the border has "
                    f"one pixel less than the image, {x.shape[axis] - 1} here; pad less, or with `mode='CONSTANT'`."
                )
        return for_any_rows(lambda x: tf.pad(x, [(0, 0), *self.pairs, (0, 0)], "REFLECT"), x)


class PixelShuffle(Module):
    """Moves channels to pixels: `[h, w, factor² c]` to `[factor h, factor w, c]` (Shi et al., 2016).

    Channel `(i * factor + j) * c + k` becomes channel `k` of the pixel at row `i`, column `j` of its block. PyTorch
    orders channels differently: `k * factor² + i * factor + j`.
    """

    def __init__(self, factor: int):
        super().__init__()
        check_size(factor=factor)
        self.factor = factor

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_axes(self, x, f"batch, {SPACE[2]}, channels")
        if x.shape[-1] is None:
            raise ValueError(
                f"`x` of `PixelShuffle` has shape {x.shape}, whose channels aren't known while tracing; give them by "
                "`tf.ensure_shape`."
            )
        if x.shape[-1] % self.factor**2:
            raise ValueError(
                f"`x` of `PixelShuffle` has shape {x.shape}, but `factor={self.factor}` takes channels in blocks of "
                f"{self.factor**2}; make the layer before it wider."
            )
        return x if self.factor == 1 else tf.nn.depth_to_space(x, self.factor)


class Resize(Module):
    """Resizes images to `size`, or makes them `scale` times larger; `method` is `"nearest"` or `"bilinear"`.

    Pixels are areas, as with PyTorch's `align_corners=False`. Bilinear results are computed in float32.
    """

    def __init__(self, *, size: Ints | None = None, scale: Ints | None = None, method: str = "bilinear"):
        super().__init__()
        check_choice("method", method, ("nearest", "bilinear"))
        if (size is None) == (scale is None):
            raise ValueError(f"`size` is {size} and `scale` is {scale}; give one of them.")
        self.size = None if size is None else per_axis("size", size, 2)
        self.scale = None if scale is None else per_axis("scale", scale, 2)
        self.method = method

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        check_axes(self, x, f"batch, {SPACE[2]}, channels")
        old = sizes(x)[1:3]
        new = self.size or [n * s for n, s in zip(old, self.scale or [], strict=True)]
        if self.method == "bilinear":
            check_floats(self, x)
            return tf.cast(_bilinear(tf.cast(x, tf.float32), tf.stack(new)), x.dtype)
        for axis, (n, m) in enumerate(zip(old, new, strict=True), 1):
            times = self.scale[axis - 1] if self.scale else (m // n if isinstance(n, int) and m % n == 0 else 0)
            x = _repeat(x, axis, times) if times else _nearest(x, axis, n, m)
        return x


def _bilinear(x: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns `x` resized to `size` (height, width), with derivatives of every order.

    TensorFlow's resize has no second derivative, which gradient penalties need. The resize and its gradient are both
    linear, so here each is the other's gradient.
    """

    @tf.custom_gradient
    def forth(x: tf.Tensor) -> Any:
        return tf.raw_ops.ResizeBilinear(images=x, size=size, half_pixel_centers=True), back

    @tf.custom_gradient
    def back(dy: tf.Tensor) -> Any:
        return tf.raw_ops.ResizeBilinearGrad(grads=dy, original_image=x, half_pixel_centers=True), forth

    return forth(x)


def _repeat(x: tf.Tensor, axis: int, times: int) -> tf.Tensor:
    """Repeats each slice along `axis` `times` times. It broadcasts, so that the gradient is a sum."""
    shape = sizes(x)
    wide = tf.broadcast_to(tf.expand_dims(x, axis + 1), [*shape[: axis + 1], times, *shape[axis + 1 :]])
    return tf.reshape(wide, [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]])


def _nearest(x: tf.Tensor, axis: int, old: Any, new: int) -> tf.Tensor:
    """Resizes `axis` to `new` slices. Each new slice copies the old slice with the nearest centre."""
    middle = 2 * tf.range(new) + 1
    wide = widen(x) if x.dtype.is_floating else x  # the gradient adds up many slices, one after another
    return tf.cast(tf.gather(wide, middle * old // (2 * new), axis=axis), x.dtype)
