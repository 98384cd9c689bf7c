"""Variable-length lists of TFRecord: padded, counted, packed."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import everything

from core.data import packed, tfrecord
from core.errors import ConfigurationError


def write(path, lists):
    """Writes records of one list each, of integers or floats; None is a record without a list."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for values in lists:
            kind = "float_list" if any(isinstance(x, float) for x in values or ()) else "int64_list"
            feature = {} if values is None else {"x": tf.train.Feature(**{kind: {"value": values}})}
            file.write(tf.train.Example(features={"feature": feature}).SerializeToString())
    return str(path)


def test_length_of_a_list_is_counted_and_packs_it(tmp_path):
    path = write(tmp_path / "a", [[7, 8, 9], [1], [2, 3]])
    source = tfrecord(path, {"x": ("int", 4, -1), "length": ("length", "x")})
    found = everything(source)
    assert found["x"].tolist() == [[7, 8, 9, -1], [1, -1, -1, -1], [2, 3, -1, -1]]
    assert (found["length"].tolist(), found["length"].dtype) == ([3, 1, 2], np.int32)
    np.testing.assert_array_equal(source.values("length"), found["length"])
    rows = everything(packed(source, width=3))
    assert sorted(map(tuple, rows["x"].tolist())) == [(1, 2, 3), (7, 8, 9)]


def test_a_record_without_the_list_has_none_of_its_values(tmp_path):
    source = tfrecord(write(tmp_path / "a", [[0.5], None]), {"x": ("float", 2, 0.0), "n": ("length", "x")})
    assert everything(source)["n"].tolist() == source.values("n").tolist() == [1, 0]


@pytest.mark.parametrize("of", ["none", "label", "n"])
def test_length_of_an_unfilled_feature_is_refused(tmp_path, of):
    path = write(tmp_path / "a", [[0.5]])
    with pytest.raises(ConfigurationError, match=f"`n` counts the values of `{of}`; declare .* Such are `x`"):
        tfrecord(path, {"x": ("float", 2, 0.0), "label": "int", "n": ("length", of)})


@pytest.mark.parametrize(("kind", "fill"), [("int", 0.5), ("int", 1 << 31), ("int", "0"), ("float", np.nan)])
def test_fill_value_is_a_number(tmp_path, kind, fill):
    with pytest.raises(ConfigurationError, match=r"`tfrecord.features` fills `x` with .*; give a number"):
        tfrecord(write(tmp_path / "a", [[1]]), {"x": (kind, 5, fill)})
