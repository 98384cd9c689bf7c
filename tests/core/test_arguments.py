"""Argument checks name meaningless numbers, and messages shorten long values."""

import math
from functools import partial

import numpy as np
import pytest

from core import arguments, initializers, layers, losses, optimizers
from core.data import ArraySource
from core.errors import shown
from core.random import Rng
from models.simclr import SimClr

BAD = [math.inf, -math.inf, math.nan, 10**400]
SOURCE = {"x": np.zeros([2, 2], np.uint8)}
CALLS = {
    "epsilon": [partial(layers.LayerNorm, 4), partial(layers.RMSNorm, 4), partial(layers.BatchNorm, 4)],
    "value": [initializers.constant],
    "stddev": [initializers.normal, initializers.truncated_normal],
    "mean": [initializers.normal, initializers.truncated_normal],
    "low": [initializers.uniform],
    "high": [initializers.uniform],
    "gain": [initializers.orthogonal, initializers.delta_orthogonal, initializers.identity],
    "scale": [initializers.variance_scaling, partial(ArraySource, SOURCE, name="x")],
    "learning_rate": [optimizers.sgd, optimizers.adam, optimizers.adamw, optimizers.lion],
    "temperature": [partial(SimClr, rng=Rng.from_seed(0), image_shape=[4, 4, 1], optimizer=None)],
    "max_norm": [optimizers.clip_by_global_norm],
    "gamma": [partial(losses.focal, [0.0], [1])],
}


@pytest.mark.parametrize("value", BAD, ids=["inf", "-inf", "nan", "huge"])
@pytest.mark.parametrize("name", CALLS)
def test_infinite_hyperparameters_are_refused_by_name(name, value):
    for call in CALLS[name]:
        with pytest.raises(ValueError, match=f"`{name}` is .*give a finite number") as error:
            call(**{name: value})
        assert len(str(error.value)) < 500


@pytest.mark.parametrize("check", [arguments.check_positive, arguments.check_not_negative, arguments.check_rate])
def test_every_check_of_a_number_refuses_what_is_infinite(check):
    for value in BAD:
        with pytest.raises(ValueError, match="give a finite number"):
            check(x=value)
    check(x=1e300)
    check(x=np.float32(1.5))


def test_short_values_are_shown_as_they_are():
    for value in (None, True, 1.5, -3, "text", [1, 2], (1,), {"a": [1, {2}]}, "it's", b"\0", np.float32(2.0)):
        assert shown(value) == repr(value)


class Broken:
    def __repr__(self):
        raise RuntimeError("no")


class Rude:
    def __repr__(self):
        return "\x1b[2J\nerror: \udcff"


def test_long_values_are_cut_short_and_stay_on_one_line_whatever_they_are():
    for value in (
        list(range(1_000_000)),
        "x" * 10_000_000,
        np.zeros([1000, 1000]),
        dict.fromkeys(range(1000), "y" * 1000),
        [["z" * 1000] * 50] * 50,
        10**400,
        10**10_000,
        b"\xff" * 100_000,
        Broken(),
        "new\nline \x1b[2J \udcff",
        Rude(),
    ):
        text = shown(value)
        assert 0 < len(text) <= 200
        assert text.isprintable()
        text.encode()
    assert shown("x" * 300).startswith("'xxx")
    assert "..." in shown("x" * 300)
    assert shown(Rude()) == r"\x1b[2J\nerror: \udcff"
