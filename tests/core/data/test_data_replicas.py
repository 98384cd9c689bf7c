"""What is said of an element before there is one, and what comes to each replica."""

import pytest
import tensorflow as tf

from core.data import PerReplica
from core.distribution import mirrored, one_device


def of_two_features(replica):
    return tf.data.Dataset.from_tensors({"x": tf.fill([2, 3], float(replica)), "n": tf.constant([replica], tf.int64)})


@pytest.mark.parametrize("strategy", [one_device(), mirrored(replicas=2)], ids=["one", "two"])
def test_an_element_is_as_it_was_said_to_be(strategy):
    chunks = PerReplica(of_two_features, strategy)
    element = next(iter(chunks))
    assert chunks.element_spec == tf.nest.map_structure(tf.type_spec_from_value, element)
    own = [int(x[0]) for x in strategy.experimental_local_results(element["n"])]
    assert own == list(range(strategy.num_replicas_in_sync))


@pytest.mark.parametrize("strategy", [one_device(), mirrored(replicas=2)], ids=["one", "two"])
def test_it_is_said_without_making_one(strategy):
    far_too_large = [1 << 50]
    chunks = PerReplica(lambda _: tf.data.Dataset.range(1).map(lambda _: tf.zeros(far_too_large)), strategy)
    assert f"{1 << 50}" in str(chunks.element_spec)
