"""Power-function averages, compared with the paper's equations in float64."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import Optimizer, chain, ema, sgd
from core.optimizers.power_profile import WIDEST, combination, gamma_of, inner_products


def profile(time, std, at):
    """Returns the density (γ + 1) τ ** γ / t ** (γ + 1) at the times `at`, zero after `time`."""
    gamma = gamma_of(std)
    return np.where(at <= time, (gamma + 1.0) * np.minimum(at, time) ** gamma / time ** (gamma + 1.0), 0.0)


def integral(values, at):
    return np.trapezoid(values, at)


@pytest.mark.parametrize("std", [0.02, 0.05, 0.1, 0.25])
def test_gamma_gives_a_profile_of_that_width(std):
    at = np.linspace(0.0, 1.0, 200_001)
    density = profile(1.0, std, at)
    mean = integral(density * at, at)
    assert np.sqrt(integral(density * (at - mean) ** 2, at)) == pytest.approx(std, rel=1e-6)


def test_inner_products_are_integrals():
    times, stds = [0.5, 0.7, 1.0], [0.1, 0.05, 0.2]
    at = np.linspace(0.0, 1.0, 1_400_001)
    gammas = [gamma_of(std) for std in stds]
    found = inner_products(times, gammas, times, gammas)
    profiles = [profile(*each, at) for each in zip(times, stds, strict=True)]
    expected = [[integral(one * other, at) for other in profiles] for one in profiles]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def train(rules, steps, seed=0):
    """Returns an optimizer after random updates, the weights after each, and the slots every 25 updates."""
    random, w = np.random.RandomState(seed), tf.Variable(tf.zeros([4]))
    optimizer = Optimizer(chain(sgd(1.0), *rules), {"w": w})
    weights, snapshots = [], []
    for i in range(steps):
        optimizer.apply({"w": tf.constant(random.normal(size=4), tf.float32)})
        weights.append(w.numpy().astype(np.float64))
        if (i + 1) % 25 == 0:
            snapshots.append({slot: values for slot, values in optimizer.variables.items() if slot.startswith("ema")})
            snapshots[-1] = {slot: v.numpy() for slot, v in snapshots[-1].items()}
    return optimizer, np.array(weights), snapshots


def average(weights, std, start=0):
    """Returns the paper's recursion θ' ← β θ' + (1 − β) θ with β = (1 − 1 / t) ** (γ + 1)."""
    result = 0.0
    for t, w in enumerate(weights[start:], 1):
        beta = (1.0 - 1.0 / t) ** (gamma_of(std) + 1.0)
        result = beta * result + (1.0 - beta) * w
    return result


@pytest.mark.parametrize("start", [0, 7])
def test_average_is_that_of_the_paper(start):
    optimizer, weights, _ = train([ema(profile="power", std=0.1, start=start)], 60)
    np.testing.assert_allclose(optimizer.shadow()["w"], average(weights, 0.1, start), rtol=1e-5)
    assert float(optimizer.slots["ema/count"][""]) == 60 - start
    assert float(optimizer.slots["ema/std"][""]) == pytest.approx(0.1)


def test_share_is_exact_after_a_million_updates():
    rule, (t, w) = ema(profile="power", std=0.05), (1_000_000, {"w": tf.constant(1.0)})
    state = {"average": {"w": tf.constant(0.0)}, "count": {"": 0.0}, "std": {"": 0.0}}
    found = float(rule.observe(state, w, tf.constant(t - 1, tf.int64))["average"]["w"])
    assert found == pytest.approx(1.0 - (1.0 - 1.0 / t) ** (gamma_of(0.05) + 1.0), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("std", [0.07, 0.1, 0.15])
def test_snapshots_of_two_widths_give_the_average_of_a_third(std):
    _, weights, snapshots = train([ema(profile="power", std=x) for x in (0.05, 0.1)], 200)
    pairs = [(each[f"{rule}/count"], each[f"{rule}/std"], each[f"{rule}/average/w"]) for each in snapshots
             for rule in ("ema", "ema_2")]  # fmt: skip
    times, stds, averages = (np.array(x, np.float64) for x in zip(*pairs, strict=True))
    shares, error = combination(times, stds, time=200.0, std=std)
    expected = average(weights, std)
    spread = np.abs(weights).max()
    np.testing.assert_allclose(shares @ averages, expected, atol=0.03 * spread)
    assert error < 0.04
    nearest = averages[-2:][np.argmin(np.abs(stds[-2:] - std))]
    if std != 0.1:
        assert np.abs(shares @ averages - expected).max() < 0.5 * np.abs(nearest - expected).max()


def test_weights_are_those_of_the_normal_equations_of_sampled_profiles():
    times, stds, at = [40.0, 70.0, 100.0, 100.0], [0.1, 0.1, 0.1, 0.05], np.linspace(0.0, 100.0, 400_001)
    profiles = np.array([profile(*each, at) for each in zip(times, stds, strict=True)])
    expected = np.linalg.lstsq(profiles.T, profile(100.0, 0.08, at), rcond=None)[0]
    np.testing.assert_allclose(combination(times, stds, time=100.0, std=0.08)[0], expected, rtol=1e-3)


@pytest.mark.parametrize("start", [0, 2])
def test_warm_up_leaves_the_first_updates_out_of_an_exponential_average(start):
    optimizer, weights, _ = train([ema(0.5, start=start), ema(0.5, start=start, debias=False)], 5)
    shares = 0.5 ** np.arange(5 - start)[::-1]
    expected = np.average(weights[start:], axis=0, weights=shares)
    np.testing.assert_allclose(optimizer.slots["ema/average"]["w"], expected, rtol=1e-5)
    first = weights[start - 1] if start else np.zeros(4)
    shares = np.array([0.5 ** (5 - start), *(0.5 * shares)])
    np.testing.assert_allclose(
        optimizer.slots["ema_2/average"]["w"], shares @ np.array([first, *weights[start:]]), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"profile": "power"}, "`std` None.*give `ema"),
        ({"profile": "power", "std": 0.1, "decay": 0.9}, "`decay` 0.9"),
        ({"profile": "power", "std": 0.3}, f"`std` is 0.3.*below {WIDEST:.4f}"),
        ({"profile": "power", "std": 0.0}, "`std` is 0.0"),
        ({"std": 0.1}, "`std` is 0.1, which is the width of `profile='power'`"),
        ({"profile": "powr"}, "`profile` is 'powr'"),
        ({"start": -1}, "`start` is -1"),
    ],
)
def test_mistakes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ema(**arguments)
