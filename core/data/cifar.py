"""Reads CIFAR-10 (Krizhevsky, 2009) from the files of its binary version.

A record is one byte for the class and 3072 for the image: all red levels of 32x32 pixels, then green, then blue.
"""

import os
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import numpy.typing as npt

from core.data.arrays import ArraySource
from core.data.files import check_claim, path_of, reading
from core.data.source import Source, check_split
from core.errors import DataError

_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_RECORD = 1 + 3 * 32 * 32


@gin.configurable
def cifar10(directory: str, split: Literal["train", "test"] = "train") -> Source:
    """Reads `image` float32 [32, 32, 3] in [0, 1] and `label` int32, from the `.bin` files in `directory`."""
    check_split("cifar10", split, list(_FILES))
    folder = path_of(directory, "cifar10.directory")
    records = np.concatenate([_read(folder / name) for name in _FILES[split]])
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return ArraySource({"image": images, "label": records[:, 0]}, name="cifar10", place=str(folder))


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """Returns the records of a file, [records, 3073]."""
    if not path.exists():
        raise DataError(
            f"{path} isn't there. Nothing is downloaded for you: get the binary version of CIFAR-10 "
            "(https://www.cs.toronto.edu/~kriz/cifar.html), unpack it, and give the folder that holds "
            f"`{path.name}` as `cifar10.directory`. (The Python version has files without `.bin`.)"
        )
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size or size % _RECORD:
            raise DataError(
                f"{path} holds {size} bytes, which aren't records of {_RECORD}; it is cut off, or isn't of the binary "
                "version of CIFAR-10: download it again."
            )
        check_claim(path, f"{size // _RECORD} images", claimed=size)
        records = np.frombuffer(file.read(), np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        bad = int(np.argmax(records[:, 0] > 9))
        raise DataError(
            f"{path} gives image {bad} the class {records[bad, 0]}, of classes 0 to 9; it is damaged, or isn't of "
            "CIFAR-10: download it again."
        )
    return records
