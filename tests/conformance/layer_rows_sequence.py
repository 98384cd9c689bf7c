"""Rows of embeddings, attention and recurrent cores."""

import functools
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from core import layers
from core.layers import GRU, LSTM, Embedding, LearnedPositions, MultiHeadAttention, VanillaRNN

from . import layer_peers as peers
from .battery import RNG, Arrays, Row, normal

LLAMA = layers.RotaryScaling(4.0, 100, low=0.5, high=1.0)  # as `peers.slowed`


def ids(rng: np.random.Generator, rows: int) -> Arrays:
    return (rng.integers(0, 7, (rows, 4)).astype(np.int32),)


def with_lengths(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(rows, 4, 3)).astype(np.float32), np.resize([4, 0, 2], rows).astype(np.int32)


def with_resets(rng: np.random.Generator, rows: int) -> Arrays:
    """Returns texts whose states begin anew: nowhere, at the first and third time, or at each of the last two."""
    resets = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
    return rng.normal(size=(rows, 4, 3)).astype(np.float32), resets[np.arange(rows) % 3]


def with_mask(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(rows, 4, 6)).astype(np.float32), np.arange(4) < 1 + np.arange(rows)[:, None]


def heads(rng: np.random.Generator, rows: int) -> Arrays:
    shapes = ((4, 4, 3), (4, 2, 3), (4, 2, 5))
    return tuple(rng.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)


def with_bias(rng: np.random.Generator, rows: int) -> Arrays:
    bias = rng.normal(size=(rows, 1, 4, 4)).astype(np.float32)
    return *heads(rng, rows), bias, np.resize(np.array([[0, 0, 1, 1], [0, 1, 1, 1]], np.int32), (rows, 4))


def embed_and_score(part: Any, x: tf.Tensor) -> Any:
    vectors = part(x, dtype=part.w.dtype)
    return vectors, part.logits(vectors)


ROWS_OF_SEQUENCE_LAYERS = [
    Row("Embedding", lambda rng: Embedding(7, 3, rng=rng), ids, peers.embed, "flax.linen.Embed",
        paper="Press and Wolf 2017", call=embed_and_score, parameters=("w",)),
    Row("LearnedPositions", lambda rng: LearnedPositions(9, 3, rng=rng), normal((4, 3)),
        lambda part, x: x + part.w[2:6], "NumPy", paper="Gehring et al. 2017", call=lambda part, x: part(x, 2),
        parameters=("w",)),
    Row("MultiHeadAttention", lambda rng: MultiHeadAttention(6, 2, rng=rng, causal=True), normal((5, 6)),
        peers.attention, "flax.linen.MultiHeadDotProductAttention", paper="Vaswani et al. 2017",
        parameters=tuple(f"{name}/{v}" for name in ("key", "out", "query", "value") for v in ("b", "w")), roundings=8),
    Row("MultiHeadAttention", lambda rng: MultiHeadAttention(6, 2, rng=rng), with_mask,
        lambda part, x, mask: peers.attention(part, x, mask=mask), "flax.linen.MultiHeadDotProductAttention",
        case="mask", call=lambda part, x, mask: part(x, mask=mask), roundings=8),
    Row("MultiHeadAttention", lambda rng: MultiHeadAttention(6, 3, rng=rng, context_size=5), normal((4, 6), (3, 5)),
        peers.attention, "flax.linen.MultiHeadDotProductAttention", case="context",
        call=lambda part, x, context: part(x, context=context), roundings=8),
    Row("MultiHeadAttention",
        lambda rng: MultiHeadAttention(8, 4, rng=rng, num_kv_heads=2, causal=True, rotary_base=100.0, head_size=4),
        normal((5, 8)), peers.grouped_attention, "jax.nn.dot_product_attention", case="grouped, rotary", roundings=8),
    Row("MultiHeadAttention",
        lambda rng: MultiHeadAttention(8, 4, rng=rng, num_kv_heads=2, causal=True, rotary_base=100.0, qk_epsilon=0.1),
        normal((5, 8)), peers.grouped_attention, "jax.nn.dot_product_attention", paper="Henry et al. 2020",
        case="normalised queries and keys", roundings=8),
    Row("MultiHeadAttention", lambda rng: MultiHeadAttention(8, 4, rng=rng, num_kv_heads=2, causal=True, chunk_size=2),
        normal((5, 8)), peers.grouped_attention, "jax.nn.dot_product_attention", case="grouped, in chunks",
        roundings=8),
    Row("MultiHeadAttention",
        lambda rng: MultiHeadAttention(8, 2, rng=rng, causal=True, window=3, alibi=True, chunk_size=2), normal((5, 8)),
        peers.local_attention, "NumPy", paper="Press et al. 2022", case="a window, ALiBi, in tiles", roundings=8),
    Row("attend", lambda rng: layers.attend, heads,
        lambda part, q, k, v: jax.nn.dot_product_attention(q, k, v[..., :3]), "jax.nn.dot_product_attention",
        paper="Vaswani et al. 2017", call=lambda part, q, k, v: part(q, k, v[..., :3], chunk_size=3),
        roundings=4),
    Row("attend", lambda rng: layers.attend, heads,
        lambda part, q, k, v: peers.dropped_attention(q, k, v, rate=0.3, rng=RNG), "jax.nn.softmax", case="dropout",
        call=lambda part, q, k, v: part(q, k, v, dropout_rate=0.3, rng=RNG), roundings=4),
    Row("attend", lambda rng: layers.attend, with_bias,
        lambda part, q, k, v, bias, documents: peers.attention_by_definition(
            q, k, v, np.where(documents[:, None, :, None] == documents[:, None, None], bias, -np.inf)),
        "NumPy", case="bias and documents, in tiles",
        call=lambda part, q, k, v, bias, documents: part(q, k, v, bias=bias, documents=documents, chunk_size=3),
        roundings=4),
    Row("rotary", lambda rng: layers.rotary, normal((4, 2, 6)), lambda part, x: peers.rotated(x, range(3, 7)), "NumPy",
        paper="Su et al. 2021", call=lambda part, x: part(x, tf.range(3, 7))),
    Row("RotaryScaling", lambda rng: functools.partial(layers.rotary, scaling=LLAMA), normal((4, 2, 6)),
        lambda part, x: peers.rotated(x, range(3, 7), slowed=peers.slowed), "NumPy",
        paper="Grattafiori et al. 2024", call=lambda part, x: part(x, tf.range(3, 7))),
    *(
        Row(
            core.__name__,
            lambda rng, core=core: core(3, 4, rng=rng),
            normal((5, 3)),
            peers.recurrent,
            f"flax.linen.{peer}",
            paper=paper,
            call=layers.unroll,
            parameters=parameters,
            roundings=10,  # two in each of five steps
        )
        for core, peer, paper, parameters in (
            (VanillaRNN, "SimpleCell", "Elman 1990", ("b", "u", "w")),
            (LSTM, "OptimizedLSTMCell", "Hochreiter and Schmidhuber 1997", ("b", "u", "w")),
            (GRU, "GRUCell", "Cho et al. 2014", ("b", "b_new", "u", "w")),
        )
    ),
    Row("unroll", lambda rng: GRU(3, 4, rng=rng), with_lengths, peers.ragged_gru, "flax.linen.RNN", case="lengths",
        call=lambda part, x, lengths: layers.unroll(part, x, lengths=lengths), parameters=("b", "b_new", "u", "w"),
        roundings=10),
    Row("unroll", lambda rng: LSTM(3, 4, rng=rng), with_resets, peers.reset_lstm, "flax.linen.RNN", case="resets",
        call=lambda part, x, resets: layers.unroll(part, x, resets=resets), parameters=("b", "u", "w"), roundings=10),
]  # fmt: skip
