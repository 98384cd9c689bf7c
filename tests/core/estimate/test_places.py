"""Operations per module, forward and in total, as numbers that a reader can multiply out."""

import itertools
from collections import defaultdict

import pytest
import tensorflow as tf

from core import layers
from core.data import digits
from core.distribution import mirrored
from core.engine import Progress, TrainStep, assemble, make_chunk
from core.estimate import FORWARD, noting_places, operations_by_place, operations_of
from core.layers import unroll
from core.module import Module
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from core.testing import on_virtual_cpus
from models import LanguageModel
from models.classifiers.convnet import ConvNet
from models.classifiers.mlp import Mlp, MlpClassifier
from tests.trainers.trainer_lab import make

ROWS = 4


class Mean(Task):
    """Trains one network with the mean square of its output for `x`."""

    def __init__(self, net):
        self.net = net

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        y = self.net(batch["x"])
        return Loss(tf.reduce_mean(tf.reshape(y * y, [y.shape[0], -1]), 1))

    def evaluate(self, batch):
        return self.loss(batch, None)


def by_module(chunk, rows=ROWS):
    """Returns the operations of an example by module path: forward, and in all."""
    found = defaultdict(lambda: [0.0, 0.0])
    for place, count in operations_by_place(chunk.graph).items():
        found[place.module][0] += count / rows if place.way == FORWARD else 0.0
        found[place.module][1] += count / rows
    return {path: tuple(counts) for path, counts in found.items()}


def counted(make_task, specs, microbatches=1):
    assembly = assemble(make_task, on_virtual_cpus(1))
    rows = ROWS // microbatches
    batch = {key: tf.TensorSpec([microbatches, rows, *spec.shape], spec.dtype) for key, spec in specs.items()}
    step = TrainStep(assembly, batch, seed=0, steps=10)
    progress = Progress({name: spec.sums_of_update for name, spec in step.specs.items()})
    stacked = {key: tf.TensorSpec([1, *x.shape], x.dtype) for key, x in batch.items()}
    with noting_places(assembly.task):
        return by_module(make_chunk(step, stacked, progress).get_concrete_function())


def of_net(net, *shape, microbatches=1):
    return counted(lambda: Mean(net(Rng.from_seed(0))), {"x": tf.TensorSpec(shape)}, microbatches)


def linear(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=sgd(0.1))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": mirrored(replicas=2), "microbatches": 2},
        {"compile": True},
        {"strategy": mirrored(replicas=2), "local_steps": 5},
    ],
    ids=["replicas", "compiled", "local steps"],
)
def test_dense_layers(tmp_path, settings):
    trainer = make(tmp_path, task=linear, source=digits("train"), **settings)
    with noting_places(trainer.experiment.task):
        chunk = trainer.chunk.get_concrete_function()
    first, second = 2.0 * 64 * 16, 2.0 * 16 * 10
    # Backward, each has a product for its weights; images need no gradient.
    assert by_module(chunk, 32) == {"net/layers/0": (first, 2 * first), "net/layers/1": (second, 3 * second)}
    assert operations_of(chunk.graph) == pytest.approx(32 * (2 * first + 3 * second))


def test_convolutions():
    def net(rng):
        return ConvNet([8, 8, 1], channels=[4], hidden=5, num_classes=3, dropout=0.0, rng=rng)

    first, second = 2.0 * 64 * 9 * 1 * 4, 2.0 * 64 * 9 * 4 * 4
    hidden, logits = 2.0 * 4 * 4 * 4 * 5, 2.0 * 5 * 3
    assert of_net(net, 8, 8, 1, microbatches=2) == {
        "net/convolutions/0": (first, 2 * first),
        "net/convolutions/1": (second, 3 * second),
        "net/hidden": (hidden, 3 * hidden),
        "net/logits": (logits, 3 * logits),
    }


@pytest.mark.parametrize("channels", [(1, 2), (2, 1)])
def test_gradients_that_a_layer_computes_itself_are_that_layers(channels):
    """For such a large image the kernel's gradient is a separate convolution, where TensorFlow's is slow."""

    def net(rng):
        sizes = itertools.pairwise((3, *channels))
        return layers.Sequential([layers.Conv2D(a, b, 3, rng=rng, padding="VALID") for a, b in sizes])

    first, second = 2.0 * 14 * 14 * 9 * 3 * channels[0], 2.0 * 12 * 12 * 9 * channels[0] * channels[1]
    found = of_net(net, 16, 16, 3)
    assert found["net/layers/0"] == (first, 2 * first)
    assert found["net/layers/1"][0] == second
    # That of its input is one over an image with a border of zeros, or TensorFlow's own, which has none.
    assert found["net/layers/1"][1] in (3 * second, pytest.approx((2 + 14 * 14 / 12**2) * second))
    assert len(found) == 2


TIME, SIZE, VOCABULARY = 8, 6, 11


@pytest.mark.long
@pytest.mark.parametrize(("recompute", "passes", "blocks", "microbatches"), [(False, 3, 1, 1), (True, 4, 1, 2)])
def test_attention_and_a_table(recompute, passes, blocks, microbatches):
    def task():
        return LanguageModel(
            rng=Rng.from_seed(0), vocabulary=VOCABULARY, context=TIME, num_layers=blocks, size=SIZE, num_heads=2,
            optimizer=sgd(0.1), recompute=recompute,
        )  # fmt: skip

    specs = {key: tf.TensorSpec([TIME + 1], tf.int32) for key in ("tokens", "document", "bytes")}
    matrix, scores, table = 2.0 * TIME * SIZE * SIZE, 2.0 * TIME * TIME * SIZE, 2.0 * TIME * SIZE * VOCABULARY
    expected = {"net/tokens": (table, 3 * table)}  # a look-up isn't a matrix product
    for i in range(blocks):
        block = f"net/blocks/{i}"
        expected[f"{block}/attention"] = (2 * scores, passes * 2 * scores)
        expected |= {
            f"{block}/attention/{name}": (matrix, passes * matrix) for name in ("query", "key", "value", "out")
        }
        expected[f"{block}/feed_forward/up"] = (4 * matrix, passes * 4 * matrix)
        expected[f"{block}/feed_forward/down"] = (4 * matrix, 3 * 4 * matrix)  # whose result no gradient reads
    assert counted(task, specs, microbatches) == expected


def test_a_loop_over_time():
    class Recurrent(Module):
        def __init__(self, rng):
            super().__init__()
            self.core = layers.GRU(5, 7, rng=rng)

        def __call__(self, x):
            return unroll(self.core, x)[0]

    inputs, states = 2.0 * TIME * 5 * 3 * 7, 2.0 * TIME * 7 * 3 * 7
    assert of_net(Recurrent, TIME, 5) == {"net/core": (inputs + states, 2 * inputs + 3 * states)}


class Duel(Task):
    """Two phases: one network judges the other's output."""

    def __init__(self):
        self.g, self.d = (Mlp(sizes, rng=Rng.from_seed(0)) for sizes in ([3, 5, 64], [64, 7, 1]))

    def phases(self):
        return [
            Compute("sample", lambda batch, rng: {"fake": self.g(batch["x"][:, :3])}),
            Update("d", loss=self.judging, trains=self.d, optimizer=sgd(0.1)),
            Update("g", loss=self.deceiving, trains=self.g, optimizer=sgd(0.1), through="sample"),
        ]

    def judging(self, batch, rng):
        return Loss(self.d(batch["fake"])[:, 0] - self.d(batch["x"])[:, 0])

    def deceiving(self, batch, rng):
        return Loss(-self.d(batch["fake"])[:, 0])

    def evaluate(self, batch):
        return self.deceiving({"fake": batch["x"]}, None)


def test_two_phases():
    g0, g1, d0, d1 = 2.0 * 3 * 5, 2.0 * 5 * 64, 2.0 * 64 * 7, 2.0 * 7 * 1
    assert counted(Duel, {"x": tf.TensorSpec([64])}) == {
        # Fakes are made once, and differentiated once: by both layers' weights, and by what the second takes.
        "g/layers/0": (g0, 2 * g0),
        "g/layers/1": (g1, 3 * g1),
        # The judge sees images and fakes, and fakes once more: for its weights before, for the fakes then.
        "d/layers/0": (3 * d0, (3 + 2 + 1) * d0),
        "d/layers/1": (3 * d1, (3 + 4 + 1) * d1),
    }


def test_a_penalty_on_slopes_is_part_of_the_way_forward():
    class Steep(Task):
        def __init__(self):
            self.net = layers.Linear(6, 1, bias=False, rng=Rng.from_seed(0))

        def phases(self):
            return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

        def loss(self, batch, rng):
            x = batch["x"]
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = self.net(x)
            return Loss(tf.reduce_sum(tape.gradient(y, x) ** 2, 1))

        def evaluate(self, batch):
            return Loss(self.net(batch["x"])[:, 0])

    once = 2.0 * 6
    # The slopes are ones times the weights; the gradient by the weights is a product more.
    assert counted(Steep, {"x": tf.TensorSpec([6])}) == {"net": (pytest.approx(once), pytest.approx(2 * once))}
