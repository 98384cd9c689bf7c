"""The autoencoder: its bound by definition, its annealed divergence, samples, and independence of replicas."""

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core.module import named_variables
from core.optimizers import adam
from core.random import Rng
from core.testing import (
    assert_overfits,
    assert_task,
)
from models import Vae

LEVELS = 16
LIT = np.random.RandomState(0).randint(0, LEVELS + 1, [8, 3, 3, 1])
BATCH = {"image": tf.constant(LIT / LEVELS, tf.float32)}


def tiny(*, rng, optimizer=None, **settings):
    sizes = {"image_shape": [3, 3, 1], "levels": LEVELS, "latent_size": 2, "hidden": [8], **settings}
    return Vae(rng=rng, optimizer=optimizer or adam(1e-2), **sizes)


def moderate(**settings):
    """Returns one whose posterior is neither near its prior nor far away."""
    task, random = tiny(rng=Rng.from_seed(0), **settings), np.random.RandomState(1)
    for variable in named_variables(task).values():
        variable.assign(0.3 * random.randn(*variable.shape))
    return task


@pytest.fixture
def task():
    return moderate()


def perceptron(network, x):
    """Computes an `Mlp` in float64."""
    for i, layer in enumerate(network.layers):
        x = np.maximum(x, 0.0) if i else x
        x = x @ layer.w.numpy().astype("float64") + layer.b.numpy()
    return x


def by_definition(task, noise):
    """Returns log p(x|z) and the divergence of each image, for z = μ + σ · noise, in float64."""
    mean, log_std = np.split(perceptron(task.encoder, 2.0 * LIT.reshape(8, 9) / LEVELS - 1.0), 2, axis=1)
    p = 1.0 / (1.0 + np.exp(-perceptron(task.decoder, mean + np.exp(log_std) * noise)))
    likelihood = scipy.stats.binom.logpmf(LIT.reshape(8, 9), LEVELS, p).sum(1)
    return likelihood, 0.5 * (mean**2 + np.exp(2 * log_std) - 1 - 2 * log_std).sum(1)


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.125, 0.25), (0.5, 1.0), (0.9, 1.0)])
def test_divergence_is_annealed_by_progress(task, progress, weight):
    rng = Rng.from_seed(3, step=9, progress=progress)
    noise = rng.fold("latent").rows.normal(8, 2).numpy()
    likelihood, divergence = by_definition(task, noise)
    loss = task.loss(BATCH, rng)
    np.testing.assert_allclose(loss.per_example, -likelihood + weight * divergence, rtol=1e-5)
    np.testing.assert_allclose(loss.metrics["bound"], likelihood - divergence, rtol=1e-5)
    np.testing.assert_allclose(loss.metrics["divergence"], divergence, rtol=1e-5)


def test_bound_is_trained_from_the_start_without_annealing():
    loss = tiny(rng=Rng.from_seed(0), annealed=0.0).loss(BATCH, Rng.from_seed(0))
    np.testing.assert_allclose(loss.per_example, -loss.metrics["bound"], rtol=1e-6)


def test_evaluation_is_the_bound_by_its_definition(task):
    draws = Rng.from_seed(0).fold("evaluate").normal([16, 2]).numpy()
    likelihood = np.mean([by_definition(task, noise)[0] for noise in draws], axis=0)
    divergence = by_definition(task, 0.0)[1]
    found = task.evaluate(BATCH)
    np.testing.assert_allclose(found.metrics["bound"], likelihood - divergence, rtol=1e-5)
    np.testing.assert_array_equal(found.per_example, -found.metrics["bound"])
    alone = task.evaluate({"image": BATCH["image"][5:6]})
    np.testing.assert_allclose(alone.per_example[0], found.per_example[5], rtol=1e-5)


def test_bound_is_below_the_evidence():
    """Uses quadrature over a one-dimensional latent: the evidence, the divergence and the bound that draws estimate."""
    task = moderate(latent_size=1)
    z = np.linspace(-30.0, 30.0, 12001)
    prior = scipy.stats.norm.logpdf(z)
    logits = perceptron(task.decoder, z[:, None])
    each = scipy.stats.binom.logpmf(LIT.reshape(8, 1, 9), LEVELS, 1.0 / (1.0 + np.exp(-logits))).sum(-1)
    evidence = np.log(np.trapezoid(np.exp(each + prior), z, axis=1))
    mean, log_std = (x.numpy().astype("float64") for x in task.posterior(BATCH["image"]))
    q = scipy.stats.norm.pdf(z, mean, np.exp(log_std))
    divergence = np.trapezoid(q * (np.log(np.maximum(q, 1e-300)) - prior), z, axis=1)
    np.testing.assert_allclose(task.evaluate(BATCH).metrics["divergence"], divergence, rtol=1e-4)
    exact = np.trapezoid(q * each, z, axis=1) - divergence
    assert np.all(exact < evidence)
    rng = Rng.from_seed(5, progress=1.0)
    bounds = [task.loss(BATCH, rng.fold(i)).metrics["bound"].numpy() for i in range(40)]
    error = np.std(bounds, axis=0) / np.sqrt(len(bounds))
    assert np.all(np.abs(np.mean(bounds, axis=0) - exact) < 5.0 * error)


@pytest.mark.long
def test_vae_passes_all_checks_of_a_task_and_overfits():
    task = tiny(rng=Rng.from_seed(0))
    assert_task(task, BATCH)
    assert_overfits(tiny(rng=Rng.from_seed(0), annealed=1.0, optimizer=adam(5e-2)), BATCH, steps=60, to=0.6)


def test_samples_and_reconstructions_are_images(task):
    first, second = (task.sample(Rng.from_seed(1), 3)["image"].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    made = task.reconstruct(BATCH)
    np.testing.assert_allclose(made["image"], 2.0 * LIT / LEVELS - 1.0, rtol=1e-6)
    for images, count in ((first, 3), (made["reconstructed"].numpy(), 8)):
        assert images.shape == (count, 3, 3, 1)
        assert np.abs(images).max() < 1.0
    assert np.ptp(first, axis=0).max() > 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"levels": 0}, "`Vae.levels` is 0"),
        ({"latent_size": 0}, "`Vae.latent_size` is 0"),
        ({"annealed": 1.5}, "`Vae.annealed` is 1.5; it is a fraction of the run"),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        tiny(rng=Rng.from_seed(0), **arguments)
