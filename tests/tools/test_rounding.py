"""An edge is a step that rounding alone changes; no other step is."""

import dataclasses

import numpy as np
import tensorflow as tf

from core import initializers, layers
from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.testing import assemble
from tools.invariance.rounding import Edges, reference
from tools.invariance.subjects import Subject

ALLOWED = {"variables": 1e-5, "figures": 1e-6}


class Edge(Task):
    """A ReLU of `w · x`, which is zero to the bit for `x = (1, -1)`."""

    def __init__(self, *, rng):
        super().__init__()
        self.linear = layers.Linear(2, 1, rng=rng.fold("linear"), bias=False, w_init=initializers.constant(0.5))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.nn.relu(self.linear(batch["x"]))[:, 0])


def subject(*row):
    batch = {"x": tf.constant([row] * 4)}
    return Subject("edge", lambda strategy: assemble(Edge, strategy), batch)


def moved(outcome, by):
    variables = {path: np.asarray(value) + by for path, value in outcome.variables.items()}
    return dataclasses.replace(outcome, variables=variables)


def test_relu_at_zero_is_an_edge():
    found = subject(1.0, -1.0)
    outcomes = reference(found, 1, 2, 0, variables=1e-5, figures=1e-6).outcomes
    edges = Edges(found, 1, 0)
    assert edges.at(1, outcomes, moved(outcomes[1], 0.1), ALLOWED)
    assert not edges.at(1, outcomes, moved(outcomes[1], 1.0), ALLOWED)  # farther than rounding can lead


def test_step_away_from_zero_is_no_edge():
    found = subject(1.0, 2.0)
    outcomes = reference(found, 1, 2, 0, variables=1e-5, figures=1e-6).outcomes
    assert not Edges(found, 1, 0).at(1, outcomes, moved(outcomes[1], 1e-4), ALLOWED)
