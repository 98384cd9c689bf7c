"""Rows of dropout, GELU, space and containers; the other files hold the other layers."""

import flax.linen as nn
import numpy as np
import tensorflow as tf

from core import layers
from core.layers import (
    AveragePool,
    Dropout,
    LayerNorm,
    Linear,
    MaxPool,
    Pad,
    PixelShuffle,
    Residual,
    Resize,
    Sequential,
    SpatialDropout,
    StochasticDepth,
)

from . import layer_peers as peers
from .battery import IMAGES, LINES, VOLUMES, Row, normal, train
from .layer_rows_linear import ROWS_OF_LINEAR_LAYERS
from .layer_rows_norm import ROWS_OF_NORMS
from .layer_rows_sequence import ROWS_OF_SEQUENCE_LAYERS

ROWS_OF_OTHER_LAYERS = [
    Row("Dropout", lambda rng: Dropout(0.3), normal((5, 3)), peers.dropped(lambda s: s), "NumPy",
        paper="Srivastava et al. 2014"),
    Row("SpatialDropout", lambda rng: SpatialDropout(0.5), IMAGES, peers.dropped(lambda s: (s[0], 1, 1, s[3])), "NumPy",
        paper="Tompson et al. 2015"),
    Row("StochasticDepth", lambda rng: StochasticDepth(0.5), IMAGES, peers.dropped(lambda s: (s[0], 1, 1, 1)), "NumPy",
        paper="Huang et al. 2016"),
    Row("MaxPool", lambda rng: MaxPool(3, stride=2, padding="SAME"), IMAGES,
        peers.pool("max_pool", window_shape=(3, 3), strides=(2, 2), padding="SAME"), "flax.linen.max_pool",
        paper="Riesenhuber and Poggio 1999"),
    Row("MaxPool", lambda rng: MaxPool((2, 3, 2), padding=1), VOLUMES,
        peers.pool("max_pool", window_shape=(2, 3, 2), strides=(2, 3, 2), padding=((1, 1),) * 3), "flax.linen.max_pool",
        case="volumes, explicit padding"),
    Row("MaxPool", lambda rng: MaxPool(2), LINES, peers.pool("max_pool", window_shape=(2,), strides=(2,)),
        "flax.linen.max_pool", case="lines"),
    Row("AveragePool", lambda rng: AveragePool(3, stride=2, padding="SAME"), IMAGES,
        peers.pool("avg_pool", window_shape=(3, 3), strides=(2, 2), padding="SAME", count_include_pad=False),
        "flax.linen.avg_pool", paper="LeCun et al. 1998"),
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
    Row("global_average_pool", lambda rng: layers.global_average_pool, IMAGES, lambda part, x: x.mean((1, 2)), "NumPy",
        paper="Lin et al. 2014"),
    Row("gelu", lambda rng: layers.gelu, normal((3, 5)), lambda part, x: nn.gelu(x, approximate=True),
        "flax.linen.gelu", paper="Hendrycks and Gimpel 2016"),
    Row("global_max_pool", lambda rng: layers.global_max_pool, IMAGES, lambda part, x: x.max((1, 2)), "NumPy"),
    Row("Pad", lambda rng: Pad([(2, 1), (0, 3)]), IMAGES,
        lambda part, x: np.pad(x, [(0, 0), (2, 1), (0, 3), (0, 0)], "reflect"), "NumPy"),
    Row("Pad", lambda rng: Pad(2, mode="CONSTANT"), IMAGES, lambda part, x: np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)]),
        "NumPy", case="zeros"),
    Row("PixelShuffle", lambda rng: PixelShuffle(2), normal((2, 3, 8)), peers.pixel_shuffle, "NumPy",
        paper="Shi et al. 2016"),
    Row("Resize", lambda rng: Resize(size=(9, 5)), IMAGES, peers.resized(9, 5, "bilinear"), "jax.image.resize",
        step=1e-2, precision=2e-3),
    Row("Resize", lambda rng: Resize(scale=(2, 3), method="nearest"), IMAGES, peers.resized(12, 21, "nearest"),
        "jax.image.resize", case="nearest, scale"),
    Row("Resize", lambda rng: Resize(size=(9, 5), method="nearest"), IMAGES, peers.resized(9, 5, "nearest"),
        "jax.image.resize", case="nearest, size"),
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
        roundings=6,
    ),
    Row("Residual", lambda rng: Residual(Linear(4, 3, rng=rng.fold(0)), Linear(4, 3, rng=rng.fold(1), bias=False)),
        normal((4,)), lambda part, x: peers.dense(part.layer, x) + peers.dense(part.shortcut, x), "flax.linen",
        paper="He et al. 2016", parameters=("layer/b", "layer/w", "shortcut/w")),
    Row("recompute", lambda rng: layers.recompute(Sequential([Linear(4, 3, rng=rng), tf.nn.tanh, Dropout(0.3)])),
        normal((4,)), lambda part, x: train(part.layer, tf.constant(x)), "the same layer without it",
        paper="Chen et al. 2016", parameters=("layer/layers/0/b", "layer/layers/0/w")),
    Row("flatten", lambda rng: layers.flatten, IMAGES, lambda part, x: x.reshape(len(x), -1), "NumPy"),
]  # fmt: skip

ROWS_OF_LAYERS = [*ROWS_OF_LINEAR_LAYERS, *ROWS_OF_SEQUENCE_LAYERS, *ROWS_OF_NORMS, *ROWS_OF_OTHER_LAYERS]
