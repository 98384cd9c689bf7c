"""Pictures of samples, and a judge of digits."""

import numpy as np
import tensorflow as tf

from core.data import digits
from models import DigitQuality
from trainers.generation import encode_grid


def test_a_grid_shows_each_image_in_its_place():
    images = np.full([5, 4, 4, 1], -1.0, "float32")
    images[3] = 1.0
    grid = tf.io.decode_png(encode_grid(tf.constant(images))).numpy()[..., 0]
    assert grid.shape == (2 * 6, 3 * 6)
    assert np.all(grid[7:11, 1:5] == 255)
    assert np.all(grid[1:5, 1:5] == 0)


def test_real_digits_are_as_good_as_real_digits():
    source = digits("train")
    chosen = source.gather(tf.constant(np.random.RandomState(0).permutation(len(source))[:898], tf.int64))
    figures = DigitQuality()(2.0 * chosen["image"] - 1.0, chosen["label"])
    assert 0.5 < figures["frechet_ratio"] < 1.5
    assert figures["coverage"] == 10
    assert figures["label_accuracy"] > 0.97
    assert 0.9 < figures["diversity"] < 1.1


def test_one_digit_over_and_over_is_a_collapse():
    one = digits("train").gather(tf.zeros([898], tf.int64))
    figures = DigitQuality()(2.0 * one["image"] - 1.0)
    assert figures["coverage"] == 1
    assert figures["frechet_ratio"] > 10.0
    assert figures["diversity"] < 0.01


def test_size_and_colour_do_not_matter():
    some = digits("test").gather(tf.range(300, dtype=tf.int64))
    image = 2.0 * some["image"] - 1.0
    large = tf.repeat(tf.repeat(tf.repeat(image, 4, 1), 4, 2), 3, 3)
    a, b = (DigitQuality()(x, some["label"]) for x in (image, large))
    np.testing.assert_allclose(a["frechet"], b["frechet"], rtol=1e-3)
