"""Rows of linear maps and convolutions."""

import numpy as np

from core.layers import (
    Bilinear,
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose1D,
    ConvTranspose2D,
    ConvTranspose3D,
    DepthwiseConv2D,
    Linear,
    SeparableConv2D,
)

from . import layer_peers as peers
from .battery import IMAGES, LARGER_IMAGES, LINES, VOLUMES, Row, normal

W_AND_B = ("b", "w")
LECUN = "LeCun et al. 1989"
TRANSPOSED = "Zeiler et al. 2010"

ROWS_OF_LINEAR_LAYERS = [
    Row(
        "Linear", lambda rng: Linear(4, 3, rng=rng), normal((2, 4)), peers.dense, "flax.linen.Dense", parameters=W_AND_B
    ),
    Row("Linear", lambda rng: Linear(4, 3, rng=rng, bias=False), normal((4,)), peers.dense, "flax.linen.Dense",
        case="no bias"),
    Row("Bilinear", lambda rng: Bilinear(4, 3, 5, rng=rng), normal((2, 4), (2, 3)),
        lambda part, x, y: np.einsum("...i,...j,ijk->...k", x, y, part.w) + part.b, "NumPy",
        paper="Tenenbaum and Freeman 2000", parameters=W_AND_B, roundings=3),
    Row("Conv1D", lambda rng: Conv1D(4, 3, 3, rng=rng), LINES, peers.conv(), "flax.linen.Conv", paper=LECUN,
        parameters=W_AND_B),
    Row("Conv1D", lambda rng: Conv1D(4, 6, 3, rng=rng, dilation=2, groups=2, padding=[(4, 0)]), LINES,
        peers.conv(kernel_dilation=2, feature_group_count=2, padding="CAUSAL"), "flax.linen.Conv",
        case="causal, dilation, groups"),
    Row("Conv2D", lambda rng: Conv2D(4, 3, (3, 2), rng=rng, stride=2), IMAGES, peers.conv(strides=2), "flax.linen.Conv",
        paper=LECUN, parameters=W_AND_B),
    *(
        Row(
            "Conv2D",
            lambda rng, outputs=outputs: Conv2D(4, outputs, (4, 3), rng=rng),
            LARGER_IMAGES,
            peers.conv(),
            "flax.linen.Conv",
            case=f"larger images, {outputs} outputs",
        )
        for outputs in (3, 5)
    ),
    Row("Conv2D", lambda rng: Conv2D(4, 6, 3, rng=rng, groups=2, padding="VALID", bias=False), IMAGES,
        peers.conv(feature_group_count=2, padding="VALID"), "flax.linen.Conv", case="groups, VALID"),
    Row("Conv2D", lambda rng: Conv2D(4, 6, 3, rng=rng, dilation=2, groups=2, padding=[(1, 2), 3]), IMAGES,
        peers.conv(feature_group_count=2, kernel_dilation=2, padding=((1, 2), (3, 3))), "flax.linen.Conv",
        case="dilation, groups, explicit padding"),
    Row("Conv2D", lambda rng: Conv2D(4, 3, 3, rng=rng, dilation=(2, 1), stride=(1, 2)), IMAGES,
        peers.conv(kernel_dilation=(2, 1), strides=(1, 2)), "flax.linen.Conv", case="stride and dilation"),
    Row("Conv3D", lambda rng: Conv3D(2, 3, (3, 2, 3), rng=rng), VOLUMES, peers.conv(), "flax.linen.Conv", paper=LECUN,
        parameters=W_AND_B),
    Row("Conv3D", lambda rng: Conv3D(2, 4, 2, rng=rng, groups=2, dilation=(1, 2, 1), stride=(2, 1, 1)), VOLUMES,
        peers.conv(feature_group_count=2, kernel_dilation=(1, 2, 1), strides=(2, 1, 1)), "flax.linen.Conv",
        case="groups, stride and dilation"),
    Row("ConvTranspose1D", lambda rng: ConvTranspose1D(4, 3, 5, rng=rng, stride=2), LINES,
        peers.conv_transpose(strides=(2,)), "flax.linen.ConvTranspose", paper=TRANSPOSED, parameters=W_AND_B),
    Row("ConvTranspose1D",
        lambda rng: ConvTranspose1D(4, 6, 3, rng=rng, stride=2, dilation=2, groups=2, padding=[(1, 3)]), LINES,
        peers.conv_transpose_by_lax([2], [(1, 3)], 2, 2), "jax.lax.conv_general_dilated",
        case="dilation, groups, explicit padding"),
    Row("ConvTranspose2D", lambda rng: ConvTranspose2D(4, 3, 4, rng=rng, stride=2), IMAGES,
        peers.conv_transpose(strides=(2, 2)), "flax.linen.ConvTranspose", paper=TRANSPOSED, parameters=W_AND_B),
    Row("ConvTranspose2D", lambda rng: ConvTranspose2D(4, 3, 2, rng=rng, stride=3, padding="VALID"), IMAGES,
        peers.conv_transpose(strides=(3, 3), padding="VALID"), "flax.linen.ConvTranspose",
        case="VALID, stride beyond the kernel"),
    Row("ConvTranspose2D", lambda rng: ConvTranspose2D(4, 3, (3, 2), rng=rng, stride=(1, 2), dilation=2), IMAGES,
        peers.conv_transpose(strides=(1, 2), kernel_dilation=(2, 2)), "flax.linen.ConvTranspose",
        case="SAME, dilation"),
    Row("ConvTranspose2D",
        lambda rng: ConvTranspose2D(4, 6, 3, rng=rng, stride=2, dilation=2, groups=2, padding=[1, (0, 2)]), IMAGES,
        peers.conv_transpose_by_lax([2, 2], [(1, 1), (0, 2)], 2, 2), "jax.lax.conv_general_dilated",
        case="dilation, groups, explicit padding"),
    Row("ConvTranspose3D", lambda rng: ConvTranspose3D(2, 3, 3, rng=rng, stride=2), normal((2, 3, 2, 2)),
        peers.conv_transpose(strides=(2, 2, 2)), "flax.linen.ConvTranspose", paper=TRANSPOSED, parameters=W_AND_B),
    Row("DepthwiseConv2D", lambda rng: DepthwiseConv2D(4, 3, rng=rng, multiplier=2), IMAGES,
        peers.conv(feature_group_count=4), "flax.linen.Conv", paper="Sifre 2014", parameters=W_AND_B),
    Row("DepthwiseConv2D", lambda rng: DepthwiseConv2D(4, 3, rng=rng, stride=(1, 2), padding=2), IMAGES,
        peers.conv(feature_group_count=4, strides=(1, 2), padding=2), "flax.linen.Conv",
        case="two strides, explicit padding"),
    Row("DepthwiseConv2D", lambda rng: DepthwiseConv2D(4, 3, rng=rng, stride=2, dilation=2), IMAGES,
        peers.conv(feature_group_count=4, strides=2, kernel_dilation=2), "flax.linen.Conv", case="stride and dilation"),
    Row("SeparableConv2D", lambda rng: SeparableConv2D(4, 3, 3, rng=rng, multiplier=2), IMAGES, peers.separable,
        "flax.linen.Conv", paper="Chollet 2017", parameters=("depthwise/w", "pointwise/b", "pointwise/w"),
        roundings=3),
]  # fmt: skip
