"""Pretrained networks whose features measure the quality of images. The user gives their weights."""

from models.features.inception import Inception, load_inception

__all__ = ["Inception", "load_inception"]
