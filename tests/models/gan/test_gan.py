"""The GAN's step: losses as in the papers, each update for its own network."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.data import ArraySource, digits
from core.data.digit_pairs import CentredImages
from core.errors import ConfigurationError, DataError
from core.losses import adversarial as games
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.testing import assert_step_function, assert_updates_only
from core.testing.plain import optimizers_of, plain_step
from models import BatchNormGan, Gan, dcgan_networks, mlp_networks
from models.gan.task import JURY
from tests.models.gan.gan_lab import BATCH, DATA, ROWS, SPECTRAL, TINY, batch_norm_gan, gan, tiny_dcgan

# --- each update for its own network --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [functools.partial(gan, networks=SPECTRAL), batch_norm_gan],
    ids=["spectral", "batch"],
)
def test_update_leaves_the_other_network_bit_for_bit(make):
    for name in ("d", "g"):
        task = make(num_classes=10)
        assert_updates_only(task, name, getattr(task, name), BATCH)


def test_hidden_layers_have_the_sizes_that_are_given():
    sizes = {"g_hidden": [6, 7, 5], "d_hidden": [4, 9]}
    g, d = mlp_networks(image_shape=[8, 8, 1], latent_size=3, num_classes=None, rng=Rng.from_seed(0), **sizes)
    images = g(tf.ones([2, 3]))
    assert images.shape == [2, 8, 8, 1]
    assert d(images).shape == [2]
    assert [layer.w.shape[1] for layer in [*g.hidden, *d.hidden]] == [6, 7, 5, 4, 9]


class InTurn(BatchNormGan):
    """Gives the rows weight in one update a step: first the discriminator's, then the generator's."""

    def phases(self):
        return [dataclasses.replace(phase, loss=only(i, phase.loss)) for i, phase in enumerate(super().phases())]


def only(step, loss):
    def weighted(batch, rng):
        result = loss(batch, rng)
        return result._replace(weight=tf.fill([ROWS], tf.cast(rng.step == step, tf.float32)))

    return weighted


def test_batch_norm_averages_move_in_the_update_of_their_network_alone():
    task = gan(InTurn, networks=tiny_dcgan("batch"))
    optimizers, moved = optimizers_of(task), []
    for i in range(2):
        plain_step(task, optimizers, BATCH, Rng.from_seed(0, step=i), index=i)
        moved.append({path: float(v) for path, v in named_variables(task).items() if path.endswith("moving_weight")})
    assert {path[0] for path in moved[0]} == {"g", "d"}
    for path in moved[0]:
        assert [bool(each[path]) for each in moved] == [path[0] == "d", True]
        assert moved[1][path] == pytest.approx(0.01)  # once, by 1 - momentum


def test_generator_learns_at_its_own_rate_once_in_so_many_steps():
    task = gan(g_optimizer=sgd(0.1), d_optimizer=sgd(0.0), d_steps=2)
    before = {path: v.numpy() for path, v in named_variables(task).items()}
    optimizers = optimizers_of(task)
    for i in range(4):
        plain_step(task, optimizers, BATCH, Rng.from_seed(0, step=i), index=i)
    assert (int(optimizers["g"].step), int(optimizers["d"].step)) == (2, 4)
    for path, variable in named_variables(task).items():
        assert np.array_equal(variable, before[path]) == (path.split("/")[0] == "d"), path


# --- losses by hand ---------------------------------------------------------------------------------------------------


def by_hand(task, image, label):
    """Returns the logits of a discriminator with one hidden layer, and the squares of their slopes."""
    value = {path: v.numpy().astype("float64") for path, v in named_variables(task.d).items()}
    x = np.reshape(image, [len(image), 64]).astype("float64")
    before = x @ value["hidden/0/w"] + value["hidden/0/b"]
    slope = np.where(before > 0.0, 1.0, 0.2)
    w = value["head/logit/w"][:, 0] + value["head/classes/w"][label]
    logits = np.sum(slope * before * w, 1) + value["head/logit/b"]
    return logits, np.sum(((slope * w) @ value["hidden/0/w"].T) ** 2, 1)


def softplus(x):
    return np.log1p(np.exp(x))


def test_gan_losses_are_those_of_the_papers():
    task = gan(num_classes=10, r1=0.3, r2=0.7)
    rng = Rng.from_seed(5)
    batch = {**BATCH, **task.fakes(BATCH, rng)}
    label = DATA["label"]
    real, real_slopes = by_hand(task, 2.0 * DATA["image"] - 1.0, label)
    fake, fake_slopes = by_hand(task, batch["fake"].numpy(), label)
    found = task.d_loss(batch, rng)
    expected = softplus(-real) + softplus(fake) + 0.15 * real_slopes + 0.35 * fake_slopes
    np.testing.assert_allclose(found.per_example, expected, rtol=1e-5)
    np.testing.assert_array_equal(found.metrics["real_accuracy"], real > 0.0)
    np.testing.assert_array_equal(found.metrics["fake_accuracy"], fake < 0.0)
    np.testing.assert_allclose(task.g_loss(batch, rng).per_example, softplus(-fake), rtol=1e-5)


def test_evaluation_compares_each_example_with_the_same_fakes():
    task = gan(num_classes=10, game=games.least_squares())
    jury = task.sample(Rng.from_seed(0).fold("jury"), JURY)
    fake, _ = by_hand(task, jury["image"].numpy(), jury["label"].numpy())
    real, _ = by_hand(task, 2.0 * DATA["image"] - 1.0, DATA["label"])
    found = task.evaluate(BATCH)
    np.testing.assert_allclose(found.per_example, 0.5 * (real - 1.0) ** 2 + np.mean(0.5 * fake**2), rtol=1e-4)
    np.testing.assert_allclose(found.metrics["real_accuracy"], real > 0.5)
    np.testing.assert_allclose(found.metrics["fake_accuracy"], np.full(ROWS, np.mean(fake < 0.5)), rtol=1e-6)
    part = task.evaluate({key: x[3:5] for key, x in BATCH.items()})
    np.testing.assert_allclose(part.per_example, found.per_example[3:5], rtol=1e-6)


STEP_FUNCTIONS = {
    "perceptrons": {"num_classes": 10, "game": games.relativistic(), "gradient_penalty": 10.0},
    "convolutions": {"networks": tiny_dcgan("instance", spectral_norm=True), "num_classes": 10, "r1": 0.2},
}


@pytest.mark.parametrize("settings", STEP_FUNCTIONS.values(), ids=STEP_FUNCTIONS.keys())
def test_step_functions_treat_rows_by_themselves(settings):
    task, rng, few = gan(**settings), Rng.from_seed(3), {key: x[:3] for key, x in BATCH.items()}
    batch = {**few, **task.fakes(few, rng)}
    last = task.fakes({key: x[2:] for key, x in few.items()}, rng._replace(first_row=2, num_rows=1))["fake"]
    np.testing.assert_allclose(batch["fake"][2:], last, atol=1e-6)
    assert_step_function(task.d_loss, batch)
    assert_step_function(task.g_loss, batch)


def test_accuracy_of_logits_without_a_border_compares_pairs():
    task = gan(game=games.wasserstein())
    batch = {**BATCH, **task.fakes(BATCH, Rng.from_seed(3))}
    metrics = task.d_loss(batch, Rng.from_seed(3)).metrics
    higher = task.d(2.0 * BATCH["image"] - 1.0) > task.d(batch["fake"])
    np.testing.assert_array_equal(metrics["real_accuracy"], higher)
    np.testing.assert_array_equal(metrics["fake_accuracy"], higher)


# --- networks and samples ---------------------------------------------------------------------------------------------


def test_sample_labels_go_through_the_classes():
    found = gan(num_classes=10).sample(Rng.from_seed(0), 23)
    np.testing.assert_array_equal(found["label"], np.arange(23) % 10)
    assert set(gan().sample(Rng.from_seed(0), 5)) == {"image"}


def test_networks_depend_on_the_class():
    task = gan(num_classes=10)
    z, image = tf.ones([2, 3]), 2.0 * BATCH["image"][:2] - 1.0
    assert np.ptp(task.g(z, tf.constant([1, 1])), axis=0).max() == 0.0
    assert np.ptp(task.g(z, tf.constant([1, 7])), axis=0).max() > 0.0
    assert np.all(task.d(image, tf.constant([1, 1])).numpy() != task.d(image, tf.constant([7, 7])).numpy())


@pytest.mark.parametrize(("norm", "size"), [("group", 8), ("instance", 32), ("batch", 8), ("none", 32)])
def test_dcgan_networks_make_and_read_images_of_the_size(norm, size):
    channels = [2, 4] if size == 8 else [2, 4, 6]
    networks = functools.partial(dcgan_networks, channels=channels, g_norm=norm, d_norm=norm)
    task = gan(BatchNormGan if norm == "batch" else Gan, networks=networks, image_shape=[size, size, 1])
    image = task.sample(Rng.from_seed(0), 5)["image"]
    assert image.shape == [5, size, size, 1]
    assert float(tf.reduce_max(tf.abs(image))) <= 1.0
    assert task.d(image).shape == [5]
    assert all(layer.sync for layer in task.submodules if isinstance(layer, layers.BatchNorm))
    assert all(phase.mixes_rows for phase in task.phases() if norm == "batch")
    # 4x4 kernels between 1, 2, 4 (and 6) channels, both ways; a norm has an offset, and a layer before it no bias.
    sizes = [1, *channels]
    weights = sum(16 * a * b for a, b in zip(sizes, channels, strict=False))
    offsets = sum(channels) + (0 if norm == "none" else sum(channels[1:]))
    map_size = (size // 2 ** len(channels)) ** 2 * channels[-1]
    assert count(task.d) == weights + offsets + map_size + 1
    starting = 3 * map_size + (map_size if norm == "none" else channels[-1] * 2)
    assert count(task.g) == starting + weights + sum(channels[:-1]) * (1 if norm == "none" else 2) + 1


def count(module):
    return sum(v.shape.num_elements() for v in named_variables(module, trainable_only=True).values())


def test_real_images_are_resized_to_the_size_of_fakes():
    seen = []
    task = gan(networks=tiny_dcgan(), image_shape=[32, 32, 1])
    net, task.d = task.d, lambda image, label, **_: (seen.append(image), net(image, label))[1]
    task.g_loss({**BATCH, **task.fakes(BATCH, Rng.from_seed(0))}, Rng.from_seed(0))
    task.evaluate(BATCH)
    real = seen[1].numpy()
    assert real.shape == (ROWS, 32, 32, 1)
    # The mean of four pixels stays the same except at the borders; the range is that of tanh.
    assert real.min() == -1.0
    assert real.max() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(real.mean((1, 2, 3)), 2.0 * DATA["image"].mean((1, 2, 3)) - 1.0, atol=0.02)


def test_spectral_normalisation_keeps_every_kernel_at_one():
    task = gan(networks=functools.partial(TINY, spectral_norm=True), num_classes=10)
    for layer in (*task.d.hidden, task.d.head.logit, task.d.head.classes):
        assert np.linalg.norm(layer.kernel().numpy(), 2) == pytest.approx(1.0, abs=1e-3)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r1": -1.0}, "`Gan.r1` is -1.0"),
        ({"r2": 1.0, "networks": tiny_dcgan("batch")}, "`Gan.r2` is 1.0, but a network normalises over the batch"),
        ({"networks": tiny_dcgan("batch")}, "give `Experiment.task = @BatchNormGan`"),
        ({"networks": tiny_dcgan(), "task": BatchNormGan}, "give `Experiment.task = @Gan`"),
        ({"image_shape": [8, 6, 1], "networks": tiny_dcgan()}, "`dcgan_networks.channels` has 2 entries"),
    ],
)
def test_settings_that_contradict_are_refused(settings, says):
    with pytest.raises(ConfigurationError, match=says):
        gan(**settings)


def test_source_of_other_images_or_labels_is_refused():
    colour = ArraySource({"image": np.zeros([4, 8, 8, 3], "float32"), "label": np.arange(4)}, name="colour")
    with pytest.raises(DataError, match=r"`image` of source `colour` has shape \(8, 8, 3\), but `Gan.image_shape` is"):
        gan().check_source(colour)
    gan(num_classes=10).check_source(digits("train"))
    gan().check_source(ArraySource({"image": DATA["image"]}, name="unlabelled"))
    with pytest.raises(DataError, match=r"`label` of example \d+ of source `digits` is 9, but `Gan.num_classes` is 9"):
        gan(num_classes=9).check_source(digits("train"))
    with pytest.raises(DataError, match="no feature `label`"):
        gan(num_classes=9).check_source(ArraySource({"image": DATA["image"]}, name="unlabelled"))
    centred = CentredImages({"image": np.zeros([4, 8, 8, 1], "uint8")}, name="centred")
    with pytest.raises(DataError, match=r"`centred` has values in \[-1, 1\], but `Gan` reads images in \[0, 1\]"):
        gan().check_source(centred)
