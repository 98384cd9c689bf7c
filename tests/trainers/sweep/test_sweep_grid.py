"""The points of a grid: their bindings, the names of their folders, and refused grids."""

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigurationError
from trainers.sweep.grid import parse_over, points_of

NAMES = set(string.ascii_letters + string.digits + "_.@%+-=,")


def grid(*overs):
    return points_of([parse_over(over) for over in overs])


def test_grid_is_the_product_of_its_lists():
    points = grid("a.rate = [1e-3, 0.5]", "steps = [100, 200]", "seed = [0, 1]")
    assert [point.params for point in points] == [
        [f"a.rate = {rate}", f"steps = {steps}", f"Experiment.seed = {seed}"]
        for rate, steps, seed in itertools.product(["0.001", "0.5"], [100, 200], [0, 1])
    ]
    assert points[0].name == "rate=0.001,steps=100,seed=0"


@pytest.mark.parametrize(
    ("over", "params", "names"),
    [
        (
            "Experiment.task = [@Mlp, @scope/Mlp]",
            ["Experiment.task = @Mlp", "Experiment.task = @scope/Mlp"],
            ["task=@Mlp", "task=@scope_Mlp-"],
        ),
        (
            "Mlp.optimizer = [@adamw(), %mine]",
            ["Mlp.optimizer = @adamw()", "Mlp.optimizer = %mine"],
            ["optimizer=@adamw", "optimizer=%mine"],
        ),
        (
            "test/digits.split = ['train', 'a, b', None, 'None']",
            [f"test/digits.split = {x}" for x in ("'train'", "'a, b'", "None", "'None'")],
            ["split=train", "split=_a_b_-", "split=None", "split=_None_-"],
        ),
        (
            "Mlp.sizes = [[64, 10], (1,), {'k': [1]}]",
            ["Mlp.sizes = [64, 10]", "Mlp.sizes = (1,)", "Mlp.sizes = {'k': [1]}"],
            ["sizes=_64_10_-", "sizes=_1_-", "sizes=_k_1_-"],
        ),
        ("a.x = [-1, 1e-9, True, 1]", [f"a.x = {x}" for x in ("-1", "1e-09", "True", "1")], ["x=-1", "x=1e-09"]),
    ],
)
def test_values_of_any_kind_are_bound_as_they_stand(over, params, names):
    points = grid(over)
    assert [point.params for point in points] == [[param] for param in params]
    for point, name in zip(points, names, strict=False):
        assert point.name == name or (name.endswith("-") and point.name.startswith(name))


def test_parameters_of_one_name_keep_the_names_of_their_configurables():
    assert [point.name for point in grid("g.rate = [1]", "d.rate = [2]")] == ["g.rate=1,d.rate=2"]


WORDS = st.text(max_size=60)


@pytest.mark.long
@settings(deadline=None, max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=5, unique=True))
def test_names_are_files_and_differ(words):
    points = grid(f"a.x = {words!r}")
    assert len({point.name for point in points}) == len(words)
    for point in points:
        assert set(point.name) <= NAMES
        assert len(point.name) <= 200


def test_values_that_begin_alike_have_names_that_differ():
    assert len({point.name for point in grid(f"a.x = ['{'a' * 50}', '{'a' * 51}']")}) == 2


def test_name_is_the_same_when_the_grid_grows():
    few, many = grid("a.x = ['?', 1]", "seed = [0]"), grid("a.x = ['!', '?', 1, 2]", "seed = [0, 1]")
    assert {point.name for point in few} < {point.name for point in many}


@pytest.mark.parametrize(
    ("overs", "says"),
    [
        (["a.x = []"], "the list is empty"),
        (["a.x = 3"], "has no list of values: write a list of gin values"),
        (["import os"], "has no list of values"),
        (["a.x = [1, 2"], "--over can't be read as gin"),
        (["a.x = [adamw]"], "`adamw` is not a value"),
        (["a.x = [1e-3, 0.001]"], "contains 0.001 twice, which would be the same run"),
        (["a.x = [1]", "a.x = [2]"], "`--over` names `a.x` twice"),
        (["seed = [1]", "Experiment.seed = [2]"], "`--over` names `Experiment.seed` twice"),
        ([f"{x}.y = {[*range(30)]}" for x in "abc"], "a grid of 27,000 points"),
    ],
)
def test_grids_that_are_none_are_refused(overs, says):
    with pytest.raises(ConfigurationError) as caught:
        grid(*overs)
    assert says in str(caught.value)
    assert "gin_param" not in str(caught.value)
