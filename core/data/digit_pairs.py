"""Two image domains made from the embedded digits: plain grey digits (A), and thick coloured ones (B).

`thick_and_coloured` makes each image of B from one of A, at 32x32. Each point takes the brightest level nearby. Its
colour goes from blue, where strokes are sparse, to orange, where they are dense. So a translation from A to B, learnt
without pairs, has one correct answer, and its error can be measured. B determines A nearly to the pixel.

    >>> pairs = digit_pairs("test")
    >>> len(pairs), pairs.spec["b"].shape
    (360, TensorShape([32, 32, 3]))
"""

import functools
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.arrays import ArraySource
from core.data.images import unpaired
from core.data.npz_files import Array, read_npz
from core.data.source import Source, check_split

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.uint8]

_FILE = Path(__file__).parent / "embedded" / "digits.npz"
_SIZE = 32
_REACH = 1  # pixels by which strokes grow in each direction
_SIGMA = 4.0  # of the window in which the density of strokes is measured
_FEW, _DENSE = 0.2, 0.7  # the densities at which the colours end
# Both colours have the same sum, so that B's colour loses no information about A.
_BLUE, _ORANGE = np.array([0.1, 0.5, 1.0]), np.array([1.0, 0.5, 0.1])


class CentredImages(ArraySource):
    """A source of images with levels in [-1, 1], as generators produce them."""

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        examples = super().gather(indices)
        return {name: 2.0 * values - 1.0 if values.dtype.is_floating else values for name, values in examples.items()}

    def value_range(self, feature: str) -> tuple[float, float] | None:
        levels = super().value_range(feature)
        return levels and (2.0 * levels[0] - 1.0, 2.0 * levels[1] - 1.0)


@gin.configurable
def digit_pairs(split: Literal["train", "test"] = "train", *, paired: bool = True) -> Source:
    """Makes images `a` (plain) and `b` (thick, coloured), float32 [32, 32, 3] in [-1, 1], and `label`, int32.

    With `paired=False`, as CycleGAN trains, no digit is in both domains. Half of each class's digits give `a`, and the
    other half gives `b`. `label` is then the class of `a`, and `label_b` that of `b`.
    """
    plain, labels = _digits("digit_pairs", split)
    a, b = np.repeat(plain[..., None], 3, axis=-1), thick_and_coloured(plain)
    if paired:
        return _source("digit_pairs", {"a": a, "b": b, "label": labels})
    first = _first_half(labels)
    of_a, of_b = np.flatnonzero(first), np.flatnonzero(~first)
    in_a, in_b = unpaired(len(of_a), len(of_b))
    of_a, of_b = of_a[in_a], of_b[in_b]
    return _source("digit_pairs", {"a": a[of_a], "b": b[of_b], "label": labels[of_a], "label_b": labels[of_b]})


def thick_and_coloured(plain: Levels) -> Levels:
    """Converts grey images of A, [n, 32, 32], to images of B, [n, 32, 32, 3]."""
    parts = np.array_split(plain, len(plain) // 100 + 1)  # all at once would take 150 MB
    return np.concatenate([_converted(part) for part in parts])


def _converted(plain: Levels) -> Levels:
    grey = plain.astype(np.float64) / 255.0
    window = _gaussian(_SIZE, _SIGMA)
    density = np.clip((window @ grey @ window.T - _FEW) / (_DENSE - _FEW), 0.0, 1.0)[..., None]
    colour = _BLUE + density * (_ORANGE - _BLUE)
    return _levels(_thick(grey)[..., None] * colour)


def _thick(grey: Floats) -> Floats:
    """Dilates images [n, height, width]: each pixel becomes the largest value in the square around it."""
    side = 2 * _REACH + 1
    padded = np.pad(grey, [(0, 0), (_REACH, _REACH), (_REACH, _REACH)])
    height, width = grey.shape[1:]
    shifts = [padded[:, y : y + height, x : x + width] for y in range(side) for x in range(side)]
    return functools.reduce(np.maximum, shifts)


def _gaussian(size: int, sigma: float) -> Floats:
    """Returns the matrix [size, size] that blurs one axis with a Gaussian. Beyond the edge, images are black."""
    places = np.arange(size)
    weights = np.exp(-((places[:, None] - places) ** 2) / (2.0 * sigma**2)) / (sigma * np.sqrt(2.0 * np.pi))
    return weights.astype(np.float64)


def _upscaled(images: Floats, size: int) -> Floats:
    """Enlarges images [n, old, old] to [n, size, size] by bilinear interpolation; edge pixels are extended."""
    old = images.shape[1]
    centres = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(old))).astype(np.float64)
    return weights @ images @ weights.T


def _digits(name: str, split: str) -> tuple[Levels, Array]:
    """Reads a split's plain digits, uint8 [n, 32, 32], and their classes."""
    check_split(name, split, ["train", "test"])
    arrays = read_npz(_FILE)
    mine = arrays["is_test"] == (split == "test")
    return _levels(_upscaled(arrays["images"][mine].astype(np.float64) / 16.0, _SIZE)), arrays["labels"][mine]


def _first_half(labels: Array) -> npt.NDArray[np.bool_]:
    """Returns a mask of every second digit of each class, so that both halves have the same classes."""
    first = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        first[np.flatnonzero(labels == label)[::2]] = True
    return first


def _levels(values: Floats) -> Levels:
    return np.round(values * 255.0).astype(np.uint8)


def _source(name: str, arrays: dict[str, Array]) -> Source:
    return CentredImages(arrays, name=name, place=str(_FILE))
