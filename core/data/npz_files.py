"""Reads `.npz` files: zip files of named arrays, as `np.savez` writes them.

Each array's header declares its shape. The shape is compared with the size of the zip file before memory is allocated,
because a damaged or malicious header can declare any shape.
"""

import functools
import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core.arguments import listed
from core.data.files import check_claim, open_file
from core.errors import DataError

Array = npt.NDArray[np.generic]

_HEADERS = {b"\1\0": np.lib.format.read_array_header_1_0, b"\2\0": np.lib.format.read_array_header_2_0}  # by version
# Errors of zip and NumPy for damaged files; RuntimeError is a password or an unknown compression.
_DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, ValueError)


def read_npz(path: Path) -> dict[str, Array]:
    if not path.exists():
        raise DataError(f"There is no file {path.absolute()}; give the path of an `.npz` file that `np.savez` wrote.")
    try:
        with open_file(path) as content:
            if not zipfile.is_zipfile(content):
                raise DataError(f"{path.absolute()} isn't an `.npz` file (a zip of arrays); write it with `np.savez`.")
            content.seek(0)
            with np.load(content, allow_pickle=False) as file:
                _check_headers(path, file.zip)
                return {name: _member(path, name, file) for name in file.files}
    except _DAMAGED as error:
        raise DataError(f"{path.absolute()} can't be read: {error}. Write or download it again.") from error


def array_of(content: bytes) -> Array:
    """Returns the array that the bytes of an `.npy` file hold. Damage and pickled objects raise a `ValueError`."""
    size = int.from_bytes(content[8:10], "little") + 10 if content[6:8] == b"\1\0" else 0
    if not size or not content.startswith(np.lib.format.MAGIC_PREFIX):
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
    shape, fortran_order, dtype = _header(content[:size])
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which run code while they load")
    if len(content) != size + math.prod(shape) * dtype.itemsize:
        raise ValueError(f"it has {len(content):,} bytes, but says that it holds {dtype} of shape {list(shape)}")
    return np.frombuffer(content, dtype, offset=size).reshape(shape, order="F" if fortran_order else "C")


@functools.lru_cache(maxsize=256)  # files of one data set have few headers, and NumPy takes long to evaluate one
def _header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(io.BytesIO(start[8:]))


def _check_headers(path: Path, archive: zipfile.ZipFile) -> None:
    """Raises a `DataError` if an array's header declares more bytes than the zip file can hold."""
    members = archive.infolist()
    claim = f"the arrays {listed([member.filename for member in members], most=5)}"
    claimed = sum(member.file_size for member in members)
    check_claim(path.absolute(), claim, claimed=claimed, deflated=path.stat().st_size)
    for member in members:
        with archive.open(member) as content:
            if content.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                continue  # not an array; `_member` reports it
            header = _HEADERS.get(content.read(2))
            if header is None:  # structured dtypes with names beyond ASCII, or an unknown version
                known = "Its header is of a version that plain numbers don't need."
                raise _unreadable(path, member.filename.removesuffix(".npy"), ValueError(known))
            try:
                shape, _, dtype = header(content)
            except Exception as error:  # NumPy evaluates the text of a header, which can fail in any way
                raise _unreadable(path, member.filename.removesuffix(".npy"), error) from error
            expected, held = math.prod(shape) * dtype.itemsize, member.file_size - content.tell()
        if expected > held and not dtype.hasobject:
            raise DataError(
                f"`{member.filename}` of {path.absolute()} says that it holds {dtype} of shape {list(shape)}, "
                f"{expected:,} bytes, but {held:,} follow its header; write or download it again."
            )


def _member(path: Path, name: str, file: Mapping[str, Array]) -> Array:
    try:
        values = file[name]
    except ValueError as error:  # NumPy's error for a damaged header, and for pickled objects
        raise _unreadable(path, name, error) from error
    if not isinstance(values, np.ndarray):  # another file in the zip, which NumPy returns as bytes
        raise DataError(f"{path.absolute()} holds `{name}`, which isn't an array; an `.npz` file holds arrays only.")
    return values


def _unreadable(path: Path, name: str, error: Exception) -> DataError:
    return DataError(
        f"The array `{name}` of {path.absolute()} can't be read: {error} Only plain numbers are read, because "
        "a pickle runs code while it loads; save the array with a numeric dtype."
    )
