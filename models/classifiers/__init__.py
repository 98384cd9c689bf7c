"""Classifiers: their networks, and the task that trains one."""

from models.classifiers.airbench import Airbench, AirbenchClassifier, whitened_patches
from models.classifiers.convnet import ConvNet, ConvNetClassifier
from models.classifiers.convnext import ConvNeXt, ConvNeXtClassifier
from models.classifiers.convnext_weights import convnext_weights
from models.classifiers.linear import LinearClassifier, SoftmaxRegression
from models.classifiers.mlp import Mlp, MlpClassifier
from models.classifiers.resnet import ResNet, ResNetClassifier
from models.classifiers.resnet_weights import resnet_weights
from models.classifiers.task import Classifier
from models.classifiers.torch_arrays import timm_arrays, torchvision_arrays
from models.classifiers.vit import ViT, ViTClassifier
from models.classifiers.vit_weights import vit_weights

__all__ = [
    "Airbench",
    "AirbenchClassifier",
    "Classifier",
    "ConvNeXt",
    "ConvNeXtClassifier",
    "ConvNet",
    "ConvNetClassifier",
    "LinearClassifier",
    "Mlp",
    "MlpClassifier",
    "ResNet",
    "ResNetClassifier",
    "SoftmaxRegression",
    "ViT",
    "ViTClassifier",
    "convnext_weights",
    "resnet_weights",
    "timm_arrays",
    "torchvision_arrays",
    "vit_weights",
    "whitened_patches",
]
