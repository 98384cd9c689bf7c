"""FID, KID, precision and recall of samples during training, in the features of Inception V3.

In a gin file:

    Trainer.hooks = [@ImageQuality()]
    ImageQuality.every = 10_000
    ImageQuality.weights = "pt_inception-2015-12-05-6726825d.pth"
"""

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_size
from core.cluster import is_chief
from core.data import Source, Stream, check_feature
from core.errors import ConfigurationError
from core.precision import SAMPLE
from core.random import Rng
from models.features import image_quality, load_inception
from models.features.images import resized
from models.features.quality import NEIGHBOURS
from trainers.errors.tensorflow import explained
from trainers.hooks import Hook, Run
from trainers.hooks.samples import Sampler, levels, make_sampler

Features = Callable[[tf.Tensor], tf.Tensor]


@gin.configurable
class ImageQuality(Hook):
    """Compares `samples` generated images with the training source's `image`s, in the features of Inception V3.

    `weights` is the path of `pt_inception-2015-12-05-6726825d.pth`, which `pytorch-fid` downloads. Real images are all
    of the source, or `real_samples` of them, chosen at random once, and have the size of the samples. Images are
    rounded to 256 levels, as files of images are. `batch_size` images are generated and compared at once.
    """

    def __init__(
        self,
        every: int | None = None,
        *,
        weights: str = gin.REQUIRED,
        samples: int = 10_000,
        real_samples: int | None = None,
        batch_size: int = 64,
    ):
        super().__init__(every)
        counts = {"samples": samples, "real_samples": samples if real_samples is None else real_samples}
        check_size(**{f"ImageQuality.{name}": count for name, count in (*counts.items(), ("batch_size", batch_size))})
        for name, count in counts.items():
            if count <= NEIGHBOURS:
                raise ConfigurationError(
                    f"`ImageQuality.{name}` is {count}; distances need more than {NEIGHBOURS} images, and thousands to "
                    "be steady."
                )
        self.weights, self.samples, self.real_samples, self.batch_size = weights, samples, real_samples, batch_size
        self._features: Features | None = None
        self._sampler: Sampler | None = None
        self._real: tf.Tensor | None = None

    def check(self, run: Run) -> None:
        if is_chief():
            self._prepare(run)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if is_chief():
            run.report("inception", self._measured(run))

    def _prepare(self, run: Run) -> tuple[Sampler, Features]:
        """Reads the weights, and traces the sampler."""
        if self._sampler is not None and self._features is not None:
            return self._sampler, self._features
        _checked(run.experiment.train_source)
        self._sampler = make_sampler(
            run.averaged.task,
            run.experiment.seed,
            self.batch_size,
            in_parts=True,
            narrowing=run.experiment.narrowing(SAMPLE),
            say=run.telemetry.note,
        )
        channels = self._sampler.structured_outputs["image"].shape[3]
        if channels not in (1, 3):
            raise ConfigurationError(
                f"`sample` of `{type(run.averaged.task).__name__}` returns images of {channels} channels, but the hook "
                "`ImageQuality` compares images of 1 or 3: remove the hook, or train on such images."
            )
        net = load_inception(self.weights)

        @tf.function(reduce_retracing=True, autograph=False)
        def features(image: tf.Tensor) -> tf.Tensor:
            return net(tf.cast(levels(image), tf.float32) / 255.0)

        self._features = features
        return self._sampler, features

    def _measured(self, run: Run) -> dict[str, float]:
        sampler, features = self._prepare(run)
        parts, size = [], self.batch_size
        for number in range(-(-self.samples // size)):
            image = sampler(tf.constant(number, tf.int64))["image"]
            parts.append(features(image[: self.samples - number * size]))
        if self._real is None:
            self._real = self._of_real(_checked(run.experiment.train_source), tuple(image.shape[1:3]), features)
        return image_quality(self._real, tf.concat(parts, 0))

    def real_numbers(self, count: int) -> tf.Tensor:
        """Returns the numbers of the real images to compare with, among `count`."""
        if self.real_samples is None or self.real_samples >= count:
            return tf.range(count, dtype=tf.int64)
        order = tf.argsort(Rng.from_seed(0).fold("real").wide.uniform([count]))
        return tf.cast(order[: self.real_samples], tf.int64)

    def _of_real(self, source: Source, size: tuple[int, int], features: Features) -> tf.Tensor:
        numbers = self.real_numbers(len(source))
        with explained(source):
            parts = [
                features(2.0 * resized(source.gather(some)["image"], size) - 1.0)
                for some in tf.split(numbers, _sizes(len(numbers), self.batch_size))
            ]
        return tf.concat(parts, 0)


def _sizes(count: int, most: int) -> list[int]:
    return [min(most, count - first) for first in range(0, count, most)]


def _checked(source: Any) -> Source:
    """Returns `source` if it has images in [0, 1] that can be read by number."""
    if isinstance(source, Stream):
        raise ConfigurationError(
            f"`Experiment.train_source` is the stream `{source.name}`, which has no fixed images to compare samples "
            "with: remove the hook `ImageQuality`, or train on a source by number."
        )
    check_feature(source, "image")
    low, high = source.value_range("image") or (0.0, 1.0)
    if low < 0.0 or high > 1.0 or len(source) <= NEIGHBOURS:
        raise ConfigurationError(
            f"the source `{source.name}` has {len(source):,} images in [{low:g}, {high:g}], but the hook "
            f"`ImageQuality` compares samples with more than {NEIGHBOURS} images in [0, 1]: remove it, or rescale them."
        )
    return source
