"""The embedded digits: the file, and a split that the labels determine."""

import math
from fractions import Fraction
from pathlib import Path

import gin
import numpy as np
import pytest
import tensorflow as tf

import core.data
from core.data import digits
from core.errors import ConfigurationError

FILE = Path(core.data.__file__).parent / "embedded" / "digits.npz"


@pytest.fixture(scope="module")
def stored():
    with np.load(FILE) as file:
        return dict(file)


def examples(source):
    return {k: v.numpy() for k, v in source.gather(tf.range(len(source), dtype=tf.int64)).items()}


def test_the_file_holds_the_1797_digits_and_is_small(stored):
    assert stored["images"].shape == (1797, 8, 8)
    assert {k: v.dtype.name for k, v in stored.items()} == {"images": "uint8", "labels": "uint8", "is_test": "bool"}
    assert (stored["images"].min(), stored["images"].max()) == (0, 16)
    assert FILE.stat().st_size < 60_000
    # The counts that the data set's own description gives for this part, and its first image, a zero.
    assert np.bincount(stored["labels"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert stored["labels"][:10].tolist() == list(range(10))
    assert stored["images"][0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_the_split_is_recomputed_from_the_labels_alone(stored):
    labels = stored["labels"]
    quotas = [Fraction(360 * int((labels == c).sum()), len(labels)) for c in range(10)]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(10), key=lambda c: counts[c] - quotas[c])  # largest first
    for c in by_remainder[: 360 - sum(counts)]:
        counts[c] += 1
    random, is_test = np.random.RandomState(0), np.zeros(len(labels), bool)
    for c in range(10):
        members = np.array([i for i, label in enumerate(labels) if label == c])
        is_test[random.permutation(members)[: counts[c]]] = True
    assert is_test.sum() == 360
    np.testing.assert_array_equal(stored["is_test"], is_test)


@pytest.mark.parametrize(("split", "size"), [("train", 1437), ("test", 360)])
def test_a_split_holds_its_digits_in_the_order_of_the_file(stored, split, size):
    source = digits(split)
    assert len(source) == size
    assert source.spec == {"image": tf.TensorSpec([8, 8, 1], tf.float32), "label": tf.TensorSpec([], tf.int32)}
    found, mine = examples(source), stored["is_test"] == (split == "test")
    np.testing.assert_array_equal(found["image"][..., 0], stored["images"][mine] / 16.0)
    np.testing.assert_array_equal(found["label"], stored["labels"][mine])
    assert source.extremes("label")[::2] == (0, 9)


def test_a_gin_file_chooses_the_split():
    gin.parse_config("digits.split = 'test'")
    assert len(digits()) == 360


def test_another_split_is_refused():
    with pytest.raises(ConfigurationError, match=r"`split` of `digits` is 'testing'.*Did you mean `test`"):
        digits("testing")


def test_the_attribution_ships_next_to_the_file():
    text = (FILE.parent / "ATTRIBUTION.md").read_text()
    for part in ("Alpaydin", "Kaynak", "1998", "CC BY 4.0", "UCI Machine Learning Repository", "scikit-learn"):
        assert part in text
