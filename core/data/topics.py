"""Embedded text: Python's language documentation, with one document per topic (`embedded/ATTRIBUTION.md`).

>>> source = topics("test", length=128)
>>> len(source), source.spec["tokens"].shape, source.tokenizer.vocabulary
(364, TensorShape([129]), 257)
"""

import gzip
import json
from pathlib import Path
from typing import Literal

import gin
import numpy as np

from core.data.source import check_split
from core.data.token_files import token_dtype
from core.data.token_windows import TokenWindows
from core.data.tokenizers import ByteTokenizer, Tokenizer

_FILE = Path(__file__).parent / "embedded" / "topics.json.gz"


@gin.configurable
def topics(split: Literal["train", "test"], length: int, *, tokenizer: Tokenizer | None = None) -> TokenWindows:
    """Reads windows of `length` targets from the embedded text; each topic is a document.

    No paragraph of `test` with more than 60 characters occurs in `train`.
    """
    check_split("topics", split, ["train", "test"])
    tokenizer = tokenizer or ByteTokenizer()
    with gzip.open(_FILE, "rt", encoding="utf-8") as file:
        documents = json.load(file)[split]
    parts = [part for text in documents.values() for part in (tokenizer.encode_whole(text.encode()), [tokenizer.end])]
    tokens = np.concatenate(parts).astype(token_dtype(tokenizer.vocabulary))
    return TokenWindows(tokens, length=length, tokenizer=tokenizer, name="topics", place=str(_FILE))
