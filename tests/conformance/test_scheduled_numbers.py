"""Each number of each rule may be a schedule: then an update is that of the rule with the numbers at its step."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Transform

from .test_optimizers import VOCABULARY, given

SWITCH = 2  # the update from which the second numbers count
# A number without a default, or with one that leaves a part of the rule out.
FIRST = {"momentum": 0.9, "max_value": 0.2, "max_norm": 0.5, "weight_decay": 0.1}
FIRST |= {"absolute_tolerance": 0.01, "min_scale": 0.1, "factor": 0.5}
GREATER = {"eta_plus"}  # the others become smaller: betas and decays stay within their bounds
ALONE = {("shampoo", "epsilon"): 1.0}  # a small one is raised to a power, and its rounding grows


def numbers_of(part: str) -> dict[str, float]:
    found = {}
    for name, p in inspect.signature(getattr(optimizers, part)).parameters.items():
        if p.annotation is float:
            default = p.default if isinstance(p.default, float) and p.default else 0.9
            found[name] = ALONE.get((part, name), FIRST.get(name, default))
    return found


def of_transforms() -> list[str]:
    parts = sorted(set(optimizers.__all__) - VOCABULARY)
    returns = {part: inspect.signature(getattr(optimizers, part)).return_annotation for part in parts}
    return [part for part in parts if returns[part] is Transform and numbers_of(part)]


@pytest.mark.parametrize("part", of_transforms())
def test_update_with_schedules_is_that_with_their_numbers(part: str) -> None:
    make, first = getattr(optimizers, part), numbers_of(part)
    second = {name: x * (1.1 if name in GREATER else 0.9) for name, x in first.items()}

    def switched(before: float, after: float) -> optimizers.Schedule:
        return lambda step: tf.where(step < SWITCH, before, after)

    arguments = given(part)
    scheduled = make(**arguments | {name: switched(x, second[name]) for name, x in first.items()})
    plain = [make(**arguments | numbers) for numbers in (first, second)]
    random = np.random.default_rng(0)
    params = {path: tf.constant(random.normal(size=[4, 3]), tf.float32) for path in ("net/w", "net/v")}
    params["net/b"] = tf.constant(random.normal(size=[3]), tf.float32)
    mine, its = scheduled.init(params), plain[0].init(params)
    apply = tf.function(scheduled.update, autograph=False)
    for i in range(2 * SWITCH):
        gradients = {path: tf.constant(random.normal(size=p.shape), tf.float32) for path, p in params.items()}
        step, value = tf.constant(i, tf.int64), tf.constant(1.0 / (i + 1))
        found, mine = apply(gradients, mine, params, step=step, value=value)
        expected, its = plain[i >= SWITCH].update(gradients, its, params, step=step, value=value)
        for path, x in expected.items():
            np.testing.assert_allclose(found[path], x, rtol=2e-4, atol=1e-6, err_msg=f"update {i} of {path}")
        for slot, values in its.items():
            for path, x in values.items():
                np.testing.assert_allclose(mine[slot][path], x, rtol=2e-4, atol=1e-6, err_msg=f"{slot}/{path}, {i}")
        params = {path: p + expected[path] for path, p in params.items()}


def test_float64_parameter_is_refused() -> None:
    scheduled = optimizers.adam(0.1, beta_1=lambda step: tf.constant(0.9))
    with pytest.raises(ValueError, match=r"`adam` has a schedule of a number other than its rates.*`w` is float64"):
        scheduled.init({"w": tf.zeros([2], tf.float64)})


def test_averages_and_rates_are_those_of_the_step() -> None:
    """A rule of several parts, of which one is read by evaluation."""
    decay = lambda step: tf.where(step < 1, 0.5, 0.25)  # noqa: E731
    rule = optimizers.chain(optimizers.sgd(0.1, momentum=decay), optimizers.ema(decay, debias=False))
    optimizer = optimizers.Optimizer(rule, {"w": (w := tf.Variable(1.0))})
    for gradient in (1.0, 1.0):
        optimizer.apply({"w": tf.constant(gradient)})
    np.testing.assert_allclose(w, 1.0 - 0.1 - 0.125, rtol=1e-6)
    shadow = optimizer.shadow()
    assert shadow is not None
    np.testing.assert_allclose(shadow["w"], 0.25 * 0.95 + 0.75 * 0.775, rtol=1e-6)
    assert float(optimizer.transform.rates({}, {}, {}, step=tf.constant(0, tf.int64))[""]) == pytest.approx(0.1)
