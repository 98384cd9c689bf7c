"""Models: each folder or file holds one family of networks, and the tasks that train these networks."""

from models.classifiers import (
    Classifier,
    ConvNet,
    ConvNetClassifier,
    ConvNeXt,
    ConvNeXtClassifier,
    LinearClassifier,
    Mlp,
    MlpClassifier,
    ResNet,
    ResNetClassifier,
    SoftmaxRegression,
    ViT,
    ViTClassifier,
)
from models.ddpm import Ddpm
from models.gan import BatchNormGan, Gan, dcgan_networks, mlp_networks
from models.language import (
    LanguageModel,
    LSTMLanguageModel,
    Transformer,
    TransformerConfig,
    beam_search,
    greedy,
    sampled,
)
from models.simclr import SimClr
from models.translation import CycleGan, Pix2Pix, Translation
from models.vae import Vae

__all__ = [
    "BatchNormGan",
    "Classifier",
    "ConvNeXt",
    "ConvNeXtClassifier",
    "ConvNet",
    "ConvNetClassifier",
    "CycleGan",
    "Ddpm",
    "Gan",
    "LSTMLanguageModel",
    "LanguageModel",
    "LinearClassifier",
    "Mlp",
    "MlpClassifier",
    "Pix2Pix",
    "ResNet",
    "ResNetClassifier",
    "SimClr",
    "SoftmaxRegression",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Vae",
    "ViT",
    "ViTClassifier",
    "beam_search",
    "dcgan_networks",
    "greedy",
    "mlp_networks",
    "sampled",
]
