"""Evaluation chunks count each example once, in order, on any replicas; element specs are known beforehand."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import ids
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import PerReplica, eval_chunks
from core.distribution import mirrored, one_device
from core.testing.replicas import on_virtual_mesh


@pytest.mark.parametrize("size", [1, 103, 360])
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_evaluation_counts_each_example_once_and_in_order(size, batch):
    features, masks = zip(*eval_chunks(ids(size), global_batch_size=batch, chunk_batches=4), strict=True)
    seen = np.concatenate([chunk["id"].numpy().reshape(-1) for chunk in features])
    mask = np.concatenate([chunk.numpy().reshape(-1) for chunk in masks])
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(seen[mask == 1], np.arange(size))
    np.testing.assert_array_equal(seen[mask == 0], 0)
    assert set(mask) <= {0.0, 1.0}


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(size=st.integers(1, 80), rows=st.integers(1, 9), replicas=st.integers(1, 5), chunk_batches=st.integers(1, 6))
def test_the_replicas_of_an_evaluation_share_each_batch(size, rows, replicas, chunk_batches):
    batch = rows * replicas
    shards = [
        list(
            eval_chunks(
                ids(size), global_batch_size=batch, chunk_batches=chunk_batches, replicas=replicas, replica=replica
            )
        )
        for replica in range(replicas)
    ]
    assert len({len(shard) for shard in shards}) == 1
    assert len({tuple(mask.shape) for shard in shards for _, mask in shard}) == 1
    assert shards[0][0][1].shape[0] <= chunk_batches
    seen = np.concatenate([[chunk["id"].numpy() for chunk, _ in shard] for shard in shards], axis=2)
    mask = np.concatenate([[mask.numpy() for _, mask in shard] for shard in shards], axis=2)
    np.testing.assert_array_equal(seen.ravel()[mask.ravel() == 1], np.arange(size))


def test_evaluation_pads_chunks_with_as_few_batches_as_can_be():
    chunks = eval_chunks(ids(17), global_batch_size=1, chunk_batches=16)
    assert chunks.element_spec == ({"id": tf.TensorSpec([9, 1], tf.int32)}, tf.TensorSpec([9, 1], tf.float32))
    assert int(chunks.cardinality()) == 2


MESH = on_virtual_mesh(2, 1)
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
