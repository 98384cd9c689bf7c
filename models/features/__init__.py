"""Pretrained networks whose features measure the quality of images. The user gives their weights."""

from models.features.inception import Inception, inception_arrays, load_inception
from models.features.lpips import Lpips, load_lpips
from models.features.quality import image_quality

__all__ = ["Inception", "Lpips", "image_quality", "inception_arrays", "load_inception", "load_lpips"]
