"""One architecture a file: its networks, then the task that trains them."""

from models.convnet import ConvNet, ConvNetClassifier
from models.cyclegan import CycleGan
from models.dcgan import dcgan_networks
from models.ddpm import Ddpm
from models.gan import Gan
from models.gan_mlp import mlp_networks
from models.judge import DigitQuality, digit_quality, kept_digits
from models.linear import LinearClassifier, SoftmaxRegression
from models.mlp import Mlp, MlpClassifier
from models.pix2pix import Pix2Pix

__all__ = [
    "ConvNet",
    "ConvNetClassifier",
    "CycleGan",
    "Ddpm",
    "DigitQuality",
    "Gan",
    "LinearClassifier",
    "Mlp",
    "MlpClassifier",
    "Pix2Pix",
    "SoftmaxRegression",
    "dcgan_networks",
    "digit_quality",
    "kept_digits",
    "mlp_networks",
]
