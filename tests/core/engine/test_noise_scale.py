"""The gradient noise scale against the equations of its paper, from gradients of each part of the batch."""

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, ROWS, Gan, update

from core.errors import ConfigurationError
from core.random import Rng
from core.task import Loss, Task
from core.task.loss import means
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import Mlp

WEIGHT = np.random.RandomState(5).uniform(0.2, 2.0, ROWS).astype("float32")


class Fitting(Task):
    weighted = False

    def __init__(self, *, rng):
        super().__init__()
        self.net = Mlp([3, 8, 1], rng=rng)

    def phases(self):
        return [update("net", self.loss, self.net)]

    def loss(self, batch, rng):
        per_example = tf.square(self.net(batch["x"])[:, 0] - batch["y"])
        return Loss(per_example, weight=batch["w"] if self.weighted else None)


class Weighted(Fitting):
    weighted = True


def run(task, replicas, microbatches, **settings):
    data = {**DATA, "w": WEIGHT} if task is Weighted else DATA
    assembly = assemble(task, on_virtual_cpus(replicas), seed=1)
    return Run(assembly, data, microbatches=microbatches, seed=7, **settings)


def expected(task, parts):
    """Returns tr(Σ) and |G|² of the paper's appendix A.1, from batches of `ROWS / parts` and `ROWS` rows."""
    made = task(rng=Rng.from_seed(1).fold("init"))

    def gradient(rows):
        with tf.GradientTape() as tape:
            per_example = tf.square(made.net(DATA["x"][rows])[:, 0] - DATA["y"][rows])
            weight = WEIGHT[rows] if task is Weighted else np.ones(len(rows), "float32")
            mean = tf.reduce_sum(weight * per_example) / weight.sum()
        return np.concatenate([np.ravel(g) for g in tape.gradient(mean, [*made.net.parameters().values()])])

    small = np.mean([np.sum(gradient(rows).astype("float64") ** 2) for rows in np.split(np.arange(ROWS), parts)])
    large = np.sum(gradient(np.arange(ROWS)).astype("float64") ** 2)
    b, whole = (WEIGHT.sum() if task is Weighted else ROWS) / parts, WEIGHT.sum() if task is Weighted else ROWS
    return (small - large) / (1.0 / b - 1.0 / whole), (whole * large - b * small) / (whole - b)


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches", "settings"),
    [
        (Fitting, 1, 4, {}),
        (Fitting, 2, 2, {}),
        (Fitting, 4, 1, {}),
        (Fitting, 1, 4, {"compile": True}),
        (Weighted, 1, 4, {}),
        (Weighted, 2, 2, {}),
        (Fitting, 1, 4, {"precision": "float16"}),
    ],
    ids=["microbatches", "both", "replicas", "compiled", "weights", "weights, replicas", "float16"],
)
def test_noise_scale_is_that_of_the_paper(task, replicas, microbatches, settings):
    step = run(task, replicas, microbatches, noise_scale=True, **settings)
    for i in range(10):  # until a float16 step doesn't overflow; until then, nothing is written
        result = step(i)
        found = result.sums["net"]["noise_scale"]
        if found.square > 0.0:
            break
    close = {"rel": 2e-2 if "precision" in settings else 1e-4}
    assert [float(x) for x in found] == pytest.approx(expected(task, 4), **close)
    assert means(result.sums["net"])["noise_scale"] == pytest.approx(float(found.variance / found.square), rel=1e-6)


@pytest.mark.long
def test_mesh_measures_the_same():
    assembly = assemble(Fitting, on_virtual_mesh(2, 1), seed=1)
    found = Run(assembly, DATA, microbatches=4, seed=7, noise_scale=True)(0).sums["net"]["noise_scale"]
    assert [float(x) for x in found] == pytest.approx(expected(Fitting, 4), rel=1e-4)


def test_measurement_changes_no_weight_and_rides_in_the_one_reduction():
    plain, measured = (run(Fitting, 2, 2, **settings) for settings in ({}, {"noise_scale": True}))
    one, other = plain.train(3), measured.train(3)
    assert all(np.array_equal(x, other.variables[path]) for path, x in one.variables.items())
    assert len(one.collectives) == len(other.collectives)
    assert sum(c.bytes for c in other.collectives) == sum(c.bytes for c in one.collectives) + 4


def test_update_without_parts_is_refused():
    with pytest.raises(ConfigurationError, match=r"`NoiseScale` .* phase `net` has one microbatch .* to 2 or more"):
        run(Fitting, 1, 1, noise_scale=True)
    assembly = assemble(Gan, on_virtual_cpus(1), seed=1)
    with pytest.raises(ConfigurationError, match=r"`NoiseScale` .* phase `g` trains through `sample`"):
        Run(assembly, {"real": np.zeros([ROWS, 8], "float32")}, microbatches=2, seed=7, noise_scale=True)
