"""Cropping and mirroring: parts of the image, all equally likely; rows follow the global batch."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import (
    colour_jitter,
    cutmix,
    mixup,
    rand_augment,
    random_crop,
    random_crop_and_flip,
    random_erasing,
    random_flip,
)
from core.data.augment import affine, random_affine
from core.data.mixing import _beta
from core.data.rand_augment import OPERATIONS, _coloured, _moved
from core.random import Rng
from core.rows import sharing_rows

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


@pytest.mark.long
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


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_random_crop_shifts_to_every_place_equally_often(mode):
    images = numbered(400, 3, 4) + 1.0
    shifted = random_crop(images, RNG, padding=1, reflect=mode == "reflect").numpy().astype(int)
    found = []
    for row, image in enumerate(shifted):
        middle = image[1, 1] - [row + 1, 2, 2]  # the pixel in the middle, which is never padding, says how far it moved
        assert middle[0] == 0
        down, across = -middle[1:]
        padded = np.pad(images[row], [[1, 1], [1, 1], [0, 0]], mode=mode)
        np.testing.assert_array_equal(image, padded[1 - down : 4 - down, 1 - across : 5 - across])
        found.append(3 * (down + 1) + across + 1)
    counts = np.bincount(found, minlength=9)
    assert (abs(counts - 400 / 9) < 4 * np.sqrt(400 / 9)).all()


def test_random_crop_reflects_no_more_pixels_than_there_are():
    with pytest.raises(ValueError, match=r"`padding` is 3, but images of 3 by 4 have no more than 2 pixels to reflect"):
        random_crop(numbered(2, 3, 4), RNG, padding=3, reflect=True)


AUGMENTATIONS = {
    "random_affine": lambda x, rng: random_affine(x, rng, turn=0.5, shear=0.3, scale=1.25, shift=1.0),
    "random_crop": lambda x, rng: random_crop(x, rng, padding=2),
    "random_crop, reflected": lambda x, rng: random_crop(x, rng, padding=2, reflect=True),
    "random_flip": random_flip,
    "random_erasing": random_erasing,
    "colour_jitter": lambda x, rng: colour_jitter(x, rng, hue=0.3),
    "rand_augment": rand_augment,
}


def test_drawn_operations_of_a_row_depend_on_its_number_alone():
    images = RNG.fold("images").uniform([8, 7, 6, 3])
    whole = rand_augment(images, RNG)
    assert np.abs(whole - images).max(axis=(1, 2, 3)).astype(bool).sum() >= 6  # few operations leave small images alone
    part = rand_augment(images[4:], RNG._replace(first_row=4, num_rows=4))
    np.testing.assert_array_equal(part, whole[4:])
    with pytest.raises(ValueError, match=r"`magnitude` is 31; give a number from 0 to 30\."):
        rand_augment(images, RNG, magnitude=31)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n == "rand_augment")) for n in AUGMENTATIONS]
)
def test_augmentation_is_the_same_on_replicas_compiled_and_for_rows_unknown(name):
    augment, images = AUGMENTATIONS[name], RNG.fold("images").uniform([8, 7, 6, 3])
    whole = augment(images, RNG)
    assert whole.shape == images.shape
    assert not np.allclose(whole, images)
    assert tf.reduce_min(whole) >= 0.0
    assert tf.reduce_max(whole) <= 1.0
    assert augment(tf.cast(images, tf.bfloat16), RNG._replace(dtype=tf.bfloat16)).dtype == tf.bfloat16
    parts = [augment(images[i : i + 4], RNG._replace(first_row=i, num_rows=4)) for i in (0, 4)]
    rounding = 1e-6 if name == "random_affine" else 0.0  # of its products, whose order depends on the number of rows
    np.testing.assert_allclose(tf.concat(parts, 0), whole, rtol=0.0, atol=rounding)
    for jit, rows in ((True, 8), (False, None)):
        signature = [tf.TensorSpec([rows, 7, 6, 3])]
        traced = tf.function(lambda x: augment(x, RNG), signature, jit_compile=jit, autograph=False)
        np.testing.assert_allclose(traced(images), whole, rtol=1e-6, atol=1e-6)


def test_flip_mirrors_half_of_the_images():
    images = numbered(400, 1, 5)
    mirrored = random_flip(images, RNG).numpy()[:, 0, 0, 2] == 4
    np.testing.assert_array_equal(mirrored, random_flip(images, RNG).numpy()[:, 0, 4, 2] == 0)
    assert abs(mirrored.sum() - 200) < 4 * np.sqrt(100)


def test_erasing_clears_one_rectangle_of_the_asked_area():
    erased = random_erasing(tf.ones([300, 20, 20, 1]), RNG, area=(0.1, 0.2), aspect=(0.5, 2.0)).numpy()[..., 0] == 0.0
    touched = erased.any(axis=(1, 2))
    assert abs(touched.sum() - 150) < 4 * np.sqrt(75)
    for image in erased[touched]:
        tall, wide = image.any(axis=1).sum(), image.any(axis=0).sum()
        assert tall * wide == image.sum()
        assert 0.08 < image.mean() < 0.22
        assert 0.4 < tall / wide < 2.5


def test_jitter_of_nothing_keeps_the_image_and_grey_stays_grey():
    images = RNG.uniform([4, 5, 5, 3])
    still = colour_jitter(images, RNG, brightness=0.0, contrast=0.0, saturation=0.0)
    np.testing.assert_allclose(still, images, atol=1e-6)
    grey = tf.repeat(RNG.uniform([4, 5, 5, 1]), 3, axis=-1)
    found = colour_jitter(grey, RNG, hue=0.5).numpy()
    np.testing.assert_allclose(found, np.repeat(found[..., :1], 3, axis=-1), atol=1e-5)
    with pytest.raises(ValueError, match=r"`images` of `colour_jitter` has shape \(4, 5, 5, 2\); give"):
        colour_jitter(images[..., :2], RNG)


def row_of(operation, strength, image):
    """Returns `image` after one operation of `rand_augment`."""
    which, strength = tf.constant([OPERATIONS.index(operation)]), tf.constant([strength])
    images = tf.constant(image, tf.float32)[None, ..., None]
    return _coloured(_moved(images, which, strength), which, strength).numpy()[0, ..., 0]


def test_operations_of_rand_augment_are_those_of_torchvision():
    image = np.arange(1, 10).reshape(3, 3) / 32.0
    np.testing.assert_array_equal(row_of("identity", 1.0, image), image)
    np.testing.assert_array_equal(row_of("shift_x", 331.0 / 150.0 / 3.0, image), np.pad(image, [[0, 0], [1, 0]])[:, :3])
    np.testing.assert_array_equal(row_of("shift_y", -331.0 / 150.0 / 3.0, image), np.pad(image, [[0, 1], [0, 0]])[1:])
    np.testing.assert_array_equal(row_of("rotate", 3.0, image), np.rot90(image, -1))  # by 90 degrees
    np.testing.assert_array_equal(row_of("shear_x", 1.0 / 0.3, np.eye(3)), [[0, 1, 0]] * 3)
    np.testing.assert_allclose(row_of("brightness", -1.0, image), 0.1 * image, rtol=1e-6)
    np.testing.assert_allclose(row_of("contrast", -1.0, image), 0.1 * image + 0.9 * image.mean(), rtol=1e-6)
    np.testing.assert_allclose(row_of("autocontrast", 1.0, image), (image - image.min()) / np.ptp(image), rtol=1e-6)
    flat = np.full_like(image, 0.25)
    np.testing.assert_array_equal(row_of("autocontrast", 1.0, flat), flat)
    np.testing.assert_array_equal(row_of("posterize", 1.0, image), np.floor(image * 16) / 16)
    np.testing.assert_array_equal(row_of("solarize", 0.5, image), np.where(image >= 0.5, 1 - image, image))
    sharp = row_of("sharpness", -1.0, image)
    np.testing.assert_allclose(sharp[1, 1], 0.1 * image[1, 1] + 0.9 * (image.sum() + 4 * image[1, 1]) / 13, rtol=1e-6)


class OfTwo:
    """The second of two replicas, and the values that both would gather, in the order of the calls."""

    def __init__(self, gathered):
        self.gathered = iter(gathered)

    def all(self, x):
        return next(self.gathered)

    def own(self, x):
        return x[len(x) // 2 :]


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_mixing_takes_each_partner_once_the_same_on_replicas(mix):
    images, labels = RNG.uniform([8, 4, 4, 1]), tf.eye(8)
    mixed, targets = mix(images, labels, RNG)
    np.testing.assert_allclose(tf.reduce_sum(targets, 1), np.ones(8), rtol=1e-6)
    partners = np.argsort(targets - 2.0 * labels, axis=1)[:, -1]
    share = np.take_along_axis(targets.numpy(), partners[:, None], 1)[:, 0]
    assert sorted(partners[share > 1e-6]) == sorted({*partners[share > 1e-6]})
    if mix is mixup:
        expected = tf.tensordot(targets, images, 1)
        np.testing.assert_allclose(mixed, expected, atol=1e-6)
    else:
        kept = np.isclose(mixed, images)
        assert (kept | np.isclose(mixed, images.numpy()[partners])).all()
        np.testing.assert_allclose(1.0 - share, kept.mean(axis=(1, 2, 3)), atol=1e-6)
    place = RNG.wide.rows.uniform(8, 2)[:, 0]
    with sharing_rows(OfTwo([place, images, labels])):
        half = mix(images[4:], labels[4:], RNG._replace(first_row=4, num_rows=4))
    np.testing.assert_array_equal(half[0], mixed[4:])
    np.testing.assert_array_equal(half[1], targets[4:])


def test_shares_have_the_beta_distribution():
    unit = tf.constant([0.0, 0.1, 0.5, 0.9], tf.float32)
    found = _beta(unit, 0.5).numpy()
    np.testing.assert_allclose(found, np.sin(0.5 * np.pi * unit.numpy()) ** 2, atol=1e-6)  # the arcsine distribution
    np.testing.assert_array_equal(_beta(unit, 1.0), unit)
    for mix in (mixup, cutmix):
        with pytest.raises(ValueError, match="`alpha` is 0"):
            mix(RNG.uniform([4, 2, 2, 1]), tf.eye(4), RNG, alpha=0.0)
