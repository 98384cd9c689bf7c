"""Samplers on normal data, where the best denoiser and the flow are known in closed form."""

import numpy as np
import pytest
import tensorflow as tf

from models.diffusion import Edm, RectifiedFlow, VPrediction, ddim, euler, heun

MEAN, STD = 0.3, 0.6
NOISE = np.random.RandomState(0).normal(size=[2, 4])
FORMULATIONS = [Edm(sigma_max=10.0, rho=3.0), RectifiedFlow(), VPrediction()]
EACH = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda x: type(x).__name__)


def denoiser(formulation):
    """Returns E[x₀ | x_t] for x₀ from N(MEAN, STD²)."""

    def denoise(x, t):
        c = formulation.coefficients(t)
        gain = c.signal * STD**2 / (c.signal**2 * STD**2 + c.noise**2)
        return MEAN + gain * (x - c.signal * MEAN)

    return denoise


def sampled(sampler, formulation, steps):
    """Returns the samples, and those of the exact flow: it keeps each x_t's place in its distribution."""
    times = tf.cast(formulation.sampling_times(steps), tf.float64)
    first = formulation.coefficients(times[0])
    x = first.signal * MEAN + tf.sqrt(first.signal**2 * STD**2 + first.noise**2) * NOISE
    return sampler(formulation, denoiser(formulation), x, times).numpy(), MEAN + STD * NOISE


@EACH
@pytest.mark.parametrize(("sampler", "order"), [(euler, 1), (ddim, 1), (heun, 2)], ids=["euler", "ddim", "heun"])
def test_error_falls_with_the_order_of_the_method(sampler, order, formulation):
    errors = [np.abs(np.subtract(*sampled(sampler, formulation, steps))).max() for steps in (32, 64)]
    assert errors[1] < 0.05
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25)


def test_ddim_takes_the_steps_of_euler_on_straight_paths():
    for formulation in FORMULATIONS[:2]:
        np.testing.assert_allclose(*(sampled(sampler, formulation, 7)[0] for sampler in (ddim, euler)), rtol=1e-9)


@pytest.mark.parametrize(("sampler", "calls"), [(euler, 1), (ddim, 1), (heun, 3)], ids=["euler", "ddim", "heun"])
def test_graph_has_as_many_networks_for_any_number_of_steps(sampler, calls):
    formulation, traced = FORMULATIONS[0], []

    @tf.function(autograph=False)
    def sample(x):
        times = tf.cast(formulation.sampling_times(40), tf.float64)
        return sampler(formulation, lambda x, t: traced.append(t) or denoiser(formulation)(x, t), x, times)

    made = sample(tf.constant(NOISE))
    assert len(traced) == calls
    times = tf.cast(formulation.sampling_times(40), tf.float64)
    np.testing.assert_allclose(made, sampler(formulation, denoiser(formulation), tf.constant(NOISE), times), rtol=1e-9)
