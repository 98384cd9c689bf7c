"""Pictures of samples, and a classifier that evaluates digits."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import digit_pairs, digits
from core.optimizers import sgd
from core.task import Loss, Update
from models.translation.task import Translation
from tests.trainers.hooks.hooks_lab import Maker
from tests.trainers.trainer_lab import make, train
from trainers.hooks import DigitQuality, Reconstructions, SampleGrid, Translations, kept_digits
from trainers.hooks.samples import encode_grid


def test_grid_shows_each_image_in_its_place():
    images = np.full([5, 4, 4, 1], -1.0, "float32")
    images[3] = 1.0
    grid = tf.io.decode_png(encode_grid(tf.constant(images))).numpy()[..., 0]
    assert grid.shape == (2 * 6, 3 * 6)
    assert np.all(grid[7:11, 1:5] == 255)
    assert np.all(grid[1:5, 1:5] == 0)


@pytest.fixture(scope="module")
def some():
    """Returns real digits and labels."""
    chosen = digits("train").gather(tf.constant(np.random.RandomState(0).permutation(1437)[:898], tf.int64))
    return 2.0 * chosen["image"] - 1.0, chosen["label"]


def test_quality_of_real_digits_is_that_of_real_digits(some):
    figures = DigitQuality()(*some)
    assert 0.5 < figures["frechet_ratio"] < 1.5
    assert figures["coverage"] == 10
    assert figures["label_accuracy"] > 0.97
    assert 0.9 < figures["diversity"] < 1.1


def test_quality_of_one_digit_repeated_is_a_collapse():
    one = digits("train").gather(tf.zeros([898], tf.int64))
    figures = DigitQuality()(2.0 * one["image"] - 1.0)
    assert figures["coverage"] == 1
    assert figures["frechet_ratio"] > 10.0
    assert figures["diversity"] < 0.01
    assert figures["precision"] == 1.0
    assert figures["recall"] < 0.1


def test_quality_of_larger_coloured_digits_is_that_of_digits_as_large(some):
    large = tf.repeat(tf.image.resize(some[0], [32, 32]), 3, 3)
    figures = DigitQuality()(large, some[1])
    assert 0.5 < figures["frechet_ratio"] < 1.5
    assert figures["label_accuracy"] > 0.9


@pytest.mark.long
def test_kept_digits_are_the_same_when_thick():
    pairs = digit_pairs("test").gather(tf.range(360, dtype=tf.int64))
    assert kept_digits()(pairs["b"], pairs["label"])["class_kept"] > 0.95
    assert kept_digits()(tf.reverse(pairs["b"], [0]), pairs["label"])["class_kept"] < 0.3


class Negative(Maker):
    """Reconstructs images in [0, 1] as their negatives."""

    def loss(self, batch, rng):
        return Loss(batch["image"][:, 0, 0, 0] * self.w)

    def evaluate(self, batch):
        return self.loss(batch, None)

    def reconstruct(self, batch):
        image = 2.0 * batch["image"] - 1.0
        return {"image": image, "reconstructed": -image}


def test_samples_and_reconstructions_are_written_while_training(tmp_path):
    settings = {"task": Negative, "source": digits("train"), "eval_source": digits("test")}
    settings |= {"steps": 4, "chunk_steps": 2, "log_every": None}
    train(make(tmp_path, hooks=[SampleGrid(2), Reconstructions(2, count=5)], **settings))
    written = {path.name for path in (tmp_path / "run" / "samples").glob("*.png")}
    assert written == {f"{kind}-00000000{step}.png" for kind in ("step", "reconstructed") for step in (2, 4)}
    shown = tf.io.decode_png((tmp_path / "run" / "samples" / "reconstructed-000000004.png").read_bytes()).numpy()
    assert shown.shape == (2 * 10, 3 * 18, 1)  # five pairs in a grid of two by three, a pixel of frame around each
    first = digits("test").gather(tf.constant([0], tf.int64))["image"][0]
    np.testing.assert_allclose(shown[1:9, 1:9] / 255.0, first, atol=1 / 255)
    np.testing.assert_allclose(shown[1:9, 9:17] / 255.0, 1.0 - first, atol=1 / 255)


class Faded(Translation):
    """Translates images with one factor."""

    def __init__(self, *, rng):
        super().__init__([32, 32, 3], multiple=1, why="", crop_and_flip=False, paired=False)
        self.factor = tf.Variable(0.5, name="factor")

    def phases(self):
        return [Update("factor", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(tf.square(self.translate(batch["a"]) - batch["b"]), [1, 2, 3]))

    def evaluate(self, batch):
        return self.loss(batch, None)

    def translate(self, image):
        return self.factor * image


@pytest.mark.long
def test_translations_are_shown_and_judged_while_they_train(tmp_path):
    settings = {"task": Faded, "source": digit_pairs("train", paired=False), "eval_source": digit_pairs("test")}
    settings |= {"steps": 4, "chunk_steps": 2, "log_every": None, "global_batch_size": 4}
    trainer = make(tmp_path, hooks=[Translations(2, count=5, judge=kept_digits())], **settings)
    train(trainer)
    assert 0.0 <= trainer.evaluation["quality/class_kept"] <= 1.0
    shown = [
        tf.io.decode_png((tmp_path / "run" / "samples" / f"step-{step:09d}.png").read_bytes()).numpy()
        for step in (2, 4)
    ]
    assert shown[0].shape == (2 * 34, 3 * 66, 3)
    pairs = digit_pairs("test").gather(tf.range(5, dtype=tf.int64))
    for images in shown:  # on the left the plain digit itself, on the right its translation
        np.testing.assert_allclose(images[1:33, 1:33] / 127.5 - 1.0, pairs["a"][0], atol=0.01)
    factor = trainer.experiment.task.factor
    np.testing.assert_allclose(shown[1][1:33, 33:65] / 127.5 - 1.0, factor * pairs["a"][0], atol=0.01)
    assert not np.array_equal(shown[0], shown[1])
