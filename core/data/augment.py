"""Random image augmentation inside step functions, with the same results on any number of replicas.

>>> from core.random import Rng
>>> images = tf.reshape(tf.range(2.0 * 6 * 6), [2, 6, 6, 1])
>>> random_crop_and_flip(images, 4, Rng.from_seed(0)).shape
TensorShape([2, 4, 4, 1])
"""

import math
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_finite, check_fraction, check_positive, check_size
from core.errors import shown
from core.random import Rng


def random_crop_and_flip(images: tf.Tensor, size: int, rng: Rng | None) -> tf.Tensor:
    """Crops each image [rows, height, width, channels] to a random square, and mirrors it with probability 1/2.

    The square has `size` pixels per side. Equal generators crop equally. For a pair of images, pass `rng` and
    `rng.again()`. For two domains, pass `rng.fold("a")` and `rng.fold("b")`. Without `rng`, as in evaluation, crops are
    central.
    """
    _, height, width, _ = images.shape
    if height is None or width is None or min(height, width) < size:
        raise ValueError(
            f"`images` has shape {images.shape}, from which no square of {size} pixels can be cut; load them larger "
            "(`load_size` of the source), or ask for less."
        )
    if rng is None:
        top, left = (height - size) // 2, (width - size) // 2
        return images[:, top : top + size, left : left + size]
    y, x, mirrored = tf.unstack(rng.wide.rows.uniform(_rows(images), 3), axis=1)
    places = tf.range(size)
    down = _offset(y, height - size)[:, None] + places
    across = tf.where(mirrored[:, None] < 0.5, places[::-1], places) + _offset(x, width - size)[:, None]
    return _pixels(images, down, across)


@gin.configurable
def random_crop(images: tf.Tensor, rng: Rng, *, padding: int, reflect: bool = False) -> tf.Tensor:
    """Shifts each image [rows, height, width, channels] by up to `padding` pixels, each way with equal probability.

    It pads the image with zeros, or with its reflection, and crops it to its size at random, as for CIFAR-10 (He et
    al., 2016, with 4 pixels).
    """
    check_size(padding=padding)
    _, height, width, _ = images.shape
    if reflect and padding >= min(height, width):
        raise ValueError(
            f"`padding` is {padding}, but images of {height} by {width} have no more than {min(height, width) - 1} "
            "pixels to reflect; give less."
        )
    y, x = tf.unstack(rng.wide.rows.uniform(_rows(images), 2), axis=1)
    down, across = (tf.expand_dims(_offset(unit, 2 * padding), 1) for unit in (y, x))
    down, across = down + tf.range(height), across + tf.range(width)
    if reflect:
        return _pixels(images, _reflected(down - padding, height), _reflected(across - padding, width))
    padded = tf.pad(images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    return _pixels(padded, down, across)


@gin.configurable
def random_flip(images: tf.Tensor, rng: Rng) -> tf.Tensor:
    """Mirrors each image [rows, height, width, channels] from left to right with probability 1/2."""
    mirrored = rng.wide.rows.uniform(_rows(images), 1)[:, :, None, None] < 0.5
    turned = tf.gather(images, tf.range(images.shape[2] - 1, -1, -1), axis=2)  # a mesh can't slice backwards
    return tf.where(mirrored, turned, images)


@gin.configurable
def random_erasing(
    images: tf.Tensor,
    rng: Rng,
    *,
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    aspect: tuple[float, float] = (0.3, 3.3),
) -> tf.Tensor:
    """Sets a rectangle of each image to zero with this probability (Zhong et al., 2020).

    The rectangle's share of the image is drawn from `area`. Its height divided by its width is drawn from `aspect`,
    with a uniform logarithm. Sides longer than the image's are cut; the paper would draw again.
    """
    check_fraction(probability=probability)
    for name, limits in (("area", area), ("aspect", aspect)):
        if not 0.0 < limits[0] <= limits[1] < math.inf:
            raise ValueError(f"`{name}` is {shown(limits)}; give two numbers above 0, the smaller one first.")
    _, height, width, _ = images.shape
    chance, share, ratio, y, x = tf.unstack(rng.wide.rows.uniform(_rows(images), 5), axis=1)
    pixels = (area[0] + (area[1] - area[0]) * share) * (height * width)
    ratio = aspect[0] * (aspect[1] / aspect[0]) ** ratio
    down, across = _inside(y, tf.sqrt(pixels * ratio), height), _inside(x, tf.sqrt(pixels / ratio), width)
    erased = tf.expand_dims(down, 2) & tf.expand_dims(across, 1) & (chance < probability)[:, None, None]
    return tf.where(erased[..., None], tf.zeros([], images.dtype), images)


@gin.configurable
def random_affine(
    images: tf.Tensor, rng: Rng, *, turn: float = 0.0, shear: float = 0.0, scale: float = 1.0, shift: float = 0.0
) -> tf.Tensor:
    """Rotates, shears, scales and shifts each image at random, up to these limits.

    The scale is drawn from `1 / scale` to `scale`. Other numbers are drawn from minus the limit to the limit. `affine`
    explains the units.
    """
    check_positive(scale=scale)
    check_finite(turn=turn, shear=shear, shift=shift)
    chance = 2.0 * rng.wide.rows.uniform(_rows(images), 5) - 1.0
    turns, shears, scales, down, across = tf.unstack(chance, axis=1)
    moved = shift * tf.stack([down, across], axis=1)
    return affine(images, turn=turn * turns, shear=shear * shears, scale=scale**scales, shift=moved)


def affine(
    images: tf.Tensor, *, turn: Any = 0.0, shear: Any = 0.0, scale: Any = 1.0, shift: Any = (0.0, 0.0)
) -> tf.Tensor:
    """Rotates each image [rows, height, width, channels] about its centre, shears, scales and shifts it.

    `turn` (radians), `shear` (pixels across per pixel down) and `scale` are one number for all rows, or [rows]. `shift`
    is [rows, 2] or one pair: pixels down and across. Interpolation is linear, in float32. Pixels outside the image are
    zero.
    """
    _, height, width, _ = images.shape
    turn, shear, scale = (tf.cast(x, tf.float32)[..., tf.newaxis] for x in (turn, shear, scale))
    down, across = (x[..., tf.newaxis] for x in tf.unstack(tf.cast(shift, tf.float32), axis=-1))
    y, x = (tf.reshape(p, [-1]) for p in tf.meshgrid(tf.range(height), tf.range(width), indexing="ij"))
    middle = (0.5 * (height - 1.0), 0.5 * (width - 1.0))
    # Maps each pixel of the new image to its source position in the old one.
    y, x = (tf.cast(y, tf.float32) - middle[0] - down) / scale, (tf.cast(x, tf.float32) - middle[1] - across) / scale
    x -= shear * y
    y, x = tf.cos(turn) * y - tf.sin(turn) * x, tf.sin(turn) * y + tf.cos(turn) * x
    rows = tf.shape(images)[0]

    def weights(places: tf.Tensor, m: float, size: int) -> tf.Tensor:
        near = tf.nn.relu(1.0 - tf.abs((places + m)[..., tf.newaxis] - tf.range(float(size))))
        return tf.broadcast_to(near, [rows, height * width, size])

    rows_of = tf.einsum("npy,nyxc->npxc", weights(y, middle[0], height), tf.cast(images, tf.float32))
    moved = tf.einsum("npx,npxc->npc", weights(x, middle[1], width), rows_of)
    return tf.cast(tf.reshape(moved, [-1, height, width, images.shape[3]]), images.dtype)


def _inside(unit: tf.Tensor, side: tf.Tensor, size: int) -> tf.Tensor:
    """Returns which of `size` places are in an interval of length `side`, [rows, size]; `unit` chooses its place."""
    side = tf.clip_by_value(tf.round(side), 1.0, float(size))[:, None]
    first = tf.floor(unit[:, None] * (size + 1.0 - side))
    places = tf.range(float(size))
    return (places >= first) & (places < first + side)


def _reflected(places: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `places` with those outside 0 to `size - 1` mirrored at the ends."""
    return size - 1 - tf.abs(size - 1 - tf.abs(places))


def _pixels(images: tf.Tensor, down: tf.Tensor, across: tf.Tensor) -> tf.Tensor:
    """Returns of each image the pixels in its rows `down` [rows, new height] and columns `across` [rows, new width]."""
    _, height, width, channels = images.shape
    # With pixel indices in the whole batch: one plain gather takes about half the time of two batched ones.
    lines = tf.expand_dims(tf.range(_rows(images)), 1) * height + down
    return tf.gather(tf.reshape(images, [-1, channels]), tf.expand_dims(lines * width, 2) + tf.expand_dims(across, 1))


def _rows(images: tf.Tensor) -> Any:
    return tf.shape(images)[0] if images.shape[0] is None else images.shape[0]


def _offset(unit: tf.Tensor, largest: int) -> tf.Tensor:
    """Converts `unit`, in [0, 1), to one of the integers 0 to `largest`, with equal probability."""
    return tf.cast(unit * (largest + 1.0), tf.int32)
