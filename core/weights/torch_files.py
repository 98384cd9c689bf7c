"""Tensors of a state dict that `torch.save` wrote: `.pth` files, in the zip format and the older one.

PyTorch isn't needed. The pickle in such a file may name only the classes that tensors consist of; anything else is
refused, so a file can't run code.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.errors import CheckpointError, shown
from core.weights.of_file import FileWeights, hashed, open_safetensors
from core.weights.weights import ArrayType

_ZIP = b"PK\3\4"
_STREAM = b"\x80\x02\x8a\n"  # the older format: pickles, then storages one after another. The first is a number:
_MAGIC = 0x1950A86A20F9469CFC6C
_TYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_RESAVE = "write it again by `torch.save(model.state_dict(), path)`, or with `safetensors.torch.save_file`."


class _Storage(NamedTuple):
    dtype: str
    key: str
    size: int  # in values


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int  # in values, as the strides
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_state_dict(path: Path) -> FileWeights:
    """Opens a state dict: a file of `torch.save`, or a `.safetensors` file. Its content decides which."""
    begin = b""
    if path.is_file():
        with open(path, "rb") as file:
            begin = file.read(4)
    if begin == _ZIP:
        return _opened(path, _of_zip)
    return _opened(path, _of_stream) if begin == _STREAM else open_safetensors(path)


def _opened(path: Path, contents: Callable[[Path], tuple[Any, Callable[[_Storage], bytes]]]) -> FileWeights:
    sha256 = hashed(path)
    try:
        found, bytes_of = contents(path)
    except Exception as error:  # a damaged pickle raises errors of many types
        said = str(error).strip().rstrip(".") or type(error).__name__
        raise CheckpointError(
            f"`{path}` can't be read as a file of `torch.save`: {said}. It is damaged, or holds more than tensors: "
            f"{_RESAVE}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"`{path}` holds {shown(type(found).__name__)}, no state dict: {_RESAVE}")
    for name, tensor in found.items():
        if not isinstance(tensor, _Tensor):
            raise CheckpointError(f"`{path}` holds `{shown(name)}`, which is no tensor: {_RESAVE}")
        if not _inside(tensor):
            raise CheckpointError(f"`{path}` has the tensor `{shown(name)}` outside of its storage: {_RESAVE}")

    def read(name: str) -> npt.NDArray[Any]:
        tensor = found[name]
        content, dtype = bytes_of(tensor.storage), _numpy(tensor.storage.dtype)
        if len(content) < tensor.storage.size * dtype.itemsize:
            raise CheckpointError(f"`{path}` is cut short within `{name}`: download or write it again.")
        values = np.frombuffer(content, dtype, tensor.storage.size)[tensor.offset :]
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        return np.array(np.lib.stride_tricks.as_strided(values, tensor.shape, strides))

    types = {name: ArrayType(tensor.storage.dtype, tensor.shape) for name, tensor in found.items()}
    return FileWeights(path, sha256, types, read)


def _of_zip(path: Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    with zipfile.ZipFile(path) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1)
        root = pickled.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        found = _Unpickler(io.BytesIO(archive.read(pickled)), encoding="utf-8").load()

    def content(storage: _Storage) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return archive.read(f"{root}data/{storage.key}")

    return found, content


def _of_stream(path: Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    with open(path, "rb") as file:
        if _loaded(file) != _MAGIC:
            raise ValueError("it begins otherwise")
        _loaded(file), _loaded(file)  # the version and the machine's sizes
        unpickler = _Unpickler(file, encoding="utf-8")
        found = unpickler.load()
        starts = {}
        for key in _loaded(file):
            values = int.from_bytes(file.read(8), "little")
            starts[key] = file.tell()
            file.seek(values * _numpy(unpickler.storages[key].dtype).itemsize, io.SEEK_CUR)

    def content(storage: _Storage) -> bytes:
        with open(path, "rb") as file:
            file.seek(starts[storage.key])
            return file.read(storage.size * _numpy(storage.dtype).itemsize)

    return found, content


class _Unpickler(pickle.Unpickler):
    """Reads tensors as descriptions of their place in the file. Any other class raises an error."""

    def __init__(self, file: BinaryIO, *, encoding: str):
        super().__init__(file, encoding=encoding)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        found = _CLASSES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it needs the class `{module}.{name}`")
        return found

    def persistent_load(self, saved: Any) -> _Storage:
        _, dtype, key, _, size, *view = saved
        if any(view):
            raise pickle.UnpicklingError("it has views of storages")
        return self.storages.setdefault(key, _Storage(dtype, key, size))


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_CLASSES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


def _loaded(file: BinaryIO) -> Any:
    return _Unpickler(file, encoding="utf-8").load()


def _inside(tensor: _Tensor) -> bool:
    if min(tensor.offset, *tensor.shape, *tensor.strides, 0) < 0 or len(tensor.shape) != len(tensor.strides):
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return math.prod(tensor.shape) == 0 or tensor.offset + last < tensor.storage.size


def _numpy(dtype: str) -> np.dtype[Any]:
    return np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
