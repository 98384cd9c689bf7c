"""Inception V3 (Szegedy et al., 2016) as FID uses it: the network of TensorFlow's file of 2015, in `pytorch-fid`.

It differs from torchvision's network: averages don't count padding, and the last block takes a maximum.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, Union

import numpy.typing as npt
import tensorflow as tf

from core import initializers, layers
from core.data.files import path_of
from core.errors import CheckpointError
from core.module import Module
from core.random import Rng
from core.weights import open_state_dict
from models.classifiers.state_dicts import Layout, arrays, assign_all, batch_norm
from models.features.images import in_colour, resized

SIZE, FEATURES, CLASSES = 299, 2048, 1008
EPSILON = 1e-3
_ADVICE = "give `pt_inception-2015-12-05-6726825d.pth`, which `pytorch-fid` downloads"


class Conv(NamedTuple):
    """A convolution, a batch norm and a ReLU. `name` is torchvision's, without the block's."""

    name: str
    channels: int
    size: int | tuple[int, int]
    stride: int = 1
    padding: str = "SAME"


class Pool(NamedTuple):
    """A 3×3 pooling, of layers' class `kind`."""

    kind: type[layers.MaxPool] | type[layers.AveragePool]
    stride: int = 1

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.kind(3, stride=self.stride, padding="SAME" if self.stride == 1 else "VALID")(x)


Chain: TypeAlias = Sequence[Union[Conv, Pool, "Fork"]]  # parts, one after another


class Fork(NamedTuple):
    """Chains side by side, whose outputs are concatenated along channels. `name` prefixes the names of their parts."""

    chains: Sequence[Chain]
    name: str = ""


AVERAGE, MAX = Pool(layers.AveragePool), Pool(layers.MaxPool)
HALVE = Pool(layers.MaxPool, stride=2)


def _a(name: str, pooled: int) -> Fork:
    return Fork(
        [
            [Conv("branch1x1", 64, 1)],
            [Conv("branch5x5_1", 48, 1), Conv("branch5x5_2", 64, 5)],
            [Conv("branch3x3dbl_1", 64, 1), Conv("branch3x3dbl_2", 96, 3), Conv("branch3x3dbl_3", 96, 3)],
            [AVERAGE, Conv("branch_pool", pooled, 1)],
        ],
        name,
    )


def _b(name: str) -> Fork:
    double = [Conv("branch3x3dbl_1", 64, 1), Conv("branch3x3dbl_2", 96, 3), Conv("branch3x3dbl_3", 96, 3, 2, "VALID")]
    return Fork([[Conv("branch3x3", 384, 3, 2, "VALID")], double, [HALVE]], name)


def _c(name: str, size: int) -> Fork:
    double = [
        Conv("branch7x7dbl_1", size, 1),
        Conv("branch7x7dbl_2", size, (7, 1)),
        Conv("branch7x7dbl_3", size, (1, 7)),
        Conv("branch7x7dbl_4", size, (7, 1)),
        Conv("branch7x7dbl_5", 192, (1, 7)),
    ]
    return Fork(
        [
            [Conv("branch1x1", 192, 1)],
            [Conv("branch7x7_1", size, 1), Conv("branch7x7_2", size, (1, 7)), Conv("branch7x7_3", 192, (7, 1))],
            double,
            [AVERAGE, Conv("branch_pool", 192, 1)],
        ],
        name,
    )


def _d(name: str) -> Fork:
    wide = [Conv("branch7x7x3_1", 192, 1), Conv("branch7x7x3_2", 192, (1, 7)), Conv("branch7x7x3_3", 192, (7, 1))]
    return Fork(
        [
            [Conv("branch3x3_1", 192, 1), Conv("branch3x3_2", 320, 3, 2, "VALID")],
            [*wide, Conv("branch7x7x3_4", 192, 3, 2, "VALID")],
            [HALVE],
        ],
        name,
    )


def _e(name: str, pool: Pool) -> Fork:
    def cross(a: str, b: str) -> Fork:
        return Fork([[Conv(a, 384, (1, 3))], [Conv(b, 384, (3, 1))]])

    return Fork(
        [
            [Conv("branch1x1", 320, 1)],
            [Conv("branch3x3_1", 384, 1), cross("branch3x3_2a", "branch3x3_2b")],
            [
                Conv("branch3x3dbl_1", 448, 1),
                Conv("branch3x3dbl_2", 384, 3),
                cross("branch3x3dbl_3a", "branch3x3dbl_3b"),
            ],
            [pool, Conv("branch_pool", 192, 1)],
        ],
        name,
    )


NETWORK: Chain = [
    Conv("Conv2d_1a_3x3", 32, 3, 2, "VALID"),
    Conv("Conv2d_2a_3x3", 32, 3, 1, "VALID"),
    Conv("Conv2d_2b_3x3", 64, 3),
    HALVE,
    Conv("Conv2d_3b_1x1", 80, 1),
    Conv("Conv2d_4a_3x3", 192, 3, 1, "VALID"),
    HALVE,
    _a("Mixed_5b", 32),
    _a("Mixed_5c", 64),
    _a("Mixed_5d", 64),
    _b("Mixed_6a"),
    _c("Mixed_6b", 128),
    _c("Mixed_6c", 160),
    _c("Mixed_6d", 160),
    _c("Mixed_6e", 192),
    _d("Mixed_7a"),
    _e("Mixed_7b", AVERAGE),
    _e("Mixed_7c", MAX),
]


class Unit(Module):
    """Computes a `Conv` of a chain."""

    def __init__(self, in_channels: int, conv: Conv):
        super().__init__()
        self.conv = layers.Conv2D(
            in_channels,
            conv.channels,
            conv.size,
            stride=conv.stride,
            padding=conv.padding,
            bias=False,
            w_init=initializers.zeros(),
            rng=Rng.from_seed(0),
        )
        self.norm = layers.BatchNorm(conv.channels, epsilon=EPSILON)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(self.norm(self.conv(x)))


class Inception(Module):
    """Maps images [rows, height, width, 1 or 3] in [0, 1] to features [rows, 2048]. Images of any size are resized.

    Its variables are zero: `load_inception` makes a network with weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.units: dict[str, Unit] = {}  # by torchvision's names
        self._make(NETWORK, 3, "")

    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        x = 2.0 * resized(in_colour(image), (SIZE, SIZE)) - 1.0
        return layers.global_average_pool(self._computed(NETWORK, x, ""))

    def _make(self, chain: Chain, channels: int, prefix: str) -> int:
        """Makes the units of `chain`, and returns the number of channels after it."""
        for part in chain:
            if isinstance(part, Conv):
                self.units[prefix + part.name] = Unit(channels, part)
                channels = part.channels
            elif isinstance(part, Fork):
                channels = sum(self._make(inner, channels, _within(prefix, part)) for inner in part.chains)
        return channels

    def _computed(self, chain: Chain, x: tf.Tensor, prefix: str) -> tf.Tensor:
        for part in chain:
            if isinstance(part, Conv):
                x = self.units[prefix + part.name](x)
            elif isinstance(part, Fork):
                x = tf.concat([self._computed(inner, x, _within(prefix, part)) for inner in part.chains], axis=-1)
            else:
                x = part(x)
        return x


def _within(prefix: str, fork: Fork) -> str:
    return f"{prefix}{fork.name}/" if fork.name else prefix


def layout_of(net: Inception) -> Layout:
    """Returns the names of the arrays in `pytorch-fid`'s file, whose logits features don't need."""
    names: dict[str, tuple[str, ...]] = {}
    for name in net.units:
        names[f"{name}/conv/weight"] = (f"units/{name}/conv/w",)
        names |= batch_norm(f"{name}/bn", f"units/{name}/norm")
    return Layout(names, ignored=r"fc/(weight|bias)|.*/num_batches_tracked")


def inception_arrays(net: Inception) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` under their names in `pytorch-fid`'s file, for `safetensors.numpy.save_file`."""
    return arrays(net, layout_of(net), "pytorch-fid")


def load_inception(path: str) -> Inception:
    """Returns the network with the weights of `pt_inception-2015-12-05-6726825d.pth`, which `pytorch-fid` downloads.

    `path` may also be a `.safetensors` file of the same tensors. A file of another network raises an error that lists
    its tensors.
    """
    net, tensors = Inception(), open_state_dict(path_of(path))
    logits = tensors.types.get("fc/weight")
    if logits and logits.shape != (CLASSES, FEATURES):
        raise CheckpointError(
            f"{tensors.place} has `fc.weight` of shape {list(logits.shape)}, but FID's network has {CLASSES} classes. "
            f"Distances by another network aren't comparable: {_ADVICE}."
        )
    assign_all(net, tensors, layout_of(net), _ADVICE)
    return net
