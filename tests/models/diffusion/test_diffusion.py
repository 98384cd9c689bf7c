"""The task: its loss by the paper's definition, samples, classes, guidance, and independent rows."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import DataError
from core.layers import Linear
from core.module import Module, named_variables
from core.optimizers import adam
from core.random import Rng
from core.testing import assert_task
from models import Diffusion, Edm, diffusion_mlp, euler, unet
from models.diffusion.guidance import guided, labels_dropped

RANDOM = np.random.RandomState(0)
BATCH = {"image": tf.constant(RANDOM.rand(6, 4, 4, 1), tf.float32), "label": tf.constant([0, 1, 2, 0, 1, 2])}


class Plain(Module):
    """A network of one matrix, which sees the image, its time and its class."""

    def __init__(self, *, image_shape, num_classes, rng):
        super().__init__()
        self.image_shape, self.classes = image_shape, None if num_classes is None else num_classes + 1
        size = int(np.prod(image_shape))
        self.linear = Linear(size + 1 + (self.classes or 0), size, rng=rng)

    def __call__(self, x, time, label=None):
        parts = [tf.reshape(x, [tf.shape(x)[0], self.linear.in_size - 1 - (self.classes or 0)])]
        parts.append(tf.cast(time[:, tf.newaxis], x.dtype))
        if self.classes:
            parts.append(tf.one_hot(label, self.classes, dtype=x.dtype))
        return tf.reshape(self.linear(tf.concat(parts, 1)), [-1, *self.image_shape])


def tiny(**settings):
    given = {"image_shape": [4, 4, 1], "formulation": Edm(), "network": Plain, "optimizer": adam(1e-2), **settings}
    return Diffusion(rng=Rng.from_seed(0), **given)


def small_mlp(**given):
    return diffusion_mlp(**given, size=8, blocks=1)


def small_unet(**given):
    return unet(**given, channels=4, multipliers=[1], blocks=1, attention_at=[], groups=2)


def test_perceptron_sees_image_time_and_class_of_each_row_alone():
    net = small_mlp(image_shape=[2, 2, 1], num_classes=3, rng=Rng.from_seed(1))
    x = tf.reshape(tf.range(12.0) / 12.0, [3, 2, 2, 1])
    time, label = tf.constant([0.1, 0.5, 0.9]), tf.constant([0, 2, 3])  # the class 3 stands for none
    begun = net(x, time, label)
    assert begun.shape == [3, 2, 2, 1]
    assert np.abs(begun).max() < 0.05  # it begins near zero
    for last in (net.last, net.blocks[0].linear_2):
        last.w.assign(tf.ones_like(last.w) * tf.range(1.0, last.w.shape[1] + 1.0) / 8.0)
    whole = net(x, time, label).numpy()
    np.testing.assert_allclose(net(x[1:2], time[1:2], label[1:2]), whole[1:2], rtol=1e-5, atol=1e-6)
    for changed in ((x + 0.1, time, label), (x, time + 0.1, label), (x, time, (label + 1) % 4)):
        assert np.abs(net(*changed) - whole).max(axis=(1, 2, 3)).min() > 1e-4
    assert small_mlp(image_shape=[2, 2, 1], num_classes=None, rng=Rng.from_seed(1))(x, time).shape == [3, 2, 2, 1]


def test_loss_of_edm_is_the_weighted_error_of_its_denoiser():
    """λ(σ) |D(x + n; σ) − x|² with ln σ from N(-1.2, 1.2²), n from N(0, σ²), and λ = 1 / c_out²."""
    task, rng = tiny(), Rng.from_seed(3)
    sigma = np.exp(-1.2 + 1.2 * rng.fold("t").rows.normal(6).numpy().astype(np.float64)).reshape(6, 1, 1, 1)
    clean = 2.0 * BATCH["image"].numpy() - 1.0
    x = clean + sigma * rng.fold("noise").rows.normal(6, 4, 4, 1).numpy()
    root = np.sqrt(sigma**2 + 0.25)
    found = task.net(tf.constant(x / root, tf.float32), tf.constant(np.log(sigma.ravel()) / 4, tf.float32)).numpy()
    denoised = 0.25 / root**2 * x + 0.5 * sigma / root * found
    weighted = np.mean((denoised - clean) ** 2 * (root / (0.5 * sigma)) ** 2, (1, 2, 3))
    np.testing.assert_allclose(task.loss(BATCH, rng).per_example, weighted, rtol=1e-4)


@pytest.mark.parametrize("num_classes", [None, 3])
def test_task_passes_all_assertions(num_classes):
    batch = BATCH if num_classes else {"image": BATCH["image"]}
    assert_task(tiny(num_classes=num_classes, label_dropout=0.2), batch, precision="bfloat16")


@pytest.mark.long
@pytest.mark.parametrize("network", [small_mlp, small_unet])
def test_task_with_each_network_passes_all_assertions(network):
    """A key's bias adds the same to all scores of a query: its gradient is rounding alone."""
    assert_task(tiny(network=network, num_classes=3), BATCH, precision="bfloat16", except_for=["*/key/b"])


def test_evaluation_does_not_depend_on_the_batch():
    task = tiny(num_classes=3)
    broken = tf.concat([BATCH["image"][:2], tf.fill([1, 4, 4, 1], np.nan), BATCH["image"][3:]], 0)
    whole, one_broken = (task.evaluate({**BATCH, "image": x}).per_example for x in (BATCH["image"], broken))
    one = task.evaluate({key: x[2:3] for key, x in BATCH.items()}).per_example
    np.testing.assert_allclose(one[0], whole[2], rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(one_broken), np.arange(6) == 2)
    np.testing.assert_allclose(np.delete(one_broken, 2), np.delete(whole, 2), rtol=1e-5)


def test_samples_repeat_themselves_and_stay_in_range():
    task = tiny(num_classes=3)
    first, second = (task.sample(Rng.from_seed(1), 5) for _ in range(2))
    assert first["image"].shape == (5, 4, 4, 1)
    assert np.abs(first["image"]).max() <= 1.0
    np.testing.assert_array_equal(first["image"], second["image"])
    np.testing.assert_array_equal(first["label"], [0, 1, 2, 0, 1])


def test_one_step_of_guidance_is_its_equation():
    """D_guided = D(x) + w (D(x, class) − D(x)), and one step of Euler's method to no noise ends at D."""
    noise, label = tf.constant(RANDOM.normal(size=[6, 4, 4, 1]), tf.float32), BATCH["label"]
    task = tiny(num_classes=3, guidance=2.5, sampler=euler, sample_steps=1, formulation=Edm(sigma_max=0.5))
    root = np.sqrt(0.5**2 + 0.5**2)
    time, scaled = tf.fill([6], np.float32(np.log(0.5) / 4)), noise * 0.5 / root

    def denoised(label):
        return 0.25 / root**2 * 0.5 * noise + 0.25 / root * task.net(scaled, time, label)

    of_class, of_any = denoised(label), denoised(tf.fill([6], 3))
    made = task.generate({"noise": noise, "label": label})["image"]
    np.testing.assert_allclose(made, np.clip(of_any + 2.5 * (of_class - of_any), -1, 1), rtol=1e-4, atol=1e-5)
    task.guidance = 1.0
    plain = task.generate({"noise": noise, "label": label})["image"]
    np.testing.assert_allclose(plain, np.clip(of_class, -1, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(guided(of_class, of_any, 1.0), of_class, rtol=1e-5, atol=1e-6)


def test_labels_are_dropped_with_their_probability():
    label = tf.zeros([4000], tf.int32)
    dropped = labels_dropped(label, Rng.from_seed(0), rate=0.25, none=10)
    assert set(dropped.numpy()) == {0, 10}
    assert np.mean(dropped == 10) == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / 4000))


def test_every_class_trains_its_own_row_of_the_network():
    task = tiny(num_classes=3, label_dropout=0.0)
    assert "net/linear/w" in named_variables(task)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(task.loss(BATCH, Rng.from_seed(0)).per_example)
    rows = np.abs(tape.gradient(loss, task.net.linear.w)).sum(1)
    assert np.all(rows[-4:-1] > 0.0)
    assert rows[-1] == 0.0  # no label was dropped


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"guidance": 2.0}, "give `num_classes`"),
        ({"guidance": 2.0, "num_classes": 3, "label_dropout": 0.0}, "a `label_dropout` such as 0.1"),
        ({"label_dropout": 1.0}, "give a fraction in"),
        ({"sample_steps": 0}, "at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        tiny(**settings)


def test_integer_images_are_refused():
    source = ArraySource({"image": np.zeros([3, 4, 4, 1], "int32")}, name="raw")
    with pytest.raises(DataError, match="is int32, but `Diffusion` learns from float32 images"):
        tiny().check_source(source)
