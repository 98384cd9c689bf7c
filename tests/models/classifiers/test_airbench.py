"""airbench94: its size, its forward pass in JAX, whitening, the views of evaluation, learning, and refusals."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource, cifar10
from core.errors import CheckpointError, ConfigurationError
from core.optimizers import sgd
from core.random import Rng
from core.task.statistics import Statistics
from core.testing import Run
from core.weights.begin import begin_with
from models import Airbench, AirbenchClassifier
from models.classifiers import whitened_patches
from models.classifiers.airbench import whitening
from tests.commands import CONFIGS, run
from tools.invariance.stand_ins import write_cifar
from tools.invariance.subjects import configured

RNG = Rng.from_seed(0)
IMAGES = RNG.fold("images").uniform([6, 32, 32, 3])


def make(**settings):
    return AirbenchClassifier(**{"width": 4, **settings}, rng=RNG, optimizer=sgd(0.1))


def test_size_is_the_papers_and_the_narrowest_image_has_one_place_left():
    net = Airbench(num_classes=10, rng=RNG)
    assert sum(v.shape.num_elements() for v in net.parameters().values()) == 1_971_640  # "1.97 million"
    small = make(image_shape=[25, 25, 1])
    assert small.net(tf.zeros([2, 25, 25, 1])).shape == [2, 10]
    with pytest.raises(ConfigurationError, match=r"`AirbenchClassifier.image_shape` is \[24, 32, 3\].*least 25"):
        make(image_shape=[24, 32, 3])


def forward(net, x):
    """Returns training's logits by JAX: batch statistics, offsets alone, poolings of 2 and 3."""

    def conv(layer, x, padding):
        return jax.lax.conv_general_dilated(
            x, jnp.asarray(layer.w), (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def pool(x, size):
        window = (1, size, size, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    def normalised(layer, x):
        centred = x - x.mean((0, 1, 2))
        return centred / jnp.sqrt((centred**2).mean((0, 1, 2)) + 1e-12) + jnp.asarray(layer.offset)

    x = jax.nn.gelu(conv(net.whitening, 4.0 * jnp.asarray(x) - 2.0, "VALID") + jnp.asarray(net.whitening.b))
    for block in net.blocks:
        x = jax.nn.gelu(normalised(block.norms[0], pool(conv(block.convs[0], x, "SAME"), 2)))
        x = jax.nn.gelu(normalised(block.norms[1], conv(block.convs[1], x, "SAME")))
    return pool(x, 3)[:, 0, 0] @ jnp.asarray(net.logits.w) / 9.0


def test_forward_pass_is_that_of_jax():
    net = make().net
    for path, v in net.parameters().items():
        if path.endswith("offset") or path == "whitening/b":
            v.assign(RNG.fold(path).normal(v.shape))
    expected = jax.jit(functools.partial(forward, net))(IMAGES.numpy())
    np.testing.assert_allclose(net(IMAGES, statistics=Statistics()), expected, rtol=1e-4, atol=1e-5)


def test_convolutions_begin_as_the_identity():
    conv = make().net.blocks[1].convs[0]
    x = RNG.normal([2, 7, 7, 4])
    np.testing.assert_allclose(conv(x)[..., :4], x, rtol=1e-6, atol=1e-6)
    assert tf.reduce_min(tf.math.reduce_std(conv(x)[..., 4:], [0, 1, 2])) > 0.1  # others are random


def test_whitened_patches_have_unit_moments_that_are_uncorrelated(tmp_path):
    write_cifar(tmp_path)
    source = cifar10(str(tmp_path))
    task = make()
    begun = begin_with(whitened_patches(source, images=50, epsilon=1e-9), task)
    assert begun.line.startswith("begins with patches of 50 images of `cifar10`: 1 of")
    pixels = 4.0 * source.gather(tf.range(50, dtype=tf.int64))["image"] - 2.0
    w = task.net.whitening.w.numpy()
    np.testing.assert_array_equal(w[..., :12], -w[..., 12:])
    found = np.reshape(task.net.whitening(pixels), [-1, 24])
    np.testing.assert_allclose(found[:, :12], -found[:, 12:], atol=1e-5)
    np.testing.assert_allclose(found[:, :12].T @ found[:, :12] / len(found), np.eye(12), atol=1e-4)
    grey = whitening(np.ones([2, 3, 3, 1], np.float32), 0.01)  # four moments: 4, 0, 0, 0
    np.testing.assert_allclose(
        np.linalg.norm(grey.reshape(4, 8)[:, :4], axis=0), [1 / 4.01**0.5, 10, 10, 10], rtol=1e-5
    )


def test_whitening_of_other_images_is_refused():
    other = ArraySource({"image": np.ones([3, 8, 8, 1], np.float32)}, name="grey")
    with pytest.raises(CheckpointError, match=r"misshapen  net/whitening/w  float32\[2,2,3,24\]  float32\[2,2,1,8\]"):
        begin_with(whitened_patches(other), make())
    with pytest.raises(ValueError, match="`images` is 0"):
        whitened_patches(other, images=0)
    with pytest.raises(ValueError, match="`epsilon` is 0"):
        whitened_patches(other, epsilon=0.0)


def test_evaluation_averages_six_views():
    task = make()
    padded = np.pad(IMAGES, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="reflect")
    views = [(1 / 4, IMAGES.numpy()), (1 / 8, padded[:, :32, :32]), (1 / 8, padded[:, 2:, 2:])]
    expected = sum(share * task.net(tf.constant(y)) for share, x in views for y in (x, x[:, :, ::-1]))
    np.testing.assert_allclose(task.classify({"image": IMAGES})["logits"], expected, rtol=1e-4, atol=1e-6)


def test_smoothing_is_of_training_alone():
    batch = {"image": IMAGES, "label": tf.range(6)}
    plain, smooth = (make(label_smoothing=s) for s in (0.0, 0.2))
    logits = plain.net(IMAGES, statistics=Statistics())
    uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
    np.testing.assert_allclose(
        smooth.loss(batch, RNG).per_example, 0.8 * plain.loss(batch, RNG).per_example + 0.2 * uniform, rtol=1e-5
    )
    np.testing.assert_allclose(smooth.evaluate(batch).per_example, plain.evaluate(batch).per_example, rtol=1e-5)
    with pytest.raises(ValueError, match=r"`label_smoothing` is 1\.0"):
        make(label_smoothing=1.0)


@pytest.mark.long
def test_configuration_keeps_the_whitening_and_trains_all_else(tmp_path):
    subject = configured(CONFIGS / "cifar10_speed.gin", tmp_path, ["AirbenchClassifier.width = 4"])
    experiment = subject.experiment(tf.distribute.OneDeviceStrategy("CPU:0"))
    net = experiment.task.net
    before = {path: v.numpy() for path, v in net.parameters().items()}
    trained = Run(experiment.assembly, subject.batch).train(2).variables
    same = [path for path, x in before.items() if np.array_equal(x, trained[f"net/{path}"])]
    assert same == ["whitening/w"]


@pytest.mark.long
def test_configuration_learns_from_the_files(tmp_path):
    write_cifar(tmp_path, train=500, test=100)
    changes = ["Trainer.global_batch_size = 50", "AirbenchClassifier.width = 8", "steps = 60"]
    changes += ["warmup_stable_decay.warmup_steps = 14", "warmup_stable_decay.decay_steps = 46"]
    changes += ["warmup_stable_decay.peak_rate = 0.5", "offsets/warmup_stable_decay.peak_rate = 10.0"]
    flags = [f"--gin_param={text}" for text in (*changes, f"cifar10.directory = '{tmp_path}'")]
    done = run(f"--gin_file={CONFIGS / 'cifar10_speed.gin'}", *flags, "--workdir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "begins with patches of 500 images of `cifar10`: 1 of 33 variables" in done.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]["accuracy"] > 0.95
