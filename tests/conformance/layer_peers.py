"""Peers of the layers: Flax and JAX if they have the layer, NumPy otherwise."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import tensorflow as tf

from core import layers
from core.layers.dropout import drop
from core.random import Rng

from .battery import RNG
from .in_numpy import in_numpy

Array = Any


def flax(
    module: nn.Module, params: dict[str, Any], *inputs: Array, state: dict[str, Any] | None = None, **kw: Any
) -> Array:
    """Applies a Flax module with our variables."""
    tree = jax.tree.map(np.asarray, {"params": params, **(state or {})}, is_leaf=is_variable)
    evaluated = jax.jit if isinstance(module, nn.RNN) else in_numpy  # NumPy has no dtype for the keys of its cells
    return evaluated(functools.partial(module.apply, **kw))(tree, *inputs)


def is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def affine(part: Any) -> dict[str, Any]:
    """Returns a kernel and bias under Flax's names."""
    return {"kernel": part.w, **({} if part.b is None else {"bias": part.b})}


def scaled(part: Any) -> dict[str, Any]:
    """Returns a norm's parameters under Flax's names."""
    return {"scale": part.scale, **({} if part.offset is None else {"bias": part.offset})}


def dense(part: Any, x: Array) -> Array:
    return flax(nn.Dense(part.w.shape[1], use_bias=part.b is not None), affine(part), x)


def conv(**options: Any) -> Callable[..., Array]:
    def peer(part: Any, x: Array) -> Array:
        window, features = tuple(part.w.shape[:-2]), part.w.shape[-1]
        return flax(nn.Conv(features, window, use_bias=part.b is not None, **options), affine(part), x)

    return peer


def conv_transpose(**options: Any) -> Callable[..., Array]:
    """Flax's transposed convolution; its kernel is mirrored: it slides over the larger signal."""

    def peer(part: Any, x: Array) -> Array:
        window, features = tuple(part.w.shape[:-2]), part.w.shape[-1]
        params = {"kernel": np.flip(part.w.numpy(), range(len(window))), "bias": part.b}
        return flax(nn.ConvTranspose(features, window, **options), params, x)

    return peer


def conv_transpose_by_lax(stride: Sequence[int], padding: Sequence[tuple[int, int]], dilation: int, groups: int) -> Any:
    """The definition: a convolution of the input with zeros between its values."""

    def peer(part: Any, x: Array) -> Array:
        window = [(k - 1) * dilation + 1 for k in part.w.shape[:-2]]
        rank = len(window)
        letters = "DHW"[-rank:]
        y = jax.lax.conv_general_dilated(
            x,
            np.flip(part.w.numpy(), range(rank)).copy(),
            window_strides=[1] * rank,
            padding=[(k - 1 - a, k - 1 - b) for k, (a, b) in zip(window, padding, strict=True)],
            lhs_dilation=stride,
            rhs_dilation=[dilation] * rank,
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=groups,
        )
        return y + part.b.numpy()

    return peer


def separable(part: Any, x: Array) -> Array:
    channels = part.depthwise.channels
    x = conv(feature_group_count=channels)(part.depthwise, x)
    return conv()(part.pointwise, x)


def embed(part: Any, ids: Array) -> Array:
    module = nn.Embed(*part.w.shape)
    vectors = flax(module, {"embedding": part.w}, ids)
    return vectors, flax(module, {"embedding": part.w}, vectors, method=nn.Embed.attend)


def layer_norm(part: Any, x: Array) -> Array:
    return flax(flax_layer_norm(), scaled(part), x)


def flax_layer_norm(**options: bool) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, **options)


def group_norm(groups: int) -> Callable[..., Array]:
    return lambda part, x: flax(nn.GroupNorm(groups, epsilon=1e-6, use_fast_variance=False), scaled(part), x)


def instance_norm(part: Any, x: Array) -> Array:
    return flax(nn.InstanceNorm(epsilon=1e-6, use_fast_variance=False), scaled(part), x)


def batch_norm(training: bool) -> Callable[..., Array]:
    def peer(part: Any, x: Array) -> Array:
        module = nn.BatchNorm(use_running_average=not training, epsilon=1e-5, use_fast_variance=False)
        averages = {"mean": part.moving_mean, "var": part.moving_variance}
        y = flax(module, scaled(part), x, state={"batch_stats": averages}, mutable=["batch_stats"])
        return y[0]

    return peer


def weight_norm(part: Any, x: Array) -> Array:
    module = nn.WeightNorm(nn.Dense(part.layer.w.shape[1]))
    params = {"layer_instance/kernel/scale": part.scale}
    return flax(module, {**params, "layer_instance": affine(part.layer)}, x)


def spectral_norm(part: Any, x: Array) -> Array:
    w = part.layer.w.numpy()
    return x @ (w / np.linalg.norm(w @ part.vector.numpy())) + part.layer.b.numpy()


def dropped(mask_axes: Callable[[tuple[int, ...]], Sequence[int]]) -> Callable[..., Array]:
    """Recomputes dropout from the same bits: 16 per value, lower halves of a row's words before upper ones."""

    def peer(part: Any, x: np.ndarray) -> Array:
        rows, *rest = mask_axes(x.shape)
        width = int(np.prod(rest))
        words = RNG.fold("call").rows.bits(rows, -(-width // 2)).numpy()
        draws = np.concatenate([words % 65536, words // 65536], 1)[:, :width]
        threshold = round(part.rate * 65536)
        return x * (draws >= threshold).reshape(rows, *rest) / (1.0 - threshold / 65536)

    return peer


def attention(part: Any, x: Array, context: Array | None = None, mask: Array | None = None) -> Array:
    """Flax's attention; `mask` is [batch, keys]."""
    context = x if context is None else context
    size, out_size = x.shape[-1], part.out.w.shape[1]
    module = nn.MultiHeadDotProductAttention(part.num_heads, qkv_features=part.num_heads * part.head_size)

    def heads(linear: Any) -> dict[str, Array]:
        shape = (part.num_heads, part.head_size)
        return {"kernel": linear.w.numpy().reshape(-1, *shape), "bias": linear.b.numpy().reshape(shape)}

    assert out_size == size
    out = {"kernel": part.out.w.numpy().reshape(part.num_heads, part.head_size, size), "bias": part.out.b}
    params = {"query": heads(part.query), "key": heads(part.key), "value": heads(part.value), "out": out}
    seen = np.ones([x.shape[1], context.shape[1]], bool)
    seen = np.tril(seen) if part.causal else seen
    allowed = seen[None, None] & (True if mask is None else mask[:, None, None, :])
    allowed = np.broadcast_to(allowed, (x.shape[0], 1, *seen.shape))
    return flax(module, params, x, context, mask=allowed)


def grouped_attention(part: Any, x: Array) -> Array:
    """NumPy's projections and complex rotation around JAX's attention."""

    def heads(linear: Any, count: int) -> Array:
        return (x @ linear.w.numpy() + linear.b.numpy()).reshape(*x.shape[:2], count, part.head_size)

    q, k, v = (
        heads(part.query, part.num_heads),
        heads(part.key, part.num_kv_heads),
        heads(part.value, part.num_kv_heads),
    )
    if part.query_norm is not None:
        q, k = (
            y / np.sqrt(np.mean(y * y, -1, keepdims=True) + norm.epsilon) * norm.scale.numpy()
            for y, norm in ((q, part.query_norm), (k, part.key_norm))
        )
    if part.rotary_base is not None:
        q, k = (rotated(y, np.arange(x.shape[1]), part.rotary_base) for y in (q, k))
    attend = in_numpy(functools.partial(jax.nn.dot_product_attention, is_causal=part.causal))
    y = attend(q.astype(np.float32), k.astype(np.float32), v)
    return np.asarray(y).reshape(*x.shape[:2], -1) @ part.out.w.numpy() + part.out.b.numpy()


def dropped_attention(q: Array, k: Array, v: Array, *, rate: float, rng: Rng) -> Array:
    """The formula, with the weights that `drop` drops from ones."""
    rows, time, heads, size = q.shape
    groups = k.shape[2]
    apart = q.reshape(rows, time, groups, heads // groups, size) / np.sqrt(size)
    weights = jax.nn.softmax(np.einsum("btghd,bkgd->bghtk", apart, k))
    kept = drop(tf.ones(weights.shape), rng, rate, list(weights.shape)).numpy()
    return np.einsum("bghtk,bkgd->btghd", weights * kept, v).reshape(rows, time, heads, -1)


def attention_by_definition(q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> Array:
    """Computes attention in float64, with `bias` added to scores; a query whose scores are all -inf gets zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = np.einsum("bthd,bkhd->bhtk", q, k) / np.sqrt(q.shape[-1]) + bias
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(highest == -np.inf, 0.0, highest))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhtk,bkhd->bthd", weights / np.where(total == 0.0, 1.0, total), v)


def local_attention(part: Any, x: Array) -> Array:
    """NumPy's projections around the definition, with a window and slopes as a bias."""
    q, k, v = (
        (x @ layer.w.numpy() + layer.b.numpy()).reshape(*x.shape[:2], -1, part.head_size)
        for layer in (part.query, part.key, part.value)
    )
    distance = np.arange(x.shape[1])[:, None] - np.arange(x.shape[1])
    slopes = 2.0 ** (-8.0 * np.arange(1, part.num_heads + 1) / part.num_heads)
    seen = (distance >= 0) & (distance < part.window)
    bias = np.where(seen, -slopes[:, None, None] * distance, -np.inf)
    y = attention_by_definition(q, k, v, bias)
    return y.reshape(*x.shape[:2], -1) @ part.out.w.numpy() + part.out.b.numpy()


def rotated(
    x: Array, positions: Array, base: float = 10000.0, slowed: Callable[[Array], Array] = lambda speeds: speeds
) -> Array:
    """Computes rotary positions as a product of complex numbers."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.asarray(positions)[..., None] * slowed(base ** (-np.arange(half) / half)))[..., None, :]
    y = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([y.real, y.imag], -1).astype(np.float32)


def slowed(speeds: Array) -> Array:
    """Scales by wave lengths, as Llama 3.1 does, for a factor of 4, 100 positions, and turns of 0.5 and 1."""
    waves = 2 * np.pi / speeds
    between = (100 / waves - 0.5) / (1.0 - 0.5)
    mixed = (1 - between) * speeds / 4.0 + between * speeds
    return np.where(waves < 100 / 1.0, speeds, np.where(waves > 100 / 0.5, speeds / 4.0, mixed))


def recurrent(part: Any, x: Array) -> Array:
    """Flax's cells, whose gates have separate kernels."""
    size = part.hidden_size
    w, u, b = (np.split(v.numpy(), part.gates, -1) for v in (part.w, part.u, part.b))
    if isinstance(part, layers.LSTM):
        gates = "ifgo"
        params = {f"i{gate}": {"kernel": w[i]} for i, gate in enumerate(gates)}
        params |= {f"h{gate}": {"kernel": u[i], "bias": b[i]} for i, gate in enumerate(gates)}
        cell: Any = nn.OptimizedLSTMCell(size)
    elif isinstance(part, layers.GRU):
        params = {f"i{gate}": {"kernel": w[i], "bias": b[i]} for i, gate in enumerate("rzn")}
        params |= {f"h{gate}": {"kernel": u[i]} for i, gate in enumerate("rz")}
        params["hn"] = {"kernel": u[2], "bias": part.b_new.numpy()}
        cell = nn.GRUCell(size)
    else:
        params = {"i": {"kernel": w[0], "bias": b[0]}, "h": {"kernel": u[0]}}
        cell = nn.SimpleCell(size)
    states, y = flax(nn.RNN(cell, return_carry=True), {"cell": params}, x)
    if isinstance(part, layers.LSTM):
        states = states[1], states[0]  # Flax returns the cell first
    return y, states


def ragged_gru(part: Any, x: Array, lengths: Array) -> Array:
    """Runs each example alone, at its own length."""
    y = np.zeros((*x.shape[:2], part.hidden_size), np.float32)
    last = np.zeros((x.shape[0], part.hidden_size), np.float32)
    for i, length in enumerate(lengths):
        if length:
            outputs, state = recurrent(part, x[i : i + 1, :length])
            y[i, :length], last[i] = outputs[0], state[0]
    return y, last


def reset_lstm(part: Any, x: Array, resets: Array) -> Array:
    """Runs each piece between resets alone."""
    y = np.zeros((*x.shape[:2], part.hidden_size), np.float32)
    last = [np.zeros((x.shape[0], part.hidden_size), np.float32) for _ in range(2)]
    for i, begins in enumerate(resets):
        edges = sorted({0, *np.flatnonzero(begins), x.shape[1]})
        for first, end in itertools.pairwise(edges):
            outputs, states = recurrent(part, x[i : i + 1, first:end])
            y[i, first:end] = outputs[0]
        for whole, state in zip(last, states, strict=True):
            whole[i] = state[0]
    return y, tuple(last)


def pool(name: str, **options: Any) -> Callable[..., Array]:
    return lambda part, x: in_numpy(functools.partial(getattr(nn, name), **options))(x)


def pixel_shuffle(part: Any, x: Array) -> Array:
    f, (b, h, w, c) = part.factor, x.shape
    blocks = x.reshape(b, h, w, f, f, c // f**2)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(b, h * f, w * f, c // f**2)


def resized(height: int, width: int, method: str) -> Callable[..., Array]:
    def peer(part: Any, x: Array) -> Array:
        shape = (x.shape[0], height, width, x.shape[3])
        return in_numpy(functools.partial(jax.image.resize, shape=shape, method=method, antialias=False))(x)

    return peer
