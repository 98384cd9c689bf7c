"""The base task of image translation: images `a` and `b` of one shape, whole or cropped."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from core import losses
from core.data.augment import random_crop_and_flip
from core.errors import ConfigurationError
from core.metrics.state import ratio
from core.random import Rng
from core.task import Batch, Compute, Feature, Image, Phase, Served, Task


class Translation(Task):
    """Learns from images of `image_shape` (height, width, channels) in [-1, 1].

    With `crop_and_flip`, the source's images may be larger: they are cropped at random, and half of them are mirrored.
    With `paired`, both images of a row get the same crop and flip.
    """

    def __init__(self, image_shape: Sequence[int], *, multiple: int, why: str, crop_and_flip: bool, paired: bool):
        super().__init__()
        name = type(self).__name__
        if len(image_shape) != 3 or any(not isinstance(size, int) or size < 1 for size in image_shape):
            raise ConfigurationError(
                f"`{name}.image_shape` is {image_shape!r}; give height, width and channels, such as [256, 256, 3]."
            )
        height, width, _ = image_shape
        if height % multiple or width % multiple:
            raise ConfigurationError(
                f"`{name}.image_shape` is {list(image_shape)}, but {why}: use multiples of {multiple} for height and "
                "width."
            )
        if crop_and_flip and height != width:
            raise ConfigurationError(
                f"`{name}.crop_and_flip` crops squares, but `{name}.image_shape` is {list(image_shape)}: give it equal "
                "height and width, or leave `crop_and_flip` out."
            )
        self.image_shape, self.crop_and_flip, self.paired = tuple(image_shape), crop_and_flip, paired

    def crops(self) -> list[Phase]:
        """Lists the phase that crops images, to be put first. Without `crop_and_flip`, the list is empty."""
        return [Compute("crop", self.cut)] if self.crop_and_flip else []

    def cut(self, batch: Batch, rng: Rng | None) -> dict[str, tf.Tensor]:
        """Crops `a` and `b` to `image_shape`, at random, or at the centre without an `rng`: `{"cut_a", "cut_b"}`."""
        size = self.image_shape[0]
        if rng is None:
            rng_a = rng_b = None
        else:
            rng_a, rng_b = (rng, rng.again()) if self.paired else (rng.fold("a"), rng.fold("b"))
        return {
            "cut_a": random_crop_and_flip(batch["a"], size, rng_a),
            "cut_b": random_crop_and_flip(batch["b"], size, rng_b),
        }

    def images(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images `(a, b)` from the batch of a phase that comes after `crops()`; cropped if required."""
        return (batch["cut_a"], batch["cut_b"]) if self.crop_and_flip else (batch["a"], batch["b"])

    def translate(self, image: tf.Tensor) -> tf.Tensor:
        """Returns images of domain a as images of domain b, both in [-1, 1]."""
        raise ConfigurationError(f"`{type(self).__name__}` translates no images: it needs `translate(image)`.")

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        return {"a_to_b": self.served("a", self.translate)}

    def served(self, domain: str, translate: Callable[[tf.Tensor], tf.Tensor]) -> Served:
        """Returns an exported function that applies `translate` to images of `domain` ("a" or "b") in `image_shape`."""
        return Served(
            lambda batch: {"translated": translate(batch["image"])},
            {"image": tf.TensorSpec([None, *self.image_shape])},
            examples=lambda batch: {"image": self.held_out(batch)["ab".index(domain)]},
        )

    def held_out(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images `(a, b)` of an evaluation batch, cropped at the centre to `image_shape` if required."""
        return self.images(self.cut(batch, None) if self.crop_and_flip else batch)

    def reads(self) -> dict[str, Feature]:
        """Returns the features `a` and `b`: images of `image_shape`, or at least that large with `crop_and_flip`."""
        larger = "" if self.crop_and_flip else f", or let `{type(self).__name__}.crop_and_flip` cut larger ones"
        size: Literal["at_least", "equal"] = "at_least" if self.crop_and_flip else "equal"
        image = Image(self.image_shape, low=-1.0, high=1.0, size=size, remedy=f"give both the same size{larger}")
        return {"a": image, "b": image}


def checked_translation(task: Task) -> Translation:
    """Returns `task` if it is a `Translation`, else raises a `ConfigurationError`."""
    if not isinstance(task, Translation):
        raise ConfigurationError(
            f"`{type(task).__name__}` translates no images: it needs `translate(image)`, as a "
            "`models.translation.Translation` has it."
        )
    return task


def mean_distance(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the mean absolute difference between `images` and `targets` of each row: [rows]."""
    return tf.reduce_mean(losses.absolute_error(images, targets), axis=[1, 2, 3])


class Ratio(NamedTuple):
    """A metric Σ value / Σ unit: for example, errors of translations relative to errors of unchanged images."""

    total: tf.Tensor
    unit: tf.Tensor

    @classmethod
    def of(cls, values: tf.Tensor, units: tf.Tensor) -> "Ratio":
        """Adds up `values` and `units`, which have one number per example."""
        return cls(*(tf.reduce_sum(tf.cast(x, tf.float64)) for x in (values, units)))

    def result(self) -> tf.Tensor:
        """Returns Σ value / Σ unit."""
        return ratio(self.total, self.unit)
