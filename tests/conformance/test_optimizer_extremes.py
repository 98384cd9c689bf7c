"""Optimizers where float32 has the fewest digits: betas next to one, and late updates.

The oracles are the papers' definitions in NumPy's float64, for one gradient after the other.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, Transform
from core.optimizers.adam_variants import rectification
from core.optimizers.moments import averages

from .test_optimizers import bad_values, every_part, given

GRADIENTS = np.random.default_rng(7).normal(size=(6, 5)).astype(np.float32)
STARTS = (0, 999_999)  # updates applied before, with these averages of their gradients
MEAN, SQUARE = 0.3, 2.0
RATE, EPSILON = 0.5, 1e-6


@dataclasses.dataclass
class Moments:
    """An optimizer's averages by definition, and its direction at update t."""

    b1: float
    b2: float
    m: Any = 0.0
    v: Any = 0.0
    largest: Any = 0.0

    def see(self, g: Any) -> None:
        self.m = self.b1 * self.m + (1.0 - self.b1) * g
        self.v = self.b2 * self.v + (1.0 - self.b2) * g * g

    def corrected(self, t: int) -> tuple[Any, Any]:
        return self.m / (1.0 - self.b1**t), np.sqrt(self.v / (1.0 - self.b2**t))


def adam(s: Moments, g: Any, t: int, w: Any) -> Any:
    m, root = s.corrected(t)
    return m / (root + EPSILON)


def amsgrad(s: Moments, g: Any, t: int, w: Any) -> Any:
    m, root = s.corrected(t)
    s.largest = np.maximum(s.largest, root)
    return m / (s.largest + EPSILON)


def nadam(s: Moments, g: Any, t: int, w: Any) -> Any:
    ahead = s.b1 * s.m / (1.0 - s.b1 ** (t + 1)) + (1.0 - s.b1) * g / (1.0 - s.b1**t)
    return ahead / (s.corrected(t)[1] + EPSILON)


def length(beta_2: float, t: int) -> Fraction:
    """Returns the length of RAdam's average in exact fractions."""
    beta = Fraction(beta_2)
    return 2 / (1 - beta) - 1 - 2 * t * beta**t / (1 - beta**t)


def radam(s: Moments, g: Any, t: int, w: Any) -> Any:
    m, root = s.corrected(t)
    limit, long = 2.0 / (1.0 - s.b2) - 1.0, 2.0 / (1.0 - s.b2) - 1.0
    long = float(length(s.b2, t)) if t < 100 else limit - 2.0 * t * s.b2**t / (1.0 - s.b2**t)
    if long < 5.0:
        return m
    r = np.sqrt((long - 4.0) * (long - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * long))
    return r * m / (root + EPSILON)


def adamax(s: Moments, g: Any, t: int, w: Any) -> Any:
    s.largest = np.maximum(s.b2 * s.largest, np.abs(g))
    return s.corrected(t)[0] / (s.largest + EPSILON)


def lamb(s: Moments, g: Any, t: int, w: Any) -> Any:
    direction = adam(s, g, t, w)
    size = np.linalg.norm(w)
    return direction * (size / np.linalg.norm(direction) if size else 1.0)


def rmsprop(s: Moments, g: Any, t: int, w: Any) -> Any:
    return g / np.sqrt(s.v + EPSILON)


def adadelta(s: Moments, g: Any, t: int, w: Any) -> Any:
    delta = np.sqrt(s.largest + EPSILON) / np.sqrt(s.v + EPSILON) * g
    s.largest = s.b2 * s.largest + (1.0 - s.b2) * delta * delta
    return delta


Oracle = Callable[[Moments, Any, int, Any], Any]
WITH_TWO: dict[str, Oracle] = {
    "adam": adam,
    "adamw": adam,
    "amsgrad": amsgrad,
    "nadam": nadam,
    "radam": radam,
    "adamax": adamax,
    "lamb": lamb,
}
WITH_ONE: dict[str, Oracle] = {"rmsprop": rmsprop, "adadelta": adadelta}
BETAS = ((0.9, 0.999), (0.9999, 0.99999))


def rule(name: str, b1: float, b2: float) -> Transform:
    make = getattr(optimizers, name)
    if name in WITH_ONE:
        return make(RATE, rho=b2, epsilon=EPSILON)  # type: ignore[no-any-return]
    decay = {"weight_decay": 0.0} if name == "adamw" else {}
    return make(RATE, beta_1=b1, beta_2=b2, epsilon=EPSILON, **decay)  # type: ignore[no-any-return]


def slots(name: str, b1: float, b2: float, start: int) -> dict[str, float]:
    """Returns the optimizer's averages at its start."""
    seen = float(start > 0)
    m, v = MEAN * (1.0 - b1**start), SQUARE * (1.0 - b2**start)
    largest = SQUARE**0.5 * seen
    return {
        "amsgrad": {"m": m, "v": SQUARE * seen, "v_max": SQUARE * seen},
        "adamax": {"m": m, "u": largest},
        "rmsprop": {"square": v, "velocity": 0.0},
        "adadelta": {"squared_gradient": v, "squared_delta": largest},
    }.get(name, {"m": m, "v": v})


def by_definition(oracle: Oracle, b1: float, b2: float, start: int) -> np.ndarray:
    m, v, largest = MEAN * (1.0 - b1**start), SQUARE * (1.0 - b2**start), SQUARE**0.5 * (start > 0)
    s, w, seen = Moments(b1, b2, m, v, largest), np.zeros(5), []
    for i, g in enumerate(GRADIENTS.astype(np.float64)):
        s.see(g)
        w = w - RATE * oracle(s, g, start + i + 1, w)
        seen.append(w)
    return np.stack(seen)


@pytest.mark.parametrize(("b1", "b2"), [*BETAS, (0, 0.9)])
def test_rule_with_betas_next_to_one_is_the_definition_early_and_late(b1: float, b2: float) -> None:
    oracles = {**WITH_TWO, **WITH_ONE}
    weights = {name: tf.Variable(tf.zeros(5)) for name in oracles}
    rules = {name: Optimizer(rule(name, b1, b2), {"w": w}) for name, w in weights.items()}

    def update(gradient: tf.Tensor, fused: bool) -> None:
        for optimizer in rules.values():
            optimizer.apply({"w": gradient}, fused=fused)

    kernel, plain = functools.partial(update, fused=True), functools.partial(update, fused=False)
    modes = [kernel, plain]
    if (b1, b2) == BETAS[-1]:
        modes.append(tf.function(plain, autograph=False, jit_compile=True))
    for start in STARTS:
        for mode in modes:
            for name, optimizer in rules.items():
                weights[name].assign(tf.zeros(5))
                optimizer.step.assign(start)
                for slot, value in slots(name, b1, b2, start).items():
                    optimizer.slots[f"{name}/{slot}"]["w"].assign(tf.fill([5], value))
            seen = []
            for gradient in GRADIENTS:
                mode(tf.constant(gradient))
                seen.append({name: w.numpy() for name, w in weights.items()})
            for name, oracle in oracles.items():
                expected = by_definition(oracle, b1, b2, start)
                found, allowed = [each[name] for each in seen], 2e-6 * np.abs(expected).max()
                np.testing.assert_allclose(found, expected, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_radam_turns_adaptive_at_the_update_computed_in_fractions(compiled: bool) -> None:
    betas = (0.9, 0.99, 0.999, 0.9999, 0.99999)
    call = tf.function(lambda t: [rectification(t, beta_2=b) for b in betas], autograph=False, jit_compile=compiled)
    for t in range(1, 9):
        for beta_2, (r, usable) in zip(betas, call(tf.constant(float(t))), strict=True):
            exact, limit = length(beta_2, t), 2 / (1 - Fraction(beta_2)) - 1
            assert bool(usable) == (exact >= 5)
            if usable:
                squared = (exact - 4) * (exact - 2) * limit / ((limit - 4) * (limit - 2) * exact)
                assert float(r) == pytest.approx(float(squared) ** 0.5, rel=1e-6)


def test_average_forgets_as_fast_as_its_beta_says() -> None:
    average, nothing = {"w": tf.ones([])}, {"w": tf.zeros([])}
    for _ in range(2000):
        average = averages(average, nothing, 0.99999)
    assert float(average["w"]) == pytest.approx(0.99999**2000, rel=3e-6)
    assert float(averages({"w": tf.constant(1e20)}, {"w": tf.ones([])}, 0.0)["w"]) == 1.0


def floats_of(part: str) -> list[str]:
    """Returns the names of a factory's float arguments."""
    parameters = inspect.signature(getattr(optimizers, part)).parameters
    kinds = {name: str(parameter.annotation) for name, parameter in parameters.items()}
    return [name for name, kind in kinds.items() if "float" in kind and "Sequence" not in kind]


@every_part
def test_bool_is_refused_where_a_float_is_meant(part: str) -> None:
    for name in floats_of(part):
        for flag in (True, False):
            with pytest.raises(ValueError, match=f"`{name}` is {flag}"):
                getattr(optimizers, part)(**{**given(part), name: flag})


@pytest.mark.long
@every_part
def test_integer_is_a_number_where_a_float_is_meant(part: str) -> None:
    """Also refuses an integer out of its argument's range like the float, by the table of bad values."""
    factory, allowed = getattr(optimizers, part), {}
    for name in floats_of(part):
        for whole in (0, 1):
            if whole not in bad_values(part, name):
                allowed[name] = whole
                continue
            for number in (whole, float(whole)):
                with pytest.raises(ValueError, match=f"`{name}"):
                    factory(**{**given(part), name: number})
    assert bool(allowed) == bool(floats_of(part))
    # Unlike an eager call, a graph converts no number between dtypes: all of them at once.
    made, peer = (factory(**{**given(part), **{k: kind(v) for k, v in allowed.items()}}) for kind in (int, float))
    np.testing.assert_allclose(first(made, graph=True), first(peer), rtol=1e-6)


def first(made: Any, *, graph: bool = False) -> np.ndarray:
    """Returns a schedule's fourth rate, or an optimizer's weights after its first update."""
    if not isinstance(made, Transform):
        function = tf.function(made, autograph=False) if graph else made
        return np.asarray(function(tf.constant(3, tf.int64)))
    w = tf.Variable([[1.0, 2.0]])
    optimizer = Optimizer(made, {"w": w, "b": tf.Variable(1.0)})  # `b` is in the patterns of `GOOD`

    def update() -> None:
        optimizer.apply({"w": tf.constant([[3.0, -4.0]]), "b": tf.constant(2.0)}, value=tf.constant(1.0))

    (tf.function(update, autograph=False) if graph else update)()
    return w.numpy()
