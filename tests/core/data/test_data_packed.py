"""Packed sequences, and windows over tokens: each occurs once, with as little padding as possible."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import everything, ids, sequences
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import TokenWindows, bad_example, byte_tokens, eval_chunks, packed, train_chunks
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
        assert not rows["words"][row][padding].any()  # without the source's own padding
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
        (lambda: packed(ids(3), 4, length="id"), "besides `id` have nothing"),
        (lambda: packed(sequences([2, 5]), 4), r"`length` of example 1 of .* is 5, but a sequence has 1 to 4 places"),
        (lambda: packed(sequences([2, 0]), 4), "`length` of example 1 of .* is 0"),
        (lambda: packed(sequences([2, 9], 4), 20), "is 9, but a sequence has 1 to 4 places .`packed.width` is 20"),
        (
            lambda: packed(sequences([2, 1]), 4, length="pair"),
            "`packed.length` is `pair`, but .* one such integer",
        ),
        (
            lambda: packed(sequences([2, 1], other=np.zeros([2, 7])), 4),
            r"`other` \[7\]: sequences are padded to one first axis",
        ),
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


END = 256


def windows(tokens, length, dtype=np.uint16):
    return TokenWindows(np.array(tokens, dtype), length=length, tokenizer=byte_tokens(), name="windows", place="memory")


def by_hand(tokens, length):
    """Computes the same, one token at a time."""
    made = {"tokens": [], "document": [], "bytes": []}
    for first in range(0, len(tokens) - 1, length):
        mine, document = [], 0
        for position in range(first, first + length + 1):
            if position >= len(tokens):
                mine.append((END, -1, 0))
                continue
            mine.append((tokens[position], document, int(tokens[position] != END)))
            document += tokens[position] == END
        for name, column in zip(made, zip(*mine, strict=True), strict=True):
            made[name].append(column)
    return made


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 255, END]), min_size=2, max_size=40), st.integers(1, 12), st.booleans())
def test_windows_are_those_written_out_by_hand(tokens, length, wide):
    if len(tokens) <= length:
        return
    source = windows(tokens, length, np.uint32 if wide else np.uint16)
    found, expected = everything(source), by_hand(tokens, length)
    assert len(source) == len(expected["tokens"]) == -(-(len(tokens) - 1) // length)
    for name, spec in source.spec.items():
        assert spec == tf.TensorSpec([length + 1], tf.int32)
        np.testing.assert_array_equal(found[name], expected[name])


def test_window_targets_are_each_token_but_the_first_once():
    tokens = np.random.RandomState(0).randint(0, 257, 1000)
    found = everything(windows(tokens, 64))
    real = found["document"][:, 1:] >= 0
    np.testing.assert_array_equal(found["tokens"][:, 1:][real], tokens[1:])


def test_a_document_is_the_same_wherever_in_a_window_it_stands():
    document = [5, 6, 7, END]
    for before in ([], [1, END], [1, 2, END, 3, END]):
        found = everything(windows([*before, *document, 9, 9, 9, 9, 9, 9], 9))
        mine = found["document"][0] == len([x for x in before if x == END])
        np.testing.assert_array_equal(found["tokens"][0][mine], document)


def test_training_and_evaluation_read_windows_as_any_source():
    source = windows(np.arange(100) % 256, 9)
    assert len(source) == 11
    chunks = train_chunks(source, global_batch_size=11, microbatches=1, chunk_steps=3, seed=0)
    firsts = next(iter(chunks))["tokens"][:, 0, :, 0].numpy()
    assert firsts.shape == (3, 11)
    for epoch in firsts:
        assert sorted(epoch) == list(range(0, 99, 9))
    assert list(firsts[0]) != list(firsts[1])
    evaluated, mask = next(iter(eval_chunks(source, global_batch_size=4)))
    assert evaluated["document"].shape == (3, 4, 10)
    assert mask.numpy().sum() == 11


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_text_shorter_than_a_window_is_refused(tokens):
    with pytest.raises(DataError, match=rf"`windows` \(memory\) holds {len(tokens)} tokens, but .* `length` 3 takes 4"):
        windows(tokens, 3)
    with pytest.raises(ValueError, match="`length` is 0"):
        windows([1, 2, 3], 0)


@pytest.mark.parametrize(("token", "dtype"), [(257, np.uint16), (65535, np.uint16), (2**32 - 1, np.uint32)])
def test_a_token_beyond_the_vocabulary_is_named_with_its_place(token, dtype):
    source = windows([0] * 25 + [token] + [0] * 9, 5, dtype)
    assert source.gather(tf.constant([0, 6], tf.int64))["tokens"].shape == (2, 6)
    says = f"memory holds the token {token} at position 25, but its tokenizer's are 0 to 256: it is damaged"
    with pytest.raises(DataError, match=says):
        source.gather(tf.constant([0, 5], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.function(source.gather, autograph=False)(tf.constant([0, 5], tf.int64))
    error = bad_example(raised.value.message)
    assert error.exit_code == 4
    assert str(error).startswith(says)
    assert str(error).endswith("make it again.")
    assert bad_example("Incompatible shapes") is None
