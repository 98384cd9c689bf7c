"""Weights that another program wrote: `.npz` or `.safetensors` files.

Each `.` in an array's name, as PyTorch writes them, is replaced with `/`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np
import numpy.typing as npt

from core.checkpoint.files import file_sha256
from core.data.files import path_of
from core.data.npz_files import read_npz
from core.errors import CheckpointError, ConfigurationError, DataError, did_you_mean, shown
from core.weights.weights import ArrayType, StartFrom, Weights

Read = Callable[[str], npt.NDArray[Any]]

MOST_LETTERS = 500  # of a name that is shown: it comes from an untrusted file

_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}


@gin.configurable
def npz_weights(
    path: str,
    *,
    take: Sequence[str] = ("*",),
    rename: Mapping[str, str] = {},
    transpose: Mapping[str, Sequence[int]] = {},
) -> StartFrom:
    """Starts from the arrays of an `.npz` file, which `np.savez` writes.

    `transpose` maps patterns of the task's variables to orders of axes: `{"*/w": [1, 0]}` swaps the file's two axes.
    """
    return StartFrom(lambda: open_npz(path_of(path)), path, take, rename, transpose)


@gin.configurable
def safetensors_weights(
    path: str,
    *,
    take: Sequence[str] = ("*",),
    rename: Mapping[str, str] = {},
    transpose: Mapping[str, Sequence[int]] = {},
) -> StartFrom:
    """Starts from the tensors of a `.safetensors` file.

    `transpose` maps patterns of the task's variables to orders of axes: `{"*/w": [1, 0]}` swaps the file's two axes.
    """
    return StartFrom(lambda: open_safetensors(path_of(path)), path, take, rename, transpose)


class FileWeights(Weights):
    """The arrays of one weight file, by name."""

    others = True

    def __init__(self, path: Path, sha256: str, types: Mapping[str, ArrayType], read: Read):
        self._names = {name.replace(".", "/"): name for name in types}
        if len(self._names) < len(types):
            raise CheckpointError(f"`{path}` has names that differ by `.` and `/` alone: rename one of each two in it.")
        if strange := next((name for name in types if not name.isprintable() or len(name) > MOST_LETTERS), None):
            raise CheckpointError(
                f"`{path}` has an array named {shown(strange)}: write it again with names of up to {MOST_LETTERS} "
                "printable characters."
            )
        self._read = read
        found = {name: types[own] for name, own in self._names.items()}
        super().__init__(f"`{path}`", found, {"path": str(path), "sha256": sha256})

    def read(self, name: str) -> npt.NDArray[Any]:
        return self._read(self._names[name])


def open_npz(path: Path) -> FileWeights:
    """Reads all arrays of an `.npz` file into memory."""
    sha256 = hashed(path)
    try:
        arrays = read_npz(path)
    except DataError as error:
        raise CheckpointError(str(error)) from error
    types = {name: ArrayType(array.dtype.name, array.shape) for name, array in arrays.items()}
    return FileWeights(path, sha256, types, arrays.__getitem__)


def open_safetensors(path: Path) -> FileWeights:
    """Opens a `.safetensors` file. A tensor is read when it is requested."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigurationError(
            f"the package `safetensors`, which such files need, is missing or broken ({error}): `pip install "
            "-e '.[weights]'` installs it. `@npz_weights()` needs no package."
        ) from error
    sha256 = hashed(path)

    def explained(error: Exception) -> CheckpointError:
        return CheckpointError(
            f"`{path}` can't be read as a `.safetensors` file: {str(error).strip().rstrip('.')}. It is cut short, "
            "damaged, or of another kind: download or write it again."
        )

    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            kinds = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise explained(error) from error

    def read(name: str) -> npt.NDArray[Any]:
        try:
            with safe_open(path, "np") as file:
                return np.asarray(file.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise explained(error) from error

    types = {name: ArrayType(_TYPES.get(dtype, dtype.lower()), shape) for name, (dtype, shape) in kinds.items()}
    return FileWeights(path, sha256, types, read)


def hashed(path: Path) -> str:
    """Returns the SHA-256 of a file of weights. If it can't be read, the error suggests a similar name."""
    try:
        return file_sha256(path)
    except OSError as error:
        siblings = [other.name for other in path.parent.iterdir() if other.is_file()] if path.parent.is_dir() else []
        raise CheckpointError(
            f"the weights `{path}` can't be read: {error.strerror}."
            f"{did_you_mean(path.name, [other for other in siblings if other != path.name])} Give the path of the "
            "file; a relative one starts at the command's working directory."
        ) from error
