"""Tokenizers: convert text to tokens, and tokens back to the same bytes.

The byte tokenizer needs no training. It has 256 tokens for the bytes, and one that ends a document.

>>> tokenizer = byte_tokens()
>>> tokenizer.encode("né".encode()), tokenizer.decode([110, 195, 169, tokenizer.end]).decode(), tokenizer.vocabulary
([110, 195, 169], 'né', 257)

Longer tokens are learnt from a corpus: `bpe` (`core/data/bpe.py`).
"""

import abc
from collections.abc import Sequence

import gin
import numpy as np
import numpy.typing as npt

from core.errors import DataError, shown

Numbers = npt.NDArray[np.int32]
_LONGEST_IDENTITY = 64  # ASCII characters: the space in the header of a token file


class Tokenizer(abc.ABC):
    """Converts text to tokens. Each token always stands for the same bytes.

    Tokenizers with equal tokens have an equal `identity`, which token files store. The token `end` ends a document, and
    has no text.
    """

    def __init__(self, texts: Sequence[bytes], *, end: int, identity: str) -> None:
        if not identity.isascii() or len(identity) > _LONGEST_IDENTITY:
            raise ValueError(
                f"`identity` is {shown(identity)}, but a file of tokens has room for {_LONGEST_IDENTITY} ASCII "
                "characters: give the SHA-256 of what tells this tokenizer from others, in hexadecimal."
            )
        self._texts = [*texts]
        self.vocabulary, self.end, self.identity = len(self._texts), end, identity
        self.byte_counts: Numbers = np.array([len(text) for text in self._texts], np.int32)

    @abc.abstractmethod
    def encode(self, text: bytes) -> list[int]:
        """Returns the tokens of `text`, which may be any bytes. `end` is never among them."""

    def encode_whole(self, text: bytes) -> Numbers:
        """Returns the tokens of `text`; raises a `DataError` if the tokens stand for fewer or more bytes."""
        tokens = np.array(self.encode(text), np.int32)
        if (counted := self.byte_counts[tokens].sum()) != len(text):
            made = self.decode(tokens.tolist())
            at = next((i for i, pair in enumerate(zip(text, made, strict=False)) if pair[0] != pair[1]), len(made))
            raise DataError(
                f"`tokenizer` ({shown(self.identity[:16])}) makes {counted:,} bytes of {len(text):,}, and "
                f"{shown(made[at : at + 20])} of {shown(text[at : at + 20])}: take one that changes no text, as "
                "`byte_tokens`, or byte pairs that `python -m trainers.tokenize --train_bpe=8192` has learnt."
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the text of `tokens` as bytes."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise ValueError(
                    f"`tokens` holds {shown(token)}, but this tokenizer's are 0 to {self.vocabulary - 1}: decode with "
                    "the one that made them."
                )
        return b"".join(self._texts[token] for token in tokens)


class ByteTokenizer(Tokenizer):
    """A tokenizer with one token per byte; token 256 ends a document."""

    def __init__(self) -> None:
        super().__init__([*(bytes([value]) for value in range(256)), b""], end=256, identity="bytes")

    def encode(self, text: bytes) -> list[int]:
        return list(text)


@gin.configurable
def byte_tokens() -> Tokenizer:
    """Makes the byte tokenizer, whose vocabulary is 257."""
    return ByteTokenizer()
