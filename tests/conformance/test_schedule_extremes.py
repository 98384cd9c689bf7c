"""Schedules at their ends, on their boundaries and a million updates on: in float64 by definition, and to the bit.

Graphs and XLA multiply by 1/steps where the code divides by steps; so each is called eagerly, in a graph and compiled,
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


def values(schedule: Schedule, steps: Any) -> np.ndarray:
    """The rates at `steps`, the same eagerly, in a graph and compiled."""
    given = tf.constant(steps, tf.int64)
    seen = [
        np.asarray(call(given))
        for call in (
            schedule,
            tf.function(schedule, autograph=False),
            tf.function(schedule, autograph=False, jit_compile=True),
        )
    ]
    largest = np.abs(seen[0]).max()
    for other in seen[1:]:
        np.testing.assert_allclose(other, seen[0], rtol=0, atol=2e-7 * largest)
    return seen[2]


@pytest.mark.parametrize("steps", STEPS)
def test_a_staircase_steps_down_at_every_multiple(steps: int) -> None:
    counts = np.arange(1, 60) * steps
    around = np.concatenate([counts - 1, counts, counts + 1])
    got = values(ours.exponential(0.1, decay_rate=0.9, steps=steps, staircase=True), around)
    np.testing.assert_allclose(got, 0.1 * 0.9 ** (around // steps).astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("decay_rate", [0.9999, 0.99999, 1.00001, 1])
def test_a_decay_next_to_one_holds_for_a_million_updates(decay_rate: float) -> None:
    counts = np.array([0, 1, 999, 10**5, 10**6])
    schedule = ours.exponential(0.1, decay_rate=decay_rate, steps=1)
    np.testing.assert_allclose(values(schedule, counts), 0.1 * np.float64(decay_rate) ** counts, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: ours.linear(0.1, 0.03, steps=n),
        lambda n: ours.polynomial(0.1, steps=n, power=0.5),
        lambda n: ours.polynomial(0.1, 0.03, steps=n, power=0.1),
        lambda n: ours.polynomial(1, steps=n, power=3),
        lambda n: ours.cosine(0.1, 0.03, steps=n),
        lambda n: ours.warmup_cosine(0.3, warmup_steps=3, total_steps=n, initial_rate=0.1, final_rate=0.03),
        lambda n: ours.warmup_stable_decay(
            0.3, warmup_steps=2, decay_steps=n - 4, total_steps=n, initial_rate=0.1, final_rate=0.03
        ),
        lambda n: ours.one_cycle(2.5, total_steps=n, final_divisor=1e5),
    ],
    ids=["linear", "root", "low power", "cube", "cosine", "warmup_cosine", "warmup_stable_decay", "one_cycle"],
)
def test_begins_and_ends_exactly_where_it_says(make: Callable[[int], Schedule], steps: int) -> None:
    first, last, later = values(make(steps), [0, steps, 10 * steps])
    assert first in (np.float32(0.1), np.float32(1.0))
    assert last == later
    assert last in (np.float32(0.03), np.float32(0.0), np.float32(1e-6))


@pytest.mark.parametrize("power", [0.5, 1, 2.5])
def test_what_is_left_before_the_end_is_counted_from_it(power: float) -> None:
    counts = 10**6 - np.array([1, 2, 3, 1000, 999_999])
    expected = 0.1 * ((10**6 - counts) / 1e6) ** power
    np.testing.assert_allclose(values(ours.polynomial(0.1, steps=10**6, power=power), counts), expected, rtol=1e-6)


def test_one_cycle_peaks_at_its_share_of_the_steps() -> None:
    for total in (50, 100, 1000):
        for peak in range(1, total, 7 if total == 1000 else 1):
            schedule = ours.one_cycle(0.1, total_steps=total, warmup_fraction=peak / total)
            assert float(schedule(tf.constant(peak))) == np.float32(0.1), (peak, total)
    assert int(np.argmax(values(ours.one_cycle(0.1, total_steps=100, warmup_fraction=0.29), np.arange(100)))) == 29


def test_the_peak_of_a_warm_up_is_exact() -> None:
    for steps in STEPS:
        assert values(ours.inverse_square_root(0.1, warmup_steps=steps), [steps])[0] == np.float32(0.1)
        schedule = ours.warmup_stable_decay(0.1, warmup_steps=steps, decay_steps=2, total_steps=2 * steps, final_rate=1)
        assert set(values(schedule, np.arange(steps, min(steps + 3, 2 * steps - 1)))) == {np.float32(0.1)}


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
def test_a_count_is_a_whole_number(name: str, schedule: Callable[[Any], Schedule], count: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{name}(\[0\])?` is {count}; give a whole number"):
        schedule(count)
