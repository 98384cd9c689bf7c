"""Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019), using the package `tokenizers`.

A tokenizer is stored in the package's format, `tokenizer.json`, as GPT-2's is. Decoding restores exactly the encoded
bytes: bytes that aren't UTF-8 become tokens of single bytes.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of, reading
from core.data.tokenizers import Tokenizer
from core.disk import write_whole
from core.errors import ConfigurationError, DataError, shown

END = "<|endoftext|>"  # GPT-2's, which most later tokenizers use too
LEAST_VOCABULARY = 258  # single bytes, the end of a document, and one pair
_MOST_BYTES = 1 << 28  # of the file; the largest vocabularies have about ten million
_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")  # how `surrogateescape` represents such bytes
_PROBE = "né  A\n\t漢字 don't 1234 \U0001f600 end"
_ADVICE = "give one that `python -m trainers.tokenize --train_bpe=8192 --bpe=FILE` made, or GPT-2's `tokenizer.json`"


class BpeTokenizer(Tokenizer):
    """A byte-pair tokenizer read from a `tokenizer.json`; its `identity` is the file's SHA-256."""

    def __init__(self, path: Path) -> None:
        content = _read(path)
        package = _package()
        try:
            self._coder = package.Tokenizer.from_str(content.decode())
            names = self._coder.get_vocab(with_added_tokens=True)
            self._coder.encode_special_tokens = True  # `<|endoftext|>` in a text is ordinary text
            self._coder.no_truncation()
            self._coder.no_padding()
        except Exception as error:  # the package raises nothing narrower
            raise DataError(f"{path} isn't a tokenizer file ({shown(str(error))}); {_ADVICE}.") from error
        added = self._coder.get_added_tokens_decoder()
        if not isinstance(self._coder.model, package.models.BPE):
            raise DataError(f"{path} is of {type(self._coder.model).__name__}, not of byte pairs; {_ADVICE}.")
        if sorted(names.values()) != list(range(len(names))) or END not in names:
            raise DataError(f"{path} has no token `{END}`, or leaves out numbers of tokens; {_ADVICE}.")
        if names[END] not in added or not added[names[END]].special:
            raise DataError(f"{path} takes `{END}` for text: it isn't among its special added tokens; {_ADVICE}.")
        if self._coder.normalizer is not None:
            kind = type(self._coder.normalizer).__name__
            raise DataError(f"{path} changes text before it becomes tokens (`normalizer` is {kind}); {_ADVICE}.")
        texts = [b""] * len(names)
        alphabet = _alphabet()
        try:
            for name, number in names.items():
                texts[number] = _text_of(added[number]) if number in added else bytes(alphabet[x] for x in name)
            self._single = [names[letter] for letter, _ in sorted(alphabet.items(), key=lambda item: item[1])]
        except KeyError as error:
            raise DataError(f"{path} isn't of bytes ({shown(str(error.args[0]))}); {_ADVICE}.") from error
        super().__init__(texts, end=names[END], identity=hashlib.sha256(content).hexdigest())
        swallows = any(not each.special and (each.lstrip or each.rstrip) for each in added.values())
        if swallows or getattr(self._coder.model, "dropout", None):
            raise DataError(f"{path} leaves out spaces, or merges by chance (`lstrip`, `dropout`); {_ADVICE}.")
        if self.decode(self.encode(_PROBE.encode())) != _PROBE.encode():
            raise DataError(f"{path} changes text: {shown(_PROBE)} doesn't come back as it was; {_ADVICE}.")

    def encode(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        for i, part in enumerate(_NOT_UTF8.split(text.decode("utf-8", "surrogateescape"))):
            if i % 2:
                tokens += [self._single[ord(letter) - 0xDC00] for letter in part]
            else:
                tokens += self._coder.encode(part, add_special_tokens=False).ids
        return tokens


@gin.configurable
def bpe(path: str) -> Tokenizer:
    """Reads a byte-pair tokenizer from a `tokenizer.json`."""
    return BpeTokenizer(path_of(path, "bpe.path"))


def train_bpe(texts: Iterable[bytes], path: Path, *, vocabulary: int) -> None:
    """Learns a vocabulary of at most `vocabulary` tokens from `texts`, and writes it to the file `path`."""
    check_vocabulary(vocabulary, name="vocabulary")
    package = _package()
    coder = package.Tokenizer(package.models.BPE())
    coder.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(_alphabet()),
        show_progress=False,
    )
    coder.train_from_iterator((text.decode("utf-8", "replace") for text in texts), trainer)
    write_whole({path: coder.to_str(pretty=True).encode()})


def check_vocabulary(vocabulary: int, *, name: str) -> None:
    """Raises a `ConfigurationError` that names `name` if `vocabulary` leaves no room for a byte pair."""
    if vocabulary < LEAST_VOCABULARY:
        raise ConfigurationError(
            f"`{name}` is {vocabulary}, but 256 bytes and the end of a document are tokens by themselves: give "
            f"{LEAST_VOCABULARY} or more."
        )


def _text_of(added: Any) -> bytes:
    """Returns the bytes of an added token, which isn't made of byte pairs. A special token gives no bytes."""
    return b"" if added.special else bytes(added.content.encode())


def _read(path: Path) -> bytes:
    with reading(path, _ADVICE) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise DataError(f"{path} has {size:,} bytes, too many for the file of a tokenizer; {_ADVICE}.")
        return file.read()


def _package() -> Any:
    """Imports `tokenizers`, which only byte-pair encoding needs."""
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigurationError(
            f"the package `tokenizers`, which byte pairs need, is missing or broken ({error}): `pip install -e "
            "'.[text]'` installs it; `byte_tokens` needs nothing."
        ) from error
    return tokenizers


def _alphabet() -> dict[str, int]:
    """Returns GPT-2's `{character: byte}`. A printable byte is its own character; others are characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    return {chr(v): v for v in printable} | {chr(256 + i): v for i, v in enumerate(others)}
