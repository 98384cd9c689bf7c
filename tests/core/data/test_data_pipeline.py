"""Chunks for the engine: the examples of a step, for any chunks, microbatches, replicas and resumes."""

import functools
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
from data_lab import ids
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import ArraySource, Source, eval_chunks, position_indices, train_chunks
from core.data.shuffle import shuffled
from core.errors import ConfigurationError
from core.random import Rng


def stream(size, count, seed=0):
    """Returns the first examples of a run, epoch after epoch."""
    rng = Rng.from_seed(seed).fold("order of the examples")
    epochs = [
        shuffled(tf.range(n * size, (n + 1) * size, dtype=tf.int64), size=size, rng=rng, span=size).numpy()
        for n in range(-(-count // size))
    ]
    return np.concatenate(epochs)[:count]


def first(chunks, count):
    return np.concatenate([chunk["id"].numpy() for chunk in chunks.take(count)])


def test_chunks_that_are_gathered_at_once_come_in_their_order():
    make = functools.partial(train_chunks, ids(20), global_batch_size=4, microbatches=1, chunk_steps=3, seed=0)
    np.testing.assert_array_equal(first(make(parallel_calls=4, first_step=6), 9), first(make(first_step=6), 9))


def test_slow_source_is_gathered_by_parallel_calls():
    meeting, calls = threading.Barrier(3, timeout=60), itertools.count()

    class Meeting(Source):
        """Answers none of the first three calls before all have come."""

        spec = {"x": tf.TensorSpec([], tf.int64)}  # noqa: RUF012

        def gather(self, indices):
            meet = tf.numpy_function(lambda: next(calls) >= 3 or meeting.wait() >= 0, [], tf.bool)
            with tf.control_dependencies([meet]):
                return {"x": tf.identity(indices)}

    source = Meeting("meeting", size=5, place="a test")
    chunks = train_chunks(source, global_batch_size=1, microbatches=1, chunk_steps=1, seed=0, parallel_calls=3)
    assert len(list(chunks.take(3))) == 3


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    size=st.integers(1, 50),
    rows=st.integers(1, 7),
    microbatches=st.integers(1, 4),
    replicas=st.integers(1, 5),
    first_step=st.integers(0, 9),
    num_steps=st.integers(1, 6),
    origin=st.integers(0, 70),
    seed=st.integers(-(1 << 62), 1 << 62),
)
def test_positions_are_the_stream_laid_out_by_step_microbatch_and_replica(
    size, rows, microbatches, replicas, first_step, num_steps, origin, seed
):
    batch = rows * microbatches * replicas
    flat = stream(size, origin + (first_step + num_steps) * batch, seed)[origin + first_step * batch :]
    expected = flat.reshape(num_steps, microbatches, replicas, rows)
    for replica in range(replicas):
        found = position_indices(
            ids(size),
            first_step=first_step,
            num_steps=num_steps,
            global_batch_size=batch,
            microbatches=microbatches,
            origin=origin,
            seed=seed,
            replicas=replicas,
            replica=replica,
        )
        np.testing.assert_array_equal(found, expected[:, :, replica])


@pytest.mark.parametrize("batch", [1, 7, 12, 64])
def test_epoch_visits_each_example_once_whatever_the_batch(batch):
    size, epochs = 30, 4
    steps = -(-size * epochs // batch)
    seen = first(train_chunks(ids(size), global_batch_size=batch, microbatches=1, chunk_steps=1, seed=3), steps)
    for epoch in seen.ravel()[: size * epochs].reshape(epochs, size):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(size))


def test_batch_spans_two_epochs():
    seen = first(train_chunks(ids(10), global_batch_size=4, microbatches=2, chunk_steps=5, seed=0), 1)
    np.testing.assert_array_equal(seen.ravel(), stream(10, 20))
    third = seen[2].ravel()  # positions 8 to 11: the end of one epoch and the beginning of the next
    assert set(third[:2]) == set(range(10)) - set(seen[:2].ravel())


@pytest.mark.parametrize(("chunk_steps", "microbatches"), [(1, 4), (3, 2), (6, 1)])
def test_chunks_and_microbatches_change_neither_examples_nor_rows(chunk_steps, microbatches):
    chunks = train_chunks(
        ids(25), global_batch_size=8, microbatches=microbatches, chunk_steps=chunk_steps, seed=9, origin=5
    )
    seen = first(chunks, 6 // chunk_steps)
    assert seen.shape == (6, microbatches, 8 // microbatches)
    np.testing.assert_array_equal(seen.reshape(6, 8), stream(25, 53, seed=9)[5:].reshape(6, 8))


@pytest.mark.long
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_shards_of_an_epoch_are_the_data_and_overlap_nowhere(replicas):
    def shard(replica):
        chunks = train_chunks(
            ids(120), global_batch_size=60, microbatches=1, chunk_steps=2, seed=1, replicas=replicas, replica=replica
        )
        return set(first(chunks, 1).ravel())

    shards = [shard(replica) for replica in range(replicas)]
    assert set().union(*shards) == set(range(120))
    assert not any(one & other for one, other in itertools.combinations(shards, 2))


@pytest.mark.parametrize("first_step", [0, 4, 5, 110])
def test_resumed_stream_is_the_uninterrupted_one_from_the_aligned_chunk_on(first_step):
    kwargs = {"global_batch_size": 6, "microbatches": 2, "chunk_steps": 5, "seed": 4}
    resumed = first(train_chunks(ids(40), first_step=first_step, **kwargs), 2)
    begin = first_step // 5 * 5
    expected = stream(40, (begin + 10) * 6, seed=4)[begin * 6 :].reshape(10, 2, 3)
    np.testing.assert_array_equal(resumed, expected)


def test_resume_on_other_replicas_continues_the_stream():
    alone = first(train_chunks(ids(40), global_batch_size=8, microbatches=1, chunk_steps=2, seed=4), 4)
    four = [
        first(
            train_chunks(
                ids(40),
                global_batch_size=8,
                microbatches=1,
                chunk_steps=2,
                first_step=4,
                seed=4,
                replicas=4,
                replica=replica,
            ),
            2,
        )
        for replica in range(4)
    ]
    np.testing.assert_array_equal(np.concatenate(four, axis=2), alone[4:])


def test_chunks_are_equal_for_a_seed_and_differ_for_another():
    def make(seed):
        return train_chunks(ids(500), global_batch_size=32, microbatches=1, chunk_steps=10, seed=seed)

    np.testing.assert_array_equal(first(make(1), 3), first(make(1), 3))
    assert (first(make(1), 3) != first(make(2), 3)).mean() > 0.9


def test_features_arrive_together_and_with_static_shapes():
    images = np.random.RandomState(0).randint(0, 256, [20, 3, 2]).astype(np.uint8)
    source = ArraySource({"image": images, "id": np.arange(20)}, name="both")
    chunks = train_chunks(source, global_batch_size=6, microbatches=3, chunk_steps=4, seed=0)
    assert chunks.element_spec == {
        "image": tf.TensorSpec([4, 3, 2, 3, 2], tf.float32),
        "id": tf.TensorSpec([4, 3, 2], tf.int32),
    }
    chunk = next(iter(chunks))
    np.testing.assert_allclose(chunk["image"], images[chunk["id"].numpy()] / 255.0, rtol=1e-6)


class Counting(Source):
    """Counts its reads."""

    def __init__(self):
        super().__init__("counting", size=9, place="a test")
        self.reads = 0

    @property
    def spec(self):
        return {"id": tf.TensorSpec([], tf.int64)}

    def gather(self, indices):
        def read(values):
            self.reads += 1
            return values

        return {"id": tf.ensure_shape(tf.numpy_function(read, [indices], tf.int64), indices.shape)}


def test_synthetic_input_is_the_first_chunk_read_once():
    source = Counting()
    kwargs = {"global_batch_size": 4, "microbatches": 1, "chunk_steps": 3, "first_step": 7, "seed": 0}
    chunks = first(train_chunks(source, synthetic=True, **kwargs), 5).reshape(5, 3, 1, 4)
    assert source.reads == 1
    real = first(train_chunks(source, **{**kwargs, "first_step": 0}), 1)
    np.testing.assert_array_equal(chunks, np.broadcast_to(real, chunks.shape))


def test_pipeline_reads_only_a_chunk_or_so_ahead():
    source = Counting()
    iterator = iter(train_chunks(source, global_batch_size=1, microbatches=1, chunk_steps=1, seed=0))
    for _ in range(10):
        next(iterator)
    assert 10 <= source.reads <= 13


@pytest.mark.parametrize("make", [train_chunks, eval_chunks])
def test_auto_sharding_is_off(make):
    settings_ = {"microbatches": 1, "chunk_steps": 1, "seed": 0} if make is train_chunks else {}
    options = make(ids(4), global_batch_size=2, **settings_).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert options.deterministic


def test_gathering_leaves_no_copy_of_the_data_in_the_graph():
    source = ArraySource({"x": np.zeros([1000, 1000], np.uint8)}, name="large")
    indices = tf.TensorSpec([4], tf.int64)
    one, other = (tf.function(source.gather).get_concrete_function(indices) for _ in range(2))
    assert len(one.graph.as_graph_def().SerializeToString()) < 10_000
    assert one.captured_inputs[0] is other.captured_inputs[0]


@pytest.mark.parametrize(
    ("batch", "microbatches", "replicas", "nearest"),
    [(10, 4, 1, 8), (11, 4, 1, 12), (1, 4, 2, 8), (100, 1, 3, 99), (33, 2, 2, 32)],
)
def test_batch_that_does_not_divide_gets_the_nearest_that_does(batch, microbatches, replicas, nearest):
    with pytest.raises(ConfigurationError, match=rf"`global_batch_size` is {batch}.*global_batch_size = {nearest}`"):
        train_chunks(
            ids(5), global_batch_size=batch, microbatches=microbatches, chunk_steps=1, seed=0, replicas=replicas
        )


@pytest.mark.parametrize("replicas", [1, 3, 9])
def test_evaluation_batch_holds_the_same_examples_on_any_number_of_replicas(replicas):
    seen = [[] for _ in range(3)]  # seven, seven and three
    for replica in range(replicas):
        for features, mask in eval_chunks(ids(17), global_batch_size=7, replicas=replicas, replica=replica):
            for batch, row, real in zip(seen, features["id"].numpy(), mask.numpy(), strict=True):
                batch += row[real == 1.0].tolist()
    assert seen == [[*range(7)], [*range(7, 14)], [*range(14, 17)]]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"microbatches": 0}, "microbatches"),
        ({"chunk_steps": -1}, "chunk_steps"),
        ({"first_step": -1}, "first_step"),
        ({"replicas": 2, "replica": 2}, "replica"),
    ],
)
def test_impossible_counts_are_refused_by_name(wrong, name):
    settings_ = {"global_batch_size": 4, "microbatches": 1, "chunk_steps": 1, "seed": 0}
    with pytest.raises(ConfigurationError, match=f"`{name}` is {wrong[name]}"):
        train_chunks(ids(5), **(settings_ | wrong))


def test_run_cannot_begin_before_its_data():
    with pytest.raises(ConfigurationError, match="`consumed` is -8"):
        train_chunks(ids(5), global_batch_size=4, microbatches=1, chunk_steps=2, seed=0, first_step=2, origin=-16)


def test_larger_batch_continues_at_the_same_position():
    """Ten steps of 4, then steps of 8 from step 10 on: the aligned chunk begins before the data does."""
    chunks = train_chunks(
        ids(100), global_batch_size=8, microbatches=1, chunk_steps=20, seed=0, first_step=10, origin=-40
    )
    first = next(iter(chunks))["id"].numpy()[10:].ravel()
    np.testing.assert_array_equal(first, stream(100, 120, 0)[40:])


def test_source_that_breaks_its_spec_is_named():
    class Liar(Counting):
        def gather(self, indices):
            return {"id": tf.cast(indices, tf.int32)}

    with pytest.raises(ValueError, match=r"`counting`.*int32.*int64"):
        train_chunks(Liar(), global_batch_size=2, microbatches=1, chunk_steps=1, seed=0)
