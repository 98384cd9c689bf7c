"""MNIST from its four files, in the IDX format in which its authors publish it, plain or gzipped.

IDX is a header and the values: two zero bytes, one byte for the type (8 is uint8), one for the number of axes, the
length of each axis as a big-endian int32, then the bytes, last axis fastest.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Literal

import gin
import numpy as np
import numpy.typing as npt

from core.data.arrays import ArraySource
from core.data.source import Source, check_split
from core.errors import DataError

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_UINT8 = 8
_GZIP = b"\x1f\x8b"


@gin.configurable
def mnist(directory: str, split: Literal["train", "test"] = "train") -> Source:
    """Reads `image` float32 [28, 28, 1] in [0, 1] and `label` int32, from the IDX files in `directory`."""
    check_split("mnist", split, list(_FILES))
    folder = Path(directory).expanduser().absolute()
    images_file, labels_file = (_find(folder, name) for name in _FILES[split])
    images, labels = read_idx(images_file, axes=3), read_idx(labels_file, axes=1)
    if images.shape[1:] != (28, 28):
        height, width = images.shape[1:]
        raise DataError(
            f"{images_file} holds images of {height}x{width} pixels; MNIST's have 28x28. Is it the right file?"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{images_file} holds {len(images)} images, but {labels_file} holds {len(labels)} labels; "
            "they belong to different data sets, so download both again."
        )
    return ArraySource({"image": images[..., None], "label": labels}, name="mnist", place=str(folder))


def read_idx(path: Path, *, axes: int) -> npt.NDArray[np.uint8]:
    """Reads the uint8 array with `axes` axes that an IDX file holds, which is gzipped if its name ends in `.gz`."""
    content = _content(path)
    header = 4 + 4 * axes
    magic = bytes([0, 0, _UINT8, axes])
    if not content.startswith(magic):
        hint = "it is gzipped: add `.gz` to its name" if content.startswith(_GZIP) else "download it again"
        raise DataError(
            f"{path} isn't an IDX file of uint8 with {axes} axes: it begins with {_hex(content[:4])}, "
            f"where {_hex(magic)} is expected; {hint}."
        )
    if len(content) < header:
        raise DataError(
            f"{path} is cut off: {len(content)} bytes, less than its header of {header}; download it again."
        )
    shape = struct.unpack(f">{axes}I", content[4:header])
    found, expected = len(content) - header, math.prod(shape)
    if found != expected:
        raise DataError(
            f"{path} says that it holds {' x '.join(map(str, shape))} = {expected} values, "
            f"but {found} bytes follow its header; download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}; check what it is and who may read it.") from error
    if path.suffix != ".gz":
        return content
    if not content.startswith(_GZIP):
        raise DataError(
            f"{path} isn't gzipped: it begins with {_hex(content[:2])}, where {_hex(_GZIP)} is expected; "
            "remove `.gz` from its name if it is plain, or download it again."
        )
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is damaged: {error} (after {len(content)} bytes of gzip); download it again."
        ) from error


def _find(folder: Path, name: str) -> Path:
    """Finds the file of that name, or its `.gz`."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    state = "" if folder.is_dir() else ", which isn't a directory"
    files = ", ".join(file for pair in _FILES.values() for file in pair)
    raise DataError(
        f"MNIST's file `{name}` (or `{name}.gz`) isn't in {folder}{state}. Nothing is downloaded for you: get the four "
        f"files of MNIST (Y. LeCun, C. Cortes and C. J. C. Burges, http://yann.lecun.com/exdb/mnist/), {files}, each "
        "plain or as `.gz`, and give the directory that holds them as `mnist.directory`."
    )


def _hex(content: bytes) -> str:
    return content.hex(" ") or "nothing"
