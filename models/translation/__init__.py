"""Image translation: generators, discriminators, and the tasks that train both."""

from models.translation.cyclegan import CycleGan
from models.translation.image_pool import ImagePool
from models.translation.patch_gan import PatchGan
from models.translation.pix2pix import Pix2Pix
from models.translation.resnet import ResNetGenerator
from models.translation.task import Translation
from models.translation.unet import UNetGenerator

__all__ = ["CycleGan", "ImagePool", "PatchGan", "Pix2Pix", "ResNetGenerator", "Translation", "UNetGenerator"]
