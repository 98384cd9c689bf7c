"""Spaces of a search: their values, and refused spaces and flags."""

import pytest

from core.errors import ConfigurationError
from tests.commands import one_paragraph
from tests.trainers.sweep.sweep_lab import LINEAR
from trainers.sweep.__main__ import main, parse
from trainers.sweep.space import Range, parse_space

RATE = "--space=sgd.learning_rate=log(1e-3, 1)"


@pytest.mark.parametrize(
    ("given", "space", "examples"),
    [
        ("a.x=log(1e-4, 1)", Range("a.x", "log", 1e-4, 1.0), ("0.0001", "1.0")),
        (" s/a.x = uniform( -1, 0.5 ) ", Range("s/a.x", "uniform", -1.0, 0.5), ("-1.0", "0.5")),
        ("layers=int(1, 8)", Range("layers", "int", 1, 8), ("1", "8")),
    ],
)
def test_ranges(given, space, examples):
    assert parse_space(given) == space
    assert space.examples == examples


def test_choices_are_gin_values():
    assert parse_space("a.x = ['b', @sgd(), None, 2]").examples == ("'b'", "@sgd()", "None", "2")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a.x=log(0, 1)", "`log` needs positive numbers, and 0 isn't"),
        ("a.x=log(1, 0.1)", "the first number is the larger one"),
        ("a.x=uniform(1, 1)", "both ends are equal"),
        ("a.x=int(1.5, 3)", "`int` needs whole numbers"),
        ("a.x=int(False, True)", "needs two finite numbers"),
        ("a.x=log(1, 1e999)", "needs two finite numbers"),
        (f"a.x=int(1, 1{'0' * 400})", "needs two finite numbers"),
        ("a.x=uniform(-1e308, 1e308)", "the difference of its ends is too large for a float"),
        ("a.x=log(1)", "needs two finite numbers"),
        ("a.x=log()", "needs two finite numbers"),
        ("a.x=lag(1, 2)", "`lag` isn't a kind of space. Did you mean `log`?"),
        ("a.x=[]", "`--space` is 'a.x=[]': the list is empty; write `log("),
        ("a.x=3", "has no list of values: write `log("),
        ("a b=log(1, 2)", "--space can't be read as gin"),
    ],
)
def test_refused_spaces(given, says):
    with pytest.raises(ConfigurationError) as caught:
        parse_space(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([RATE, "--figure=eval/loss"], ["`--trials` is None", "--trials=20"]),
        ([RATE, "--trials=0", "--figure=eval/loss"], ["`--trials` is 0"]),
        ([RATE, "--trials=2"], ["`--figure` is missing"]),
        ([RATE, "--trials=2", "--figure=train/d/loss"], ["'train/d/loss'", "whether small or large values are better"]),
        ([RATE, "--trials=2", "--figure=eval/loss", "--figure=eval/accuracy"], ["`--figure` is given twice"]),
        ([RATE, "--trials=2", "--sampler=tpa"], ["`--sampler` is 'tpa'", "Did you mean `tpe`?"]),
        ([RATE, "--trials=2", "--pruner=mean"], ["`--pruner` is 'mean'; give `median`, `hyperband`"]),
        ([RATE, RATE, "--trials=2"], ["`sgd.learning_rate` has two spaces"]),
        ([RATE, "--sampler=grid", "--figure=eval/loss"], ["needs lists, and `sgd.learning_rate` is a range"]),
        ([RATE, "--over=a.x=[1]", "--trials=2"], ["write `--space='a.x=[1]'`"]),
        (["--space=seed=[1, 2]", "--trials=2"], ["repeat each trial with seeds, as `--over='seed=[1, 2]'`"]),
        (["--space=seed=int(0, 3)", "--trials=2"], ["`Experiment.seed = int(0, 3)`", "as `--over='seed=[0, 1, 2]'`"]),
        (["--space=a.x=[1, 2]", "--sampler=cmaes", "--trials=2", "--figure=eval/loss"], ["`a.x` is a list"]),
        (["--over=a.x=[1, 2]", "--storage=s.log", "--trials=2", "--figure=eval/loss"], ["grid, which has 2 points"]),
        (["--over=seed=[1, 2]", "--sampler=tpe"], ["`--sampler=tpe` has no space"]),
    ],
)
def test_refused_searches(words, says, capsys):
    assert main([*words, "--", LINEAR]) == 2
    one_paragraph(capsys.readouterr().err, *says)


def test_check_binds_the_ends_of_each_range_and_every_choice():
    words = [RATE, "--space=a.x=['b', 1, None]", "--over=seed=[5, 6]", "--trials=2", "--figure=eval/loss"]
    assert parse([*words, "--", LINEAR]).search.examples() == [
        [f"sgd.learning_rate = {rate}", f"a.x = {x}", f"Experiment.seed = {seed}"]
        for rate, x, seed in [("0.001", "'b'", 5), ("1.0", "1", 6), ("0.001", "None", 5)]
    ]
