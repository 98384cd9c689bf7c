"""LPIPS (Zhang et al., 2018): the perceptual distance of two images, as the package `lpips` computes it.

It is the distance of normalised activations of an ImageNet network, weighted per channel as people judged distances.
"""

from typing import Literal, NamedTuple

import tensorflow as tf

from core import initializers, layers
from core.arguments import check_choice
from core.data.files import path_of
from core.module import Module
from core.random import Rng
from core.weights import open_state_dict
from models.classifiers.state_dicts import Layout, assign_all, layer
from models.features.images import in_colour

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of ImageNet's channels, for images in [-1, 1]
EPSILON = 1e-10

Kind = Literal["alex", "vgg"]


class Conv(NamedTuple):
    """A convolution with a ReLU: its number in torchvision's `features`, and its sizes."""

    number: int
    channels: int
    size: int = 3
    stride: int = 1
    padding: int = 1


# A max pooling, of the window below, comes before each stage but the first. A stage's output is compared.
STAGES: dict[str, list[list[Conv]]] = {
    "alex": [[Conv(0, 64, 11, 4, 2)], [Conv(3, 192, 5, 1, 2)], [Conv(6, 384)], [Conv(8, 256)], [Conv(10, 256)]],
    "vgg": [
        [Conv(0, 64), Conv(2, 64)],
        [Conv(5, 128), Conv(7, 128)],
        [Conv(10, 256), Conv(12, 256), Conv(14, 256)],
        [Conv(17, 512), Conv(19, 512), Conv(21, 512)],
        [Conv(24, 512), Conv(26, 512), Conv(28, 512)],
    ],
}
WINDOWS = {"alex": [0, 3, 3, 0, 0], "vgg": [0, 2, 2, 2, 2]}  # of the pooling before each stage; 0 is none


class Stages(Module):
    """The convolutions of AlexNet or VGG-16, as `torchvision` has them. Returns the output of each stage."""

    def __init__(self, kind: Kind):
        super().__init__()
        self.kind = kind
        self.convs: dict[str, layers.Conv2D] = {}
        channels = 3
        for conv in (conv for stage in STAGES[kind] for conv in stage):
            self.convs[str(conv.number)] = layers.Conv2D(
                channels,
                conv.channels,
                conv.size,
                stride=conv.stride,
                padding=conv.padding,
                w_init=initializers.zeros(),
                rng=Rng.from_seed(0),
            )
            channels = conv.channels

    def __call__(self, x: tf.Tensor) -> list[tf.Tensor]:
        found = []
        for window, stage in zip(WINDOWS[self.kind], STAGES[self.kind], strict=True):
            if window:
                x = layers.MaxPool(window, stride=2)(x)
            for conv in stage:
                x = tf.nn.relu(self.convs[str(conv.number)](x))
            found.append(x)
        return found


class Heads(Module):
    """The weight of each channel of each stage."""

    def __init__(self, kind: Kind):
        super().__init__()
        self.weights = [tf.Variable(tf.zeros([stage[-1].channels]), name="weight") for stage in STAGES[kind]]


class Lpips(Module):
    """Returns the distance [rows] of images [rows, height, width, 1 or 3] in [-1, 1] from others of the same shape.

    Its variables are zero: `load_lpips` makes one with weights.
    """

    def __init__(self, kind: Kind = "alex"):
        super().__init__()
        check_choice("kind", kind, tuple(STAGES))
        self.stages, self.heads = Stages(kind), Heads(kind)

    def __call__(self, image: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        both = zip(self._activations(image), self._activations(other), self.heads.weights, strict=True)
        parts = [tf.reduce_sum(tf.square(a - b) * weights, axis=-1) for a, b, weights in both]
        return tf.add_n([tf.reduce_mean(part, axis=[1, 2]) for part in parts])

    def _activations(self, image: tf.Tensor) -> list[tf.Tensor]:
        """Returns each stage's output; at each place, its norm over the channels is 1."""
        x = (in_colour(image) - tf.constant(SHIFT)) / tf.constant(SCALE)
        return [y / (tf.norm(y, axis=-1, keepdims=True) + EPSILON) for y in self.stages(x)]


def load_lpips(network: str, heads: str, kind: Kind = "alex") -> Lpips:
    """Returns the distance with given weights.

    `network` is a file of `torchvision`'s AlexNet (`"alex"`) or VGG-16 (`"vgg"`). `heads` is a file of the package
    `lpips`, in its folder `weights/v0.1/`. Both may be `.pth` or `.safetensors`.
    """
    net = Lpips(kind)
    convs = {
        name: path
        for number in net.stages.convs
        for name, path in layer(f"features/{number}", f"convs/{number}").items()
    }
    assign_all(
        net.stages,
        open_state_dict(path_of(network, "network")),
        Layout(convs, ignored=r"classifier/.*"),
        f"give `torchvision`'s {'AlexNet' if kind == 'alex' else 'VGG-16'}, or another `kind` than {kind!r}",
    )
    names = {f"lin{i}/model/1/weight": (f"weights/{i}",) for i in range(len(net.heads.weights))}
    assign_all(
        net.heads,
        open_state_dict(path_of(heads, "heads")),
        Layout(names, ones=dict.fromkeys(names, (1, 2))),
        f"give `weights/v0.1/{kind}.pth` of the package `lpips`, or another `kind` than {kind!r}",
    )
    return net
