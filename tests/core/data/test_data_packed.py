"""Sequences that share rows: all of them, whole, each once, and as little padding as best fit leaves."""

import numpy as np
import pytest
from data_lab import everything, ids, sequences

from core.data import packed, train_chunks
from core.errors import ConfigurationError, DataError

RANDOM = np.random.RandomState(0)


@pytest.mark.parametrize(
    ("lengths", "width"),
    [([3], 3), ([1], 5), ([2, 2, 2, 2], 4), ([5, 1, 4, 2, 3, 5], 5), (RANDOM.randint(1, 33, 200), 40)],
)
def test_packed_sequence_is_whole_in_one_row(lengths, width):
    source = packed(sequences(lengths), width)
    rows, seen = everything(source), []
    assert rows["words"].shape == (len(source), width)
    np.testing.assert_array_equal(rows["weight"], rows["document"] >= 0)
    for row in range(len(source)):
        padding = rows["document"][row] < 0
        assert not rows["words"][row][padding].any()  # nothing of the source's own padding
        for document in range(rows["document"][row].max() + 1):
            (places,) = np.nonzero(rows["document"][row] == document)
            words = rows["words"][row][places]
            example = int(words[0]) // 1000
            np.testing.assert_array_equal(words, 1000 * example + np.arange(lengths[example]))
            np.testing.assert_array_equal(places, places[0] + np.arange(lengths[example]))
            np.testing.assert_array_equal(rows["pair"][row][places], np.stack([words, -words], -1) * 0.5)
            np.testing.assert_array_equal(rows["label"][row][places], example)
            seen.append(example)
        assert (np.diff(rows["document"][row][~padding]) >= 0).all()
    assert sorted(seen) == list(range(len(lengths)))
    assert source.padding == pytest.approx(1 - sum(lengths) / rows["words"].size)


def test_packing_leaves_little_padding():
    lengths = np.clip(RANDOM.lognormal(4.0, 0.8, 5000), 1, 512).astype(int)
    source = packed(sequences(lengths, 512), 512)
    assert len(source) <= np.ceil(lengths.sum() / 512) * 1.01  # no packing needs fewer than without the last factor
    assert 1 - lengths.mean() / 512 > 0.8  # what a row a sequence would be
    assert source.padding < 0.01


def test_an_epoch_holds_each_sequence_once():
    lengths = RANDOM.randint(1, 9, 50)
    source = packed(sequences(lengths), 12)
    (chunk,) = train_chunks(source, global_batch_size=1, microbatches=1, chunk_steps=len(source), seed=0).take(1)
    labels = chunk["label"].numpy()[chunk["document"].numpy() >= 0]
    np.testing.assert_array_equal(np.bincount(labels), lengths)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: packed(ids(3), 4), "`ids` has no feature `length`"),
        (lambda: packed(ids(3), 4, length="id"), "besides `id` they are nothing"),
        (lambda: packed(sequences([2, 5]), 4), r"`length` of example 1 of .* is 5, but a sequence has 1 to 4 places"),
        (lambda: packed(sequences([2, 0]), 4), "`length` of example 1 of .* is 0"),
        (lambda: packed(sequences([2, 9], 4), 20), "is 9, but a sequence has 1 to 4 places .`packed.width` is 20"),
        (
            lambda: packed(sequences([2, 1]), 4, length="pair"),
            "`packed.length` is `pair`, of which .* one whole number",
        ),
        (lambda: packed(sequences([2, 1], other=np.zeros([2, 7])), 4), r"`other` \[7\]: sequences have one first axis"),
        (lambda: packed(sequences([2, 1], weight=np.zeros([2])), 4), "`weight` is a feature that `packed` adds"),
    ],
)
def test_sequences_that_cannot_be_packed_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
    with pytest.raises(ConfigurationError, match=r"`packed.source` is 3; give a source"):
        packed(3, 4)
    with pytest.raises(ValueError, match="`width` is 0"):
        packed(sequences([1]), 0)
