"""Random changes of the images that a discriminator sees, real and fake alike (Karras et al., 2020, "ADA").

Each change happens to an image with the probability p. If p stays below 1 then the generator doesn't learn to make
changed images. All changes are differentiable, any number of times, and leave the image's size. Rows are independent.
"""

from typing import NamedTuple

import gin
import tensorflow as tf

from core.arguments import check_not_negative
from core.layers.shapes import widen
from core.random import Rng


@gin.configurable
class Augmentation:
    """The strength of each change; 0 leaves it out. Images [rows, height, width, channels] have values in [-1, 1].

    `translation` is the largest shift as a fraction of the sides. `scaling` is the standard deviation of the binary
    logarithm of a size. Pixels from outside repeat the border. `brightness` is the standard deviation of a number that
    is added. `contrast` is that of the binary logarithm of a factor. `noise` is that of the pixels' noise. `cutout` is
    the side of a square of zeros, as a fraction of the image's. With `flip`, half of the changed images are mirrored:
    only for images whose mirror image could be real, so not for digits.
    """

    def __init__(
        self,
        *,
        translation: float = 0.125,
        scaling: float = 0.2,
        brightness: float = 0.2,
        contrast: float = 0.5,
        noise: float = 0.0,
        cutout: float = 0.0,
        flip: bool = False,
    ):
        check_not_negative(translation=translation, scaling=scaling, brightness=brightness)
        check_not_negative(contrast=contrast, noise=noise, cutout=cutout)
        self.translation, self.scaling, self.flip = translation, scaling, flip
        self.brightness, self.contrast, self.noise, self.cutout = brightness, contrast, noise, cutout

    def __call__(self, x: tf.Tensor, p: tf.Tensor, rng: Rng) -> tf.Tensor:
        """Returns `x` with each change in a share `p` of the rows."""
        chance = _Chance(x.shape[0], p, rng.wide)
        y = widen(x)
        if self.translation or self.scaling or self.flip:
            y = self._moved(y, chance)
        if self.brightness:
            y += chance.normal("brightness", self.brightness)
        if self.contrast:
            y *= tf.pow(2.0, chance.normal("contrast", self.contrast))
        if self.noise:
            y += chance.normal("noise", self.noise) * chance.rng.fold("pixels").rows.normal(*x.shape)
        if self.cutout:
            y *= self._uncut(y, chance)
        return tf.cast(y, x.dtype)

    def _moved(self, x: tf.Tensor, chance: "_Chance") -> tf.Tensor:
        """Mirrors, scales and shifts: a matrix per row and axis interpolates between neighbouring pixels."""
        zoom = tf.pow(2.0, chance.normal("scaling", self.scaling))[:, 0, 0]
        mirrored = tf.cast(chance.uniform("flip") < 0.0, x.dtype)[:, 0, 0] if self.flip else 0.0
        for axis, name in enumerate(("height", "width"), 1):
            size, step = x.shape[axis], (1.0 - 2.0 * mirrored if name == "width" else 1.0) / zoom
            shift = self.translation * size * chance.uniform(name)[:, 0, 0]
            middle, place = (size - 1) / 2, tf.range(size, dtype=x.dtype)
            source = tf.clip_by_value((place - middle) * step - shift + middle, 0.0, size - 1.0)  # [rows, size]
            mix = tf.nn.relu(1.0 - tf.abs(source[:, :, tf.newaxis] - place))
            x = tf.einsum("nij,njwc->niwc" if axis == 1 else "nij,nhjc->nhic", mix, x)
        return x

    def _uncut(self, x: tf.Tensor, chance: "_Chance") -> tf.Tensor:
        """Returns zeros in a square around a random pixel of each changed row, else ones."""
        inside = chance.due("cutout")
        for axis, name in enumerate(("top", "left"), 1):
            size = x.shape[axis]
            centre = tf.floor(chance.rng.fold(name).rows.uniform(x.shape[0], 1) * size)
            near = tf.abs(tf.range(size, dtype=x.dtype) - centre) < self.cutout * size / 2
            inside &= tf.expand_dims(tf.expand_dims(near, 3 - axis), 3)
        return tf.cast(~inside, x.dtype)


class _Chance(NamedTuple):
    """Draws a number per row [rows, 1, 1, 1], which is 0 with the probability 1 - p."""

    rows: int
    p: tf.Tensor
    rng: Rng

    def due(self, name: str) -> tf.Tensor:
        coin = self.rng.fold(name).fold("coin").rows.uniform(self.rows, 1)
        return (coin < self.p)[:, :, tf.newaxis, tf.newaxis]

    def normal(self, name: str, deviation: float) -> tf.Tensor:
        drawn = self.rng.fold(name).rows.normal(self.rows, 1)[:, :, tf.newaxis, tf.newaxis]
        return tf.where(self.due(name), deviation * drawn, 0.0)

    def uniform(self, name: str) -> tf.Tensor:
        """Draws from [-1, 1)."""
        drawn = self.rng.fold(name).rows.uniform(self.rows, 1)[:, :, tf.newaxis, tf.newaxis]
        return tf.where(self.due(name), 2.0 * drawn - 1.0, 0.0)
