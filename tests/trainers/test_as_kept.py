"""Examples stay in their stored form if XLA compiles the step, which decodes them (`test_same_numbers`)."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource, digits
from core.data.reordered import balanced
from core.optimizers import sgd
from core.testing.replicas import on_virtual_cpus
from models.classifiers.linear import LinearClassifier
from tests.trainers.test_refused_by_xla import convnet
from tests.trainers.trainer_lab import make


def linear(*, rng):
    return LinearClassifier(rng=rng, in_size=64, num_classes=10, optimizer=sgd(0.1))


class Inverted(ArraySource):
    def gather(self, indices):
        return {key: 1.0 - x if key == "image" else x for key, x in super().gather(indices).items()}


def levels(kind=ArraySource):
    random = np.random.RandomState(0)
    return kind({"image": random.randint(0, 17, [50, 8, 8, 1]).astype("uint8"), "label": random.randint(0, 10, 50)},
                name="levels", scale=1 / 16)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "compile", "kept"),
    [(levels(), "xla", True), (levels(), "auto", True), (levels(), "off", False), (levels(Inverted), "xla", False)],
)
def test_waiting_examples_are_small_and_read_the_same(source, compile, kept, tmp_path):
    trainer = make(tmp_path, task=linear, source=source, compile=compile)
    stacked = next(trainer.input.chunks_from(0))
    assert stacked["image"].dtype == (tf.uint8 if kept else tf.float32)
    assert trainer.input.batch_spec["image"].dtype == tf.float32
    decoded = trainer.input.decode(stacked) if kept else stacked
    for key, batch in trainer.input.batch_of(3).items():
        np.testing.assert_array_equal(decoded[key][3], batch)
    examples = source.gather(tf.reshape(trainer.input.examples_of(3), [-1]))
    np.testing.assert_array_equal(batch_image := trainer.input.batch_of(3)["image"][0], examples["image"])
    assert batch_image.dtype == tf.float32


def test_examples_are_decoded_only_in_one_program(tmp_path):
    two = make(tmp_path, "two", task=linear, source=levels(), compile="xla", strategy=on_virtual_cpus(2))
    convolving = make(tmp_path, "convolving", source=levels(), compile="auto", task=convnet)
    for trainer in (two, convolving):
        assert trainer.input.decode is None
        assert trainer.train_step.decode is None


def test_source_made_of_another_keeps_as_that_does():
    for source in (digits("train"), balanced(digits("train"), by="label")):  # read in tests/core/data
        assert source.kept.spec["image"] == tf.TensorSpec([8, 8, 1], tf.uint8)
