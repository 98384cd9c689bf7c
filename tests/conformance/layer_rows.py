"""One row or more for each public layer."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import tensorflow as tf

from core import layers
from core.layers import (
    GRU,
    LSTM,
    AveragePool,
    BatchNorm,
    Bilinear,
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose1D,
    ConvTranspose2D,
    ConvTranspose3D,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    MaxPool,
    MultiHeadAttention,
    Pad,
    PixelShuffle,
    Residual,
    Resize,
    RMSNorm,
    SeparableConv2D,
    Sequential,
    SpatialDropout,
    SpectralNorm,
    StochasticDepth,
    VanillaRNN,
    WeightNorm,
)

from . import layer_peers as peers
from .battery import Arrays, Row, evaluate, train


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator, int], Arrays]:
    return lambda rng, rows: tuple(rng.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)


def ids(rng: np.random.Generator, rows: int) -> Arrays:
    return (rng.integers(0, 7, (rows, 4)).astype(np.int32),)


def with_lengths(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(rows, 4, 3)).astype(np.float32), np.resize([4, 0, 2], rows).astype(np.int32)


def with_mask(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(rows, 4, 6)).astype(np.float32), np.arange(4) < 1 + np.arange(rows)[:, None]


def heads(rng: np.random.Generator, rows: int) -> Arrays:
    shapes = ((4, 4, 3), (4, 2, 3), (4, 2, 5))
    return tuple(rng.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)


def embed_and_score(part: Any, x: tf.Tensor) -> Any:
    vectors = part(x, dtype=part.w.dtype)
    return vectors, part.logits(vectors)


LINES, IMAGES, VOLUMES = normal((7, 4)), normal((6, 7, 4)), normal((4, 5, 3, 2))
W_AND_B = ("b", "w")
NORMED = ("offset", "scale")
LECUN = "LeCun et al. 1989"
TRANSPOSED = "Zeiler et al. 2010"

ROWS_OF_LAYERS = [
    Row(
        "Linear", lambda rng: Linear(4, 3, rng=rng), normal((2, 4)), peers.dense, "flax.linen.Dense", parameters=W_AND_B
    ),
    Row(
        "Linear",
        lambda rng: Linear(4, 3, rng=rng, bias=False),
        normal((4,)),
        peers.dense,
        "flax.linen.Dense",
        case="no bias",
    ),
    Row(
        "Bilinear",
        lambda rng: Bilinear(4, 3, 5, rng=rng),
        normal((2, 4), (2, 3)),
        lambda part, x, y: np.einsum("...i,...j,ijk->...k", x, y, part.w) + part.b,
        "NumPy",
        paper="Tenenbaum and Freeman 2000",
        parameters=W_AND_B,
    ),
    Row(
        "Conv1D",
        lambda rng: Conv1D(4, 3, 3, rng=rng),
        LINES,
        peers.conv(),
        "flax.linen.Conv",
        paper=LECUN,
        parameters=W_AND_B,
    ),
    Row(
        "Conv1D",
        lambda rng: Conv1D(4, 6, 3, rng=rng, dilation=2, groups=2, padding=[(4, 0)]),
        LINES,
        peers.conv(kernel_dilation=2, feature_group_count=2, padding="CAUSAL"),
        "flax.linen.Conv",
        case="causal, dilation, groups",
    ),
    Row(
        "Conv2D",
        lambda rng: Conv2D(4, 3, (3, 2), rng=rng, stride=2),
        IMAGES,
        peers.conv(strides=2),
        "flax.linen.Conv",
        paper=LECUN,
        parameters=W_AND_B,
    ),
    Row(
        "Conv2D",
        lambda rng: Conv2D(4, 6, 3, rng=rng, groups=2, padding="VALID", bias=False),
        IMAGES,
        peers.conv(feature_group_count=2, padding="VALID"),
        "flax.linen.Conv",
        case="groups, VALID",
    ),
    Row(
        "Conv2D",
        lambda rng: Conv2D(4, 6, 3, rng=rng, dilation=2, groups=2, padding=[(1, 2), 3]),
        IMAGES,
        peers.conv(feature_group_count=2, kernel_dilation=2, padding=((1, 2), (3, 3))),
        "flax.linen.Conv",
        case="dilation, groups, explicit padding",
    ),
    Row(
        "Conv2D",
        lambda rng: Conv2D(4, 3, 3, rng=rng, dilation=(2, 1), stride=(1, 2)),
        IMAGES,
        peers.conv(kernel_dilation=(2, 1), strides=(1, 2)),
        "flax.linen.Conv",
        case="stride and dilation",
    ),
    Row(
        "Conv3D",
        lambda rng: Conv3D(2, 3, (3, 2, 3), rng=rng),
        VOLUMES,
        peers.conv(),
        "flax.linen.Conv",
        paper=LECUN,
        parameters=W_AND_B,
    ),
    Row(
        "Conv3D",
        lambda rng: Conv3D(2, 4, 2, rng=rng, groups=2, dilation=(1, 2, 1), stride=(2, 1, 1)),
        VOLUMES,
        peers.conv(feature_group_count=2, kernel_dilation=(1, 2, 1), strides=(2, 1, 1)),
        "flax.linen.Conv",
        case="groups, stride and dilation",
    ),
    Row(
        "ConvTranspose1D",
        lambda rng: ConvTranspose1D(4, 3, 5, rng=rng, stride=2),
        LINES,
        peers.conv_transpose(strides=(2,)),
        "flax.linen.ConvTranspose",
        paper=TRANSPOSED,
        parameters=W_AND_B,
    ),
    Row(
        "ConvTranspose1D",
        lambda rng: ConvTranspose1D(4, 6, 3, rng=rng, stride=2, dilation=2, groups=2, padding=[(1, 3)]),
        LINES,
        peers.conv_transpose_by_lax([2], [(1, 3)], 2, 2),
        "jax.lax.conv_general_dilated",
        case="dilation, groups, explicit padding",
    ),
    Row(
        "ConvTranspose2D",
        lambda rng: ConvTranspose2D(4, 3, 4, rng=rng, stride=2),
        IMAGES,
        peers.conv_transpose(strides=(2, 2)),
        "flax.linen.ConvTranspose",
        paper=TRANSPOSED,
        parameters=W_AND_B,
    ),
    Row(
        "ConvTranspose2D",
        lambda rng: ConvTranspose2D(4, 3, 2, rng=rng, stride=3, padding="VALID"),
        IMAGES,
        peers.conv_transpose(strides=(3, 3), padding="VALID"),
        "flax.linen.ConvTranspose",
        case="VALID, stride beyond the kernel",
    ),
    Row(
        "ConvTranspose2D",
        lambda rng: ConvTranspose2D(4, 3, (3, 2), rng=rng, stride=(1, 2), dilation=2),
        IMAGES,
        peers.conv_transpose(strides=(1, 2), kernel_dilation=(2, 2)),
        "flax.linen.ConvTranspose",
        case="SAME, dilation",
    ),
    Row(
        "ConvTranspose2D",
        lambda rng: ConvTranspose2D(4, 6, 3, rng=rng, stride=2, dilation=2, groups=2, padding=[1, (0, 2)]),
        IMAGES,
        peers.conv_transpose_by_lax([2, 2], [(1, 1), (0, 2)], 2, 2),
        "jax.lax.conv_general_dilated",
        case="dilation, groups, explicit padding",
    ),
    Row(
        "ConvTranspose3D",
        lambda rng: ConvTranspose3D(2, 3, 3, rng=rng, stride=2),
        normal((2, 3, 2, 2)),
        peers.conv_transpose(strides=(2, 2, 2)),
        "flax.linen.ConvTranspose",
        paper=TRANSPOSED,
        parameters=W_AND_B,
    ),
    Row(
        "DepthwiseConv2D",
        lambda rng: DepthwiseConv2D(4, 3, rng=rng, multiplier=2),
        IMAGES,
        peers.conv(feature_group_count=4),
        "flax.linen.Conv",
        paper="Sifre 2014",
        parameters=W_AND_B,
    ),
    Row(
        "DepthwiseConv2D",
        lambda rng: DepthwiseConv2D(4, 3, rng=rng, stride=(1, 2), padding=2),
        IMAGES,
        peers.conv(feature_group_count=4, strides=(1, 2), padding=2),
        "flax.linen.Conv",
        case="two strides, explicit padding",
    ),
    Row(
        "DepthwiseConv2D",
        lambda rng: DepthwiseConv2D(4, 3, rng=rng, stride=2, dilation=2),
        IMAGES,
        peers.conv(feature_group_count=4, strides=2, kernel_dilation=2),
        "flax.linen.Conv",
        case="stride and dilation",
    ),
    Row(
        "SeparableConv2D",
        lambda rng: SeparableConv2D(4, 3, 3, rng=rng, multiplier=2),
        IMAGES,
        peers.separable,
        "flax.linen.Conv",
        paper="Chollet 2017",
        parameters=("depthwise/w", "pointwise/b", "pointwise/w"),
    ),
    Row(
        "Embedding",
        lambda rng: Embedding(7, 3, rng=rng),
        ids,
        peers.embed,
        "flax.linen.Embed",
        paper="Press and Wolf 2017",
        call=embed_and_score,
        parameters=("w",),
    ),
    Row(
        "LearnedPositions",
        lambda rng: LearnedPositions(9, 3, rng=rng),
        normal((4, 3)),
        lambda part, x: x + part.w[2:6],
        "NumPy",
        paper="Gehring et al. 2017",
        call=lambda part, x: part(x, 2),
        parameters=("w",),
    ),
    Row(
        "LayerNorm",
        lambda rng: LayerNorm(5),
        normal((3, 5)),
        peers.layer_norm,
        "flax.linen.LayerNorm",
        paper="Ba et al. 2016",
        parameters=NORMED,
    ),
    Row(
        "RMSNorm",
        lambda rng: RMSNorm(5),
        normal((3, 5)),
        lambda part, x: peers.flax(nn.RMSNorm(epsilon=1e-6), {"scale": part.scale}, x),
        "flax.linen.RMSNorm",
        paper="Zhang and Sennrich 2019",
        parameters=("scale",),
    ),
    Row(
        "GroupNorm",
        lambda rng: GroupNorm(4, 2),
        IMAGES,
        peers.group_norm(2),
        "flax.linen.GroupNorm",
        paper="Wu and He 2018",
        parameters=NORMED,
    ),
    Row(
        "InstanceNorm",
        lambda rng: InstanceNorm(4),
        IMAGES,
        peers.instance_norm,
        "flax.linen.InstanceNorm",
        paper="Ulyanov et al. 2016",
        parameters=NORMED,
    ),
    Row(
        "BatchNorm",
        lambda rng: BatchNorm(4),
        IMAGES,
        peers.batch_norm(training=True),
        "flax.linen.BatchNorm",
        paper="Ioffe and Szegedy 2015",
        parameters=("moving_mean", "moving_variance", "moving_weight", "offset", "scale"),
    ),
    Row(
        "BatchNorm",
        lambda rng: BatchNorm(4, sync=True),
        IMAGES,
        peers.batch_norm(training=True),
        "flax.linen.BatchNorm",
        case="sync",
    ),
    Row(
        "BatchNorm",
        lambda rng: BatchNorm(4),
        IMAGES,
        peers.batch_norm(training=False),
        "flax.linen.BatchNorm",
        case="evaluation",
        call=evaluate,
    ),
    Row(
        "WeightNorm",
        lambda rng: WeightNorm(Linear(4, 3, rng=rng)),
        normal((4,)),
        peers.weight_norm,
        "flax.linen.WeightNorm",
        paper="Salimans and Kingma 2016",
        parameters=("scale", "layer/b", "layer/w"),
    ),
    Row(
        "SpectralNorm",
        lambda rng: SpectralNorm(Linear(4, 3, rng=rng), rng=rng),
        normal((4,)),
        peers.spectral_norm,
        "NumPy",
        paper="Miyato et al. 2018",
        parameters=("vector", "layer/b", "layer/w"),
    ),
    Row(
        "Dropout",
        lambda rng: Dropout(0.3),
        normal((5, 3)),
        peers.dropped(lambda s: s),
        "NumPy",
        paper="Srivastava et al. 2014",
    ),
    Row(
        "SpatialDropout",
        lambda rng: SpatialDropout(0.5),
        IMAGES,
        peers.dropped(lambda s: (s[0], 1, 1, s[3])),
        "NumPy",
        paper="Tompson et al. 2015",
    ),
    Row(
        "StochasticDepth",
        lambda rng: StochasticDepth(0.5),
        IMAGES,
        peers.dropped(lambda s: (s[0], 1, 1, 1)),
        "NumPy",
        paper="Huang et al. 2016",
    ),
    Row(
        "MultiHeadAttention",
        lambda rng: MultiHeadAttention(6, 2, rng=rng, causal=True),
        normal((5, 6)),
        peers.attention,
        "flax.linen.MultiHeadDotProductAttention",
        paper="Vaswani et al. 2017",
        parameters=tuple(f"{name}/{v}" for name in ("key", "out", "query", "value") for v in W_AND_B),
    ),
    Row(
        "MultiHeadAttention",
        lambda rng: MultiHeadAttention(6, 2, rng=rng),
        with_mask,
        lambda part, x, mask: peers.attention(part, x, mask=mask),
        "flax.linen.MultiHeadDotProductAttention",
        case="mask",
        call=lambda part, x, mask: part(x, mask=mask),
    ),
    Row(
        "MultiHeadAttention",
        lambda rng: MultiHeadAttention(6, 3, rng=rng, context_size=5),
        normal((4, 6), (3, 5)),
        peers.attention,
        "flax.linen.MultiHeadDotProductAttention",
        case="context",
        call=lambda part, x, context: part(x, context=context),
    ),
    Row(
        "MultiHeadAttention",
        lambda rng: MultiHeadAttention(8, 4, rng=rng, num_kv_heads=2, causal=True, rotary_base=100.0, head_size=4),
        normal((5, 8)),
        peers.grouped_attention,
        "jax.nn.dot_product_attention",
        case="grouped, rotary",
    ),
    Row(
        "MultiHeadAttention",
        lambda rng: MultiHeadAttention(8, 4, rng=rng, num_kv_heads=2, causal=True, chunk_size=2),
        normal((5, 8)),
        peers.grouped_attention,
        "jax.nn.dot_product_attention",
        case="grouped, in chunks",
    ),
    Row(
        "attend",
        lambda rng: layers.attend,
        heads,
        lambda part, q, k, v: jax.nn.dot_product_attention(q, k, v[..., :3]),
        "jax.nn.dot_product_attention",
        paper="Vaswani et al. 2017",
        call=lambda part, q, k, v: part(q, k, v[..., :3], chunk_size=3),
    ),
    Row(
        "rotary",
        lambda rng: layers.rotary,
        normal((4, 2, 6)),
        lambda part, x: peers.rotated(x, range(3, 7)),
        "NumPy",
        paper="Su et al. 2021",
        call=lambda part, x: part(x, tf.range(3, 7)),
    ),
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
        )
        for core, peer, paper, parameters in (
            (VanillaRNN, "SimpleCell", "Elman 1990", ("b", "u", "w")),
            (LSTM, "OptimizedLSTMCell", "Hochreiter and Schmidhuber 1997", ("b", "u", "w")),
            (GRU, "GRUCell", "Cho et al. 2014", ("b", "b_new", "u", "w")),
        )
    ),
    Row(
        "unroll",
        lambda rng: GRU(3, 4, rng=rng),
        with_lengths,
        peers.ragged_gru,
        "flax.linen.RNN",
        case="lengths",
        call=lambda part, x, lengths: layers.unroll(part, x, lengths=lengths),
        parameters=("b", "b_new", "u", "w"),
    ),
    Row(
        "MaxPool",
        lambda rng: MaxPool(3, stride=2, padding="SAME"),
        IMAGES,
        peers.pool("max_pool", window_shape=(3, 3), strides=(2, 2), padding="SAME"),
        "flax.linen.max_pool",
        paper="Riesenhuber and Poggio 1999",
    ),
    Row(
        "MaxPool",
        lambda rng: MaxPool((2, 3, 2), padding=1),
        VOLUMES,
        peers.pool("max_pool", window_shape=(2, 3, 2), strides=(2, 3, 2), padding=((1, 1),) * 3),
        "flax.linen.max_pool",
        case="volumes, explicit padding",
    ),
    Row(
        "MaxPool",
        lambda rng: MaxPool(2),
        LINES,
        peers.pool("max_pool", window_shape=(2,), strides=(2,)),
        "flax.linen.max_pool",
        case="lines",
    ),
    Row(
        "AveragePool",
        lambda rng: AveragePool(3, stride=2, padding="SAME"),
        IMAGES,
        peers.pool("avg_pool", window_shape=(3, 3), strides=(2, 2), padding="SAME", count_include_pad=False),
        "flax.linen.avg_pool",
        paper="LeCun et al. 1998",
    ),
    Row(
        "AveragePool",
        lambda rng: AveragePool((2, 3, 2), stride=1, padding=[1, (0, 2), 0]),
        VOLUMES,
        peers.pool(
            "avg_pool",
            window_shape=(2, 3, 2),
            strides=(1, 1, 1),
            padding=((1, 1), (0, 2), (0, 0)),
            count_include_pad=False,
        ),
        "flax.linen.avg_pool",
        case="volumes, explicit padding",
    ),
    Row(
        "global_average_pool",
        lambda rng: layers.global_average_pool,
        IMAGES,
        lambda part, x: x.mean((1, 2)),
        "NumPy",
        paper="Lin et al. 2014",
    ),
    Row("global_max_pool", lambda rng: layers.global_max_pool, IMAGES, lambda part, x: x.max((1, 2)), "NumPy"),
    Row(
        "Pad",
        lambda rng: Pad([(2, 1), (0, 3)]),
        IMAGES,
        lambda part, x: np.pad(x, [(0, 0), (2, 1), (0, 3), (0, 0)], "reflect"),
        "NumPy",
    ),
    Row(
        "Pad",
        lambda rng: Pad(2, mode="CONSTANT"),
        IMAGES,
        lambda part, x: np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)]),
        "NumPy",
        case="zeros",
    ),
    Row(
        "PixelShuffle",
        lambda rng: PixelShuffle(2),
        normal((2, 3, 8)),
        peers.pixel_shuffle,
        "NumPy",
        paper="Shi et al. 2016",
    ),
    Row(
        "Resize",
        lambda rng: Resize(size=(9, 5)),
        IMAGES,
        peers.resized(9, 5, "bilinear"),
        "jax.image.resize",
        step=1e-2,
        precision=2e-3,
    ),
    Row(
        "Resize",
        lambda rng: Resize(scale=(2, 3), method="nearest"),
        IMAGES,
        peers.resized(12, 21, "nearest"),
        "jax.image.resize",
        case="nearest, scale",
    ),
    Row(
        "Resize",
        lambda rng: Resize(size=(9, 5), method="nearest"),
        IMAGES,
        peers.resized(9, 5, "nearest"),
        "jax.image.resize",
        case="nearest, size",
    ),
    Row(
        "Sequential",
        lambda rng: Sequential(
            [Linear(4, 5, rng=rng.fold(0)), tf.nn.tanh, LayerNorm(5), Linear(5, 2, rng=rng.fold(1))]
        ),
        normal((4,)),
        lambda part, x: peers.dense(
            part.layers[3], peers.layer_norm(part.layers[2], np.tanh(peers.dense(part.layers[0], x)))
        ),
        "flax.linen",
        parameters=("layers/0/b", "layers/0/w", "layers/2/offset", "layers/2/scale", "layers/3/b", "layers/3/w"),
    ),
    Row(
        "Residual",
        lambda rng: Residual(Linear(4, 3, rng=rng.fold(0)), Linear(4, 3, rng=rng.fold(1), bias=False)),
        normal((4,)),
        lambda part, x: peers.dense(part.layer, x) + peers.dense(part.shortcut, x),
        "flax.linen",
        paper="He et al. 2016",
        parameters=("layer/b", "layer/w", "shortcut/w"),
    ),
    Row(
        "recompute",
        lambda rng: layers.recompute(Sequential([Linear(4, 3, rng=rng), tf.nn.tanh, Dropout(0.3)])),
        normal((4,)),
        lambda part, x: train(part.layer, tf.constant(x)),
        "the same layer without it",
        paper="Chen et al. 2016",
        parameters=("layer/layers/0/b", "layer/layers/0/w"),
    ),
    Row("flatten", lambda rng: layers.flatten, IMAGES, lambda part, x: x.reshape(len(x), -1), "NumPy"),
]
