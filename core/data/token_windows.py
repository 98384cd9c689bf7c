"""Splits a long array of tokens into windows, as input of a language model.

Each window has `length` + 1 tokens: all but the last are inputs, and all but the first are targets. The last token of a
window is the first of the next one, so each token except the very first is a target once. The last window is padded.

>>> from core.data.tokenizers import byte_tokens
>>> tokens = np.array([*b"ab", 256, *b"cd", 256], np.uint16)
>>> windows = TokenWindows(tokens, length=3, tokenizer=byte_tokens(), name="two documents", place="memory")
>>> {name: x.numpy().tolist() for name, x in windows.gather(tf.range(2, dtype=tf.int64)).items()}
{'tokens': [[97, 98, 256, 99], [99, 100, 256, 256]], 'document': [[0, 0, 0, 1], [0, 0, 0, -1]],
 'bytes': [[1, 1, 0, 1], [1, 1, 0, 0]]}
"""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import check_size
from core.data.files import BadExampleError
from core.data.source import Source
from core.data.tokenizers import Tokenizer
from core.errors import DataError

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.int32]


class TokenWindows(Source):
    """Windows of `tokens`, with the features `tokens`, `document` and `bytes`, each int32 [length + 1].

    `document` is the number of a token's document within its window, from 0; padding in the last window has -1. An end
    token belongs to the document that it ends. `bytes` is the number of bytes of text that a token encodes.
    """

    tokenizer: Tokenizer

    def __init__(self, tokens: Tokens, *, length: int, tokenizer: Tokenizer, name: str, place: str) -> None:
        check_size(length=length)
        if len(tokens) <= length:
            raise DataError(
                f"The source `{name}` ({place}) holds {len(tokens):,} tokens, but a window of `length` {length} takes "
                f"{length + 1:,}: give more text, or a smaller `length`."
            )
        self.length, self.tokenizer = length, tokenizer
        self._num_full, rest = divmod(len(tokens) - 1, length)
        self._full = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]  # a view: nothing is read
        self._rest = tokens[len(tokens) - rest - 1 :]  # and the token before
        super().__init__(name, size=self._num_full + (rest > 0), place=place)

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec([self.length + 1], tf.int32) for name in ("tokens", "document", "bytes")}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        # NumPy reads a memory map in place; a tensor of it would be a copy in memory.
        made = tf.numpy_function(self._windows, [indices], [tf.int32] * 3, stateful=False)
        shape = [indices.shape[0], self.length + 1]
        return {name: tf.ensure_shape(x, shape) for name, x in zip(self.spec, made, strict=True)}

    def _windows(self, indices: npt.NDArray[np.int64]) -> tuple[_Numbers, _Numbers, _Numbers]:
        tokens = self._full[np.minimum(indices, self._num_full - 1)].astype(np.int32)
        short = indices == self._num_full
        tokens[short] = self.tokenizer.end
        tokens[short, : len(self._rest)] = self._rest
        unsigned = tokens.view(np.uint32)
        if unsigned.max(initial=0) >= self.tokenizer.vocabulary:
            row, place = np.argwhere(unsigned >= self.tokenizer.vocabulary)[0]
            position, last = indices[row] * self.length + place, self.tokenizer.vocabulary - 1
            raise BadExampleError(
                f"{self.place} holds the token {unsigned[row, place]} at position {position:,}, but its tokenizer's "
                f"are 0 to {last}: it is damaged, or was written by something else; make it again."
            )
        document = np.zeros_like(tokens)
        np.cumsum(tokens[:, :-1] == self.tokenizer.end, axis=1, dtype=np.int32, out=document[:, 1:])
        document[short, len(self._rest) :] = -1
        return tokens, document, self.tokenizer.byte_counts[tokens]
