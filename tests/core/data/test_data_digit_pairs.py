"""Domains made of the digits: the mapping recomputed pixel by pixel, and held-out pairs."""

import sys

import gin
import numpy as np
import pytest
import tensorflow as tf

from core.data import digit_pairs, digits, train_chunks
from core.data.digit_pairs import thick_and_coloured
from core.errors import ConfigurationError


def examples(source):
    return {k: v.numpy() for k, v in source.gather(tf.range(len(source), dtype=tf.int64)).items()}


@pytest.fixture(scope="module")
def paired():
    return {split: examples(digit_pairs(split)) for split in ("train", "test")}


@pytest.fixture(scope="module")
def unpaired():
    return examples(digit_pairs("train", paired=False))


def rows(images):
    """Returns images as bytes, to search for them."""
    return [image.tobytes() for image in images]


def levels(images):
    """Maps [-1, 1] back to bytes."""
    return np.round((images + 1.0) * 127.5).astype(np.uint8)


@pytest.mark.long
@pytest.mark.parametrize(("split", "size"), [("train", 1437), ("test", 360)])
def test_pairs_are_the_digits_of_their_split_in_order(paired, split, size):
    source = digit_pairs(split)
    image = tf.TensorSpec([32, 32, 3], tf.float32)
    assert len(source) == size
    assert source.spec == {"a": image, "b": image, "label": tf.TensorSpec([], tf.int32)}
    small, found = examples(digits(split)), paired[split]
    np.testing.assert_array_equal(found["label"], small["label"])
    # TensorFlow's bilinear resizing is the peer; rounding to bytes costs half a level.
    large = tf.image.resize(small["image"], [32, 32]).numpy() * 2.0 - 1.0
    np.testing.assert_allclose(found["a"], large.repeat(3, -1), atol=1.01 / 255)
    for feature in ("a", "b"):
        assert (found[feature].min(), found[feature].max()) == (-1.0, 1.0)


def test_the_rule_is_what_its_description_says_at_every_point(paired):
    a, b = paired["test"]["a"][7], paired["test"]["b"][7]
    grey = (a[..., 0].astype(np.float64) + 1.0) / 2.0
    for y, x in np.ndindex(32, 32):
        thick = grey[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max()
        far = (np.arange(32)[:, None] - y) ** 2 + (np.arange(32) - x) ** 2
        density = (grey * np.exp(-far / (2 * 4.0**2))).sum() / (2 * np.pi * 4.0**2)
        share = min(1.0, max(0.0, (density - 0.2) / (0.7 - 0.2)))
        colour = np.array([0.1, 0.5, 1.0]) * (1 - share) + np.array([1.0, 0.5, 0.1]) * share
        np.testing.assert_allclose((b[y, x] + 1.0) / 2.0, thick * colour, atol=0.51 / 255)


def test_a_pair_depends_on_its_own_image_alone(paired):
    a, b = paired["train"]["a"], levels(paired["train"]["b"])
    few = [900, 3, 1200]
    np.testing.assert_array_equal(thick_and_coloured(levels(a[few][..., 0])), b[few])
    np.testing.assert_array_equal(examples(digit_pairs("train"))["b"], paired["train"]["b"])


def test_translation_is_neither_the_identity_nor_one_colour(paired):
    a, b = paired["test"]["a"], paired["test"]["b"]
    baseline = np.abs(a - b).mean()
    assert 0.2 < baseline < 0.3
    thick = levels(b).astype(float).sum(-1, keepdims=True)
    colour = (levels(b) * thick).sum((0, 1, 2)) / (thick**2).sum()  # the best single one
    one_colour = np.abs(thick * colour / 127.5 - 1.0 - b).mean()
    assert 0.35 * baseline < one_colour < 0.6 * baseline


def test_domain_b_keeps_nearly_everything_of_a(paired):
    a, b = paired["test"]["a"], levels(paired["test"]["b"]).astype(float)
    thick = b.sum(-1, keepdims=True) / (1.6 * 255)  # both colours sum to 1.6
    thin = -tf.nn.max_pool2d(-thick, 3, 1, "SAME").numpy()
    assert np.abs(thin * 2.0 - 1.0 - a).mean() < 0.05 * np.abs(a - paired["test"]["b"]).mean()


def test_training_without_pairs_never_sees_one(paired, unpaired):
    of = {feature: {row: i for i, row in enumerate(rows(paired["train"][feature]))} for feature in ("a", "b")}
    in_a, in_b = ([of[feature][row] for row in rows(unpaired[feature])] for feature in ("a", "b"))
    assert not set(in_a) & set(in_b)
    assert set(in_a) | set(in_b) == set(range(1437))
    np.testing.assert_array_equal(unpaired["label"], paired["train"]["label"][in_a])
    np.testing.assert_array_equal(unpaired["label_b"], paired["train"]["label"][in_b])


def test_halves_hold_each_class_equally_often(unpaired):
    in_a, in_b = len(set(rows(unpaired["a"]))), len(set(rows(unpaired["b"])))
    assert in_a + in_b == 1437
    assert 0 <= in_a - in_b <= 10
    assert len(unpaired["a"]) == in_a
    classes = [np.bincount(unpaired[label], minlength=10) for label in ("label", "label_b")]
    assert abs(classes[0] - classes[1]).max() <= 10
    assert (unpaired["label"] == unpaired["label_b"]).mean() < 0.2  # a tenth by chance


def test_no_test_digit_is_trained_on(paired):
    assert not set(rows(paired["train"]["a"])) & set(rows(paired["test"]["a"]))


def test_digit_pairs_go_through_the_pipeline(unpaired):
    source = digit_pairs("train", paired=False)
    chunk = next(iter(train_chunks(source, global_batch_size=8, microbatches=2, chunk_steps=3, seed=0)))
    assert {k: tuple(v.shape) for k, v in chunk.items()} == {
        "a": (3, 2, 4, 32, 32, 3),
        "b": (3, 2, 4, 32, 32, 3),
        "label": (3, 2, 4),
        "label_b": (3, 2, 4),
    }
    assert chunk["a"].numpy()[1, 0, 2].tobytes() in rows(unpaired["a"])


def test_a_gin_file_chooses_split_and_pairing():
    gin.parse_config("digit_pairs.split = 'test'\ndigit_pairs.paired = False")
    assert "label_b" in digit_pairs().spec


def test_another_split_is_refused():
    with pytest.raises(ConfigurationError, match=r"`split` of `digit_pairs` is 'tset'.*Did you mean `test`"):
        digit_pairs("tset")


def test_making_them_leaves_tensorflow_alone(monkeypatch):
    for module in ("arrays", "digit_pairs"):
        monkeypatch.setattr(sys.modules[f"core.data.{module}"], "tf", None)
    sources = [digit_pairs("test"), digit_pairs("test", paired=False)]
    monkeypatch.undo()
    assert [sorted(source.spec) for source in sources] == [["a", "b", "label"], ["a", "b", "label", "label_b"]]
