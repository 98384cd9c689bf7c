"""Windows over tokens: each token but the first is a target once, documents are told apart, the rest is filled up."""

import numpy as np
import pytest
import tensorflow as tf
from data_lab import everything
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import TokenWindows, byte_tokens, eval_chunks, strange_token, train_chunks
from core.errors import DataError

END = 256


def windows(tokens, length, dtype=np.uint16):
    return TokenWindows(np.array(tokens, dtype), length=length, tokenizer=byte_tokens(), name="windows", place="memory")


def by_hand(tokens, length):
    """The same, a token at a time."""
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
    error = strange_token(raised.value.message)
    assert error.exit_code == 4
    assert str(error).startswith(says)
    assert str(error).endswith("make it again.")
    assert strange_token("Incompatible shapes") is None
