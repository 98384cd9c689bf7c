"""Layers with explicit sizes. `__init__` makes their variables. Activations come from `tf.nn`, except `gelu`."""

from core.layers.attend import attend
from core.layers.attention import MultiHeadAttention
from core.layers.batch_norm import BatchNorm
from core.layers.containers import Residual, Sequential, flatten
from core.layers.conv import Conv1D, Conv2D, Conv3D
from core.layers.conv_transpose import ConvTranspose1D, ConvTranspose2D, ConvTranspose3D
from core.layers.depthwise import DepthwiseConv2D, SeparableConv2D
from core.layers.dropout import Dropout, SpatialDropout, StochasticDepth
from core.layers.embedding import Embedding, LearnedPositions
from core.layers.gelu import gelu
from core.layers.linear import Bilinear, Linear
from core.layers.norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from core.layers.pooling import AveragePool, MaxPool, global_average_pool, global_max_pool
from core.layers.recompute import recompute
from core.layers.recurrent import GRU, LSTM, VanillaRNN, unroll
from core.layers.rotary import RotaryScaling, rotary
from core.layers.spatial import Pad, PixelShuffle, Resize
from core.layers.weight_norm import SpectralNorm, WeightNorm

__all__ = [
    "GRU",
    "LSTM",
    "AveragePool",
    "BatchNorm",
    "Bilinear",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "ConvTranspose1D",
    "ConvTranspose2D",
    "ConvTranspose3D",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "MaxPool",
    "MultiHeadAttention",
    "Pad",
    "PixelShuffle",
    "RMSNorm",
    "Residual",
    "Resize",
    "RotaryScaling",
    "SeparableConv2D",
    "Sequential",
    "SpatialDropout",
    "SpectralNorm",
    "StochasticDepth",
    "VanillaRNN",
    "WeightNorm",
    "attend",
    "flatten",
    "gelu",
    "global_average_pool",
    "global_max_pool",
    "recompute",
    "rotary",
    "unroll",
]
