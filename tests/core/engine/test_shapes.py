"""`--mode=summary` makes variables that have shapes and no values."""

import numpy as np
import pytest
import tensorflow as tf

from core.distribution.shapes_only import shapes_only
from core.engine import TrainStep, assemble
from core.errors import ConfigurationError
from core.layers import Linear
from core.losses.adversarial import non_saturating
from core.optimizers import adamw, chain, ema, sgd
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from models import Gan, mlp_networks


class Regression(Task):
    """Fits `size` numbers; a test's additions are made in `__init__`."""

    def __init__(self, *, size, more=lambda task: None):
        super().__init__()
        self.net = Linear(size, size, rng=Rng.from_seed(0))
        more(self)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=chain(adamw(0.1), ema(0.9)))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_mean(tf.square(self.net(batch["x"])), -1))


def described(assembly):
    """Returns a summary's text on variables, and their names in a checkpoint."""
    said = {path: (tuple(v.shape), v.dtype, v.trainable) for path, v in assembly.variables.items()}
    here = {path for path, v in assembly.variables.items() if id(v) in assembly.one_device_ids}
    return said, here


def terabytes(strategy):
    with shapes_only():
        return assemble(lambda: Regression(size=1_000_000), strategy)  # 4 TB, and three times that of slots


@pytest.mark.parametrize("replicas", [1, 2])
def test_model_that_no_memory_holds_is_made_and_traced(replicas):
    assembly = terabytes(on_virtual_cpus(replicas))
    assert described(assembly)[0]["task/net/w"] == ((1_000_000, 1_000_000), tf.float32, True)
    assert {tuple(v.shape) for path, v in assembly.variables.items() if path.endswith("/w")} == {(1_000_000, 1_000_000)}
    step = TrainStep(assembly, {"x": tf.TensorSpec([1, 2, 1_000_000])}, seed=0)
    assert step.specs["net"].sums["loss"].shape == []


def test_variables_are_those_that_training_has():
    def make():
        optimizers = {"g_optimizer": chain(adamw(0.1), ema(0.9)), "d_optimizer": sgd(0.1)}
        return Gan(
            rng=Rng.from_seed(0), networks=mlp_networks, image_shape=[8, 8, 1], game=non_saturating(), **optimizers
        )

    real = assemble(make, on_virtual_cpus(2), one_device=["g"])
    with shapes_only():
        shapes = assemble(make, on_virtual_cpus(2), one_device=["g"])
    assert described(shapes) == described(real)
    assert list(shapes.variables) == list(real.variables)


@pytest.mark.parametrize(
    "more",
    [
        lambda task: setattr(task, "first", float(task.net.w.numpy()[0, 0])),
        lambda task: setattr(task, "scale", [tf.constant(2.0)]),
    ],
    ids=["looks at a value", "keeps a tensor"],
)
def test_a_task_that_needs_values_has_them(more):
    with shapes_only():
        assembly = assemble(lambda: Regression(size=3, more=more), on_virtual_cpus(1))
    assert np.isfinite(assembly.task.net.w.numpy()).all()
    if hasattr(assembly.task, "scale"):
        assert float(assembly.task.scale[0]) == 2.0


def test_a_task_that_keeps_random_numbers_has_the_right_ones():
    rng = Rng.from_seed(0)

    def kept(task):
        task.rng = rng.fold("kept")

    with shapes_only():
        assembly = assemble(lambda: Regression(size=3, more=kept), on_virtual_cpus(1))
    np.testing.assert_array_equal(assembly.task.rng.bits([4]), rng.fold("kept").bits([4]))


def test_a_mistake_is_the_same_as_ever():
    def wrong(task):
        raise ConfigurationError("`size` is too small")

    with shapes_only(), pytest.raises(ConfigurationError, match="`size` is too small") as found:
        assemble(lambda: Regression(size=3, more=wrong), on_virtual_cpus(1))
    assert found.value.__context__ is None
    other = tf.Variable(1.0)
    with shapes_only(), pytest.raises(ConfigurationError, match="made outside the strategy's scope"):
        assemble(lambda: Regression(size=3, more=lambda task: setattr(task, "v", other)), on_virtual_cpus(2))
