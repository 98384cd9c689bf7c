"""Numbers in words: each number once, in one split, with the words that read back to it."""

import numpy as np
import pytest

from core.data import number_words
from core.errors import ConfigurationError

VALUES = {
    word: i
    for i, word in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"])
}
VALUES |= {"eleven": 11, "twelve": 12, "thirteen": 13, "fifteen": 15, "eighteen": 18}
VALUES |= {f"{word}teen": VALUES[word] + 10 for word in ("four", "six", "seven", "nine")}
VALUES |= {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}


def read(words):
    """Returns the number that words stand for."""
    total = 0
    for word in words.split():
        if word == "hundred":
            total = total // 1000 * 1000 + total % 1000 * 100
        elif word == "thousand":
            total *= 1000
        else:
            total += VALUES[word]
    return total


def test_both_splits_together_have_each_number_once():
    found = []
    for split, count in (("train", 9000), ("test", 1000)):
        source = number_words(split)
        pairs = source.gather(np.arange(len(source)))
        assert len(source) == count
        for figures, words in zip(pairs["source"].numpy().tolist(), pairs["target"].numpy().tolist(), strict=True):
            assert [row.count(source.tokenizer.end) for row in (figures, words)] == [1, 1]
            found.append(int(source.tokenizer.decode(figures)))
            assert read(source.tokenizer.decode(words).decode()) == found[-1]
    assert sorted(found) == list(range(10_000))


def test_other_characters_are_refused():
    with pytest.raises(ConfigurationError, match="the text holds b'-', but `number_words` knows"):
        number_words("test").tokenizer.encode(b"-1")
