"""One family of architectures a folder: its networks, and the tasks that train them."""

from models.classifiers.convnet import ConvNet, ConvNetClassifier
from models.classifiers.linear import LinearClassifier, SoftmaxRegression
from models.classifiers.mlp import Mlp, MlpClassifier
from models.ddpm import Ddpm
from models.gan.dcgan import dcgan_networks
from models.gan.mlp import mlp_networks
from models.gan.task import Gan
from models.translation.cyclegan import CycleGan
from models.translation.pix2pix import Pix2Pix

__all__ = [
    "ConvNet",
    "ConvNetClassifier",
    "CycleGan",
    "Ddpm",
    "Gan",
    "LinearClassifier",
    "Mlp",
    "MlpClassifier",
    "Pix2Pix",
    "SoftmaxRegression",
    "dcgan_networks",
    "mlp_networks",
]
