"""SimCLR: the encoder is Flax's, the loss is the paper's over both views, and only the encoder is served."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import tensorflow as tf

from core.data.augment import affine
from core.optimizers import sgd
from core.random import Rng
from core.testing import assert_step_function
from models import SimClr
from models.simclr import Encoder

IMAGES = np.random.RandomState(0).rand(4, 8, 8, 1).astype("float32")
BATCH = {"image": tf.constant(IMAGES)}


@pytest.fixture(scope="module")
def task():
    settings = {"image_shape": [8, 8, 1], "channels": [8, 16], "hidden": 8, "projection": 3}
    return SimClr(**settings, optimizer=sgd(0.1), rng=Rng.from_seed(0))


class Peer(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i, size in enumerate((8, 16, 24)):
            x = nn.Conv(size, (3, 3), strides=1 if i == 0 else 2, padding="SAME")(x)
            x = nn.gelu(nn.GroupNorm(8, epsilon=1e-5)(x), approximate=False)
        return x.mean([1, 2])


def test_encoder_is_that_of_flax():
    encoder = Encoder(1, [8, 16, 24], rng=Rng.from_seed(0))
    random = np.random.RandomState(1)
    for variable in encoder.trainable_variables:
        variable.assign(0.5 * random.randn(*variable.shape))
    params = {}
    for i, (conv, norm) in enumerate(zip(encoder.convolutions, encoder.norms, strict=True)):
        params[f"Conv_{i}"] = {"kernel": conv.w.numpy(), "bias": conv.b.numpy()}
        params[f"GroupNorm_{i}"] = {"scale": norm.scale.numpy(), "bias": norm.offset.numpy()}
    expected = jax.jit(Peer().apply)({"params": params}, IMAGES)
    np.testing.assert_allclose(encoder(BATCH["image"]), expected, rtol=1e-4, atol=1e-5)


def test_loss_is_that_of_the_paper_between_an_image_and_the_turned_one(task):
    views = np.concatenate([IMAGES, np.asarray(turned(task))])
    z = task.projection(task.encoder(tf.constant(views))).numpy().astype("float64")
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    scores = z @ z.T / task.temperature
    np.fill_diagonal(scores, -np.inf)
    partner = np.roll(np.arange(8), 4)
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(8), partner]
    loss = task.evaluate(BATCH)
    np.testing.assert_allclose(tf.reduce_mean(loss.per_example), losses.mean(), rtol=1e-5)
    nearest = np.argmax(scores[:4, 4:], 1)
    np.testing.assert_array_equal(loss.metrics["found"], nearest == np.arange(4))


def turned(task):
    return affine(BATCH["image"], turn=tf.fill([4], 0.5 * task.strengths["turn"]))


def test_loss_compares_two_views_that_differ(task, monkeypatch):
    monkeypatch.setattr(task, "_contrast", lambda *views: views)
    one, other = task.loss(BATCH, Rng.from_seed(1)._replace(num_rows=4))
    for x, y in ((one, other), (one, IMAGES), (other, IMAGES)):
        assert np.abs(x - y).max((1, 2, 3)).min() > 0.1  # in each image


def test_views_are_drawn_anew_and_features_are_those_of_the_image(task):
    rng = Rng.from_seed(1)._replace(num_rows=4)
    assert_step_function(task.loss, BATCH, mixes_rows=True)
    draws = (rng, rng, rng.fold("step"))
    first, again, other = (tf.reduce_mean(task.loss(BATCH, x).per_example).numpy() for x in draws)
    assert first == again != other
    served = task.serve({"image": tf.TensorSpec([None, 8, 8, 1])})
    assert list(served) == ["encode"]
    np.testing.assert_array_equal(served["encode"].function(BATCH)["features"], task.encoder(BATCH["image"]))
