"""Schedules at their ends, on their boundaries and after a million updates: against float64, and to the bit.

Graphs and XLA multiply by 1/steps where the code divides by steps. So each is called eagerly, in a graph and compiled,
with the step as an argument, which no compiler folds away.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers as ours
from core.optimizers import Schedule

STEPS = (7, 41, 49, 1000, 10**6)


def all_values(*asked: tuple[Schedule, Any]) -> list[np.ndarray]:
    """Returns the rates of schedules at their steps: eagerly, in a graph and compiled."""
    given = [tf.constant(steps, tf.int64) for _, steps in asked]

    def rates(counts: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(schedule(count)) for (schedule, _), count in zip(asked, counts, strict=True)]

    graph, compiled = (tf.function(rates, autograph=False, jit_compile=jit) for jit in (None, True))
    seen = [[x.numpy() for x in call(given)] for call in (rates, graph, compiled)]
    for other in seen[1:]:
        for found, expected in zip(other, seen[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-7 * np.abs(expected).max())
    return seen[2]


def values(schedule: Schedule, steps: Any) -> np.ndarray:
    return all_values((schedule, steps))[0]


def test_staircase_steps_down_at_every_multiple() -> None:
    around = {n: np.ravel(np.arange(1, 60) * n + np.array([[-1], [0], [1]])) for n in STEPS}
    stairs = [(ours.exponential(0.1, decay_rate=0.9, steps=n, staircase=True), x) for n, x in around.items()]
    for rates, (n, counts) in zip(all_values(*stairs), around.items(), strict=True):
        np.testing.assert_allclose(rates, 0.1 * 0.9 ** (counts // n).astype(np.float64), rtol=1e-6)


def test_decay_next_to_one_holds_for_a_million_updates() -> None:
    counts, decay_rates = np.array([0, 1, 999, 10**5, 10**6]), (0.9999, 0.99999, 1.00001, 1)
    asked = [(ours.exponential(0.1, decay_rate=rate, steps=1), counts) for rate in decay_rates]
    for rates, rate in zip(all_values(*asked), decay_rates, strict=True):
        np.testing.assert_allclose(rates, 0.1 * np.float64(rate) ** counts, rtol=1e-6, atol=1e-37)


AROUND = {"initial_rate": 0.1, "final_rate": 0.03}
ENDS: list[tuple[Callable[[int], Schedule], float, float]] = [  # of so many steps, with the first rate and the last
    (lambda n: ours.linear(0.1, 0.03, steps=n), 0.1, 0.03),
    (lambda n: ours.polynomial(0.1, steps=n, power=0.5), 0.1, 0.0),
    (lambda n: ours.polynomial(0.1, 0.03, steps=n, power=0.1), 0.1, 0.03),
    (lambda n: ours.polynomial(1, steps=n, power=3), 1.0, 0.0),
    (lambda n: ours.rising_power(1, 0.03, steps=n, power=3), 1.0, 0.03),
    (lambda n: ours.cosine(0.1, 0.03, steps=n), 0.1, 0.03),
    (lambda n: ours.warmup_cosine(0.3, warmup_steps=3, total_steps=n, **AROUND), 0.1, 0.03),
    (lambda n: ours.warmup_stable_decay(0.3, warmup_steps=2, decay_steps=n - 4, total_steps=n, **AROUND), 0.1, 0.03),
    (lambda n: ours.half_life(0.9, 0.99, steps=n), 0.9, 0.99),
    (lambda n: ours.half_life(0, 0.5, steps=n), 0.0, 0.5),
    (lambda n: ours.one_cycle(2.5, total_steps=n, final_divisor=1e5), 0.1, 1e-6),
]


@pytest.mark.long
def test_schedule_begins_and_ends_exactly_at_its_rates() -> None:
    lengths = (7, 49, 10**6)  # 1/49 times 49 isn't one in float32
    asked = [(make(n), [0, n, 10 * n]) for make, *_ in ENDS for n in lengths]
    expected = [(begin, end, end) for _, begin, end in ENDS for _ in lengths]
    np.testing.assert_array_equal(np.float32(all_values(*asked)), np.float32(expected))


def test_polynomial_near_its_end_keeps_its_digits() -> None:
    counts, powers = 10**6 - np.array([1, 2, 3, 1000, 999_999]), (0.5, 1, 2.5)
    asked = [(ours.polynomial(0.1, steps=10**6, power=power), counts) for power in powers]
    for rates, power in zip(all_values(*asked), powers, strict=True):
        np.testing.assert_allclose(rates, 0.1 * ((10**6 - counts) / 1e6) ** power, rtol=1e-6)


def test_one_cycle_peaks_at_its_share_of_the_steps() -> None:
    for total, by in ((50, 3), (100, 7), (1000, 61)):
        for peak in range(1, total, by):
            schedule = ours.one_cycle(0.1, total_steps=total, warmup_fraction=peak / total)
            assert float(schedule(tf.constant(peak))) == np.float32(0.1), (peak, total)
    assert int(np.argmax(values(ours.one_cycle(0.1, total_steps=100, warmup_fraction=0.29), np.arange(100)))) == 29


@pytest.mark.long
def test_peak_of_a_warm_up_is_exact() -> None:
    roots = [(ours.inverse_square_root(0.1, warmup_steps=n), [n]) for n in STEPS]
    stable = [
        (ours.warmup_stable_decay(0.1, warmup_steps=n, decay_steps=2, total_steps=2 * n, final_rate=1), [n, n + 2])
        for n in STEPS
    ]
    assert {rate for rates in all_values(*roots, *stable) for rate in rates} == {np.float32(0.1)}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("steps", lambda n: ours.cosine(0.1, steps=n)),
        ("steps", lambda n: ours.exponential(0.1, decay_rate=0.5, steps=n)),
        ("warmup_steps", lambda n: ours.warmup_cosine(0.1, warmup_steps=n, total_steps=100)),
        ("total_steps", lambda n: ours.one_cycle(0.1, total_steps=n)),
        ("boundaries", lambda n: ours.piecewise_constant([0.1, 0.2], boundaries=[n])),
    ],
)
@pytest.mark.parametrize("count", [0.1, 10.5, True])
def test_count_is_a_whole_number(name: str, schedule: Callable[[Any], Schedule], count: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{name}(\[0\])?` is {count}; give a whole number"):
        schedule(count)
