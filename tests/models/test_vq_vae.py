"""The VQ-VAE: its loss by definition, images from codes, and equal numbers over replicas and microbatches."""

import functools

import numpy as np
import pytest
import scipy
import tensorflow as tf

from core.optimizers import adam
from core.random import Rng
from core.testing import Run, assemble, assert_overfits, assert_task, on_virtual_cpus
from core.testing.invariance import differences
from models import VqVae, scalar_quantizer, vector_quantizer

BATCH = {"image": tf.constant(np.random.RandomState(0).uniform(size=[8, 4, 4, 1]), tf.float32)}
QUANTIZERS = {
    "trained": functools.partial(vector_quantizer, num_codes=6, size=2, commitment=0.5),
    "FSQ": functools.partial(scalar_quantizer, levels=[3, 2]),
}
both = pytest.mark.parametrize("name", QUANTIZERS)


def tiny(name, *, rng=None, **settings):
    settings = {"image_shape": [4, 4, 1], "channels": [4], "optimizer": adam(1e-2), **settings}
    return VqVae(rng=rng or Rng.from_seed(0), quantizer=QUANTIZERS[name], **settings)


@both
def test_loss_is_the_error_of_a_pixel_and_the_distance_to_the_code(name):
    task = tiny(name)
    codes = task.encode(BATCH)["codes"].numpy()
    assert codes.shape == (8, 2, 2)
    image, found = (x.numpy() for x in task.reconstruct(BATCH).values())
    error = ((found - image) ** 2).mean(axis=(1, 2, 3)) / 4.0
    apart = 0.0
    if name == "trained":
        latent = task.encoder(2.0 * BATCH["image"] - 1.0).numpy()
        apart = 1.5 * ((latent - task.quantizer.w.numpy()[codes]) ** 2).sum(-1).mean(axis=(1, 2))
    loss = task.evaluate(BATCH)
    np.testing.assert_allclose(loss.metrics["error"], error, rtol=1e-5)
    np.testing.assert_allclose(loss.per_example, error + apart, rtol=1e-5)
    used = np.exp(scipy.stats.entropy(np.bincount(codes.ravel())))
    np.testing.assert_allclose(loss.metrics["codes"].result(), used, rtol=1e-5)


@pytest.mark.long
@both
def test_task_passes_all_checks_and_overfits(name):
    # Straight-through gradients of the encoder, and those of the code, are no slopes.
    assert_task(tiny(name), BATCH, except_for=["0/*", "1/*"])
    assert_overfits(tiny(name), BATCH, steps=300, to=0.5)


@pytest.mark.long
def test_task_with_fsq_is_the_same_divided():
    """`test_invariance` trains the other quantizer so."""
    one, other = (
        Run(assemble(functools.partial(tiny, "FSQ"), on_virtual_cpus(n)), BATCH, microbatches=n).train(5)
        for n in (1, 2)
    )
    assert differences(one.variables, other.variables)[0].size < 1e-5
    assert differences(one.figures, other.figures)[0].size < 1e-6


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`VqVae.channels` is \[4, 4, 4\] for images of \[4, 4, 1\]; each number"):
        tiny("FSQ", channels=[4, 4, 4])
    with pytest.raises(ValueError, match="`commitment` is -1; it is at least 0"):
        vector_quantizer(rng=Rng.from_seed(0), commitment=-1)
