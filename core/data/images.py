"""Image folders: two unpaired domains (CycleGAN), pairs with equal names (pix2pix), or a single folder.

    horse2zebra/
      trainA/  trainB/      JPEG or PNG files: any names and numbers (`unpaired_folders`),
      testA/   testB/       or each name in both (`paired_folders`)

A source depends on the index alone, so it only decodes and resizes. Random crops and flips happen in the step function,
with `random_crop_and_flip` (`core/data/augment.py`), as in the papers:

    unpaired_folders.directory = 'horse2zebra'
    unpaired_folders.size = 256
    unpaired_folders.load_size = 286      # the size of `train` examples; those of `test` have 256
    train/unpaired_folders.split = 'train'
    test/unpaired_folders.split = 'test'
"""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import is_size, listed
from core.data.files import path_of
from core.data.image_files import THREADS, holdings, list_images, read_images
from core.data.image_headers import image_size
from core.data.source import Source, check_feature, check_split
from core.errors import ConfigurationError, DataError, shown

_SPLITS = ["train", "test"]


class ImageFiles(Source):
    """A source of image files, `{feature: files}`: example i has the i-th file of each feature, [size, size, 3].

    Levels are from `darkest` to 1.
    """

    threads = THREADS

    def __init__(
        self, files: Mapping[str, Sequence[Path]], *, name: str, place: str, size: int, darkest: float = -1.0
    ) -> None:
        # Invalid images raise before the run starts.
        sizes = {image_size(path) for path in dict.fromkeys(path for paths in files.values() for path in paths)}
        self._fitting = sizes == {(size, size)}
        self.files = {feature: list(paths) for feature, paths in files.items()}
        self._side, self._darkest = size, darkest
        super().__init__(name, size=len(next(iter(self.files.values()))), place=place)

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {feature: tf.TensorSpec([self._side, self._side, 3], tf.float32) for feature in self.files}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        levels = {
            feature: read_images(tf.gather(paths, indices), self._side, fitting=self._fitting)
            for feature, paths in self._paths.items()
        }
        if self._darkest == 0.0:
            return levels
        return {feature: self._darkest + (1.0 - self._darkest) * x for feature, x in levels.items()}

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        return self._darkest, 1.0

    @functools.cached_property
    def _paths(self) -> dict[str, tf.Tensor]:
        """Converts the file names to string tensors once, outside any graph."""
        with tf.init_scope(), tf.device("CPU:0"):
            return {
                feature: tf.constant([os.fsencode(path) for path in paths]) for feature, paths in self.files.items()
            }


@gin.configurable
def unpaired_folders(
    directory: str, *, size: int, load_size: int | None = None, split: Literal["train", "test"] = "train"
) -> ImageFiles:
    """Reads `a` and `b`, float32 [size, size, 3] in [-1, 1], from the folders `trainA` and `trainB` (or `testA` ...).

    An epoch has each image of the larger domain once. `unpaired` assigns an image of the smaller domain to each. With
    `load_size`, examples of `train` have that size. `random_crop_and_flip` then crops them to `size`.
    """
    a, b, side = _domains("unpaired_folders", directory, size, load_size, split)
    in_a, in_b = unpaired(len(a), len(b))
    files = {"a": [a[i] for i in in_a], "b": [b[i] for i in in_b]}
    return ImageFiles(files, name="unpaired_folders", place=str(path_of(directory)), size=side)


@gin.configurable
def paired_folders(
    directory: str, *, size: int, load_size: int | None = None, split: Literal["train", "test"] = "train"
) -> ImageFiles:
    """Reads `a` and `b` as `unpaired_folders` does, in pairs of one name: `trainA/1.png` and `trainB/1.jpg`."""
    a, b, side = _domains("paired_folders", directory, size, load_size, split)
    in_a, in_b = _by_name(a), _by_name(b)
    for mine, others, folder in [(in_a, in_b, b[0].parent), (in_b, in_a, a[0].parent)]:
        alone = [path.name for name, path in mine.items() if name not in others]
        if alone:
            raise DataError(
                f"{folder} holds no partner of {listed(alone, most=5)}: in "
                "`paired_folders` each name is in both folders. Add or remove files; domains without pairs are for "
                "`unpaired_folders`."
            )
    files = {"a": list(in_a.values()), "b": [in_b[name] for name in in_a]}
    return ImageFiles(files, name="paired_folders", place=str(path_of(directory)), size=side)


@gin.configurable
def image_folder(directory: str, *, size: int) -> ImageFiles:
    """Reads `image`, float32 [size, size, 3] in [0, 1], from the files of one folder, sorted by name."""
    side = checked_size("image_folder", size, None, "test")
    folder = path_of(directory, "image_folder.directory")
    images = list_folder(folder, "give a folder of images as `directory`")
    if not images:
        raise DataError(f"{folder} holds no JPEG or PNG file, but {holdings(folder)}; name a folder that does.")
    return ImageFiles({"image": images}, name="image_folder", place=str(folder), size=side, darkest=0.0)


def _domains(
    name: str, directory: str, size: int, load_size: int | None, split: str
) -> tuple[list[Path], list[Path], int]:
    """Returns the image files of A, those of B, and the size in pixels for resizing them."""
    check_split(name, split, _SPLITS)
    side = checked_size(name, size, load_size, split)
    folders = [path_of(directory, f"{name}.directory") / f"{split}{domain}" for domain in "AB"]
    layout = f"`directory` of `{name}` holds the two domains as folders `trainA`, `trainB`, `testA`, `testB`"
    domains = [list_folder(folder, layout) for folder in folders]
    for i, folder in enumerate(folders):
        if not domains[i]:
            raise DataError(
                f"{folder} holds no JPEG or PNG file, but {holdings(folder)} ({folders[1 - i].name} holds "
                f"{len(domains[1 - i])} images); both domains need images."
            )
    return domains[0], domains[1], side


def list_folder(folder: Path, layout: str) -> list[Path]:
    """Lists the images of `folder`. If it doesn't exist, a `DataError` ends with `layout` as advice."""
    if not folder.is_dir():
        parent = folder.parent
        siblings = sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
        found = listed(siblings[:8]) or "none"
        raise DataError(f"There is no folder {folder} (folders in {parent}: {found}); {layout}.")
    return list_images(folder)


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns `{name without suffix: path}`. Two files of one name raise a `DataError`."""
    named: dict[str, Path] = {}
    for path in paths:
        if path.stem in named:
            raise DataError(
                f"{path} and `{named[path.stem].name}` have one name, so their partner is ambiguous; "
                "rename or remove one of them."
            )
        named[path.stem] = path
    return named


def checked_size(name: str, size: int, load_size: int | None, split: str) -> int:
    """Returns the size of images in pixels after checking it: `load_size` for `train` if given, else `size`."""
    for argument, pixels in [("size", size)] + [("load_size", load_size)] * (load_size is not None):
        if not is_size(pixels):
            raise ConfigurationError(
                f"`{argument}` of `{name}` is {shown(pixels)}; it is a number of pixels: give 1 or more."
            )
    if load_size is not None and load_size < size:
        raise ConfigurationError(
            f"`load_size` of `{name}` is {load_size}, less than `size`, {size}, which is cut out of it; give "
            f"`load_size` {size} or more (the papers: 286 for 256), or leave it out."
        )
    return load_size if load_size is not None and split == "train" else size


Order = npt.NDArray[np.intp]


def unpaired(num_a: int, num_b: int) -> tuple[Order, Order]:
    """Returns the indices of the examples' images in A and in B; the larger domain gives the number of examples.

    Each image of the larger domain is in one example. Its partner comes from random permutations of the smaller domain,
    so that the partners' numbers of uses differ by at most one. The pairs are the same in every epoch. CycleGAN's
    losses never compare an example's two images.
    """
    if num_a >= num_b:
        return np.arange(num_a), _partners(num_a, num_b)
    return _partners(num_b, num_a), np.arange(num_b)


def _partners(count: int, size: int) -> Order:
    random = np.random.RandomState(0)  # a generator whose numbers NumPy guarantees not to change
    return np.concatenate([random.permutation(size) for _ in range(-(-count // size))])[:count]
