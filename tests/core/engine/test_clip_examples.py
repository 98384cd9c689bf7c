"""`Update(clip_examples=...)`: clips the gradient of each example, on any number of replicas and microbatches."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, ROWS, Gan, assert_as_plain, assert_same, train, update

from core import layers
from core.engine.accumulate import accumulate_gradients
from core.errors import ConfigurationError
from core.random import Rng
from core.task import ONE_DEVICE, Loss, Task
from core.task.statistics import Statistics
from core.testing import assemble, on_virtual_mesh
from models.classifiers.mlp import Mlp
from tests.toys import Line

WORDS = {**DATA, "word": np.arange(ROWS) % 5}


class Clipped(Task):
    """Draws noise for each row, has a table whose gradients are sparse, and sends outputs on to a second phase."""

    limit: float | None = 0.5

    def __init__(self, *, rng):
        super().__init__()
        self.net, self.table = Mlp([3, 8, 1], rng=rng.fold("net")), layers.Embedding(2048, 3, rng=rng.fold("table"))
        self.second = layers.Linear(1, 1, rng=rng.fold("second"))

    def phases(self):
        return [
            update("net", self.loss, [self.net, self.table], clip_examples=self.limit),
            update("second", self.second_loss, self.second),
        ]

    def loss(self, batch, rng):
        x = batch["x"] + self.table(batch["word"]) + 0.3 * rng.fold("noise").rows.normal(batch["x"].shape[0], 3)
        found = self.net(x)
        error = tf.square(found[:, 0] - batch["y"])
        return Loss(error, metrics={"large": tf.cast(error > 1.0, tf.float32)}, outputs={"found": found})

    def second_loss(self, batch, rng):
        return Loss(tf.square(self.second(batch["found"])[:, 0] - batch["y"]))


class Barely(Clipped):
    limit = 1e9


class Unclipped(Clipped):
    limit = None


@functools.cache
def three_steps(task):
    return train(task, WORDS, 2, 2, steps=3)


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "microbatches"), [(1, 1), (2, 2)])
def test_clipped_step_is_that_of_the_specification(replicas, microbatches):
    assert_as_plain(Clipped, WORDS, replicas, microbatches)


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "compile"), [(2, False), (1, True)], ids=["graph", "compiled"])
def test_limit_that_no_example_reaches_changes_nothing(replicas, compile):
    assert_same(train(Barely, WORDS, replicas, 2, steps=3, compile=compile), three_steps(Unclipped))


@pytest.mark.long
def test_one_device_clips_the_same_examples_as_replicas():
    found = train(Clipped, WORDS, 2, 2, steps=3, placements={"net": ONE_DEVICE})
    expected = three_steps(Clipped)
    assert_same(found, expected)
    free = three_steps(Unclipped)[0].norms["net"]
    assert expected[0].norms["net"].max() <= 0.5 < free.max(), "the limit has no effect"


def test_mean_is_that_of_gradients_clipped_by_hand():
    made = Line(rng=Rng.from_seed(1).fold("init"))
    variables = {"w": made.net.w, "b": made.net.b}
    w, b = (v.numpy().astype("f8") for v in variables.values())
    rows = []
    for x, y in zip(DATA["x"].astype("f8"), DATA["y"].astype("f8"), strict=True):
        gradient = 2.0 * (x @ w[:, 0] + b[0] - y) * np.append(x, 1.0)
        rows.append(gradient * min(1.0, 0.7 / np.linalg.norm(gradient)))
    assert 0 < sum(np.linalg.norm(row) < 0.69 for row in rows) < ROWS
    values = {key: tf.constant(x)[:, tf.newaxis] for key, x in DATA.items()}  # one example a microbatch
    found, _ = accumulate_gradients(made.loss, variables, values, Rng.from_seed(0), clip_examples=0.7)
    gradients = found.mean_gradients()
    mean = np.concatenate([np.ravel(gradients["w"]), np.ravel(gradients["b"])])
    np.testing.assert_allclose(mean, np.mean(rows, axis=0), rtol=1e-5)
    whole = {key: x[:, 0][tf.newaxis] for key, x in values.items()}
    with pytest.raises(ValueError, match=r"`clip_examples` is 0\.7, but a microbatch has 16 examples"):
        accumulate_gradients(made.loss, variables, whole, Rng.from_seed(0), clip_examples=0.7)


def test_scaled_float16_loss_is_clipped_at_the_same_norm():
    (half, _), (single, _) = (train(Clipped, WORDS, 1, 1, steps=1, precision=p) for p in ("float16", "float32"))
    for path, value in single.variables.items():
        if path.startswith("task/"):
            np.testing.assert_allclose(half.variables[path], value, rtol=0.02, atol=0.02, err_msg=path)


class Weighted(Clipped):
    def loss(self, batch, rng):
        return super().loss(batch, rng)._replace(weight=tf.ones_like(batch["y"]))


class Normalised(Clipped):
    net: Callable[..., tf.Tensor]

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = layers.BatchNorm(3)

    def loss(self, batch, rng):
        statistics = Statistics()
        x = self.net(batch["x"] + self.table(batch["word"]), statistics=statistics)
        return Loss(tf.square(x[:, 0] - batch["y"]), statistics=statistics, outputs={"found": x[:, :1]})


@pytest.mark.parametrize(
    ("task", "what"), [(Weighted, "returns a `weight`"), (Normalised, "returns `statistics` of the batch")]
)
def test_example_that_does_not_stand_alone_is_refused(task, what):
    with pytest.raises(ConfigurationError, match=f"phase `net` has `clip_examples`, but its loss {what}"):
        train(task, WORDS, 1, 1, steps=1)


@pytest.mark.parametrize("other", [{"mixes_rows": True}, {"through": "sample"}, {"microbatches": 2}])
def test_setting_that_takes_several_examples_together_is_refused(other):
    made = Gan(rng=Rng.from_seed(0))
    with pytest.raises(ValueError, match=f"takes each example by itself, and `{next(iter(other))}`"):
        update("g", made.g_loss, made.g, clip_examples=1.0, **other)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), True])
def test_limit_is_a_positive_number(limit):
    made = Gan(rng=Rng.from_seed(0))
    with pytest.raises(ValueError, match="`clip_examples` is "):
        update("g", made.g_loss, made.g, clip_examples=limit)


def test_mesh_is_refused():
    with pytest.raises(ConfigurationError, match="phase `net` has `clip_examples`, one example at a time, but a mesh"):
        assemble(Clipped, on_virtual_mesh(2, 2))
