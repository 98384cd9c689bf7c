"""The rate that an optimizer reports is that of its last update."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, apply_if_finite, chain, groups, last_rates, linear, sam, sgd, stateless

SCHEDULE = linear(0.5, 0.0, steps=8)
FUNCTIONS = {name: x for name in optimizers.__all__ if inspect.isfunction(x := getattr(optimizers, name))}
ESTIMATED = ["dadapt_adamw", "dog", "prodigy"]  # their rate is `learning_rate` times their own estimate
GIVEN = [name for name, x in FUNCTIONS.items() if [*inspect.signature(x).parameters][:1] == ["learning_rate"]]
RULES = [name for name in GIVEN if name not in ESTIMATED]


def small(transform, **values):
    return Optimizer(transform, {path: tf.Variable(x) for path, x in (values or {"w": [1.0, 2.0]}).items()})


def moved(optimizer, gradient=1.0, value=None):
    """Returns how far the first number of each parameter falls if all gradients are `gradient`."""
    before = {path: v.numpy() for path, v in optimizer.parameters.items()}
    optimizer.apply({path: tf.fill(v.shape, gradient) for path, v in optimizer.parameters.items()}, value=value)
    return {path: float(np.ravel(before[path] - v.numpy())[0]) for path, v in optimizer.parameters.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", RULES)
def test_last_rate_of_every_rule_is_that_of_its_last_update(name):
    optimizer = small(getattr(optimizers, name)(SCHEDULE))
    read = last_rates(optimizer)
    seen = [read()]
    for _ in range(3):
        moved(optimizer)
        seen.append(read())
    expected = [float(SCHEDULE(tf.constant(step, tf.int64))) for step in (0, 0, 1, 2)]
    assert [set(rates.values()) for rates in seen] == [{rate} for rate in expected]


def test_rates_that_were_computed_ahead_are_those_of_their_steps():
    schedule = optimizers.warmup_cosine(3e-3, warmup_steps=100, total_steps=3000)
    optimizer = small(optimizers.adamw(schedule))
    read = last_rates(optimizer)
    for step in [*range(500, 9000, 500), *range(9100, 9700, 50), 7, 8, 9, 2999]:
        optimizer.step.assign(step)
        assert read() == {"": float(schedule(tf.constant(step - 1, tf.int64)))}


def test_a_schedule_is_read_up_to_its_end():
    table = [0.5, 0.25, 0.125]
    optimizer = small(sgd(lambda step: tf.gather(table, step)))
    read = last_rates(optimizer)
    for rate in table:
        moved(optimizer)
        assert read() == {"": rate}


def test_a_rate_that_is_no_schedule_comes_out_as_it_went_in():
    assert last_rates(small(optimizers.adamw(0.003)))() == {"": 0.003}


def test_a_rate_beyond_its_plateau_is_the_smaller_one():
    plateau = optimizers.reduce_on_plateau(factor=0.5, patience=2)
    optimizer = small(chain(optimizers.clip_by_value(10.0), sgd(SCHEDULE), plateau))
    read = last_rates(optimizer)
    for _ in range(7):
        assert moved(optimizer, value=tf.constant(1.0))["w"] == pytest.approx(read()[""], rel=1e-5)
    assert read()[""] < 0.2 * float(SCHEDULE(6))


def test_groups_have_theirs_by_pattern():
    rules = {"a": sgd(SCHEDULE), "b": chain(sgd(0.25), optimizers.reduce_on_plateau(factor=0.5, patience=1))}
    optimizer = small(groups({**rules, "c": optimizers.frozen()}, otherwise=sgd(0.125)), a=1.0, b=2.0, c=3.0, d=4.0)
    read = last_rates(optimizer)
    for _ in range(4):
        by_path = moved(optimizer, value=tf.constant(1.0))
        assert read() == pytest.approx({"[a]": by_path["a"], "[b]": by_path["b"], "": by_path["d"]})


def test_an_update_that_was_sat_out_leaves_the_rate():
    optimizer = small(apply_if_finite(sgd(SCHEDULE), max_consecutive_errors=9))
    read = last_rates(optimizer)
    for gradient in (1.0, np.nan, 1.0, np.nan, np.nan, 1.0):
        by = moved(optimizer, gradient)["w"]
        assert by in (0.0, pytest.approx(read()[""]))
    assert read()[""] == float(SCHEDULE(2))


def test_sharpness_aware_updates_count_in_pairs():
    optimizer = small(sam(sgd(SCHEDULE)))
    read = last_rates(optimizer)
    for step in range(4):
        moved(optimizer)
        assert read()[""] == float(SCHEDULE(step // 2))


def test_custom_optimizer_needs_no_declaration():
    rule = stateless("mine", lambda gradients, params, step: {path: -g for path, g in gradients.items()})
    for transform in (rule, chain(rule, optimizers.reduce_on_plateau()), sam(rule), apply_if_finite(rule)):
        assert last_rates(small(transform))() == {}
