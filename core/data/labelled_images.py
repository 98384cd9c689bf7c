"""Labelled images, with one folder per class.

flowers/train/
  daisy/  rose/  tulip/     JPEG or PNG files

Experiment.train_source = @train/labelled_folders()
Experiment.eval_source = @test/labelled_folders()
labelled_folders.size = 64
labelled_folders.classes = ['daisy', 'rose', 'tulip']     # labels are positions in this list
train/labelled_folders.directory = 'flowers/train'
test/labelled_folders.directory = 'flowers/test'
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.data.files import path_of
from core.data.image_files import holdings, list_images
from core.data.images import ImageFiles, checked_size, list_folder
from core.data.source import check_feature, check_split
from core.data.tables import are_names
from core.errors import ConfigurationError, DataError, did_you_mean, shown


class LabelledImages(ImageFiles):
    """A source with the features `image`, with levels from 0 to 1, and `label`, int32."""

    def __init__(self, images: Sequence[Path], labels: Sequence[int], *, place: str, size: int) -> None:
        super().__init__({"image": images}, name="labelled_folders", place=place, size=size, darkest=0.0)
        self._labels = np.array(labels, np.int32)

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {**super().spec, "label": tf.TensorSpec([], tf.int32)}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**super().gather(indices), "label": tf.gather(self._labels, indices)}

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        check_feature(self, feature)
        return self._labels if feature == "label" else None

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        check_feature(self, feature)
        if feature != "label":
            return None
        low, high = int(self._labels.argmin()), int(self._labels.argmax())
        return int(self._labels[low]), low, int(self._labels[high]), high

    def value_range(self, feature: str) -> tuple[float, float] | None:
        return None if feature == "label" else super().value_range(feature)


@gin.configurable
def labelled_folders(directory: str, *, size: int, classes: Sequence[str] | None = None) -> LabelledImages:
    """Reads `image`, float32 [size, size, 3] in [0, 1], and `label`, int32, from one folder per class.

    Labels are positions in `classes`, by default the sorted names of the folders. Give `classes` if several directories
    must have the same labels. A directory may lack one of these classes, but may not have other folders.
    """
    side = checked_size("labelled_folders", size, None, "test")
    folder = path_of(directory, "labelled_folders.directory")
    unsorted = list_folder(folder, "give a folder that holds a folder of images for each class as `directory`")
    if unsorted:
        raise DataError(
            f"{unsorted[0]} is next to the classes' folders; move it into one of them. (`image_folder` reads images "
            "without labels.)"
        )
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if classes is not None and not are_names(classes):
        raise ConfigurationError(f"`labelled_folders.classes` is {shown(classes)}; give a list: ['cat', 'dog'].")
    names = found if classes is None else list(classes)
    if len(set(names)) < len(names):
        raise ConfigurationError(f"`labelled_folders.classes` is {shown(names)}; give each class once.")
    for name in found:
        if name not in names:
            raise DataError(
                f"{folder / name} is the folder of a class that `labelled_folders.classes` doesn't list; it lists "
                f"{listed(names, most=20)}.{did_you_mean(name, names)} Add it there, or take the folder away."
            )
    for name in found:
        deeper = sorted(x for x in (folder / name).iterdir() if x.is_dir() and not x.name.startswith("."))
        if deeper:
            raise DataError(
                f"{deeper[0]} is a folder within that of a class, which isn't searched; move its images up, or take it "
                "away."
            )
    by_class = {name: list_images(folder / name) for name in found}
    for name, images in by_class.items():
        if not images:
            raise DataError(
                f"{folder / name} holds no JPEG or PNG file, but {holdings(folder / name)}; give each class images, or "
                "take the folder away."
            )
    if not found:
        raise DataError(f"{folder} holds {holdings(folder)}; it needs a folder of images for each class.")
    return LabelledImages(
        [path for name in found for path in by_class[name]],
        [names.index(name) for name in found for _ in by_class[name]],
        place=str(folder),
        size=side,
    )


@gin.configurable
def imagenet(directory: str, *, size: int, split: Literal["train", "val"] = "train") -> LabelledImages:
    """Reads `image` and `label` from ImageNet's folders, as `labelled_folders` does: `train/n01440764/` and so on.

    Labels are positions in the sorted list of the 1000 folders of `train`, as in PyTorch. So `val` has a folder for
    each class, too.
    """
    check_split("imagenet", split, ["train", "val"])
    folder = path_of(directory, "imagenet.directory")
    list_folder(folder / "train", "give the folder that holds `train` and `val` as `imagenet.directory`")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    return labelled_folders(str(folder / split), size=size, classes=classes)
