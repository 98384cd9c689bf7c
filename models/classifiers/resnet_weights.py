"""Reads and writes the weights of a `ResNet` under the names of PyTorch's `torchvision` and `timm`.

Both have one layout: `layer1.0.conv2.weight`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.files import path_of
from core.layers import BatchNorm
from core.weights import ArrayType, StartFrom, open_state_dict
from models.classifiers.resnet import ResNet
from models.classifiers.state_dicts import Layout, StateDict, batch_norm, layer


def _conv_norm(conv: str, bn: str, ours: str) -> dict[str, tuple[str, ...]]:
    return layer(conv, f"{ours}/conv") | batch_norm(bn, f"{ours}/norm")


def _stage(i: int) -> dict[str, tuple[str, ...]]:
    theirs, ours = f"layer{i + 1}/{{}}", f"stages/{i}/{{}}"
    names = _conv_norm(f"{theirs}/downsample/0", f"{theirs}/downsample/1", f"{ours}/shortcut")
    for k in range(3):
        names |= _conv_norm(f"{theirs}/conv{k + 1}", f"{theirs}/bn{k + 1}", f"{ours}/convs/{k}")
    return names


LAYOUT = Layout(
    _conv_norm("conv1", "bn1", "stem") | _stage(0) | _stage(1) | _stage(2) | _stage(3) | layer("fc", "logits"),
    needs="stem/norm/moving_mean",
    ignored=r".*/num_batches_tracked",
)


@gin.configurable
def resnet_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a ResNet of `torchvision` or `timm`.

    `path` is a file of its state dict, `.pth` or `.safetensors`. `take` and `rename` use the names in a
    `ResNetClassifier`: `net/stem/conv/w`, `net/logits/w`.
    """
    return StartFrom(lambda: ResNetWeights(path), path, take, rename)


class ResNetWeights(StateDict):
    """The arrays of a ResNet's state dict, under their names in a `ResNetClassifier`.

    PyTorch's moving averages aren't corrected for their start. They count as averages over all updates: the weight of
    each, `moving_weight`, is 1.
    """

    def __init__(self, path: str):
        super().__init__(open_state_dict(path_of(path)), LAYOUT, ResNet, "`ResNetClassifier.depth`")
        weights = [_weight_of(name) for name in self.types if name.endswith("/moving_variance")]
        self.types = {**self.types, **dict.fromkeys(weights, ArrayType("float32", ()))}

    def read(self, name: str) -> npt.NDArray[Any]:
        return np.ones([], np.float32) if name.endswith("/moving_weight") else super().read(name)

    def refusal(self, task: tf.Module) -> str | None:
        for net in (module for module in task.submodules if isinstance(module, ResNet)):
            if not isinstance(net.stem.norm, BatchNorm):
                return f'the ResNet in {self.place} has batch norms: bind `ResNetClassifier.norm = "batch"`.'
        return super().refusal(task)


def _weight_of(path: str) -> str:
    return path.replace("/moving_variance", "/moving_weight")
