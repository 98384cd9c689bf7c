"""The order of the examples: unrelated permutations, the same for every way of asking."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from core.data.shuffle import shuffled
from core.random import Rng

SMALL, LARGE = 1797, 6000  # one size on either side of the change of method


def order_of(seed):
    return Rng.from_seed(seed).fold("order of the examples")


def epoch(size, number, seed=0):
    positions = tf.range(size, dtype=tf.int64) + number * size
    return shuffled(positions, size=size, rng=order_of(seed), span=size).numpy()


@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 4096, 4097, LARGE, 70000])
def test_an_epoch_is_a_permutation(size):
    order = epoch(size, 3)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_few_examples_are_ordered_by_a_draw_for_each():
    rng = order_of(5)
    keys = rng._replace(first_row=2).rows.bits(1, 50).numpy()[0].astype(np.int64)
    np.testing.assert_array_equal(epoch(50, 2, seed=5), np.argsort(-keys, kind="stable"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_seeds_and_epochs_give_unrelated_orders(size):
    # Neighbouring numbers and numbers that differ only beyond 31 bits: they would reveal weak mixing.
    orders = [epoch(size, n, seed) for seed in (0, 1, 2, 1 << 31, 1 << 40) for n in (0, 1, 2, 1 << 20)]
    for one, other in itertools.combinations([np.arange(size), *orders], 2):
        assert (one == other).sum() < 12  # one by chance
        assert np.bincount((one - other) % size).max() < 20  # no rotation: three to eight by chance
        assert np.bincount(one ^ other).max() < 60  # no flipped bits; these sums lie less evenly
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / size**0.5


@pytest.mark.parametrize("size", [10, 4097])
def test_shuffled_example_comes_at_every_place(size):
    buckets, epochs = 10, 1000 if size == 10 else 5
    table = np.zeros([buckets, buckets])
    positions = tf.range(size * epochs, dtype=tf.int64)
    order = shuffled(positions, size=size, rng=order_of(1), span=size * epochs).numpy().reshape(epochs, size)
    place = np.broadcast_to(np.arange(size), order.shape)
    np.add.at(table, (place * buckets // size, order * buckets // size), 1)
    expected = table.sum() / buckets**2
    assert ((table - expected) ** 2 / expected).sum() < 140  # chi-square of 81 degrees of freedom: 81, give or take 13


@pytest.mark.parametrize("size", [7, 5000])
def test_shuffled_part_is_computed_by_itself(size):
    whole = np.concatenate([epoch(size, n) for n in range(3)])
    positions = np.array([0, 1, size - 1, size, 2 * size - 1, 2 * size, 3 * size - 1])
    for start in positions:
        part = tf.range(start, min(start + 9, 3 * size), dtype=tf.int64)
        np.testing.assert_array_equal(shuffled(part, size=size, rng=order_of(0), span=9), whole[start : start + 9])
    shuffling = tf.random.Generator.from_seed(0).uniform([100], 0, 3 * size, tf.int64)  # in any order
    np.testing.assert_array_equal(
        shuffled(shuffling, size=size, rng=order_of(0), span=3 * size), whole[shuffling.numpy()]
    )
