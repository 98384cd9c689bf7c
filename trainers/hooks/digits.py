"""Small classifiers of digits that measure the quality of generated digits."""

import functools
import itertools
from collections.abc import Callable

import gin
import tensorflow as tf

from core import layers, losses, metrics
from core.data import Source, digit_pairs, digits, train_chunks
from core.module import Module, named_variables
from core.optimizers import Optimizer, adam
from core.random import Rng
from core.task import Batch

FEATURES, CLASSES = 64, 10
STEPS, ROWS, CHUNK_STEPS = 600, 64, 10


class DigitJudge(Module):
    """A digit classifier with 64 features. `__init__` trains it in about a second, with equal results in every run.

    It learns the `label`s of `source` from `image(batch)`: images [batch, height, width, channels] in [-1, 1].
    """

    def __init__(self, source: Source, image: Callable[[Batch], tf.Tensor], *, seed: int = 0):
        super().__init__()
        rng = Rng.from_seed(seed).fold("judge")
        self.first = layers.Linear(64, 128, rng=rng.fold("first"))
        self.second = layers.Linear(128, FEATURES, rng=rng.fold("second"))
        self.last = layers.Linear(FEATURES, CLASSES, rng=rng.fold("last"))
        self._train(source, image, seed)

    def features(self, image: tf.Tensor) -> tf.Tensor:
        """Returns features [n, 64] of images in [-1, 1] of any size and number of channels."""
        grey = tf.reduce_mean((tf.cast(image, tf.float32) + 1.0) / 2.0, axis=-1, keepdims=True)
        if grey.shape[1:3] != [8, 8]:
            grey = tf.image.resize(grey, [8, 8], method="area")
        return tf.nn.relu(self.second(tf.nn.relu(self.first(tf.reshape(grey, [-1, 64])))))

    def label(self, image: tf.Tensor) -> tf.Tensor:
        """Returns the predicted digit of each image; -1 if its logits are NaN."""
        return tf.cast(metrics.predicted(self.last(self.features(image))), tf.int32)

    def _train(self, source: Source, image: Callable[[Batch], tf.Tensor], seed: int) -> None:
        optimizer = Optimizer(adam(2e-3), named_variables(self, trainable_only=True))
        chunks = train_chunks(source, global_batch_size=ROWS, microbatches=1, chunk_steps=CHUNK_STEPS, seed=seed)

        @tf.function(autograph=False)
        def train(chunk: Batch) -> None:
            def step(i: tf.Tensor) -> tuple[tf.Tensor]:
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(list(optimizer.parameters.values()))
                    batch = {key: x[i, 0] for key, x in chunk.items()}
                    logits = self.last(self.features(image(batch)))
                    loss = tf.reduce_mean(losses.softmax_cross_entropy(logits, batch["label"]))
                optimizer.apply(tape.gradient(loss, optimizer.parameters))
                return (i + 1,)

            tf.while_loop(lambda i: i < CHUNK_STEPS, step, (tf.constant(0),))

        for chunk in itertools.islice(chunks, STEPS // CHUNK_STEPS):  # all at once would take a gigabyte
            train(chunk)


@functools.cache
def _judge(seed: int) -> DigitJudge:
    return DigitJudge(digits("train"), _plain, seed=seed)


@functools.cache
def _judge_of_thick_digits(seed: int) -> DigitJudge:
    return DigitJudge(digit_pairs("train"), lambda batch: batch["b"], seed=seed)


@functools.cache
def _features_of_real(seed: int, size: tuple[int, int]) -> tf.Tensor:
    """Returns the features of all real digits, resized to `size` (height, width) like a GAN's training images."""
    images = [_plain(source.gather(tf.range(len(source), dtype=tf.int64))) for source in map(digits, ("train", "test"))]
    return _judge(seed).features(tf.image.resize(tf.concat(images, 0), size))


def _plain(batch: Batch) -> tf.Tensor:
    return 2.0 * batch["image"] - 1.0


class DigitQuality:
    """Measures the quality of generated digits, relative to real digits."""

    samples = 898  # half of all digits; the other half is the reference

    def __init__(self, seed: int = 0):
        self.seed = seed

    def __call__(self, image: tf.Tensor, label: tf.Tensor | None = None) -> dict[str, float]:
        """Returns quality metrics of images in [-1, 1]. `label_accuracy` is the share that show their `label`."""
        judge, real = _judge(self.seed), _features_of_real(self.seed, tuple(image.shape[1:3]))
        fake = judge.features(image)
        distance = self._distance(fake, real)
        among_real = float(metrics.Frechet.between_halves(real, seed=self.seed))
        predicted = judge.label(image)
        figures = {
            "frechet": distance,
            "frechet_real": among_real,
            "frechet_ratio": distance / among_real,
            "precision": float(tf.reduce_mean(metrics.in_manifold(fake, real))),
            "recall": float(tf.reduce_mean(metrics.in_manifold(real, fake))),
            "coverage": float(metrics.ClassCoverage.of(predicted, CLASSES).result()),
            "diversity": _spread(fake) / _spread(real),
        }
        if label is not None:
            figures["label_accuracy"] = float(
                tf.reduce_mean(tf.cast(predicted == tf.cast(label, tf.int32), tf.float32))
            )
        return figures

    def _distance(self, fake: tf.Tensor, real: tf.Tensor) -> float:
        """Returns the mean Fréchet distance between `fake` and ten random subsets of `real` of the same size."""
        rng, distances = Rng.from_seed(self.seed).fold("halves"), []
        for split in range(10):
            order = tf.argsort(rng.fold(split).uniform([real.shape[0]]))
            half = tf.gather(real, order[: fake.shape[0]])
            distances.append(float(metrics.Frechet.of(half, fake).result()))
        return sum(distances) / len(distances)


def _spread(features: tf.Tensor) -> float:
    return float(tf.sqrt(tf.reduce_sum(tf.math.reduce_variance(features, axis=0))))


@gin.configurable
def digit_quality(seed: int = 0) -> DigitQuality:
    """Makes a `Quality.judge` for digits, which uses a classifier that is trained at the first call."""
    return DigitQuality(seed)


@gin.configurable
def kept_digits(seed: int = 0) -> Callable[[tf.Tensor, tf.Tensor], dict[str, float]]:
    """Makes a `Translations.judge` for `digit_pairs`: the share of translated digits that keep their digit.

    A classifier decides, trained at the first call on real thick coloured digits.
    """

    def kept(image: tf.Tensor, label: tf.Tensor) -> dict[str, float]:
        same = _judge_of_thick_digits(seed).label(image) == tf.cast(label, tf.int32)
        return {"class_kept": float(tf.reduce_mean(tf.cast(same, tf.float32)))}

    return kept
