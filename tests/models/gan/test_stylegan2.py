"""StyleGAN2's step: path lengths by differences, lazy penalties, carried numbers, and the same on replicas."""

import functools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from core.distribution.ledger import GRADIENTS
from core.errors import ConfigurationError
from core.losses import adversarial
from core.optimizers import adam, sgd
from core.random import Rng
from models import Augmentation, StyleGan2
from models.gan import style_discriminator, style_generator
from models.gan.stylegan2 import _PATH_DECAY
from tests.core.engine.engine_lab import assert_same, train
from tests.models.gan.gan_lab import BATCH, DATA

RNG = Rng.from_seed(3, step=0)


def made(**settings):
    """Returns a factory of tiny networks, as an experiment calls it."""
    defaults = {
        "image_shape": [8, 8, 1],
        "channels": [3, 2],
        "latent_size": 3,
        "style_size": 3,
        "mapping_layers": 1,
        "group": 2,
        "g_optimizer": adam(0.01, epsilon=1e-3),
        "d_optimizer": sgd(0.1),
    }
    return functools.partial(StyleGan2, **{**defaults, **settings})


def stylegan2(**settings):
    return made(**settings)(rng=Rng.from_seed(0))


def stepped(step):
    """Returns the same random numbers for any step."""
    return Rng.from_seed(3, step=step)


@pytest.fixture
def smooth(monkeypatch):
    """Replaces activations by smooth ones: differences across a kink are far from the derivative."""
    for module in (style_generator, style_discriminator):
        monkeypatch.setattr(module, "activated", lambda x: x + 0.5 * tf.tanh(x))


def test_path_lengths_are_those_of_finite_differences(smooth):
    task, rng = stylegan2(image_shape=[4, 4, 2], channels=[3]), RNG.fold("path")
    styles = task._styles(BATCH, rng)
    y = rng.fold("direction").rows.normal(8, 4, 4, 2) / 4.0
    squares = np.zeros([8, 2])
    for layer, place in np.ndindex(2, 3):
        nudge = 0.01 * tf.reshape(tf.one_hot(3 * layer + place, 6), [1, 2, 3])
        above, below = (task.g.synthesis(styles + sign * nudge, rng.fold("noise")) for sign in (1.0, -1.0))
        squares[:, layer] += np.sum((above - below) / 0.02 * y, (1, 2, 3)) ** 2
    np.testing.assert_allclose(task.path_lengths(styles, rng), np.sqrt(squares.mean(1)), rtol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_of_penalties_are_those_of_differences(compiled, smooth):
    """In the direction of the gradient, the value changes by the gradient's squared norm."""
    task, real = stylegan2(), 2.0 * BATCH["image"] - 1.0
    lengths = functools.partial(task.path_lengths, task._styles(BATCH, RNG), RNG)
    for net, value in ((task.g, lengths), (task.d, lambda: adversarial.r1(task.d, real))):

        def slopes(net=net, value=value):
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(value())
            weights = list(net.parameters().values())
            return total, tape.gradient(total, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)

        run = tf.function(slopes, autograph=False, jit_compile=compiled)
        found = run()[1]
        square, values = sum(float(tf.reduce_sum(x**2)) for x in found), []
        for sign in (1.0, -2.0):
            for variable, slope in zip(net.parameters().values(), found, strict=True):
                variable.assign_add(sign * 1e-3 / square**0.5 * slope)
            values.append(float(run()[0]))
        assert (values[0] - values[1]) / 2e-3 == pytest.approx(square**0.5, rel=0.02)


def test_r1_is_added_on_every_sixteenth_step():
    task = stylegan2(r1=0.7)
    plain, penalised = (task.d_loss(BATCH, stepped(step)).per_example for step in (1, 16))
    slopes = adversarial.r1(task.d, 2.0 * BATCH["image"] - 1.0)
    np.testing.assert_allclose(penalised - plain, 16 * 0.35 * slopes, rtol=1e-4, atol=1e-6)


def test_path_length_is_penalised_on_every_fourth_step():
    task = stylegan2(path_weight=0.5)
    task.path_mean.value.assign(0.2)
    plain, penalised = (task.g_loss(BATCH, stepped(step)) for step in (3, 4))
    lengths = penalised.outputs["path_length"]
    assert float(tf.reduce_min(lengths)) > 0.0
    np.testing.assert_allclose(penalised.per_example - plain.per_example, 4 * 0.5 * (lengths - 0.2) ** 2, rtol=1e-4)


def test_mean_path_length_moves_on_steps_that_measure_it():
    task = stylegan2()
    task.path_mean.value.assign(2.0)
    for step, moved in ((8, 2.0 + _PATH_DECAY * 2.0), (9, 2.0)):
        outputs, kept = task.averaged_path({"path_length": tf.constant([3.0, 5.0])}, stepped(step))
        assert not outputs
        assert float(kept[task.path_mean.value.ref()]) == pytest.approx(moved)


@pytest.mark.parametrize(
    ("signs", "before", "after"),
    [([1, 1, 1, 1], 0.5, 0.54), ([1, 1, 1, -1], 0.5, 0.46), ([1, 1, 1, 1], 0.99, 1.0), ([-1, 1, 1, 1], 0.01, 0.0)],
)
def test_probability_follows_the_sign_of_real_logits(signs, before, after):
    task = stylegan2(augmentation=Augmentation(), augmentation_images=100)
    task.probability.value.assign(before)
    _, kept = task.adapted({"real_sign": tf.constant(signs, tf.float32)}, RNG)
    assert float(kept[task.probability.value.ref()]) == pytest.approx(after)


def test_layers_from_some_on_get_the_style_of_another_latent():
    batch = {"image": tf.zeros([200, 8, 8, 1])}
    plain, mixed = (stylegan2(mixing=mixing)._styles(batch, RNG) for mixing in (0.0, 0.5))
    same = np.all(plain == mixed, 2)
    np.testing.assert_array_equal(np.sort(same, 1)[:, ::-1], same)  # the first layers
    np.testing.assert_allclose(np.bincount(same.sum(1), minlength=5) / 200, [0, 1 / 6, 1 / 6, 1 / 6, 1 / 2], atol=0.08)


def test_evaluation_puts_each_example_in_a_group_of_its_own():
    task = stylegan2()
    whole, part = (task.evaluate({"image": BATCH["image"][rows]}) for rows in (slice(8), slice(3, 4)))
    np.testing.assert_allclose(part.per_example, whole.per_example[3:4], rtol=1e-5)


@pytest.mark.long
def test_replicas_and_microbatches_change_nothing(smooth):
    """With whole groups, and both carried numbers. At a kink, rounding would change R1 by more than rounding."""
    small = {"image_shape": [4, 4, 1], "channels": [3], "r1": 0.1}
    brighter = Augmentation(translation=0.0, scaling=0.0, contrast=0.0)
    task = made(augmentation=brighter, augmentation_images=100, path_every=2, r1_every=3, **small)
    images = {"image": DATA["image"][:, 2:6, 2:6]}
    found, expected = (train(task, images, n, n, steps=4) for n in (2, 1))
    assert_same(found, expected, norms=1e-4)
    assert found[1].remarks == []
    assert Counter(entry.phase for entry in found[0].collectives if entry.what == GRADIENTS) == {"d": 1, "g": 1}
    assert found[0].variables["probability/value"] > 0.0
    assert found[0].variables["path_mean/value"] > 0.0


def test_channels_that_halve_too_often_are_refused():
    with pytest.raises(ConfigurationError, match=r"`StyleGan2.channels` has 5 entries, .* 8x8 pixels can't be halved"):
        stylegan2(channels=[2] * 5)
