"""The weights of networks as state dicts of `torchvision` and `timm`."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from core.module import Module
from models.classifiers.convnext import ConvNeXt
from models.classifiers.convnext_weights import TIMM as TIMM_CONVNEXT
from models.classifiers.convnext_weights import TORCHVISION as TORCHVISION_CONVNEXT
from models.classifiers.resnet import ResNet
from models.classifiers.resnet_weights import LAYOUT as RESNET
from models.classifiers.state_dicts import Layout, arrays
from models.classifiers.vit import ViT
from models.classifiers.vit_weights import TIMM as TIMM_VIT
from models.classifiers.vit_weights import TORCHVISION as TORCHVISION_VIT

Layouts = Mapping[type[Module], Layout]
TORCHVISION: Layouts = {ResNet: RESNET, ViT: TORCHVISION_VIT, ConvNeXt: TORCHVISION_CONVNEXT}
TIMM: Layouts = {ResNet: RESNET, ViT: TIMM_VIT, ConvNeXt: TIMM_CONVNEXT}


def torchvision_arrays(net: ResNet | ViT | ConvNeXt) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` for `load_state_dict` of `torchvision`, `{"conv1.weight": [64, 3, 7, 7], ...}`.

    `safetensors.numpy.save_file` writes them.
    """
    return arrays(net, TORCHVISION[type(net)], "torchvision")


def timm_arrays(net: ResNet | ViT | ConvNeXt) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` for `load_state_dict` of `timm`, as `torchvision_arrays` does."""
    return arrays(net, TIMM[type(net)], "timm")
