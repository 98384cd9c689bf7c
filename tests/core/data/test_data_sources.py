"""Every source answers as the pipeline relies on; a source that doesn't is told what is wrong with it."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import domains, ids

from core.data import ArraySource, Source, balanced, digits, image_folder, mixture, topics, unpaired_folders, weighted
from core.testing import assert_source


def tens(size, scale=10):
    return ArraySource({"id": scale * np.arange(size)}, name="tens")


def folder(path):
    return domains(path, 3, 5)


SOURCES = {
    "arrays": lambda path: ids(50),
    "few": lambda path: ids(3),
    "one": lambda path: ids(1),
    "many": lambda path: ids(5000),
    "digits": lambda path: digits(),
    "topics": lambda path: topics("test", 32),
    "image_folder": lambda path: image_folder(folder(path) + "/trainA", size=4),
    "unpaired_folders": lambda path: unpaired_folders(folder(path), size=4),
    "balanced": lambda path: balanced(digits(), by="label"),
    "balanced classes of one": lambda path: balanced(ids(30), by="id"),
    "weighted": lambda path: weighted(ids(40), weights="id"),
    "mixture": lambda path: mixture([ids(5), tens(5000), ids(70)], weights=[0.2, 0.5, 0.3]),
    "mixture of all": lambda path: mixture(
        [balanced(ids(9), by="id"), mixture([ids(5), tens(4)], [1, 2]), weighted(tens(20), weights="id")], [5, 1, 1]
    ),
    "mixture of texts": lambda path: mixture([topics("test", 32), topics("train", 32)], weights=[1, 10]),
    "mixture of images": lambda path: mixture(
        [image_folder(folder(path) + x, size=4) for x in ("/trainA", "/trainB")], [1, 1]
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_resumable_and_its_shards_are_disjoint(name, tmp_path):
    assert_source(SOURCES[name](tmp_path))


class Points(Source):
    """A right source of one's own, which the ones below spoil."""

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
        (ByPlaceInBatch, "`x` of `points` isn't the same where it is asked for in another order"),
        (Random, "isn't the same where it is asked for a second time.*drawn from its `rng`"),
        (RandomByNumPy, "isn't the same where it is asked for a second time"),
        (NotOfNone, r"`x` of `points` is float32 \[1\] where it is of no numbers at all, and was float32 \[0\]"),
        (TracedOnce, "isn't the same where it is gathered in a graph"),
        (ByCompany, "gives other examples where only some of the positions are asked for"),
        (Beyond, "names example 100, but there are 0 to 99"),
        (Unseeded, "is the same for another seed"),
        (OfAnotherTypeInOrder, r"returns int32 \[4096\] for 4096 positions"),
    ],
)
def test_what_is_wrong_with_a_source_of_ones_own_is_said(source, message):
    assert_source(Points())
    with pytest.raises(AssertionError, match=message):
        assert_source(source())
