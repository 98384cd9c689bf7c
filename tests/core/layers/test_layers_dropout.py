"""Dropout: rates, rows that are the same on any replica, and bad input."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layers import Dropout, SpatialDropout, StochasticDepth
from core.random import Rng

RNG = Rng.from_seed(9)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([0.0, 1e-6, 0.001, 0.1, 0.5, 0.9, 0.999, 0.999999]))
def test_the_rate_and_the_mean_are_right(rate: float) -> None:
    y = Dropout(rate)(tf.ones([500, 401]), RNG).numpy()
    spread = np.sqrt(rate * (1.0 - rate) / y.size)
    assert np.mean(y == 0.0) == pytest.approx(rate, abs=5.0 * spread + 2.0**-16)
    if rate < 0.99:
        assert np.mean(y) == pytest.approx(1.0, abs=6.0 * spread / (1.0 - rate) + 1e-6)


@pytest.mark.parametrize("layer", [Dropout(0.5), SpatialDropout(0.5), StochasticDepth(0.5)])
def test_evaluation_changes_nothing(layer: Dropout) -> None:
    x = RNG.normal([2, 3, 4])
    assert layer(x) is x


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 6))
def test_row_has_the_same_dropout_on_any_replica(rows: int, width: int, split: int) -> None:
    split = min(split, rows)
    x = tf.ones([rows, width])
    whole = Dropout(0.5)(x, RNG)
    halves = [Dropout(0.5)(x[a:b], RNG._replace(first_row=a)) for a, b in ((0, split), (split, rows))]
    np.testing.assert_array_equal(whole, tf.concat(halves, 0))


def test_dropout_axes_share_their_draws() -> None:
    x = tf.ones([64, 3, 3, 8])
    channels = SpatialDropout(0.5)(x, RNG).numpy()
    np.testing.assert_array_equal(channels, np.broadcast_to(channels[:, :1, :1], x.shape))
    assert 0.4 < np.mean(channels == 0.0) < 0.6
    branches = StochasticDepth(0.5)(x, RNG).numpy()
    np.testing.assert_array_equal(branches, np.broadcast_to(branches[:, :1, :1, :1], x.shape))
    assert set(np.unique(branches)) == {0.0, 2.0}


def test_a_dropped_infinity_is_gone() -> None:
    x = tf.fill([1000], np.inf)[tf.newaxis]
    y = Dropout(0.5)(x, RNG).numpy()
    assert not np.isnan(y).any()
    assert set(np.unique(y)) == {0.0, np.inf}


def test_an_unknown_batch_draws_the_rows_it_turns_out_to_have() -> None:
    graph = tf.function(lambda x: Dropout(0.5)(x, RNG), input_signature=[tf.TensorSpec([None, 5])])
    for rows in (4, 0, 1):
        np.testing.assert_array_equal(graph(tf.ones([rows, 5])), Dropout(0.5)(tf.ones([rows, 5]), RNG))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
@pytest.mark.parametrize("kind", [Dropout, SpatialDropout, StochasticDepth])
def test_a_rate_out_of_range_is_named(kind: type[Dropout], rate: float) -> None:
    with pytest.raises(ValueError, match=f"`rate` is {rate}; give a fraction"):
        kind(rate)


def test_an_unknown_time_is_named() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, None, 3\); only its first axis may be unknown"):
        tf.function(
            lambda x: Dropout(0.5)(x, RNG), input_signature=[tf.TensorSpec([2, None, 3])]
        ).get_concrete_function()
