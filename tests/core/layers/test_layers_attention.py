"""Attention and positions: masks, chunks, decoding, memory, and bad input."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core import initializers
from core.layers import Embedding, LearnedPositions, MultiHeadAttention, attend, rotary
from core.random import Rng

RNG = Rng.from_seed(10)


def reference(q: Any, k: Any, v: Any, allowed: Any, cap: float | None = None) -> Any:
    """Computes attention in float64: each head copies keys and values, fully masked queries give zeros."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(allowed, scores if cap is None else cap * np.tanh(scores / cap), -np.inf)
    weights = np.exp(scores - np.max(scores, -1, keepdims=True, initial=-1e300))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd->bthd", weights / np.where(total == 0.0, 1.0, total), v)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([(4, 4), (4, 2), (4, 1), (3, 3)]),
    st.integers(0, 3),
    st.integers(1, 7),
    st.sampled_from(["none", "keys", "queries", "heads", "shared heads"]),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([1.0, 1e2]),
    st.sampled_from([None, 2.0]),
    st.integers(0, 99),
)
def test_attention_with_any_mask_in_any_chunks_is_the_definition(
    heads: tuple[int, int],
    batch: int,
    time: int,
    kind: str,
    causal: bool,
    chunk: int | None,
    size: float,
    cap: float | None,
    seed: int,
) -> None:
    rng = RNG.fold(seed)
    q = size * rng.fold("q").normal([batch, time, heads[0], 3])
    k, v = (rng.fold(name).normal([batch, time, heads[1], 3]) for name in "kv")
    shapes = {
        "keys": [batch, time],
        "queries": [batch, time, time],
        "heads": [batch, heads[0], time, time],
        "shared heads": [batch, 1, 1, time],
    }
    mask = None if kind == "none" else rng.fold("mask").uniform(shapes[kind]) < 0.6
    allowed = np.ones([batch, 1, time, time], bool)
    if mask is not None:
        wide = np.asarray(mask)
        allowed = allowed & {"keys": lambda m: m[:, None, None], "queries": lambda m: m[:, None]}.get(
            kind, lambda m: m
        )(wide)
    if causal:
        allowed = allowed & np.tril(np.ones([time, time], bool))
    y = attend(q, k, v, mask=mask, causal=causal, score_cap=cap, chunk_size=chunk)
    np.testing.assert_allclose(y, reference(q, k, v, allowed, cap), atol=1e-4)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_large_scores_and_masked_rows_stay_finite(dtype: tf.DType) -> None:
    q = tf.cast(100.0 * tf.sign(RNG.normal([2, 3, 2, 4])), dtype)
    mask = tf.constant([[True, False, True], [False, False, False]])
    with tf.GradientTape() as tape:
        tape.watch(q)
        y = attend(q, q, q, mask=mask)  # scores of 1e4 and more
        loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
    gradient = tape.gradient(loss, q)
    assert np.isfinite(tf.cast(y, tf.float32)).all()
    assert np.isfinite(tf.cast(gradient, tf.float32)).all()
    assert not np.any(tf.cast(y[1], tf.float32))
    assert not np.any(tf.cast(gradient[1], tf.float32))


@pytest.mark.parametrize("chunk_size", [1024, 2])
def test_causal_attention_does_not_see_the_future(chunk_size: int) -> None:
    layer = MultiHeadAttention(8, 2, rng=RNG, causal=True, rotary_base=10000.0, chunk_size=chunk_size)
    x = RNG.normal([2, 6, 8])
    changed = tf.concat([x[:, :4], x[:, 4:] + 1.0], 1)
    np.testing.assert_allclose(layer(x)[:, :4], layer(changed)[:, :4], atol=1e-6)
    assert np.abs(layer(x)[:, 4:] - layer(changed)[:, 4:]).min() > 0.0


def test_sequence_longer_than_the_cache_is_refused() -> None:
    layer = MultiHeadAttention(8, 4, rng=RNG, causal=True)
    with pytest.raises(ValueError, match="`x` has 6 positions, but `cache` has room for 5"):
        layer.decode(RNG.normal([2, 6, 8]), layer.empty_cache(2, 5))


@pytest.mark.long
@pytest.mark.parametrize(("steps", "compiled"), [([3, 1, 2], False), ([2, 2, 2], True)])
def test_decoding_step_by_step_is_the_whole_sequence(steps: list[int], compiled: bool) -> None:
    layer = MultiHeadAttention(8, 4, rng=RNG, num_kv_heads=2, causal=True, rotary_base=10000.0)
    x = RNG.normal([2, 6, 8])
    decode = tf.function(layer.decode, jit_compile=compiled, autograph=False)
    cache, start, ys = layer.empty_cache(2, 7), 0, []
    for count in steps:
        y, cache = decode(x[:, start : start + count], cache)
        ys.append(y)
        start += count
    np.testing.assert_allclose(tf.concat(ys, 1), layer(x), atol=1e-5)
    assert int(cache.length) == 6
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="`cache` has room for 7 positions"):
        layer.decode(x[:, :2], cache)


@pytest.mark.long
def test_decoding_may_be_a_loop_in_a_graph() -> None:
    layer = MultiHeadAttention(4, 2, rng=RNG, causal=True)
    x = RNG.normal([1, 5, 4])

    @tf.function(jit_compile=True, autograph=False)
    def generate() -> Any:
        def body(i: tf.Tensor, cache: Any, ys: tf.TensorArray) -> Any:
            y, cache = layer.decode(tf.gather(x, [i], axis=1), cache)
            return i + 1, cache, ys.write(i, y[:, 0])

        ys = tf.TensorArray(tf.float32, 5, element_shape=[1, 4])
        return tf.while_loop(lambda i, *_: i < 5, body, (0, layer.empty_cache(1, 5), ys))[2].stack()

    np.testing.assert_allclose(generate()[:, 0], layer(x)[0], atol=1e-5)


def test_dropout_is_applied_to_the_weights_and_only_in_training() -> None:
    layer = MultiHeadAttention(8, 2, rng=RNG, dropout_rate=0.5, chunk_size=4)
    x = RNG.normal([2, 6, 8])
    np.testing.assert_array_equal(layer(x), layer(x, None))
    np.testing.assert_array_equal(layer(x, RNG), layer(x, RNG))
    assert np.abs(layer(x, RNG) - layer(x, RNG.fold(1))).max() > 1e-3
    # With values of one, a row of weights sums to its own scale: some of the weights are gone.
    ones = tf.ones([2, 64, 1, 1])
    y = attend(ones, ones, ones, dropout_rate=0.5, rng=RNG, chunk_size=16).numpy()
    assert y.std() > 0.05
    assert y.mean() == pytest.approx(1.0, abs=0.05)


def sizes_in(graph: Any) -> Iterator[int]:
    """Returns the number of values of each tensor in a graph and in the functions that it calls."""
    bodies = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
    for body in bodies:
        for op in body.get_operations():
            for y in op.outputs:
                yield y.shape.num_elements() or 0


@pytest.mark.long
@pytest.mark.parametrize("chunk_size", [512, 32])
def test_memory_of_a_long_sequence_grows_with_the_chunk(chunk_size: int) -> None:
    layer = MultiHeadAttention(8, 2, rng=RNG, causal=True, chunk_size=chunk_size)
    time = 512

    @tf.function(autograph=False)
    def gradients(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(x)))
        return tape.gradient(loss, layer.trainable_variables)

    largest = max(sizes_in(gradients.get_concrete_function(tf.TensorSpec([1, time, 8])).graph))
    assert largest == (2 * time * time if chunk_size == time else time * 8)  # scores of one tile are few


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_rotary_products_depend_on_the_distance_alone(first: int, distance: int) -> None:
    q, k = (RNG.fold(name).normal([1, 1, 1, 8]) for name in "qk")

    def product(a: int, b: int) -> float:
        return float(tf.reduce_sum(rotary(q, tf.constant([a])) * rotary(k, tf.constant([b]))))

    assert product(first, first + distance) == pytest.approx(product(0, distance), abs=2e-3)


def test_rotary_takes_positions_by_example() -> None:
    x = RNG.normal([2, 3, 1, 4])
    positions = tf.constant([[0, 1, 2], [5, 6, 7]])
    np.testing.assert_allclose(rotary(x, positions)[1:], rotary(x[1:], tf.range(5, 8)), atol=1e-6)


def test_embedding_is_read_in_the_dtype_asked_for_and_has_sparse_gradients() -> None:
    table = Embedding(6, 3, rng=RNG)
    ids = tf.constant([[1, 4]])
    assert table(ids, dtype=tf.bfloat16).dtype == tf.bfloat16
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(ids))
    gradient = tape.gradient(loss, table.w)
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_array_equal(gradient.indices, [1, 4])


def test_position_out_of_range_is_nan_in_a_compiled_program() -> None:
    table, positions = Embedding(4, 3, rng=RNG), LearnedPositions(4, 3, rng=RNG)
    look = tf.function(table, jit_compile=True, autograph=False)
    for dtype in (tf.int32, tf.int64):
        found = look(tf.constant([[0, 9], [-1, 3]], dtype))
        np.testing.assert_array_equal(np.isnan(found).all(-1), [[False, True], [True, False]])
        np.testing.assert_array_equal(found[0, 0], table.w[0])
    place = tf.function(positions, jit_compile=True, autograph=False)
    for first, bad in ((0, [False, False]), (2, [False, False]), (3, [False, True]), (9, [True, True])):
        found = place(tf.zeros([1, 2, 3]), tf.constant(first))
        np.testing.assert_array_equal(np.isnan(found[0]).all(-1), bad)
    np.testing.assert_array_equal(place(tf.zeros([1, 2, 3]), tf.constant(-1))[0, 1], positions.w[0])


def test_decoding_beyond_the_cache_is_nan_in_a_compiled_program() -> None:
    layer = MultiHeadAttention(4, 2, rng=RNG, causal=True)
    cache = layer.empty_cache(2, 3)
    decode = tf.function(layer.decode, jit_compile=True, autograph=False)
    for i in range(5):
        y, cache = decode(tf.ones([2, 1, 4]), cache)
        assert np.isnan(y).all() if i >= 3 else np.isfinite(y).all()


ONES = tf.ones([2, 5, 4, 8])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: MultiHeadAttention(8, 3, rng=RNG), r"`num_heads` is 3, which doesn't divide `size=8`"),
        (lambda: MultiHeadAttention(8, 4, rng=RNG, num_kv_heads=3), r"`num_kv_heads` is 3, .*`num_heads=4`"),
        (lambda: MultiHeadAttention(8, 4, rng=RNG, dropout_rate=1.0), r"`dropout_rate` is 1.0; give a fraction"),
        (lambda: MultiHeadAttention(8, 4, rng=RNG, context_size=3, causal=True), r"`context_size` is 3, but `causal`"),
        (lambda: MultiHeadAttention(6, 2, rng=RNG, rotary_base=10.0), r"`head_size` is 3, but rotary .* make it even"),
        (lambda: rotary(ONES[..., :3], tf.range(5)), r"even last axis"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG)(tf.zeros([2, 8])), r"`MultiHeadAttention` .*\[batch, time, size\]"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG)(tf.zeros([1, 2, 8]), context=tf.zeros([1, 2, 8])),
            r"`context` was given"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG, context_size=8)(tf.zeros([1, 2, 8])), r"`context` was not given"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG)(tf.zeros([1, 2, 8]), mask=tf.ones([1, 2])),
            r"`mask` is float32 .*booleans"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG)(tf.zeros([1, 2, 8]), mask=tf.ones([1, 3, 2, 2], tf.bool)),
            r"`mask` is bool of shape \(1, 3, 2, 2\); .*\[1, 2, 2, 2\]"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG)(tf.zeros([2, 3, 8]), mask=tf.ones([2, 4], tf.bool)),
            r"`mask` is bool of shape \(2, 4\); .*\[2, 2, 3, 3\]"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG).decode(tf.zeros([1, 1, 8]), None),
            r"`decode` goes from past to future; make the layer with `causal=True`"),
        (lambda: attend(ONES[0], ONES, ONES), r"`q` of `attend` has shape \(5, 4, 8\); .*\[batch, time, heads, size\]"),
        (lambda: attend(ONES, ONES[..., :6], ONES), r"`k` of `attend` has shape .* head size: .*\(2, None, None, 8\)"),
        (lambda: attend(ONES, ONES[:1], ONES[:1]), r"`k` of `attend` has shape \(1, 5, 4, 8\) .* same batch"),
        (lambda: attend(ONES, ONES, ONES[:, :, :2]), r"`v` of `attend` has shape \(2, 5, 2, 8\) .*\(2, 5, 4, None\)"),
        (lambda: attend(ONES, ONES, ONES[:, :4]), r"`v` of `attend` has shape \(2, 4, 4, 8\) .*each key has a value"),
        (lambda: attend(ONES, ONES[:, :, :3], ONES[:, :, :3]), r"`kv_heads` is 3, which doesn't divide `heads=4`"),
        (lambda: attend(ONES, ONES, ONES, chunk_size=0), r"`chunk_size` is 0; give a whole number"),
        (lambda: attend(ONES, ONES, ONES, dropout_rate=-1.0), r"`dropout_rate` is -1.0; give a fraction"),
        (lambda: tf.function(attend, autograph=False).get_concrete_function(tf.TensorSpec([2, 5, None, 8]), ONES, ONES),
            r"`q` of `attend` has shape \(2, 5, None, 8\), whose heads"),
        (lambda: rotary(ONES[0], tf.range(4)), r"`x` of `rotary` has shape \(5, 4, 8\); its axes are"),
        (lambda: rotary(ONES, tf.range(1)),
            r"`positions` of `rotary` has shape \(1,\) for `x` of shape \(2, 5, 4, 8\)"),
        (lambda: rotary(ONES, tf.zeros([3, 5])), r"`positions` of `rotary` has shape \(3, 5\)"),
        (lambda: rotary(ONES, tf.constant(3)), r"`positions` of `rotary` has shape \(\)"),
        (lambda: rotary(ONES, tf.range(5), 0.0), r"`base` is 0.0; it is above 0"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG, score_cap=0.0), "`score_cap` is 0.0; it is above 0"),
        (lambda: attend(ONES, ONES, ONES, score_cap=-1.0), r"`score_cap` is -1.0; it is above 0"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG, rotary_base=-1.0), r"`rotary_base` is -1.0; it is above 0"),
        (lambda: MultiHeadAttention(8, 2, rng=RNG).empty_cache(2, 0), r"`room` is 0; give"),
        (lambda: LearnedPositions(4, 2, rng=RNG)(tf.ones([1, 3, 2]), tf.constant(2)), r"starts at 2, beyond"),
        (lambda: LearnedPositions(4, 2, rng=RNG)(tf.ones([1, 3, 2]), -1), r"`first` of `LearnedPositions` is -1"),
        (lambda: Embedding(4, 2, rng=RNG)(tf.ones([3])), r"`ids` of `Embedding` are float32; give integers"),
        (lambda: LearnedPositions(4, 2, rng=RNG)(tf.ones([1, 5, 2])), r"beyond `max_length=4`"),
        (lambda: LearnedPositions(4, 2, rng=RNG)(tf.ones([1, 3, 2]), 2), r"starts at 2, beyond `max_length=4`"),
    ],
)  # fmt: skip
def test_bad_input_is_named(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


def test_output_matrix_may_begin_otherwise() -> None:
    ones, zeros = initializers.ones(), initializers.zeros()
    alike = MultiHeadAttention(4, 2, rng=RNG, bias=False, w_init=ones).parameters()
    assert all(tf.reduce_all(w == 1.0) for w in alike.values())
    other = MultiHeadAttention(4, 2, rng=RNG, bias=False, w_init=ones, out_init=zeros).parameters()
    assert {path: float(tf.reduce_mean(w)) for path, w in other.items()} == {**dict.fromkeys(other, 1.0), "out/w": 0.0}
