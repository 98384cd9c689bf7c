"""Augmentations of a discriminator's images: as SciPy moves them, in a share of the rows, with second derivatives."""

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core.random import Rng
from models import Augmentation

RNG = Rng.from_seed(0)
OFF = {"translation": 0.0, "scaling": 0.0, "brightness": 0.0, "contrast": 0.0}


def test_images_are_scaled_and_shifted_as_by_scipy():
    x = RNG.normal([5, 6, 8, 1])
    found = Augmentation(**{**OFF, "translation": 0.25, "scaling": 0.3})(x, tf.constant(1.0), RNG)
    zoom = 2.0 ** (0.3 * RNG.fold("scaling").rows.normal(5, 1)[:, 0].numpy())
    shifts = [2.0 * RNG.fold(name).rows.uniform(5, 1)[:, 0].numpy() - 1.0 for name in ("height", "width")]
    for i in range(5):
        middle = np.array([2.5, 3.5])
        shift = np.array([0.25 * 6 * shifts[0][i], 0.25 * 8 * shifts[1][i]])
        expected = scipy.ndimage.affine_transform(
            x[i, :, :, 0], [1.0 / zoom[i]] * 2, middle - middle / zoom[i] - shift, order=1, mode="nearest"
        )
        np.testing.assert_allclose(found[i, :, :, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "value"), [("brightness", 0.5), ("contrast", 0.5), ("noise", 0.5), ("cutout", 0.5), ("flip", True)]
)
def test_change_happens_to_a_share_of_the_rows(name, value):
    x = RNG.normal([400, 4, 4, 1])
    augmentation = Augmentation(**{**OFF, name: value})
    changed = np.any(augmentation(x, tf.constant(0.4), RNG) != x, (1, 2, 3))
    assert changed.mean() == pytest.approx(0.2 if name == "flip" else 0.4, abs=0.06)
    np.testing.assert_array_equal(augmentation(x, tf.constant(0.0), RNG), x)


def test_cutout_is_a_square_and_a_mirrored_image_is_exact():
    x = tf.ones([50, 8, 8, 1]) * tf.range(8.0)[:, tf.newaxis] + 1.0
    cut = Augmentation(**OFF, cutout=0.5)(x, tf.constant(1.0), RNG)
    holes = np.sum(cut == 0.0, (1, 2, 3))
    assert holes.max() <= 16
    assert holes.min() >= 4  # at a corner
    mirrored = Augmentation(**OFF, flip=True)(x, tf.constant(1.0), RNG)
    assert {bool(np.allclose(row, x[0, :, ::-1])) or -bool(np.allclose(row, x[0])) for row in mirrored} == {1, -1}


def test_changed_rows_are_the_same_in_any_part_of_the_batch():
    x = RNG.normal([6, 4, 4, 1])
    augmentation = Augmentation(noise=0.1, cutout=0.5)
    whole = augmentation(x, tf.constant(0.7), RNG)
    part = augmentation(x[4:], tf.constant(0.7), RNG._replace(first_row=4))
    np.testing.assert_allclose(part, whole[4:], atol=1e-6)
