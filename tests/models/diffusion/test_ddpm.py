"""Diffusion: the paper's noise, a loss that falls, samples in range, and no dependence on replicas."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import DataError
from core.optimizers import adam
from core.random import Rng
from core.testing import assert_overfits, assert_step_function, assert_updates_only
from models import Ddpm
from models.diffusion.waves import waves

BATCH = {"image": tf.constant(np.random.RandomState(0).rand(4, 4, 4, 1), tf.float32)}


def tiny(*, rng, **settings):
    return Ddpm(rng=rng, image_shape=[4, 4, 1], channels=8, **{"optimizer": adam(5e-3), **settings})


def test_signal_is_left_as_the_paper_says():
    beta = np.linspace(1e-4, 0.02, 1000)
    np.testing.assert_allclose(tiny(rng=Rng.from_seed(0)).alpha_bar(), np.cumprod(1 - beta), rtol=1e-5)


def test_loss_is_the_error_of_the_noise():
    task = tiny(rng=Rng.from_seed(0))
    rng = Rng.from_seed(3)
    loss = assert_step_function(task.loss, BATCH, seed=3)
    t = np.floor(rng.fold("t").rows.uniform(4).numpy() * 1000).astype(int)
    noise = rng.fold("noise").rows.normal(4, 4, 4, 1).numpy()
    left = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[t].reshape(-1, 1, 1, 1)
    seen = np.sqrt(left) * (2 * BATCH["image"].numpy() - 1) + np.sqrt(1 - left) * noise
    found = task.net(tf.constant(seen, tf.float32), tf.constant(t, tf.int32)).numpy()
    np.testing.assert_allclose(loss.per_example, np.mean((noise - found) ** 2, (1, 2, 3)), rtol=1e-4)


def test_times_are_waves_of_wavelengths_up_to_ten_thousand():
    t = np.array([0, 3, 999])
    angles = t[:, None] / 10_000.0 ** (np.arange(3) / 3)
    np.testing.assert_allclose(waves(tf.constant(t), 6), np.hstack([np.sin(angles), np.cos(angles)]), atol=1e-4)


def test_update_trains_every_parameter():
    task = tiny(rng=Rng.from_seed(0))
    assert_updates_only(task, "net", task.net, BATCH)


@pytest.mark.long
def test_ddpm_overfits_one_batch():
    assert_overfits(tiny(rng=Rng.from_seed(0), optimizer=adam(2e-2)), BATCH, steps=50, to=0.8)


def test_evaluation_does_not_depend_on_the_batch():
    task = tiny(rng=Rng.from_seed(0))
    whole = task.evaluate(BATCH).per_example
    one = task.evaluate({"image": BATCH["image"][2:3]}).per_example
    np.testing.assert_allclose(one[0], whole[2], rtol=1e-5)


@pytest.mark.long
def test_evaluation_traces_its_network_once(monkeypatch):
    task, calls = tiny(rng=Rng.from_seed(0)), []
    error = task._error
    monkeypatch.setattr(task, "_error", lambda *args: calls.append(args) or error(*args))
    evaluate = tf.function(lambda image: task.evaluate({"image": image}).per_example, autograph=False)
    traced = evaluate(BATCH["image"])
    assert len(calls) == 1
    np.testing.assert_allclose(traced, task.evaluate(BATCH).per_example, rtol=1e-5)


def test_samples_repeat_themselves_and_stay_in_range():
    task = tiny(rng=Rng.from_seed(0), sample_steps=5)
    first, second = (task.sample(Rng.from_seed(1), 3)["image"].numpy() for _ in range(2))
    assert first.shape == (3, 4, 4, 1)
    assert np.all(np.isfinite(first))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"image_shape": [5, 4, 1]}, "even sizes"),
        ({"channels": 12}, "multiple of 8"),
        ({"sample_steps": 2000}, "1 to `noise_steps` = 1000"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, says):
    settings = {"image_shape": [4, 4, 1], "channels": 8, "optimizer": adam(1e-3), **arguments}
    with pytest.raises(ValueError, match=says):
        Ddpm(rng=Rng.from_seed(0), **settings)


def test_images_of_another_shape_are_refused():
    source = ArraySource({"image": np.zeros([3, 8, 8, 1], "float32")}, name="large")
    with pytest.raises(DataError, match="has shape \\(8, 8, 1\\)"):
        tiny(rng=Rng.from_seed(0)).check_source(source)
