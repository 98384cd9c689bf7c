"""What is said of an element before there is one, and what comes to each replica."""

import pytest
import tensorflow as tf

from core.data import PerReplica
from core.distribution import mesh, mirrored, one_device
from core.distribution.mesh_strategy import MeshStrategy

MESH = MeshStrategy(mesh(batch=2, model=1))
STRATEGIES = {"one": one_device(), "two": mirrored(replicas=2), "mesh": MESH}
of_all = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


@of_all
@pytest.mark.parametrize("rows", [2, 3000])
def test_an_element_is_as_it_was_said_to_be(strategy, rows):
    def make(replica):
        return tf.data.Dataset.from_tensors({"x": tf.zeros([rows, 3]), "n": tf.fill([rows], replica)})

    chunks = PerReplica(make, strategy)
    element = next(iter(chunks))
    assert chunks.element_spec == tf.nest.map_structure(tf.type_spec_from_value, element)
    assert len(strategy.experimental_local_results(element["n"])) == strategy.num_replicas_in_sync


@of_all
def test_element_spec_is_known_without_an_element(strategy):
    far_too_large = [1 << 50]
    chunks = PerReplica(lambda _: tf.data.Dataset.range(1).map(lambda _: tf.zeros(far_too_large)), strategy)
    assert f"{1 << 50}" in str(chunks.element_spec)
