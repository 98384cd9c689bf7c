"""Numbers from 0 to 9,999 in figures and in English words: pairs for tasks from text to text.

>>> pairs = number_words("test")
>>> len(pairs), len(number_words("train"))
(1000, 9000)
>>> example = {name: row.numpy().tolist() for name, row in pairs.gather([0]).items()}
>>> [pairs.tokenizer.decode(example[name][0]) for name in ("source", "target")]
[b'9', b'nine']
"""

from typing import Any, Literal

import gin
import numpy as np

from core.data.arrays import ArraySource
from core.data.source import Source, check_split
from core.data.tokenizers import Tokenizer
from core.errors import ConfigurationError

_COUNT, _HELD_OUT = 10_000, 1_000
_CHARACTERS = b"0123456789 abcdefghijklmnopqrstuvwxyz"
_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_ONES += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


class CharacterTokenizer(Tokenizer):
    """A tokenizer with one token per figure, letter and space, from 2 on. Token 0 is padding, and 1 ends a text."""

    def __init__(self) -> None:
        texts = [b"", b"", *(bytes([x]) for x in _CHARACTERS)]
        super().__init__(texts, end=1, identity="figures, space and letters")
        self._numbers = {text[0]: i for i, text in enumerate(texts) if text}

    def encode(self, text: bytes) -> list[int]:
        strange = bytes(value for value in text if value not in self._numbers)
        if strange:
            raise ConfigurationError(
                f"the text holds {strange[:1]!r}, but `number_words` knows figures, small letters and spaces alone."
            )
        return [self._numbers[value] for value in text]


class NumberWords(ArraySource):
    """Rows of tokens: `source` has a number's figures, `target` its words; both end with 1, and are padded with 0."""

    def __init__(self, numbers: list[int]) -> None:
        self.tokenizer: Tokenizer = CharacterTokenizer()
        texts = {"source": map(str, numbers), "target": map(in_words, numbers)}
        super().__init__({name: _rows([*x], self.tokenizer) for name, x in texts.items()}, name="number_words")


@gin.configurable
def number_words(split: Literal["train", "test"]) -> Source:
    """Makes pairs of a number's figures and its words. A tenth of the numbers, chosen at random, is held out."""
    check_split("number_words", split, ["train", "test"])
    order = np.random.RandomState(0).permutation(_COUNT)
    return NumberWords(sorted((order[:_HELD_OUT] if split == "test" else order[_HELD_OUT:]).tolist()))


def in_words(number: int) -> str:
    """Returns a number below a million in words, without hyphens and "and".

    >>> in_words(4072)
    'four thousand seventy two'
    """
    if number < len(_ONES):
        return _ONES[number]
    if number < 100:
        return _joined(_TENS[number // 10 - 2], number % 10)
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    return _joined(f"{in_words(number // unit)} {name}", number % unit)


def _joined(words: str, rest: int) -> str:
    return f"{words} {in_words(rest)}" if rest else words


def _rows(texts: list[str], tokenizer: Tokenizer) -> np.ndarray[Any, Any]:
    """Returns the tokens of each text, its end, and padding: [texts, longest]."""
    rows = [[*tokenizer.encode(text.encode()), tokenizer.end] for text in texts]
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)
