"""Reads and writes the weights of a `ResNet` under the names of PyTorch's `torchvision` and `timm`.

Both have one layout: `layer1.0.conv2.weight`, and axes [outputs, inputs, height, width]. Their files are read by
`resnet_weights`. `torchvision_arrays(net)` returns a network's arrays for `load_state_dict`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.files import path_of
from core.layers import BatchNorm
from core.module import named_variables
from core.weights import ArrayType, StartFrom, Weights, open_safetensors
from models.classifiers.resnet import BLOCKS, ResNet

AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # of theirs, in the order of ours, by the number of axes
BACK = {4: (3, 2, 0, 1), 2: (1, 0)}
LEAVES = {"w": "weight", "b": "bias"}
NORM_LEAVES = {"scale": "weight", "offset": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def _layers() -> dict[str, str]:
    """Returns the names of all layers that a `ResNet` may have, by theirs: `{"layer1/0/bn2": ...}`."""
    names = {"conv1": "stem/conv", "bn1": "stem/norm", "fc": "logits"}
    for i, j in itertools.product(range(4), range(max(map(max, BLOCKS.values())))):
        theirs, ours = f"layer{i + 1}/{j}", f"stages/{i}/{j}"
        for k in range(3):
            names |= {
                f"{theirs}/conv{k + 1}": f"{ours}/convs/{k}/conv",
                f"{theirs}/bn{k + 1}": f"{ours}/convs/{k}/norm",
            }
        names |= {f"{theirs}/downsample/0": f"{ours}/shortcut/conv", f"{theirs}/downsample/1": f"{ours}/shortcut/norm"}
    return names


# `{their name: our path}` of each array
NAMES = {
    f"{theirs}/{leaf}": f"{ours}/{own}"
    for theirs, ours in _layers().items()
    for own, leaf in (NORM_LEAVES if ours.endswith("norm") else LEAVES).items()
}


@gin.configurable
def resnet_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a ResNet of `torchvision` or `timm`: `path` is a `.safetensors` file of its state dict.

    `take` and `rename` use the names in a `ResNetClassifier`: `net/stem/conv/w`, `net/logits/w`.
    """
    return StartFrom(lambda: ResNetWeights(path), path, take, rename)


def torchvision_arrays(net: ResNet) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` for PyTorch, `{"conv1.weight": [64, 3, 7, 7], ...}`.

    `safetensors.numpy.save_file` writes them. `load_state_dict` of a `torchvision` or `timm` model accepts them.
    """
    theirs = {ours: name for name, ours in NAMES.items()}
    found = {}
    for path, variable in named_variables(net).items():
        if path in theirs:  # the weight of a moving average has no counterpart
            value = variable.numpy()
            axes = BACK.get(value.ndim)
            found[theirs[path].replace("/", ".")] = np.ascontiguousarray(np.transpose(value, axes) if axes else value)
    return found


class ResNetWeights(Weights):
    """The arrays of a ResNet's state dict, under their names in a `ResNetClassifier`.

    PyTorch's moving averages aren't corrected for their start. They count as averages over all updates: the weight of
    each, `moving_weight`, is 1.
    """

    def __init__(self, path: str):
        self._file = open_safetensors(path_of(path))
        self._names: dict[str, str] = {}
        types = {}
        for name, kind in self._file.types.items():
            ours = f"net/{NAMES[name]}" if name in NAMES else name
            if name.endswith("/num_batches_tracked"):
                continue
            self._names[ours], types[ours] = name, ArrayType(kind.dtype, _turned(kind.shape))
            if ours.endswith("/moving_variance"):
                types[_weight_of(ours)] = ArrayType("float32", ())
        super().__init__(self._file.place, types, self._file.record)

    def read(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            return np.ones([], np.float32)
        value = self._file.read(self._names[name])
        return np.transpose(value, AXES.get(value.ndim))

    def refusal(self, task: tf.Module) -> str | None:
        for net in (module for module in task.submodules if isinstance(module, ResNet)):
            if not isinstance(net.stem.norm, BatchNorm):
                return f'the ResNet in {self.place} has batch norms: bind `ResNetClassifier.norm = "batch"`.'
            has = {f"net/{path}" for path in named_variables(net)}
            if deeper := [name for name in self._names if name not in has]:
                return (
                    f"{self.place} has `{self._names[deeper[0]]}`, which the task's ResNet lacks: it is another "
                    "network. Bind `ResNetClassifier.depth` to its depth."
                )
        return None


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in AXES.get(len(shape), range(len(shape))))


def _weight_of(path: str) -> str:
    return path.replace("/moving_variance", "/moving_weight")
