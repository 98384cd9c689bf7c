"""Streams: conversion of examples from iterators and datasets, and refusals."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource, Stream, StreamReader
from core.data.stream_pass import InOrder
from core.data.trail import Trail, hashes_after
from core.errors import ConfigurationError, DataError


def counting(seed, epoch):
    """Returns seven examples with their numbers, each in the same reused array."""
    x = np.zeros([2])
    for i in range(7):
        x[:] = 100 * epoch + i, seed
        yield {"x": x, "label": 100 * epoch + i, "id": f"{epoch}/{i}"}


def as_dataset(seed, epoch):
    examples = list(counting(seed, epoch))
    features = {"label": np.array([e["label"] for e in examples]), "id": [e["id"] for e in examples]}
    features["x"] = np.stack([[label, seed] for label in features["label"]]).astype("float64")
    return tf.data.Dataset.from_tensor_slices(features)


def taken(make, *counts, shuffle=None, seed=3):
    order = InOrder(Stream(make, shuffle=shuffle), seed=seed, epoch=0, before=0, count=5)
    return [order.take(count) for count in counts]


@pytest.mark.parametrize("make", [counting, as_dataset])
def test_epochs_follow_each_other_in_the_types_that_steps_compute_with(make):
    first, second = taken(make, 4, 13)
    labels = np.concatenate([first["label"], second["label"]])
    assert labels.tolist() == [100 * epoch + i for epoch in range(3) for i in range(7)][:17]
    np.testing.assert_array_equal(second["x"], np.stack([labels[4:], np.full(13, 3)], axis=1))
    assert (first["x"].dtype, first["label"].dtype) == (np.float32, np.int32)
    assert Stream(make).spec == {"x": tf.TensorSpec([2], tf.float32), "label": tf.TensorSpec([], tf.int32)}


def test_bytes_of_images_become_levels():
    stream = Stream(lambda seed, epoch: [{"image": np.full([2, 2, 1], 51, np.uint8)}])
    assert stream.spec["image"].dtype == tf.float32
    assert stream.value_range("image") == (0.0, 1.0)
    (block,) = stream.blocks(0, 0, count=1, before=0)
    np.testing.assert_allclose(block["image"], 0.2, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 5, 40])
def test_shuffle_buffer_follows_the_seed_alone_however_many_are_taken(size):
    whole = taken(counting, 210, shuffle=size)[0]["label"]
    parts = taken(counting, *[3, 27] * 7, shuffle=size)
    np.testing.assert_array_equal(np.concatenate([part["label"] for part in parts]), whole)
    plain = taken(counting, 210 + size)[0]["label"]
    assert len(set(whole.tolist())) == 210
    assert set(whole.tolist()) <= set(plain.tolist())
    for seed in (4, -3, 3 + (1 << 40)):
        other = taken(counting, 210, shuffle=size, seed=seed)[0]["label"]
        assert np.array_equal(whole, plain[:210]) == np.array_equal(whole, other) == (size == 1)


def test_a_hash_is_of_the_order_and_of_every_value_of_small_examples():
    block = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "y": np.arange(4, dtype=np.int32)}
    hashes = hashes_after(0, 0, block)
    assert hashes[3] == hashes_after(2, int(hashes[1]), {name: x[2:] for name, x in block.items()})[1]
    for row, column in [(0, 0), (2, 1), (3, 2)]:
        other = {**block, "x": block["x"].copy()}
        other["x"][row, column] = -1.0
        differs = hashes_after(0, 0, other) != hashes
        assert differs.tolist() == [i >= row for i in range(4)]
    swapped = {name: x[[1, 0, 2, 3]] for name, x in block.items()}
    assert hashes_after(0, 0, swapped)[3] != hashes[3]
    named = hashes_after(0, 0, {**block, "id": np.arange(4)})  # then the rest of its content doesn't count
    np.testing.assert_array_equal(named, hashes_after(0, 0, {"x": -block["x"], "id": np.arange(4)}))


def splitmix(x):
    """Returns the output of SplitMix64 (Steele, Lea and Flood, 2014) for a state, in Python's integers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_a_hash_is_the_one_that_checkpoints_of_other_versions_hold():
    golden, numbers, hashes = 0x9E3779B97F4A7C15, [5, -3, 2**40], []
    for place, number in enumerate(numbers, 8):
        digest = splitmix(number * (splitmix(golden) | 1) % 2**64)
        hashes.append((hashes[-1] if hashes else 11) + splitmix((digest + place * golden) % 2**64))
    expected = np.array([x % 2**64 for x in hashes], np.uint64)
    np.testing.assert_array_equal(hashes_after(7, 11, {"x": np.array(numbers)}), expected)


@pytest.mark.parametrize("changed", [0, 1, 5, 6, 9])
def test_a_trail_says_between_which_counts_the_first_other_example_is(changed):
    block = {"x": np.arange(10)}
    hashes = hashes_after(0, 0, block)
    trail = Trail()
    assert trail.follow(0, hashes[:6]) is None
    assert trail.follow(6, hashes[6:]) is None
    told = (10, int(hashes[-1]))
    assert Trail(trail.marks(10), told).follow(0, hashes) is None
    block["x"][changed] = 77
    low, high = Trail(trail.marks(10), told).follow(0, hashes_after(0, 0, block))
    assert low <= changed < high <= min(10, max(1, 2 * low))


def example(**changes):
    return {"x": np.zeros([2], np.float32), "label": 1, **changes}


MISFITS = [
    ([example(), example(x=np.zeros([3], np.float32))],
        r"example 1 of .* has `x` float32 \[3\], but the first one has"),
    ([example(), example(x=np.zeros([2], "complex64"))], r"example 1 of .* has `x` complex64 \[2\], but"),
    ([example(), example(label=1.5)],
        r"example 1 of .* has `label` float64 \[\], 1.5, but the first one has `label` int64"),
    ([example(label=np.int8(1)), example(label=300)], r"has `label` int64 \[\], 300, but the first .* int8"),
    ([example(y=np.float32(1)), example(y=1e300)], r"has `y` float64 \[\], 1e\+300, but the first one has `y` float32"),
    ([example(), example(x=[[1, 2], [3]])], "example 1 of .* has rows of unlike lengths in `x`, but"),
    ([example(x=[[1, 2], [3]])], "makes rows of unlike lengths in `x`; fill them up"),
    ([example(y=1e300)], r"`y` of the source .* holds 1e\+300, which doesn't fit into float32"),
    ([{1: 2}], "calls a feature 1; a name is a text"),
    ([{"id": 7}], "makes only `id`"),
    ([example(id=1.5)], r"has `id` float64 \[\], .*; give a whole number or a text"),
    ([example(id=None)], r"has `id` object \[\]|`id` of the source"),
    ([example(id=[1, 2])], r"has `id` int64 \[2\]"),
    ([example(id="a"), example(id=1)], r"example 1 of .* has `id` int64 \[\], 1, but the first one has `id` object"),
    ([example(), {"x": np.zeros([2])}], r"example 1 of .* has `x`, but the first one has `x` float32 \[2\], `label`"),
    ([example(), 7], r"example 1 of .* has a int, but"),
    ([], "is empty"),
    ([7], "makes a int; make each example a dictionary"),
    ([{"text": "ab"}], "`text` of the source .* has dtype"),
    ([example(label=2**40)], "holds 1099511627776, which doesn't fit into int32"),
]  # fmt: skip


@pytest.mark.parametrize(("examples", "message"), MISFITS)
def test_an_example_that_does_not_fit_is_named(examples, message):
    stream = Stream(lambda seed, epoch: iter(examples))
    with pytest.raises(DataError, match=message):
        list(stream.blocks(0, 0, count=4, before=0))


def test_a_value_of_another_type_is_taken_where_it_is_the_same_number():
    examples = [example(label=np.int8(1), x=[0.5, 1.0]), example(label=-128, x=[2, 3]), example(label=True, x=[0, 0])]
    (block,) = Stream(lambda seed, epoch: iter(examples)).blocks(0, 0, count=4, before=0)
    assert block["label"].tolist() == [1, -128, 1]
    np.testing.assert_array_equal(block["x"], [[0.5, 1.0], [2.0, 3.0], [0.0, 0.0]])


def test_bfloat16_becomes_float32():
    numbers = tf.constant([0.5, 1.5], tf.bfloat16)
    for made in ([{"x": x} for x in numbers], tf.data.Dataset.from_tensor_slices({"x": numbers})):
        (block,) = Stream(lambda seed, epoch, made=made: made).blocks(0, 0, count=2, before=0)
        assert (block["x"].dtype, block["x"].tolist()) == (np.float32, [0.5, 1.5])


class Exchanged:
    """An array that other frameworks read by DLPack alone."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **asked):
        return self.x.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_arrays_of_other_frameworks_are_read_and_batches_shared_with_them():
    rows = jnp.arange(6.0).reshape(2, 3)
    assert np.from_dlpack(rows).ctypes.data == rows.unsafe_buffer_pointer()
    found = Stream(lambda seed, epoch: ({"jax": row, "dlpack": Exchanged(row)} for row in rows))
    (block,) = found.blocks(0, 0, count=2, before=0)
    for name in ("jax", "dlpack"):
        np.testing.assert_array_equal(block[name], rows)
    batch = ArraySource({"x": np.arange(600.0).reshape(2, 300)}, name="numbers").gather(tf.constant([1, 0]))
    shared = jnp.from_dlpack(batch["x"])
    assert shared.unsafe_buffer_pointer() == np.from_dlpack(batch["x"]).ctypes.data
    np.testing.assert_array_equal(shared, batch["x"])


def test_an_example_is_known_by_the_same_id_from_an_iterator_and_from_a_dataset():
    for ids in (["a", "größe"], [b"a", b"\xff\0\1"], [3, 1 << 62]):
        examples = [{"x": 1, "id": id} for id in ids]
        dataset = tf.data.Dataset.from_tensor_slices({"x": [1, 1], "id": ids})
        one, other = (
            next(Stream(lambda seed, epoch, made=made: made).blocks(0, 0, count=2, before=0))
            for made in (examples, dataset)
        )
        hashes = hashes_after(0, 0, one)
        np.testing.assert_array_equal(hashes, hashes_after(0, 0, other))
        assert (hashes != hashes_after(0, 0, {**one, "id": one["id"][::-1]})).any()


def test_stream_raises_the_same_error_however_often_it_is_asked():
    def breaks(seed, epoch):
        yield example()
        raise LookupError("the disk of the user")

    reader = StreamReader(Stream(breaks), global_batch_size=2, microbatches=1, seed=0)
    reading = reader.reading(chunk_steps=1)
    chunks = iter(reading.chunks(0))
    for _ in range(3):  # an iterator that has failed reports its end at the second call
        with pytest.raises(tf.errors.OpError):
            next(chunks)
    with pytest.raises(LookupError, match="the disk of the user"), reading.own_errors():
        next(chunks)


def test_chunks_before_an_error_are_read_though_a_later_one_has_failed():
    """The next chunk is made ahead, and may fail while this one is handed over."""

    def breaks(seed, epoch):
        yield from [example() for _ in range(4)]
        raise LookupError("the disk of the user")

    reading = StreamReader(Stream(breaks), global_batch_size=2, microbatches=1, seed=0).reading(chunk_steps=1)
    chunks = iter(reading.chunks(0))
    next(chunks)
    with reading.own_errors():
        next(chunks)
        give_up = time.monotonic() + 60
        while reading._failure is None and time.monotonic() < give_up:
            time.sleep(0.001)
        assert reading._failure is not None
    with pytest.raises(LookupError, match="the disk of the user"), reading.own_errors():
        next(chunks)


def test_a_dataset_has_single_examples_of_known_shape():
    whole = as_dataset(0, 0)
    for dataset, message in [
        (whole.batch(2), r"`label` .* has shape \(None,\), which isn't fully known. Leave out `.batch`"),
        (whole.map(lambda e: (e["x"], e["label"])), "make each example a dictionary of tensors"),
    ]:
        with pytest.raises(DataError, match=message):
            assert Stream(lambda seed, epoch, dataset=dataset: dataset).spec
    with pytest.raises(DataError, match=r"has .*`x` float64 \[2\].* in epoch 0, but .* in epoch 1"):
        taken(lambda seed, epoch: whole if epoch == 0 else whole.map(lambda e: {"x": e["x"]}), 10)
    with pytest.raises(DataError, match="made 3 of epoch 0; return a"):
        assert Stream(lambda seed, epoch: 3).spec


def test_a_stream_that_is_used_up_says_so():
    once = iter(list(counting(0, 0)))
    first = {**next(counting(0, 0))}
    with pytest.raises(DataError, match=r"has ended: after 7 examples it made none of epoch 1. Return a new iterator"):
        taken(lambda seed, epoch: [first] if epoch == seed == 0 else once, 8)


def test_settings_are_checked():
    for make, message in [(3, "give a function of"), (lambda seed: [], r"write `def <lambda>\(seed, epoch\)`")]:
        with pytest.raises(ConfigurationError, match=message):
            Stream(make)
    with pytest.raises(ConfigurationError, match=r"`stream.replay` is 'False'; give True or False"):
        Stream(counting, replay="False")
    with pytest.raises(ConfigurationError, match=r"`stream.shuffle` is 0"):
        Stream(counting, shuffle=0)
    with pytest.raises(ConfigurationError, match=r"`Trainer.parallel_calls` is 2, but a stream"):
        StreamReader(Stream(counting), parallel_calls=2, global_batch_size=2, microbatches=1, seed=0)
