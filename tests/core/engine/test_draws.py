"""Warnings, once a run, about random numbers drawn twice and folds never used, unless intended."""

import re

import pytest
import tensorflow as tf

from core import layers
from core.random import Rng
from core.testing import assert_draws
from tests.core.engine.test_side_effects import Does, step_of
from tests.toys import points


def hands_one_rng_to_two_calls(task, batch, rng):
    drop = layers.Dropout(0.5)
    one = drop(batch["x"], rng)
    other = drop(batch["x"] + 1.0, rng)
    return one[:, 0] - other[:, 0]


def draws_by_equal_folds(task, batch, rng):
    one = rng.fold("noise").rows.normal(4)
    return one * rng.fold("noise").rows.uniform(4)


def draws_in_a_loop(task, batch, rng):
    return sum(rng.normal([4]) for _ in range(3))


def draws_within_a_loop(task, batch, rng):
    noise = rng.normal([4])
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + rng.normal([4])), (0, noise))[1]


def draws_in_a_helper(task, batch, rng):
    one = noisy(batch["y"], rng)
    return one - noisy(batch["x"][:, 0], rng)


def noisy(x, rng):
    return x + rng.fold("noise").normal([4])


@pytest.mark.parametrize(
    ("what", "at"),
    [
        (hands_one_rng_to_two_calls, r'one = drop\(batch\["x"\], rng\)`\) and .*other = drop\('),
        (draws_by_equal_folds, r"one = .*`\) and .*return one \* rng"),
        (draws_in_a_loop, r"twice, at test_draws.py:\d+ \(`return sum[^`]*`\): they are equal"),
        (draws_within_a_loop, r"noise = rng.normal\(\[4\]\)`\) and .*while_loop"),
        (draws_in_a_helper, r"one = noisy\(.*`\) and .*return one - noisy\("),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_random_numbers_that_are_drawn_twice_are_reported_once(what, at):
    (text,) = step_of(what).remarks
    assert text.startswith("phase `net` draws the same random numbers twice, at test_draws.py:")
    assert re.search(at, text)
    assert text.endswith("If equality is intended, pass `rng.again()` to the second")


def folds_and_drops(task, batch, rng):
    rng.fold("noise")
    return rng.normal([4])


def folds_and_forgets(task, batch, rng):
    mask = rng.fold("mask")  # noqa: F841
    return rng.normal([4])


@pytest.mark.parametrize("what", [folds_and_drops, folds_and_forgets], ids=lambda what: what.__name__)
def test_unused_fold_is_reported(what):
    (text,) = step_of(what).remarks
    assert re.match(r"phase `net` folds an rng and uses nothing of it, at test_draws.py:\d+ \(`.*rng.fold\(", text)


def draws_in_branches(task, batch, rng):
    return tf.cond(batch["y"][0] > 0, lambda: rng.normal([4]), lambda: -rng.normal([4]))


def draws_again(task, batch, rng):
    return rng.normal([4]) - rng.again().normal([4]) + rng.fold("a").normal([4]) - rng.again().fold("a").normal([4])


def folds_for_a_layer_that_drops_nothing(task, batch, rng):
    _ = rng.fold("meant")
    own = rng.fold("own")
    return layers.Sequential([layers.Dropout(0.0), tf.nn.relu])(batch["x"], own)[:, 0]


def recomputes_in_a_gradient(task, batch, rng):
    drop = layers.recompute(lambda x, rng: layers.Dropout(0.5)(tf.square(x), rng))
    with tf.GradientTape() as tape:
        tape.watch(x := batch["x"] + 0.0)
        y = tf.reduce_sum(drop(x, rng))
    return tape.gradient(y, x)[:, 0]


MEANT = [draws_in_branches, draws_again, folds_for_a_layer_that_drops_nothing, recomputes_in_a_gradient]


@pytest.mark.parametrize("what", MEANT, ids=lambda what: what.__name__)
def test_intended_repeats_of_random_numbers_are_not_reported(what):
    assert step_of(what).remarks == []


def test_assertion_takes_numbers_that_are_meant_to_be_drawn_again():
    assert_draws(Does(rng=Rng.from_seed(0), what=draws_again), points(4))
    with pytest.raises(AssertionError, match="two purposes"):
        assert_draws(Does(rng=Rng.from_seed(0), what=draws_by_equal_folds), points(4))
