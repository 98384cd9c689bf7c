"""Tokenizers: text as numbers, and back to the same bytes.

Bytes need nothing else: 256 values, and one number more that ends a document.

>>> tokenizer = byte_tokens()
>>> tokenizer.encode("né".encode()), tokenizer.decode([110, 195, 169, tokenizer.end]).decode(), tokenizer.vocabulary
([110, 195, 169], 'né', 257)

Fewer and longer tokens are learnt from a corpus: `bpe` (`core/data/bpe.py`).
"""

import abc
from collections.abc import Sequence

import gin
import numpy as np
import numpy.typing as npt

from core.errors import shown

Counts = npt.NDArray[np.int32]


class Tokenizer(abc.ABC):
    """Turns text into tokens, each of which stands for the same bytes wherever it stands.

    `identity` is equal where all tokens are: files of tokens carry it. `end` closes a document, and stands for no text.
    """

    def __init__(self, texts: Sequence[bytes], *, end: int, identity: str) -> None:
        self._texts = [*texts]
        self.vocabulary, self.end, self.identity = len(self._texts), end, identity
        self.byte_counts: Counts = np.array([len(text) for text in self._texts], np.int32)

    @abc.abstractmethod
    def encode(self, text: bytes) -> list[int]:
        """Returns the tokens of `text`, whatever bytes it holds; `end` is never among them."""

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Returns the text that `tokens` stand for."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise ValueError(
                    f"`tokens` holds {shown(token)}, but this tokenizer's are 0 to {self.vocabulary - 1}: decode with "
                    "the one that made them."
                )
        return b"".join(self._texts[token] for token in tokens)


class ByteTokenizer(Tokenizer):
    """Takes each byte for a token; token 256 ends a document."""

    def __init__(self) -> None:
        super().__init__([*(bytes([value]) for value in range(256)), b""], end=256, identity="bytes")

    def encode(self, text: bytes) -> list[int]:
        return list(text)


@gin.configurable
def byte_tokens() -> Tokenizer:
    """Makes a tokenizer of bytes: vocabulary 257."""
    return ByteTokenizer()
