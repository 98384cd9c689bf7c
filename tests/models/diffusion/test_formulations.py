"""Formulations against their papers in float64: coefficients, targets, weights of the loss, and times."""

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core.random import Rng
from models.diffusion import Edm, RectifiedFlow, VPrediction, denoised, mixed, velocity

RANDOM = np.random.RandomState(0)
X, NOISE, FOUND = RANDOM.normal(size=[3, 5, 4])
TIMES = {"Edm": [1e-6, 0.002, 0.3, 1.7, 80.0, 1e6], "RectifiedFlow": [1e-6, 0.3, 1.0], "VPrediction": [1e-6, 0.3, 1.0]}
FORMULATIONS = [Edm(sigma_data=0.7), RectifiedFlow(), VPrediction()]


def edm(t):
    """Returns α, σ, c_skip, c_out, c_in, c_noise of Karras et al. (2022), table 1, for σ_data = 0.7."""
    sd = 0.7
    return 1.0, t, sd**2 / (t**2 + sd**2), t * sd / np.sqrt(sd**2 + t**2), 1 / np.sqrt(sd**2 + t**2), np.log(t) / 4


def rectified_flow(t):
    """F is v = ε − x₀ (Esser et al., 2024): x₀ = x_t − t v."""
    return 1 - t, t, 1.0, -t, 1.0, t


def v_prediction(t):
    """F is v = α ε − σ x₀ (Salimans and Ho, 2022): x₀ = α x_t − σ v."""
    signal, noise = np.cos(np.pi * t / 2), np.sin(np.pi * t / 2)
    return signal, noise, signal, -noise, 1.0, t


PAPERS = {"Edm": edm, "RectifiedFlow": rectified_flow, "VPrediction": v_prediction}
EACH = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda x: type(x).__name__)


def cases(formulation):
    name = type(formulation).__name__
    for t in TIMES[name]:
        yield np.float64(t), PAPERS[name](t)


@EACH
def test_coefficients_are_the_paper_s(formulation):
    for t, paper in cases(formulation):
        c = formulation.coefficients(tf.constant(t))
        found = [c.signal, c.noise, c.c_skip, c.c_out, c.c_in, c.c_noise]
        np.testing.assert_allclose(found, paper, rtol=1e-12, atol=1e-15)


@EACH
def test_target_makes_the_denoiser_right(formulation):
    """The squared error of F is that of D with the weight λ = 1 / c_out²."""
    for t, (signal, noise, c_skip, c_out, *_) in cases(formulation):
        c = formulation.coefficients(tf.constant(t))
        x = mixed(c, X, NOISE)
        np.testing.assert_allclose(x, signal * X + noise * NOISE, rtol=1e-12)
        target = formulation.target(tf.constant(t), X, NOISE)
        rounding = 1e-14 * (1.0 + noise) / c_out  # of the definition, whose terms cancel
        np.testing.assert_allclose(target, (X - c_skip * x) / c_out, rtol=1e-9, atol=abs(rounding))
        clean = denoised(c, lambda *_: FOUND, x)
        np.testing.assert_allclose(clean, c_skip * x + c_out * FOUND, rtol=1e-12)
        if abs(c_out) > 1e-3:
            np.testing.assert_allclose((FOUND - target) ** 2, (clean - X) ** 2 / c_out**2, rtol=1e-6, atol=1e-9)


@EACH
def test_float32_keeps_targets_and_denoisers_of_every_time(formulation):
    for t, _ in cases(formulation):
        exact = formulation.target(tf.constant(t), X, NOISE)
        x, noise, found = (tf.constant(a, tf.float32) for a in (X, NOISE, FOUND))
        narrow = formulation.target(tf.constant(t, tf.float32), x, noise)
        np.testing.assert_allclose(narrow, exact, rtol=1e-5, atol=1e-6)
        c = formulation.coefficients(tf.constant(t, tf.float32))
        clean = denoised(c, lambda *_, found=found: found, mixed(c, x, noise))
        wide = formulation.coefficients(tf.constant(t))
        np.testing.assert_allclose(clean, denoised(wide, lambda *_: FOUND, mixed(wide, X, NOISE)), rtol=1e-4, atol=1e-5)


@EACH
def test_velocity_is_the_derivative_of_the_path(formulation):
    """If D sees the clean image, then the flow follows the path of that image and its noise."""
    for t, _ in cases(formulation):
        h = 1e-4 * t
        before, c, after = (formulation.coefficients(tf.constant(x)) for x in (t - h, t, t + h))
        slope = (mixed(after, X, NOISE) - mixed(before, X, NOISE)) / (2 * h)
        found = velocity(c, mixed(c, X, NOISE), X)
        np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-5 + 1e-9 / t)


def test_noise_levels_of_edm_are_those_of_equation_5():
    levels = np.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), 18) ** 7
    np.testing.assert_allclose(Edm().sampling_times(18), [*levels, 0.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("formulation", "distribution", "parameters"),
    [
        (Edm(mean=-0.5, std=0.8), "lognorm", (0.8, 0.0, np.exp(-0.5))),
        (RectifiedFlow(times="uniform"), "uniform", ()),
        (VPrediction(), "uniform", ()),
    ],
    ids=["lognormal", "uniform", "v"],
)
def test_training_times_have_their_distribution(formulation, distribution, parameters):
    drawn = formulation.training_times(Rng.from_seed(0), 2000).numpy()
    assert scipy.stats.kstest(drawn, distribution, parameters).pvalue > 0.01


def test_logit_normal_times_are_normal_on_the_line():
    drawn = RectifiedFlow(mean=0.5, std=2.0).training_times(Rng.from_seed(0), 2000).numpy().astype(np.float64)
    assert scipy.stats.kstest((np.log(drawn / (1 - drawn)) - 0.5) / 2.0, "norm").pvalue > 0.01


def test_levels_that_rise_are_refused():
    with pytest.raises(ValueError, match="give a larger `sigma_max`"):
        Edm(sigma_min=1.0, sigma_max=0.5)
