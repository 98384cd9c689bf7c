"""Rows of norms."""

import flax.linen as nn

from core.layers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Linear, RMSNorm, SpectralNorm, WeightNorm

from . import layer_peers as peers
from .battery import IMAGES, Row, evaluate, normal

NORMED = ("offset", "scale")

ROWS_OF_NORMS = [
    Row("LayerNorm", lambda rng: LayerNorm(5), normal((3, 5)), peers.layer_norm, "flax.linen.LayerNorm",
        paper="Ba et al. 2016", parameters=NORMED),
    Row("LayerNorm", lambda rng: LayerNorm(5, offset=False), normal((3, 5)),
        lambda part, x: peers.flax(peers.flax_layer_norm(use_bias=False), {"scale": part.scale}, x),
        "flax.linen.LayerNorm", case="without offset", parameters=("scale",)),
    Row("LayerNorm", lambda rng: LayerNorm(5, scale=False), normal((3, 5)),
        lambda part, x: peers.flax(peers.flax_layer_norm(use_scale=False), {"bias": part.offset}, x),
        "flax.linen.LayerNorm", case="without scale", parameters=("offset",)),
    Row("RMSNorm", lambda rng: RMSNorm(5), normal((3, 5)),
        lambda part, x: peers.flax(nn.RMSNorm(epsilon=1e-6), {"scale": part.scale}, x), "flax.linen.RMSNorm",
        paper="Zhang and Sennrich 2019", parameters=("scale",)),
    Row("RMSNorm", lambda rng: RMSNorm(5, scale=False), normal((3, 5)),
        lambda part, x: peers.flax(nn.RMSNorm(epsilon=1e-6, use_scale=False), {}, x), "flax.linen.RMSNorm",
        case="without scale"),
    Row("GroupNorm", lambda rng: GroupNorm(4, 2), IMAGES, peers.group_norm(2), "flax.linen.GroupNorm",
        paper="Wu and He 2018", parameters=NORMED),
    Row("InstanceNorm", lambda rng: InstanceNorm(4), IMAGES, peers.instance_norm, "flax.linen.InstanceNorm",
        paper="Ulyanov et al. 2016", parameters=NORMED),
    Row("BatchNorm", lambda rng: BatchNorm(4), IMAGES, peers.batch_norm(training=True), "flax.linen.BatchNorm",
        paper="Ioffe and Szegedy 2015",
        parameters=("moving_mean", "moving_variance", "moving_weight", "offset", "scale")),
    Row("BatchNorm", lambda rng: BatchNorm(4, sync=True), IMAGES, peers.batch_norm(training=True),
        "flax.linen.BatchNorm", case="sync"),
    Row("BatchNorm", lambda rng: BatchNorm(4), IMAGES, peers.batch_norm(training=False), "flax.linen.BatchNorm",
        case="evaluation", call=evaluate),
    Row("WeightNorm", lambda rng: WeightNorm(Linear(4, 3, rng=rng)), normal((4,)), peers.weight_norm,
        "flax.linen.WeightNorm", paper="Salimans and Kingma 2016", parameters=("scale", "layer/b", "layer/w"),
        roundings=3),
    Row("SpectralNorm", lambda rng: SpectralNorm(Linear(4, 3, rng=rng), rng=rng), normal((4,)), peers.spectral_norm,
        "NumPy", paper="Miyato et al. 2018", parameters=("vector", "layer/b", "layer/w"), roundings=3),
]  # fmt: skip
