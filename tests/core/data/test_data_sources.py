"""Sources keep the promises that the pipeline relies on; `assert_source` names the fault of one that doesn't.

`test_data_readers.py` has the table of those that read files.
"""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import domains, ids, sequences

from core.data import ArraySource, MapStyle, Source, balanced, mixture, packed, topics, unpaired_folders, weighted
from core.testing import assert_source


def tens(size):
    return ArraySource({"id": 10 * np.arange(size)}, name="tens")


def of_grain(size):
    import grain

    numbers = grain.MapDataset.source(np.arange(size)).shuffle(seed=3)
    return MapStyle(numbers.map(lambda number: {"x": number, "image": np.full([2, 2, 3], number, np.uint8)}))


SOURCES = {
    "grain": lambda path: of_grain(7),
    "few": lambda path: ids(3),
    "points": lambda path: Points(),
    "topics": lambda path: topics("test", 32),
    "packed": lambda path: packed(sequences([5, 1, 4, 2, 3, 5]), 5),
    "unpaired_folders": lambda path: unpaired_folders(domains(path, 3, 5), size=4),
    "mixture of all": lambda path: mixture(
        [balanced(ids(9), by="id"), mixture([ids(5), weighted(tens(4), weights="id")], [1, 2])], [5, 1]
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_source_is_resumable_and_its_shards_are_disjoint(name, tmp_path, monkeypatch):
    monkeypatch.setattr("core.data.reordered._ROUNDS", 3)  # of 40, each as long as the first
    assert_source(SOURCES[name](tmp_path))


class Points(Source):
    """A correct custom source; each class below has one fault."""

    spec = {"x": tf.TensorSpec([], tf.float32)}  # noqa: RUF012

    def __init__(self):
        super().__init__("points", size=100, place="a test")

    def gather(self, indices):
        return {"x": tf.cast(indices, tf.float32)}


class OfAnotherType(Points):
    def gather(self, indices):
        return {"x": indices}


class ByPlaceInBatch(Points):
    def gather(self, indices):
        return {"x": tf.cast(indices + tf.range(tf.size(indices), dtype=tf.int64), tf.float32)}


class Random(Points):
    def gather(self, indices):
        return {"x": tf.random.uniform(tf.shape(indices))}


class RandomByNumPy(Points):
    def gather(self, indices):
        return {"x": np.random.rand(len(indices)).astype(np.float32)}


class NotOfNone(Points):
    def gather(self, indices):
        return {"x": tf.cast(indices if indices.shape != [0] else tf.zeros([1]), tf.float32)}


class ByCompany(Points):
    def order(self, positions, *, rng, span):
        return (positions - tf.reduce_min(positions)) % 100


class Beyond(Points):
    def order(self, positions, *, rng, span):
        return positions % 101


class Unseeded(Points):
    def order(self, positions, *, rng, span):
        return positions % 100


class OfAnotherTypeInOrder(Points):
    def order(self, positions, *, rng, span):
        return tf.cast(positions % 100, tf.int32)


class TracedOnce(Points):
    def gather(self, indices):
        return {"x": tf.cast(indices + (not tf.executing_eagerly()), tf.float32)}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (OfAnotherType, "'int64'.*, but its `spec` promises .*'float32'"),
        (ByPlaceInBatch, "`x` of `points` isn't the same when asked for in another order"),
        (Random, "isn't the same when asked for a second time.*drawn from its `rng`"),
        (RandomByNumPy, "isn't the same when asked for a second time"),
        (NotOfNone, r"`x` of `points` is float32 \[1\] when asked for no indices, and was float32 \[0\]"),
        (TracedOnce, "isn't the same when gathered in a graph"),
        (ByCompany, "gives other examples for only some of the positions"),
        (Beyond, "names example 100, but there are 0 to 99"),
        (Unseeded, "is the same for another seed"),
        (OfAnotherTypeInOrder, r"returns int32 \[4096\] for 4096 positions"),
    ],
)
def test_fault_of_a_custom_source_is_named(source, message):
    with pytest.raises(AssertionError, match=message):
        assert_source(source())
