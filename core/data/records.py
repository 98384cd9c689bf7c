"""Reads `tf.train.Example`s by number, from files whose records can be read by number."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from core.arguments import listed
from core.data.declared import Feature
from core.data.files import BadExampleError
from core.data.image_files import decode_images
from core.data.source import Source, check_feature
from core.errors import did_you_mean

_AT_ONCE = 1024  # records that Python parses
_LISTS = {"float_list": "float", "int64_list": "int", "bytes_list": "bytes", None: None}


class RecordFile(Protocol):
    """A file of records that can be read by number."""

    path: Path

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the records with these numbers. A damaged record raises a `BadExampleError`."""
        ...

    def name_of(self, number: int) -> str:
        """Returns a record's name in errors: "record 3 of FILE"."""
        ...


class Records(Source):
    """The records of one or more files, with their declared features."""

    def __init__(self, name: str, files: Sequence[RecordFile], features: Mapping[str, Feature]) -> None:
        self._features, self._files = dict(features), list(files)
        self._firsts = np.cumsum([0, *map(len, self._files)])
        self._proved = [np.zeros(len(file), np.bool_) for file in self._files]
        for i, file in enumerate(self._files):  # mistakes common to all records are found before the run starts
            self._records(i, [0] if len(file) else [])
        place = listed([str(file.path) for file in self._files], most=3, quote="")
        super().__init__(name, size=int(self._firsts[-1]), place=place)

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {name: feature.spec for name, feature in self._features.items()}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        # Python reads anywhere, and explains errors; TensorFlow parses all records at once.
        records = tf.ensure_shape(tf.numpy_function(self._read, [indices], tf.string, stateful=False), [None])
        parsing = {x.stored: _parsing(x) for x in self._features.values() if x.counts is None}
        parsed = tf.io.parse_example(records, parsing)
        # Only images use the names, and TensorFlow doesn't compute unused ones.
        names = tf.ensure_shape(tf.numpy_function(self._names, [indices], tf.string, stateful=False), [None])
        return {name: _made(feature, parsed[feature.stored], names) for name, feature in self._features.items()}

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        """Returns a numeric feature of all records, [records, ...]. This reads all files."""
        check_feature(self, feature)
        asked = self._features[feature]
        if not asked.is_numeric:
            return None
        found = []
        for i, file in enumerate(self._files):
            for begin in range(0, len(file), _AT_ONCE):
                records = self._records(i, range(begin, min(begin + _AT_ONCE, len(file))))
                found += [_value_of(asked, tf.train.Example.FromString(record)) for record in records]
        return np.array(found, asked.spec.dtype.as_numpy_dtype)

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        return self._features[feature].value_range

    def _read(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Returns the records with these indices. It reads them in the order in which they are stored."""
        records, of = np.empty(len(indices), object), self._files_of(indices)
        order = np.argsort(indices, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(order) else ():
            number = int(of[places[0]])
            records[places] = self._records(number, (indices[places] - self._firsts[number]).tolist())
        return records

    def _names(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Returns a name for each record, for errors about images."""
        of = self._files_of(indices)
        names = [
            self._files[i].name_of(n) for i, n in zip(of.tolist(), (indices - self._firsts[of]).tolist(), strict=True)
        ]
        return np.array([name.encode("utf-8", "surrogateescape") for name in names], object)

    def _files_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._firsts, indices, side="right") - 1

    def _records(self, number: int, numbers: Sequence[int]) -> list[bytes]:
        """Returns records of file `number`. A record is checked when it is read for the first time."""
        file, proved = self._files[number], self._proved[number]
        read = file.read(numbers)
        for each, content in zip(numbers, read, strict=True):
            if not proved[each]:
                name = functools.partial(file.name_of, each)
                example = _parsed(content, name)
                for feature in self._features.values():
                    _check(feature, example, name)
                proved[each] = True
        return read


def _parsed(record: bytes, name: Callable[[], str]) -> tf.train.Example:
    try:
        return tf.train.Example.FromString(record)
    except DecodeError as error:
        raise BadExampleError(f"{name()} isn't a `tf.train.Example`; only files of these are read.") from error


def _parsing(feature: Feature) -> Any:
    """Returns the spec of a feature for `tf.io.parse_example`."""
    if feature.kind in ("levels", "image"):
        return tf.io.FixedLenFeature([], tf.string)
    dtype = tf.int64 if feature.kind == "int" else tf.float32
    return tf.io.FixedLenFeature(feature.shape, dtype) if feature.fill is None else tf.io.RaggedFeature(dtype)


def _made(feature: Feature, parsed: Any, names: tf.Tensor) -> tf.Tensor:
    """Converts a feature of n parsed records to a tensor [n, ...]; `names` are the records' names in errors."""
    if feature.counts is not None:
        return tf.cast(parsed.row_lengths(), tf.int32)
    if feature.kind == "image":
        return decode_images(parsed, names, feature.shape[0])
    if feature.kind == "levels":
        levels = tf.io.decode_raw(parsed, tf.uint8, fixed_length=int(np.prod(feature.shape)))
        return tf.reshape(tf.cast(levels, tf.float32) / 255.0, [-1, *feature.shape])
    if feature.fill is not None:
        shape = [None, *feature.shape]
        parsed = tf.ensure_shape(parsed.to_tensor(feature.fill, shape=shape), shape)
    return tf.cast(parsed, feature.spec.dtype)


def _check(feature: Feature, example: Any, name: Callable[[], str]) -> None:
    """Raises a `BadExampleError` if a record lacks a feature as declared. TensorFlow's own error says less."""
    if feature.counts is not None:
        return
    features = example.features.feature
    if feature.stored not in features:
        if feature.fill is not None:
            return  # an empty list
        raise BadExampleError(
            f"{name()} has no feature `{feature.stored}`; it has {listed(sorted(features), most=20) or 'none'}."
            f"{did_you_mean(feature.stored, features)} {feature.advice}"
        )
    kind = features[feature.stored].WhichOneof("kind")
    feature.check(_LISTS[kind], getattr(features[feature.stored], kind).value if kind else [], name)


def _value_of(feature: Feature, example: Any) -> Any:
    """Returns the numbers of a feature in one `tf.train.Example`, in the declared shape."""
    held = example.features.feature[feature.stored]
    values = np.array(getattr(held, held.WhichOneof("kind") or "int64_list").value)
    if feature.counts is not None:
        return len(values)
    if feature.fill is not None:
        values = np.pad(values, (0, feature.shape[0] - len(values)), constant_values=feature.fill)
    return values.reshape(feature.shape)
