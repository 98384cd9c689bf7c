"""A small language model, and windows of text as a source makes them: packed documents, some with padding."""

import numpy as np
import tensorflow as tf

from core.data import ArraySource
from core.optimizers import sgd
from models import LanguageModel

VOCABULARY, CONTEXT, END = 11, 8, 10


def make_task(*, rng, **settings):
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": 2, "size": 12, "num_heads": 3}
    return LanguageModel(rng=rng, **{**sizes, "optimizer": sgd(0.1), **settings})


def packed(*documents, length=CONTEXT):
    """Returns one window that begins with these documents; the rest is padding."""
    tokens, document = np.zeros([length + 1], "int32"), np.full([length + 1], -1, "int32")
    first = 0
    for i, text in enumerate(documents):
        tokens[first : first + len(text)] = text
        document[first : first + len(text)] = i
        first += len(text)
    byte_counts = np.where((tokens == END) | (document < 0), 0, 1 + tokens % 3)
    return {"tokens": tokens, "document": document, "bytes": byte_counts.astype("int32")}


def windows(count=4, *, seed=0):
    """Returns windows of two documents each, some followed by padding."""
    random = np.random.RandomState(seed)

    def text(size):
        return [*random.randint(0, END, size - 1), END]

    rows = [packed(text(3 + i % 3), text(CONTEXT - 2 - i % 3 - 3 * (i % 2))) for i in range(count)]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def batch(count=4, *, seed=0):
    return {key: tf.constant(x) for key, x in windows(count, seed=seed).items()}


class Letters:
    """A tokenizer of ten letters and an end."""

    vocabulary, end, identity = VOCABULARY, END, "letters"
    byte_counts = np.array([1] * END + [0])

    def encode(self, text):
        return [byte - ord("a") for byte in text]

    def decode(self, tokens):
        return bytes(ord("a") + int(token) for token in tokens if token != END)


def source(count=16):
    made = ArraySource(windows(count), name="letters")
    made.tokenizer = Letters()
    return made
