"""`assert_mesh_invariant` passes right tasks on a mesh, and names the difference of wrong ones."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.layers import Linear
from core.optimizers import adamw
from core.task import Loss, Task, Update
from core.testing import Run, assemble, assert_mesh_invariant, on_virtual_mesh
from models.classifiers import ConvNetClassifier


class Noisy(Task):
    """Draws its own noise; the guard ignores it."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = Linear(6, 4, rng=rng)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=adamw(1e-2))]

    def loss(self, batch, rng):
        noise = tf.random.stateless_normal([8, 6], [1, 2])
        return Loss(tf.reduce_sum(tf.square(self.net(batch["x"] + noise)), -1))


def test_draws_of_another_generator_differ(monkeypatch):
    monkeypatch.setattr("core.parallel.mesh.program.refuse_unsafe", lambda function, parts: None)
    batch = {"x": np.random.RandomState(0).randn(8, 6).astype("f4")}
    with pytest.raises(
        AssertionError, match=r"on 1 replica and .* a mesh of 2x1 devices: .*aren't drawn from the step's"
    ):
        assert_mesh_invariant(Noisy, batch, [(2, 1)], steps=2)


def test_rows_that_a_mesh_can_not_share_are_refused():
    with pytest.raises(ConfigurationError, match=r"of `batch` is 9, which `mesh.batch` = 2 can't share.*fits is 8"):
        Run(assemble(Noisy, on_virtual_mesh(2, 1)), {"x": np.zeros([9, 6], "f4")})


@pytest.mark.long
def test_a_convolutional_network_is_cut_by_rows():
    random = np.random.RandomState(0)
    batch = {"image": random.rand(8, 8, 8, 1).astype("f4"), "label": random.randint(0, 10, 8).astype("i4")}
    settings = {"image_shape": [8, 8, 1], "channels": [2], "hidden": 4, "dropout": 0.3, "optimizer": adamw(1e-3)}
    assert_mesh_invariant(partial(ConvNetClassifier, **settings), batch, [(2, 1)], steps=2)
