"""Cropping and mirroring: parts of the image, all equally likely; rows follow the global batch."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import random_crop_and_flip
from core.data.augment import affine, random_affine, random_crop
from core.random import Rng

RNG = Rng.from_seed(0)


def numbered(rows, height, width):
    """Returns images whose pixels encode their place: row of the batch, y and x."""
    return tf.constant(np.stack(np.indices([rows, height, width]), -1), tf.float32)


def squares(crops):
    """Returns top, left and mirroring of each; asserts that it is one piece of its own image."""
    crops = crops.numpy().astype(int)
    size = crops.shape[1]
    found = []
    for row, crop in enumerate(crops):
        top, left = crop[..., 1].min(), crop[..., 2].min()
        mirrored = crop[0, 0, 2] > crop[0, -1, 2]
        across = left + np.arange(size)[:: -1 if mirrored else 1]
        assert (crop[..., 0] == row).all()
        np.testing.assert_array_equal(crop[..., 1], np.tile(top + np.arange(size)[:, None], [1, size]))
        np.testing.assert_array_equal(crop[..., 2], np.tile(across, [size, 1]))
        found.append((top, left, mirrored))
    return np.array(found)


def test_crops_are_of_their_own_image_at_every_place_and_mirrored_half_the_time():
    found = squares(random_crop_and_flip(numbered(2000, 6, 5), 4, RNG))
    top, left, mirrored = found.T
    # Binomial counts: four standard deviations either way.
    for values, options in ((top, 3), (left, 2), (mirrored, 2)):
        counts = np.bincount(values, minlength=options)
        p = 1 / options
        assert len(counts) == options
        assert (abs(counts - 2000 * p) < 4 * np.sqrt(2000 * p * (1 - p))).all()
    joint = np.bincount(top * 4 + left * 2 + mirrored, minlength=12)
    assert (abs(joint - 2000 / 12) < 4 * np.sqrt(2000 / 12)).all()  # and independent of each other


def test_an_image_of_the_size_itself_is_only_mirrored():
    found = squares(random_crop_and_flip(numbered(40, 4, 4), 4, RNG))
    assert (found[:, :2] == 0).all()
    assert set(found[:, 2]) == {0, 1}


def test_one_rng_cuts_pairs_alike_and_folded_ones_differently():
    images = numbered(30, 9, 9)
    first = squares(random_crop_and_flip(images, 4, RNG))
    np.testing.assert_array_equal(squares(random_crop_and_flip(images, 4, RNG)), first)
    assert (squares(random_crop_and_flip(images, 4, RNG.fold("b"))) != first).any(axis=1).mean() > 0.8


def test_replicas_cut_their_rows_as_one_device_does():
    images = numbered(12, 7, 7)
    whole = random_crop_and_flip(images, 5, RNG)
    parts = [random_crop_and_flip(images[i : i + 4], 5, RNG._replace(first_row=i, num_rows=4)) for i in (0, 4, 8)]
    np.testing.assert_array_equal(tf.concat(parts, 0), whole)


def test_crop_without_rng_is_the_middle():
    images = numbered(3, 8, 6)
    np.testing.assert_array_equal(random_crop_and_flip(images, 4, None), images[:, 2:6, 1:5])
    np.testing.assert_array_equal(random_crop_and_flip(images, 6, None), images[:, 1:7])


@pytest.mark.parametrize("jit", [False, True])
def test_compiled_and_with_rows_unknown_the_cuts_are_the_same(jit):
    images = numbered(6, 7, 7)
    rows = 6 if jit else None
    signature = [tf.TensorSpec([rows, 7, 7, 3], tf.float32)]
    cut = tf.function(lambda x: random_crop_and_flip(x, 5, RNG), signature, jit_compile=jit, autograph=False)
    np.testing.assert_array_equal(cut(images), random_crop_and_flip(images, 5, RNG))


@pytest.mark.parametrize("rng", [RNG, None])
@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 8, 4)])
def test_a_square_larger_than_the_image_is_refused(shape, rng):
    with pytest.raises(ValueError, match=r"no square of 5 pixels can be cut; load them larger \(`load_size`"):
        random_crop_and_flip(numbered(*shape), 5, rng)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_narrow_images_and_draws_move_as_float32_ones(dtype):
    images = RNG.fold("images").uniform([64, 9, 9, 2])
    narrow, rng = tf.cast(images, dtype), RNG._replace(dtype=dtype)
    strengths = {"turn": 0.5, "shear": 0.3, "scale": 1.25, "shift": 1.0}
    for augment in (
        lambda x, rng: random_crop_and_flip(x, 5, rng),
        lambda x, rng: random_affine(x, rng, **strengths),
    ):
        found, expected = augment(narrow, rng), augment(tf.cast(narrow, tf.float32), RNG)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, tf.cast(expected, dtype))
    assert affine(narrow, turn=tf.cast(0.5, dtype), shift=rng.rows.normal(64, 2)).dtype == dtype


def test_random_crop_shifts_over_zeros_to_every_place_equally_often():
    images = numbered(400, 3, 4) + 1.0
    shifted = random_crop(images, RNG, padding=1).numpy().astype(int)
    found = []
    for row, image in enumerate(shifted):
        middle = image[1, 1] - [row + 1, 2, 2]  # the pixel in the middle, which is never padding, says how far it moved
        assert middle[0] == 0
        down, across = -middle[1:]
        padded = np.pad(images[row], [[1, 1], [1, 1], [0, 0]])
        np.testing.assert_array_equal(image, padded[1 - down : 4 - down, 1 - across : 5 - across])
        found.append(3 * (down + 1) + across + 1)
    counts = np.bincount(found, minlength=9)
    assert (abs(counts - 400 / 9) < 4 * np.sqrt(400 / 9)).all()


AUGMENTATIONS = {"random_crop": lambda x, rng: random_crop(x, rng, padding=2)}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_is_the_same_on_replicas_compiled_and_for_rows_unknown(name):
    augment, images = AUGMENTATIONS[name], RNG.fold("images").uniform([8, 7, 6, 3])
    whole = augment(images, RNG)
    assert not np.allclose(whole, images)
    parts = [augment(images[i : i + 4], RNG._replace(first_row=i, num_rows=4)) for i in (0, 4)]
    np.testing.assert_array_equal(tf.concat(parts, 0), whole)
    for jit, rows in ((True, 8), (False, None)):
        signature = [tf.TensorSpec([rows, 7, 6, 3])]
        traced = tf.function(lambda x: augment(x, RNG), signature, jit_compile=jit, autograph=False)
        np.testing.assert_allclose(traced(images), whole, rtol=1e-6, atol=1e-6)
