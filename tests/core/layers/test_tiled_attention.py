"""Attention in tiles: the same as all scores at once, for values, gradients, and gradients of gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.layers import MultiHeadAttention, attend
from core.layers.attention import alibi_slopes
from core.layers.tiled_attention import Sight, grid_of
from core.random import Rng

RNG = Rng.from_seed(12)
TIME, INF = 7, float("inf")
SEEN = tf.constant([[True] * 5 + [False] * 2])


def inputs(heads: tuple[int, int] = (4, 2), time: int = TIME, dtype: tf.DType = tf.float64) -> list[tf.Tensor]:
    shapes = {"q": [2, time, heads[0], 3], "k": [2, time, heads[1], 3], "v": [2, time, heads[1], 2]}
    return [tf.cast(RNG.fold(name).normal(shape), dtype) for name, shape in shapes.items()]


def some_documents(time: int = TIME) -> tf.Tensor:
    return tf.constant([[0] * 3 + [1] * (time - 4) + [-1], [0] * time])


def derivatives(attention: Callable[..., tf.Tensor], xs: list[tf.Tensor], order: int = 2) -> list[Any]:
    """Returns the result, gradients of a non-linear loss, and gradients of the sum of their squares."""
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = attention(*xs)
            loss = tf.reduce_sum(tf.sin(y) * tf.range(1.0, 1.0 + y.shape[-1], dtype=y.dtype))
        first = tape.gradient(loss, xs)
        squares = tf.add_n([tf.cast(tf.reduce_sum(tf.square(x)), tf.float64) for x in first])
    return [y, *first, *(outer.gradient(squares, xs) if order == 2 else ())]


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    st.sampled_from([None, "keys", "queries", "heads"]),
    st.sampled_from([None, 1, 3, 100]),
    st.booleans(),
    st.sampled_from([None, "full", "queries", "keys"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([3, 4, 6]),
    st.sampled_from([0, 2, -3]),
    st.sampled_from([None, 0.5]),
)
@example((4, 2), "heads", 3, True, "full", True, True, 3, 0, 0.5)
def test_any_options_give_the_same_in_tiles(
    heads: tuple[int, int],
    mask: str | None,
    window: int | None,
    causal: bool,
    bias: str | None,
    sloped: bool,
    documents: bool,
    chunk: int,
    first: int,
    cap: float | None,
) -> None:
    masks = {"keys": [2, TIME], "queries": [2, TIME, TIME], "heads": [1, 4, TIME, TIME]}
    biases = {"full": [2, 4, TIME, TIME], "queries": [1, 4, TIME, 1], "keys": [2, 1, 1, TIME]}
    options: dict[str, Any] = {"causal": causal, "window": window if causal else None, "first_query": first}
    options["score_cap"] = cap
    if mask is not None:
        options["mask"] = RNG.fold("mask").uniform(masks[mask]) < 0.6
    if documents:
        options["documents"] = some_documents()
    xs, names = inputs(heads), []
    if bias is not None:
        value = tf.cast(RNG.fold("bias").normal(biases[bias]), tf.float64)
        xs.append(tf.where(value > 1.0, tf.cast(-INF, tf.float64), value))
        names.append("bias")
    if sloped:
        xs.append(tf.constant([0.5, 0.25, 0.0, -0.1], tf.float64))
        names.append("slopes")

    def attention(chunk_size: int | None) -> Callable[..., tf.Tensor]:
        return lambda q, k, v, *added: attend(
            q, k, v, chunk_size=chunk_size, **options, **dict(zip(names, added, strict=True))
        )

    for tiled, dense in zip(*(derivatives(attention(size), xs) for size in (chunk, None)), strict=True):
        np.testing.assert_allclose(tiled, dense, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"score_cap": 0.5}, {"causal": True, "window": 2}], ids=str)
def test_gradients_of_tiles_are_finite_differences(options: dict[str, Any]) -> None:
    xs = [tf.cast(RNG.fold(name).normal([1, 4, 2, 2]), tf.float64) for name in "qkv"]

    @tf.function(autograph=False)
    def run(*xs: tf.Tensor) -> list[Any]:
        return derivatives(lambda *xs: attend(*xs, chunk_size=2, **options), list(xs), order=1)

    @tf.function(autograph=False)
    def jacobians(*xs: tf.Tensor) -> list[Any]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            y, dq, *_ = run(*xs)
        return [tape.jacobian(x, xs, experimental_use_pfor=False) for x in (y, dq)]

    step = 1e-5
    for i, name in enumerate("qkv"):
        direction = tf.cast(RNG.fold("direction").fold(name).normal(xs[i].shape), tf.float64)
        above, below = (run(*xs[:i], xs[i] + sign * step * direction, *xs[i + 1 :]) for sign in (1.0, -1.0))
        for one, other, jacobian in zip(above, below, jacobians(*xs), strict=False):
            expected = tf.tensordot(jacobian[i], direction, 4)
            np.testing.assert_allclose((one - other) / (2.0 * step), expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("compiled", "options"),
    [
        (False, {"causal": True, "window": 4, "chunk_size": 3}),
        (True, {"causal": True, "window": 4, "chunk_size": 3}),
        (True, {"chunk_size": 4}),  # each tile has all keys
    ],
)
def test_tiles_in_a_graph_are_those_of_eager_code(compiled: bool, options: dict[str, Any]) -> None:
    xs = inputs(dtype=tf.float32)

    @tf.function(jit_compile=compiled, autograph=False)
    def run(*xs: tf.Tensor) -> list[tf.Tensor]:
        return derivatives(lambda *xs: attend(*xs, **options), list(xs), order=1 if compiled else 2)

    expected = derivatives(lambda *xs: attend(*xs, **options), xs)
    for one, other in zip(run(*xs), expected, strict=False):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


@pytest.mark.long
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_statistics_of_tiles_in_half_precision_are_float32(dtype: tf.DType) -> None:
    q, k, v = (tf.cast(x, dtype) for x in inputs(time=600))
    wide = [tf.cast(x, tf.float64) for x in (q, k, v)]
    found = derivatives(lambda *xs: attend(*xs, chunk_size=64), [q, k, v], order=1)
    exact = derivatives(lambda *xs: attend(*xs, chunk_size=None), wide, order=1)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        assert np.abs(tf.cast(one, tf.float64) - other).max() <= 4.0 * dtype_epsilon(dtype) * np.abs(other).max()


def dtype_epsilon(dtype: tf.DType) -> float:
    return 2.0**-10 if dtype == tf.float16 else 2.0**-7


@pytest.mark.long
def test_one_row_with_a_nan_and_one_with_large_scores_leave_the_others_alone() -> None:
    q, k, v = inputs(dtype=tf.float32)
    options: dict[str, Any] = {"causal": True, "chunk_size": 2}
    plain = attend(q, k, v, **options)
    spoilt = tf.concat([q[:1] * float("nan"), q[1:]], 0)
    found = attend(spoilt, k, v, **options)
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], plain[1])
    late = tf.tensor_scatter_nd_update(k, [[0, 5], [1, 5]], tf.fill([2, 2, 3], float("nan")))
    np.testing.assert_array_equal(attend(q, late, v, **options)[:, :5], plain[:, :5])
    for chunk_size in (2, None):  # with a cap, the gradient of the NaN key is zero, too
        _, _, dk, _ = derivatives(
            lambda q, k, v: attend(q, k, v, mask=SEEN, score_cap=2.0, chunk_size=chunk_size),  # noqa: B023
            [q, late, v],
            order=1,
        )
        assert not dk[:, 5].numpy().any()
    for scale in (1e4, -1e4):
        sharp = derivatives(lambda q, k, v: attend(scale * q, k, v, **options), [q, k, v], order=1)  # noqa: B023
        dense = derivatives(lambda q, k, v: attend(scale * q, k, v, causal=True), [q, k, v], order=1)  # noqa: B023
        np.testing.assert_allclose(sharp[0], dense[0], atol=1e-5)
        assert all(np.isfinite(x).all() for x in sharp)


@pytest.mark.parametrize("chunk_size", [2, None])
def test_bias_of_minus_infinity_hides_a_key_from_all_or_some(chunk_size: int | None) -> None:
    q, k, v = inputs()
    bias = tf.constant(np.where(np.arange(TIME) < 3, 0.0, -INF)[None, None, None])
    found = derivatives(lambda *xs: attend(*xs, bias=bias, chunk_size=chunk_size), [q, k, v])
    masked = derivatives(
        lambda *xs: attend(*xs, mask=tf.constant([[True] * 3 + [False] * 4]), chunk_size=None), [q, k, v]
    )
    for one, other in zip(found, masked, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    nothing = derivatives(lambda *xs: attend(*xs, bias=bias - INF, chunk_size=chunk_size), [q, k, v])
    assert all(not np.any(x) for x in nothing)


@pytest.mark.long
def test_dropout_in_tiles_repeats_its_draws_for_the_gradient_and_for_parts_of_a_batch() -> None:
    q, k, v = inputs(time=8)

    def dropped(rng: Rng, *xs: tf.Tensor) -> list[Any]:
        return derivatives(lambda *xs: attend(*xs, dropout_rate=0.5, rng=rng, chunk_size=3, causal=True), list(xs), 1)

    y, *_ = whole = dropped(RNG, q, k, v)
    assert np.abs(y - attend(q, k, v, causal=True)).max() > 0.1
    ones = dropped(RNG, q, k, tf.ones_like(v))[0]  # values enter linearly: what was dropped shows in their sums
    np.testing.assert_allclose(dropped(RNG, q, k, v + 1.0)[0] - y, ones, atol=1e-12)
    with tf.GradientTape() as tape:
        tape.watch(v)
        total = tf.reduce_sum(attend(q, k, v, dropout_rate=0.5, rng=RNG, chunk_size=3, causal=True))
    np.testing.assert_allclose(tf.reduce_sum(tape.gradient(total, v) * v), tf.reduce_sum(y), atol=1e-10)
    for row in range(2):
        part = dropped(RNG._replace(first_row=row, num_rows=1), *(x[row : row + 1] for x in (q, k, v)))
        for one, other in zip(part, whole, strict=True):
            np.testing.assert_allclose(one[0], other[row], atol=1e-12)


def test_only_tiles_that_some_query_sees_are_computed() -> None:
    causal = grid_of(Sight(True, None, 0), (8, 2048, 2048), (8, 256, 256))
    assert (len(causal.whole), len(causal.cut)) == (28, 8)
    for time in (1024, 2048, 4096, 8192):
        windowed = grid_of(Sight(True, 256, 0), (8, time, time), (8, 256, 256))
        assert len(windowed.whole) + len(windowed.cut) == 2 * (time // 256) - 1
    everywhere = Sight(False, None, 0)
    assert len(grid_of(everywhere, (8, 2048, 2000), (8, 256, 256)).cut) == 0  # 2000 is eight times 250
    assert len(grid_of(everywhere, (8, 2048, 2001), (8, 256, 256)).cut) == 8
    assert len(grid_of(everywhere, (8, 2048, 2001), (1, 1024, 2048)).whole) == 16


@pytest.mark.long
@pytest.mark.parametrize("time", [None, TIME])
def test_batches_of_unknown_size_and_sequences_of_unknown_length(time: int | None) -> None:
    xs, options = inputs(), {"chunk_size": 2} if time else {"causal": True, "window": 3, "chunk_size": 2}
    specs = [tf.TensorSpec([None, time, *x.shape[2:]], x.dtype) for x in xs]
    run = tf.function(lambda *xs: attend(*xs, **options), input_signature=specs, autograph=False)
    np.testing.assert_allclose(run(*xs), attend(*xs, **options), atol=1e-12)


@pytest.mark.parametrize("chunk_size", [1024, 2])
def test_decoding_sees_the_window_and_the_slopes_of_the_whole_sequence(chunk_size: int) -> None:
    layer = MultiHeadAttention(8, 4, rng=RNG, causal=True, window=3, alibi=True, chunk_size=chunk_size)
    x = RNG.normal([2, 6, 8])
    cache, ys = layer.empty_cache(2, 7), []
    for part in (x[:, :3], x[:, 3:4], x[:, 4:]):
        y, cache = layer.decode(part, cache)
        ys.append(y)
    np.testing.assert_allclose(tf.concat(ys, 1), layer(x), atol=1e-5)
    changed = tf.concat([x[:, :1] + 1.0, x[:, 1:]], 1)
    seen = np.abs(layer(changed) - layer(x)).max((0, 2)) > 1e-6
    assert seen.tolist() == [True] * 3 + [False] * 3


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


Q = tf.ones([2, 5, 4, 8])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"causal": True, "window": 0}, r"`window` is 0; give a whole number of at least 1"),
        ({"window": 4}, r"`window` is 4, but `causal` is false; .*give `causal=True`, or leave `window` out"),
        (
            {"documents": tf.zeros([2, 4], tf.int32)},
            r"`documents` of `attend` are int32 of shape \(2, 4\), for 5 queries",
        ),
        ({"documents": tf.zeros([2, 5])}, r"`documents` of `attend` are float32 of shape .* give integers of shape"),
        (
            {"documents": tf.zeros([5], tf.int32)},
            r"`documents` of `attend` has shape \(5,\); its axes are \[batch, time",
        ),
        ({"bias": tf.zeros([1, 1, 5, 5], tf.int32)}, r"`bias` of `attend` is int32; give floats"),
        ({"bias": tf.zeros([1, 3, 5, 5])}, r"`bias` of `attend` has shape \(1, 3, 5, 5\), .* here \[2, 4, 5, 5\]"),
        ({"slopes": tf.zeros([3])}, r"`slopes` of `attend` have shape \(3,\); give one per head: \[4\]"),
    ],
    ids=str,
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        attend(Q, Q, Q, **options)


def test_layer_with_bad_options_is_not_made() -> None:
    with pytest.raises(ValueError, match="`window` is 4, but `causal` is false"):
        MultiHeadAttention(8, 2, rng=RNG, window=4)
    with pytest.raises(ValueError, match=r"`context_size` is 3, but .*`alibi`"):
        MultiHeadAttention(8, 2, rng=RNG, context_size=3, alibi=True)
