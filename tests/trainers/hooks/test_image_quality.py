"""FID, KID, precision and recall during training: the same as computed by hand, on any number of replicas."""

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.data import digits
from core.distribution import mirrored
from core.errors import CheckpointError, ConfigurationError
from core.task import Loss
from models.features import Inception, image_quality, inception, inception_arrays, load_inception
from tests.toys import point_source
from tests.trainers.hooks.hooks_lab import Maker
from tests.trainers.trainer_lab import make, train
from trainers.hooks import ImageQuality
from trainers.hooks.samples import make_sampler


class Noise(Maker):
    """Makes images of noise, and the classes 0, 1 and 2 in turn."""

    def loss(self, batch, rng):
        return Loss(batch["image"][:, 0, 0, 0] * self.w)

    def sample(self, rng, n):
        image = 0.3 * rng.fold("rows").rows.normal(n, 6, 6, 1) + rng.fold("all").normal([n, 1, 1, 1])
        return {"image": image, "label": rng.rows.numbers(n) % 3}


def test_parts_of_a_sample_differ_and_classes_continue():
    sampler = make_sampler(Noise(rng=None), 0, 2, in_parts=True)
    parts = [sampler(tf.constant(i, tf.int64)) for i in (0, 1, 0)]
    assert [part["label"].numpy().tolist() for part in parts] == [[0, 1], [2, 0], [0, 1]]
    np.testing.assert_array_equal(parts[0]["image"], parts[2]["image"])
    assert abs(parts[0]["image"] - parts[1]["image"]).numpy().mean((1, 2, 3)).min() > 0.01


@pytest.mark.parametrize(
    ("settings", "source", "error", "message"),
    [
        ({}, digits("train"), CheckpointError, "the weights `.*/lost.pth` can't be read"),
        ({}, point_source(9), Exception, "no feature `image`"),
    ],
)
def test_a_hook_that_lacks_something_is_refused_before_the_first_step(settings, source, error, message, tmp_path):
    task = Noise if "image" in source.spec else Maker
    hook = ImageQuality(weights=str(tmp_path / "lost.pth"), **settings)
    with pytest.raises(error, match=message):
        make(tmp_path, task=task, source=source, hooks=[hook]).train()


@pytest.mark.parametrize(("name", "count"), [("samples", 3), ("real_samples", 2), ("batch_size", 0)])
def test_counts_that_give_no_distance_are_refused(name, count):
    with pytest.raises((ConfigurationError, ValueError), match=rf"`ImageQuality\.{name}` is {count}"):
        ImageQuality(weights="a.pth", **{name: count})


@pytest.mark.long
def test_measures_are_those_of_the_images_on_any_number_of_replicas(tmp_path, monkeypatch):
    # The network has its own tests; any other of the same kind tells images apart.
    monkeypatch.setattr(inception, "NETWORK", [inception.Conv("wide", 16, 3, 2), inception.Conv("last", 32, 3, 2)])
    monkeypatch.setattr(inception, "SIZE", 15)
    random = np.random.RandomState(0)
    arrays = {
        name: (random.randn(*x.shape) * (2.0 / x[0].size) ** 0.5 if x.ndim == 4 else x).astype(np.float32)
        for name, x in inception_arrays(Inception()).items()
    }
    path = str(tmp_path / "a.safetensors")
    save_file(arrays, path)
    found = []
    for strategy in (None, mirrored(2)):
        hook = ImageQuality(weights=path, samples=7, real_samples=9, batch_size=4)
        trainer = make(
            tmp_path,
            str(len(found)),
            task=Noise,
            source=digits("train"),
            strategy=strategy,
            steps=1,
            chunk_steps=1,
            hooks=[hook],
        )
        lines = train(trainer)
        found.append(next(figures for _, split, figures in lines if split == "inception"))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    sampler = make_sampler(Noise(rng=None), 0, 4, in_parts=True)
    fake = tf.concat([sampler(tf.constant(i, tf.int64))["image"] for i in (0, 1)], 0)[:7]
    rounded = np.floor(np.clip((fake.numpy() + 1.0) * 127.5, 0.0, 255.0) + 0.5) / 255.0
    net = load_inception(path)
    numbers = hook.real_numbers(1437)
    assert len(set(numbers.numpy().tolist())) == 9
    real = tf.image.resize(digits("train").gather(numbers)["image"], [6, 6])
    real = np.floor(real.numpy() * 255.0 + 0.5) / 255.0
    expected = image_quality(*(net(tf.constant(x, tf.float32)) for x in (real, rounded)))
    assert found[0] == pytest.approx(expected, rel=1e-4)
    assert set(expected) == {"fid", "kid", "precision", "recall"}
