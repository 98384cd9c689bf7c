"""Uniform and greedy soups of given weights."""

import numpy as np
import pytest

from core.checkpoint import Better
from core.errors import ConfigurationError
from trainers.average.soups import Ingredient, greedy, mean


def ingredient(name, *w, steps=0):
    return Ingredient(name, {"w": np.array(w, np.float32), "steps": np.int64(steps)})


def test_mean_is_that_of_floats_and_whole_numbers_are_the_last():
    found = mean([ingredient("a", 1.0, 2.0, steps=1), ingredient("b", 2.0, 4.0, steps=2)])
    np.testing.assert_array_equal(found["w"], [1.5, 3.0])
    assert (found["w"].dtype, found["steps"]) == (np.float32, 2)


def test_mean_is_summed_in_float64():
    found = mean([ingredient(str(x), x) for x in (2.0**25, 1.0, 1.0, -(2.0**25))])
    assert found["w"] == 0.5


def nearness(values):
    """Returns minus the distance from 1, rounded, so that ties occur."""
    return -round(abs(float(values["w"][0]) - 1.0), 1)


def test_greedy_soup_adds_what_makes_it_no_worse_and_begins_with_the_best():
    # The means of 0.9, 1.25 and 0.69 are 0.9, 1.08 and 0.95, of equal nearness; with 4.0 the mean is 1.71.
    made = [ingredient("far", 4.0), ingredient("above", 1.25), ingredient("best", 0.9), ingredient("below", 0.69)]
    chosen, found = greedy(made, nearness, Better("max", "nearness"))
    assert [each.name for each in chosen] == ["best", "above", "below"]
    assert found == -0.1
    low, _ = greedy(made, lambda values: -nearness(values), Better("min", "distance"))
    assert [each.name for each in low] == ["best", "above", "below"]


def test_greedy_soup_leaves_out_what_is_not_finite():
    made = [ingredient("worse", 1.5), ingredient("bad", np.nan), ingredient("best", 1.2)]
    for better, sign in ((Better("max", "m"), 1.0), (Better("min", "m"), -1.0)):
        chosen, _ = greedy(made, lambda values, sign=sign: sign * -abs(float(values["w"][0]) - 1.0), better)
        assert [each.name for each in chosen] == ["best"]


def test_checkpoints_of_other_shapes_are_named():
    with pytest.raises(ConfigurationError, match=r"`a` and `b` can't be averaged: `w` .* shape"):
        mean([ingredient("a", 1.0), ingredient("b", 1.0, 2.0)])
