"""Classifiers: shapes, parameter counts, and learning."""

import pytest
import tensorflow as tf

from core import layers
from core.data import digits
from core.errors import DataError
from core.module import Module
from core.optimizers import adamw
from core.random import Rng
from core.testing import assert_overfits, assert_step_function, assert_updates_only
from models import Classifier, ConvNetClassifier, LinearClassifier, MlpClassifier

BATCH = digits("train").gather(tf.range(6, dtype=tf.int64))
# 3x3 convolutions from 1 to 4, 4 to 4, 4 to 8 and 8 to 8 channels; two poolings make 2x2 of 8x8.
COUNTS = {
    "linear": 64 * 10 + 10,
    "mlp": 64 * 32 + 32 + 32 * 10 + 10,
    "convnet": (9 + 1) * 4 + (9 * 4 + 1) * 4 + (9 * 4 + 1) * 8 + (9 * 8 + 1) * 8 + (2 * 2 * 8 + 1) * 16 + 17 * 10,
}


def make(name):
    given = {"rng": Rng.from_seed(0), "optimizer": adamw(0.05)}
    if name == "linear":
        return LinearClassifier(in_size=64, **given)
    if name == "mlp":
        return MlpClassifier(sizes=[64, 32, 10], dropout=0.1, **given)
    return ConvNetClassifier(image_shape=[8, 8, 1], channels=[4, 8], hidden=16, dropout=0.1, **given)


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTS)
def test_classifier_step_updates_its_network_and_overfits(name):
    task = make(name)
    assert_step_function(task.loss, BATCH)
    assert_updates_only(task, "net", task.net, BATCH)
    assert_overfits(make(name), BATCH, steps=50, to=0.3)


@pytest.mark.parametrize("name", COUNTS)
def test_evaluation_repeats_and_counts_fit(name):
    task = make(name)
    one, other = (task.evaluate(BATCH).per_example.numpy() for _ in range(2))
    assert one.tobytes() == other.tobytes()
    count = sum(v.shape.num_elements() for v in task.parameters().values())
    assert count == COUNTS[name]


def test_network_without_outputs_is_refused():
    with pytest.raises(ValueError, match=r"`sizes` is \[64\]; name at least the inputs and the outputs"):
        MlpClassifier(rng=Rng.from_seed(0), sizes=[64], optimizer=adamw(0.1))


def test_source_with_other_labels_is_refused():
    task = MlpClassifier(rng=Rng.from_seed(0), sizes=[64, 9], optimizer=adamw(0.1))
    with pytest.raises(DataError, match=r"`label` .* is 9, but `MlpClassifier` has 9 classes, numbered 0 to 8"):
        task.check_source(digits("train"))


class AlwaysTold(Module):
    """A network whose `rng` has no default."""

    def __init__(self):
        super().__init__()
        self.logits = layers.Linear(64, 10, rng=Rng.from_seed(0))

    def __call__(self, x, rng):
        assert rng is None
        return self.logits(layers.flatten(x))


def test_network_is_told_of_evaluation_by_its_rng():
    task = Classifier(AlwaysTold(), num_classes=10, optimizer=adamw(0.05))
    assert task.evaluate(BATCH).per_example.shape == [6]
    assert task.classify(BATCH)["logits"].shape == [6, 10]
