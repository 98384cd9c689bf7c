"""Residual networks: the papers' sizes, both norms, learning, replicas, and refusals."""

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.data import digits, random_affine
from core.module import Module
from core.optimizers import adamw, sgd
from core.random import Rng, undrawn
from core.task.statistics import commit
from core.testing import Run, assemble, assert_step_function, assert_updates_only, on_virtual_cpus
from core.testing.invariance import differences
from models import Classifier, ResNet, ResNetClassifier
from models.classifiers.resnet import ConvNorm, ResidualBlock
from tests.commands import CHECKOUT
from tests.pages import blocks
from tools.invariance.subjects import configured

RNG = Rng.from_seed(0)
BATCH = digits("train").gather(tf.range(6, dtype=tf.int64))
PAGE = CHECKOUT / "docs" / "cookbook.md"
SMALL = {"image_shape": [8, 8, 1], "depth": 18, "width": 4, "stem": "cifar"}


def make(**settings):
    return ResNetClassifier(**{**SMALL, **settings}, rng=RNG, optimizer=adamw(0.01))


def count(net):
    return sum(v.shape.num_elements() for v in net.parameters().values())


@pytest.mark.parametrize(
    ("depth", "size"),
    [
        (18, 11_689_512),
        pytest.param(34, 21_797_672, marks=pytest.mark.long),
        (50, 25_557_032),
        pytest.param(101, 44_549_160, marks=pytest.mark.long),
        pytest.param(152, 60_192_808, marks=pytest.mark.long),
    ],
)
def test_sizes_are_those_of_torchvision(depth, size):
    with undrawn(), tf.Graph().as_default():
        assert count(ResNet(depth, num_classes=1000, rng=Rng.from_seed(0))) == size


def test_stem_for_small_images_is_one_convolution():
    with undrawn():
        small = ResNet(18, num_classes=10, stem="cifar", rng=RNG)
    assert count(small) == 11_173_962
    assert tuple(small.stem(tf.zeros([1, 32, 32, 3])).shape) == (1, 32, 32, 64)


@pytest.mark.long
def test_step_of_batch_norm_trains_and_keeps_averages():
    task = make()
    loss = assert_step_function(task.loss, BATCH, mixes_rows=True)
    assert len(loss.statistics.sums) == 20  # of 17 convolutions and 3 shortcuts
    assert_updates_only(task, "net", task.net, BATCH)
    assert task.phases()[0].mixes_rows
    before = task.evaluate(BATCH).per_example
    commit(loss.statistics.averages())
    assert not np.allclose(task.evaluate(BATCH).per_example, before)
    assert task.evaluate(BATCH).statistics is None


class OneBlock(Module):
    """The parts of a `ResNet` in fewer layers: norms over space, and a last one over the rows of a few pixels."""

    def __init__(self, rng):
        super().__init__()
        self.stem = ConvNorm(1, 4, 3, norm="batch", rng=rng.fold("stem"))
        self.block = ResidualBlock(4, 8, bottleneck=False, stride=2, norm="batch", rng=rng.fold("block"))
        self.logits = layers.Linear(8, 10, rng=rng.fold("logits"))

    def __call__(self, x, *, statistics=None):
        x = tf.nn.relu(self.stem(x, statistics=statistics))
        return self.logits(layers.global_average_pool(self.block(x, statistics=statistics)))


@pytest.mark.long
def test_norms_over_two_replicas_differ_from_one_device_by_rounding_alone():
    """In float64, two replicas differ by no more than the last bits of the variables and sums, which are float32."""
    batch = {"image": tf.cast(BATCH["image"][:, 2:6, 2:6], tf.float64), "label": BATCH["label"]}

    def task(rng):
        return Classifier(OneBlock(rng), num_classes=10, optimizer=sgd(0.1))

    one, two = (Run(assemble(task, on_virtual_cpus(replicas)), batch).train(1) for replicas in (1, 2))
    for expected, found in ((one.variables, two.variables), (one.figures, two.figures), (one.norms, two.norms)):
        assert found.keys() == expected.keys()
        assert differences(expected, found)[0].size < 1e-7


@pytest.mark.long
def test_rows_are_independent_with_group_norm():
    task = make(norm="group", depth=50, image_shape=[16, 16, 1])
    assert not task.phases()[0].mixes_rows
    large = {"image": tf.repeat(tf.repeat(BATCH["image"][:3], 2, 1), 2, 2), "label": BATCH["label"][:3]}
    assert_step_function(task.loss, large, tolerance=1e-4)


def test_augmentation_is_for_training_alone():
    def inverted(images, rng):
        return 1.0 - images

    task, plain = make(augment=[inverted]), make()
    turned = {**BATCH, "image": 1.0 - BATCH["image"]}
    np.testing.assert_array_equal(task.evaluate(BATCH).per_example, plain.evaluate(BATCH).per_example)
    np.testing.assert_array_equal(task.loss(BATCH, RNG).per_example, plain.loss(turned, RNG).per_example)


def test_mixed_labels_are_learned_and_not_counted():
    def next_class(images, labels, rng):
        return images, tf.roll(labels, 1, axis=1)

    task, plain = make(norm="group", mix=next_class), make(norm="group")
    assert task.phases()[0].mixes_rows
    found, expected = task.loss(BATCH, RNG), plain.loss({**BATCH, "label": (BATCH["label"] + 1) % 10}, RNG)
    np.testing.assert_allclose(found.per_example, expected.per_example, rtol=1e-6)
    np.testing.assert_array_equal(found.metrics["accuracy"], plain.loss(BATCH, RNG).metrics["accuracy"])


@pytest.mark.parametrize(("name", "value"), [("depth", 20), ("stem", "mnist"), ("norm", "layer")])
def test_other_choices_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value!r}; give one of"):
        make(**{name: value})


@pytest.fixture
def shown(tmp_path):
    """Returns the page's configuration with a narrow network."""
    file = tmp_path / "digits_resnet.gin"
    file.write_text(next(block.text for block in blocks(PAGE.read_text()) if block.file == file.name))
    return configured(file, tmp_path, ["ResNetClassifier.width = 4"])


@pytest.mark.long
def test_configuration_of_the_page_augments_training(shown):
    task = shown.experiment(tf.distribute.OneDeviceStrategy("CPU:0")).task
    assert len(task.augment) == 1
    image = task.augment[0](shown.batch["image"], RNG)
    moved = random_affine(shown.batch["image"], RNG, turn=0.2, shear=0.15, scale=1.1, shift=0.5)
    np.testing.assert_array_equal(image, moved)
    assert task.net.pool is None
