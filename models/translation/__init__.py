"""Networks that turn images of one domain into images of another, and those that judge them."""

from models.translation.measures import Ratio, mean_distance, share
from models.translation.patch_gan import PatchGan
from models.translation.resnet import ResNetGenerator
from models.translation.task import Translation
from models.translation.unet import UNetGenerator

__all__ = ["PatchGan", "Ratio", "ResNetGenerator", "Translation", "UNetGenerator", "mean_distance", "share"]
