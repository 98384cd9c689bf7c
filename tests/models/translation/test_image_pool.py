"""The history of images against a plain Python one, and in a step of several replicas."""

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.module import named_variables
from core.random import Rng
from models.translation.image_pool import ImagePool, exchange


class PlainPool:
    """Processes one image after the other, like the paper's own code, with given draws."""

    def __init__(self, size):
        self.size, self.images = size, []

    def show(self, image, coin, place):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        if coin >= 0.5:
            return image
        slot = int(place * self.size)
        old, self.images[slot] = self.images[slot], image
        return old


def numbered(first, rows):
    """Returns distinguishable images."""
    return np.arange(first, first + rows, dtype="float32").reshape(-1, 1, 1, 1) + np.zeros([1, 2, 2, 1], "float32")


@pytest.mark.parametrize(("size", "rows"), [(9, 1), (5, 3), (4, 4), (3, 8), (1, 5), (7, 64)])
def test_pool_takes_one_image_after_the_other(size, rows):
    random, plain = np.random.RandomState(size), PlainPool(size)
    pool, count = tf.zeros([size, 2, 2, 1]), tf.constant(0, tf.int64)
    for step in range(max(6, 4 * size // rows)):  # some of it while the pool is full
        images, draws = numbered(1 + step * rows, rows), random.rand(rows, 2).astype("float32")
        shown, pool, count = exchange(pool, count, tf.constant(images), tf.constant(draws))
        expected = [plain.show(image, *draw) for image, draw in zip(images, draws, strict=True)]
        np.testing.assert_array_equal(shown, expected)
        assert int(count) == len(plain.images)
        np.testing.assert_array_equal(pool[: len(plain.images)], plain.images)
    assert int(count) == size


def test_pool_shows_the_same_however_a_batch_is_cut():
    images, draws = tf.constant(numbered(1, 24)), tf.constant(np.random.RandomState(0).rand(24, 2).astype("float32"))
    whole = exchange(tf.zeros([5, 2, 2, 1]), tf.constant(0, tf.int64), images, draws)
    pool, count, parts = tf.zeros([5, 2, 2, 1]), tf.constant(0, tf.int64), []
    for start, stop in [(0, 1), (1, 8), (8, 20), (20, 24)]:
        shown, pool, count = exchange(pool, count, images[start:stop], draws[start:stop])
        parts.append(shown)
    for one, other in zip(whole, (tf.concat(parts, 0), pool, count), strict=True):
        np.testing.assert_array_equal(one, other)


def test_full_pool_shows_old_images_half_of_the_time():
    pool = ImagePool(50, [2, 2, 1])
    keep(pool(tf.constant(numbered(0, 50)), rng(0)))
    old = 0
    for step in range(1, 41):
        images = numbered(50 * step, 50)
        shown = keep(pool(tf.constant(images), rng(step)))
        old += int(np.sum(shown.numpy()[:, 0, 0, 0] < 50 * step))
        assert set(shown.numpy()[:, 0, 0, 0]) <= set(range(50 * step + 50))
    # Fewer than half: an image can leave the pool again in the batch in which it came.
    swapped = 40 * 50 / 2
    assert 0.6 * swapped < old < 1.02 * swapped


def test_pool_only_returns_its_next_state():
    pool = ImagePool(3, [2, 2, 1])
    before = {path: v.numpy() for path, v in named_variables(pool).items()}
    shown, state = pool(tf.constant(numbered(1, 5)), rng(0))
    assert shown.shape == [5, 2, 2, 1]
    assert {reference.deref().name for reference in state} == {"images:0", "count:0"}
    for path, variable in named_variables(pool).items():
        np.testing.assert_array_equal(variable, before[path])
        assert not variable.trainable


def test_pool_of_size_zero_shows_its_input():
    phase, images = ImagePool(0, [2, 2, 1]).phase("pool", "fake", "shown"), tf.constant(numbered(1, 3))
    assert phase.state is None  # so that nothing is gathered for it
    np.testing.assert_array_equal(phase.fn({"fake": images}, rng(0))["shown"], images)


def test_pool_phase_shows_the_same_as_the_pool():
    pool, images = ImagePool(3, [2, 2, 1]), tf.constant(numbered(1, 8))
    phase = pool.phase("pool", "fake", "shown")
    assert phase.state is pool
    shown, state = phase.fn({"fake": images}, rng(0))
    np.testing.assert_array_equal(shown["shown"], pool(images, rng(0))[0])
    assert len(state) == 2


def test_pool_of_negative_size_is_refused():
    with pytest.raises(ConfigurationError, match="`size` of an image pool is -1; it counts images"):
        ImagePool(-1, [2, 2, 1])


def rng(step):
    return Rng.from_seed(step)


def keep(result):
    shown, state = result
    for reference, value in state.items():
        reference.deref().assign(value)
    return shown
