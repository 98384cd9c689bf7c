"""Sampling by class, by weight and from several sources: shares are exact, and nothing repeats before a full pass."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from data_lab import ids

from core.data import ArraySource, Source, Stream, balanced, mixture, position_indices, topics, train_chunks, weighted
from core.data.mixture import quotas_of
from core.data.reordered import keys_of, permuted
from core.errors import ConfigurationError, DataError
from core.random import Rng

RANDOM = np.random.RandomState(0)


def drawn(source, count, seed=0):
    indices = position_indices(source, first_step=0, num_steps=1, global_batch_size=count, seed=seed)
    return indices.numpy().ravel()


def labelled(counts):
    labels = RANDOM.permutation(np.repeat(np.arange(len(counts)), counts))
    return ArraySource({"label": labels, "x": np.arange(len(labels)) + 0.5}, name="labelled")


def permutations(sizes, epochs):
    """Returns permutations of these sizes, all requested at once: one row per epoch."""
    place = np.concatenate([np.tile(np.arange(size), epochs) for size in sizes])
    epoch = np.concatenate([np.repeat(np.arange(epochs), size) for size in sizes])
    size = np.concatenate([np.full(size * epochs, size) for size in sizes])
    keys = keys_of(Rng.from_seed(0), tf.constant(epoch))
    flat = permuted(tf.constant(place), size=tf.constant(size), keys=keys).numpy()
    ends = np.cumsum([size * epochs for size in sizes])[:-1]
    return [part.reshape(epochs, size) for part, size in zip(np.split(flat, ends), sizes, strict=True)]


def test_permutations_of_many_sizes_at_once_are_permutations():
    for found in permutations([1, 2, 3, 10, 1797, 4096], 3):
        np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(found.shape[1]), [3, 1]))


def test_permutations_are_equally_likely():
    (found,) = permutations([4], 24_000)
    counts = np.unique(found @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == math.factorial(4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-square of 23 degrees of freedom: 23, give or take 7


def test_permutations_of_neighbouring_keys_are_unrelated():
    (found,) = permutations([1000], 6)
    for one, other in itertools.combinations([np.arange(1000), *found], 2):
        assert (one == other).sum() < 10  # one by chance
        assert np.bincount((one - other) % 1000).max() < 15
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


@pytest.mark.parametrize("counts", [[5, 3, 1], [100, 7], [1, 1, 1, 1], [4], [1, 2000]])
def test_classes_come_equally_often_and_each_goes_through_all_of_its_examples(counts):
    source = labelled(counts)
    classes, turns = len(counts), 2 * max(counts)
    indices = drawn(source := balanced(source, by="label"), classes * turns)
    labels = source.values("label")[indices]
    np.testing.assert_array_equal(
        np.sort(labels.reshape(turns, classes), axis=1), np.tile(np.arange(classes), [turns, 1])
    )
    for label, count in enumerate(counts):
        mine = indices[labels == label][: turns // count * count].reshape(-1, count)
        expected = np.flatnonzero(source.values("label") == label)
        np.testing.assert_array_equal(np.sort(mine, axis=1), np.broadcast_to(expected, mine.shape))


def test_the_order_of_classes_and_of_their_examples_is_drawn_anew():
    source = balanced(labelled([30, 10, 20]), by="label")
    indices = drawn(source, 3 * 60)
    labels = source.values("label")[indices]
    assert len({tuple(turn) for turn in labels.reshape(60, 3)}) == 6  # all orders of three classes
    first, second = indices[labels == 0].reshape(2, 30)
    assert (first != second).any()
    assert (drawn(source, 180, seed=1) != indices).any()


def test_a_balanced_source_hands_out_the_examples_of_its_source():
    inner = labelled([4, 2])
    source = balanced(inner, by="label")
    np.testing.assert_array_equal(source.gather([5, 0])["x"], inner.gather([5, 0])["x"])
    assert (len(source), source.spec, source.extremes("label")[::2]) == (6, inner.spec, (0, 1))
    assert source.value_range("label") is None
    (chunk,) = train_chunks(source, global_batch_size=4, microbatches=2, chunk_steps=3, seed=0).take(1)
    np.testing.assert_array_equal(np.bincount(chunk["label"].numpy().ravel()), [6, 6])


@pytest.mark.parametrize("weights", [[1, 2, 3, 0, 4], [0.001, 1, 1, 5], [0, 0, 1], [1] * 7, [3]])
def test_examples_come_as_often_as_their_weights_say(weights):
    size, epochs, shares = len(weights), 1000, np.array(weights) / sum(weights)
    by_epoch = drawn(weighted(ids(size), weights=weights), size * epochs).reshape(epochs, size)
    counts = np.stack([np.bincount(epoch, minlength=size) for epoch in by_epoch])
    assert np.all(counts >= np.floor(shares * size - 1e-9))
    assert np.all(counts <= np.ceil(shares * size + 1e-9))
    assert np.abs(counts.sum(0) - shares * size * epochs).max() < 5  # the golden ratio: a few, however many epochs
    np.testing.assert_array_equal(counts[:, np.array(weights) == 0], 0)


@pytest.mark.parametrize("scale", [1e-320, 1e308])
def test_weights_may_be_as_small_or_large_as_floats_are(scale):
    indices = drawn(weighted(ids(3), weights=np.array([1.0, 0.0, 1.0]) * scale), 300)
    assert np.abs(np.bincount(indices, minlength=3) - [150, 0, 150]).max() <= 1
    assert quotas_of([scale, scale], 2) == [1, 1]


def test_weights_may_be_a_feature():
    source = ArraySource({"importance": np.array([1.0, 3.0])}, name="two")
    np.testing.assert_array_equal(np.bincount(drawn(weighted(source, weights="importance"), 400)), [100, 300])


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [0.7, 0.2, 0.1], [1, 5, 3, 1]])
def test_mixture_gives_each_source_its_share_and_its_own_epochs(weights):
    sizes = [6, 25, 5000, 2][: len(weights)]
    source = mixture([ids(size) for size in sizes], weights)
    block = sum(source.quotas)
    indices = drawn(source, 60 * block)
    firsts = np.cumsum([0, *sizes])
    which = np.searchsorted(firsts, indices, side="right") - 1
    for found in which.reshape(-1, block):
        np.testing.assert_array_equal(np.bincount(found, minlength=len(sizes)), source.quotas)
    for number, size in enumerate(sizes):  # nor does any run of positions hold more than its share and one
        so_far = np.cumsum(which == number)
        assert np.abs(so_far - np.arange(1, len(which) + 1) * source.quotas[number] / block).max() <= 1.0
        mine = indices[which == number] - firsts[number]
        mine = mine[: len(mine) // size * size].reshape(-1, size)
        np.testing.assert_array_equal(np.sort(mine, axis=1), np.broadcast_to(np.arange(size), mine.shape))


def test_sources_of_one_size_are_drawn_in_unrelated_orders():
    indices = drawn(mixture([ids(50), ids(50)], [1, 1]), 100).reshape(50, 2) - [0, 50]
    assert (indices[:, 0] == indices[:, 1]).sum() < 8


def test_a_mixture_knows_what_its_sources_know():
    low, high = (ArraySource({"x": np.arange(3) + n, "image": np.zeros([3, 2], np.uint8)}, name="a") for n in (5, 9))
    source = mixture([high, low], [1, 1])
    assert source.extremes("x") == (5, 3, 11, 2)
    assert source.value_range("image") == (0.0, 1.0)
    np.testing.assert_array_equal(source.values("x"), [9, 10, 11, 5, 6, 7])
    np.testing.assert_array_equal(source.gather(tf.constant([4, 0, 4, 5], tf.int64))["x"], [6, 9, 6, 7])
    assert source.extremes("image") is None
    texts = mixture([topics("test", 8), topics("train", 8)], [1, 1])
    assert texts.tokenizer.identity == topics("test", 8).tokenizer.identity
    assert (texts.values("tokens"), texts.value_range("tokens")) == (None, None)


@pytest.mark.parametrize(
    ("weights", "quotas"),
    [
        ([2, 2], [1, 1]),
        ([0.7, 0.3], [7, 3]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([1, 9999], [1, 9999]),
        ([math.pi, 1], [7585, 2415]),
    ],
)
def test_a_block_is_the_shortest_that_is_exact_else_of_ten_thousand(weights, quotas):
    assert quotas_of(weights, 2) == quotas


class Unread(Source):
    spec = {"label": tf.TensorSpec([], tf.int32)}  # noqa: RUF012

    def __init__(self):
        super().__init__("unread", size=5, place="a shelf")

    def gather(self, indices):
        raise NotImplementedError


def few(seed, epoch):
    yield {"label": 1}


STREAM = Stream(few)
PAIRS = ArraySource({"pair": np.zeros([3, 2])}, name="pairs")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: balanced(ids(3), by="label"), DataError, "`ids` has no feature `label`; it has `id`"),
        (lambda: balanced(Unread(), by="label"), DataError, "`unread` .a shelf. doesn't hold in memory.*`values"),
        (lambda: balanced(PAIRS, by="pair"), DataError, r"draws by `pair`, which has shape \[2\]"),
        (lambda: balanced(labelled([1]), by="x"), DataError, "`balanced.by` is `x`, whose values are float32"),
        (lambda: weighted(ids(3), [1, 2]), DataError, r"has shape \[2\] and dtype int64, .* `ids` .* has 3 exa"),
        (lambda: weighted(ids(2), [1, -2]), DataError, r"`weighted.weights` is -2.0 for example 1 of the source `ids`"),
        (lambda: weighted(ids(2), [np.nan, 1]), DataError, "`weighted.weights` is nan for example 0"),
        (lambda: weighted(ids(2), [0, 0]), DataError, "is 0 for all 2 examples.*give some of them a number above 0"),
        (lambda: weighted(ids(2), ["a", "b"]), DataError, "dtype <U1"),
        (lambda: mixture([ids(2)] * 2, None), ConfigurationError, "`mixture.weights` is None; give a number"),
        (lambda: mixture([ids(2)] * 2, "12"), ConfigurationError, "`mixture.weights` is '12'; give a number"),
        (lambda: mixture([ids(2)] * 2, ["1", "2"]), ConfigurationError, r"is \['1', '2'\]; give a number above 0"),
        (lambda: mixture(ids(2), [1]), ConfigurationError, "`mixture.sources` is <.*; give a list of sources"),
        (lambda: mixture([ids(2), 3], [1, 1]), ConfigurationError, r"`mixture.sources\[1\]` is 3; give a source"),
        (lambda: mixture([STREAM], [1]), ConfigurationError, r"`mixture.sources\[0\]` is the stream `few`, whose"),
        (lambda: balanced(STREAM, by="label"), ConfigurationError, "`balanced.source` is the stream `few`"),
        (lambda: weighted(STREAM, [1]), ConfigurationError, "`weighted.source` is the stream `few`"),
        (lambda: mixture([], []), ConfigurationError, "`mixture.sources` is empty"),
        (lambda: mixture([ids(2)], [1, 2]), ConfigurationError, r"`mixture.weights` is \[1, 2\]"),
        (lambda: mixture([ids(2)] * 2, [1, 0]), ConfigurationError, "give a number above 0"),
        (lambda: mixture([ids(2)] * 2, [1, 1e-9]), ConfigurationError, "a share of 1e-09 is less"),
        (lambda: mixture([ids(2), PAIRS], [1, 1]), DataError, r"`id` int32 .*`pairs` .*`pair` float32 .2"),
    ],
)  # fmt: skip
def test_source_that_cannot_be_drawn_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_texts_of_two_tokenizers_are_not_mixed():
    one, other = topics("test", 8), topics("test", 8)
    other.tokenizer = type("Strange", (), {"identity": "another"})()
    with pytest.raises(DataError, match=r"the tokens of `topics` .* are of .* of 'another'; give all one tokenizer"):
        mixture([one, other], [1, 1])
