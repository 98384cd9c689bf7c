"""Reads MNIST from its four original files in the IDX format, plain or gzipped.

An IDX file is a header and the values, last axis fastest. The header has two zero bytes, one byte for the type (8 is
uint8), and one for the number of axes. Then it has the length of each axis as a big-endian int32.
"""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Literal

import gin
import numpy as np
import numpy.typing as npt

from core.data.arrays import ArraySource
from core.data.files import check_claim, path_of, reading
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
    folder = path_of(directory, "mnist.directory")
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
    """Reads an IDX file of uint8 with `axes` axes. A name that ends in `.gz` means a gzipped file.

    It reads the header first, and then no more than the header declares, because gzip may expand to gigabytes.
    """
    with reading(path) as file:
        held = os.fstat(file.fileno()).st_size
        if path.suffix != ".gz":
            return _read(path, file, axes, held=held)
        begins = file.read(2)
        if begins != _GZIP:
            raise DataError(
                f"{path} isn't gzipped: it begins with {_hex(begins)}, where {_hex(_GZIP)} is expected; remove `.gz` "
                "from its name if it is plain, or download it again."
            )
        file.seek(0)
        try:
            with gzip.GzipFile(fileobj=file) as inflated:
                return _read(path, inflated, axes, deflated=held)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error} (after {held} bytes of gzip); download it again.") from error


def _read(
    path: Path, file: BinaryIO | gzip.GzipFile, axes: int, *, held: int | None = None, deflated: int | None = None
) -> npt.NDArray[np.uint8]:
    """Reads header and values of an IDX file of `held` bytes, or of a gzip stream of `deflated` bytes.

    A length that doesn't match the header raises a `DataError`. For a plain file, this happens before the values are
    read.
    """
    size = 4 + 4 * axes
    header = file.read(size)
    magic = bytes([0, 0, _UINT8, axes])
    if not header.startswith(magic):
        hint = "it is gzipped: add `.gz` to its name" if header.startswith(_GZIP) else "download it again"
        raise DataError(
            f"{path} isn't an IDX file of uint8 with {axes} axes: it begins with {_hex(header[:4])}, "
            f"where {_hex(magic)} is expected; {hint}."
        )
    if len(header) < size:
        raise DataError(f"{path} is cut off: {len(header)} bytes, less than its header of {size}; download it again.")
    shape = struct.unpack(f">{axes}I", header[4:])
    expected = math.prod(shape)
    claim = f"{' x '.join(map(str, shape))} = {expected} values"
    values = b""
    if held is None or held - size == expected:
        check_claim(path, claim, claimed=expected, deflated=deflated)
        values = file.read(expected + 1)  # one more, because gzip compares its checksum only at its end
    found = len(values) if held is None else held - size
    if found != expected:
        follow = f"{found} bytes follow" if found < expected or held is not None else "more bytes follow"
        raise DataError(f"{path} says that it holds {claim}, but {follow} its header; download it again.")
    return np.frombuffer(values, np.uint8).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    """Returns the path of the file `name` or `name.gz` in `folder`; raises a `DataError` if neither exists."""
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
