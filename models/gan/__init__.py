"""Generative adversarial networks: pairs of networks, and the tasks that train them."""

from models.gan.augmentation import Augmentation
from models.gan.batch_norm import BatchNormGan
from models.gan.dcgan import DcGanDiscriminator, DcGanGenerator, dcgan_networks
from models.gan.mlp import MlpDiscriminator, MlpGenerator, mlp_networks
from models.gan.style_discriminator import StyleDiscriminator
from models.gan.style_generator import StyleGenerator
from models.gan.stylegan2 import StyleGan2
from models.gan.task import Gan

__all__ = [
    "Augmentation",
    "BatchNormGan",
    "DcGanDiscriminator",
    "DcGanGenerator",
    "Gan",
    "MlpDiscriminator",
    "MlpGenerator",
    "StyleDiscriminator",
    "StyleGan2",
    "StyleGenerator",
    "dcgan_networks",
    "mlp_networks",
]
