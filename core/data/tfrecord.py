"""Reads TFRecord files of `tf.train.Example`s by index.

    Experiment.train_source = @tfrecord()
    tfrecord.files = 'data/train-*.tfrecord'
    tfrecord.features = {'image': ('image', 64), 'label': 'int'}

`core/data/tfrecord_features.py` lists the possible declarations. The first run scans the files, and stores the offsets
of their records (`core/data/tfrecord_index.py`). Then any record can be read at once. So training shuffles all records,
not only those in a buffer, and resumes without reading earlier ones. When a run first reads a record, it verifies the
checksum and the declared features.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from core.arguments import listed
from core.data.files import BadExampleError, list_files
from core.data.source import Source, check_feature
from core.data.tfrecord_features import Declared, Feature
from core.data.tfrecord_index import index_of
from core.errors import ConfigurationError, shown

_AT_ONCE = 1024  # records that Python parses


class Records(Source):
    """The records of one or more TFRecord files, with their declared `features`."""

    def __init__(self, files: str, features: Mapping[str, Declared]) -> None:
        if not isinstance(features, Mapping) or not features:
            raise ConfigurationError(
                f"`tfrecord.features` is {shown(features)}; declare at least one by its name: {{'label': 'int'}}."
            )
        self._features = {name: Feature.of(name, declared) for name, declared in features.items()}
        for name, feature in self._features.items():
            if feature.counts is not None and getattr(self._features.get(feature.counts), "fill", None) is None:
                filled = [name for name, x in self._features.items() if x.fill is not None]
                raise ConfigurationError(
                    f"`tfrecord.features` says that `{name}` counts the values of `{feature.counts}`; declare that "
                    f"as a list that is filled up, ('int', 128, 0). {f'Such are {listed(filled)}.' if filled else ''}"
                )
        paths = list_files("tfrecord.files", files)
        self._files = [index_of(path) for path in paths]
        self._firsts = np.cumsum([0, *map(len, self._files)])
        self._proved = [np.zeros(len(file), np.bool_) for file in self._files]
        for i, file in enumerate(self._files):  # mistakes common to all records are found before the run starts
            self._records(i, [0] if len(file) else [])
        super().__init__("tfrecord", size=int(self._firsts[-1]), place=listed(map(str, paths), most=3, quote=""))

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {name: feature.spec for name, feature in self._features.items()}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        # Python reads anywhere, and explains errors; TensorFlow parses all records at once.
        records = tf.ensure_shape(tf.numpy_function(self._read, [indices], tf.string, stateful=False), [None])
        parsing = {name: feature.parsing for name, feature in self._features.items() if feature.counts is None}
        parsed = tf.io.parse_example(records, parsing)
        # Only images use the names, and TensorFlow doesn't compute unused ones.
        names = tf.ensure_shape(tf.numpy_function(self._names, [indices], tf.string, stateful=False), [None])
        return {name: feature.made(parsed, names) for name, feature in self._features.items()}

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        """Returns a numeric feature of all records, [records, ...]. This reads all files."""
        check_feature(self, feature)
        asked = self._features[feature]
        if asked.kind not in ("int", "float", "length"):
            return None
        found = []
        for i, file in enumerate(self._files):
            for begin in range(0, len(file), _AT_ONCE):
                records = self._records(i, range(begin, min(begin + _AT_ONCE, len(file))))
                found += [asked.value_of(tf.train.Example.FromString(record)) for record in records]
        return np.array(found, asked.spec.dtype.as_numpy_dtype)

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        return (0.0, 1.0) if self._features[feature].kind in ("levels", "image") else None

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
        new = [(each, content) for each, content in zip(numbers, read, strict=True) if not proved[each]]
        file.prove([each for each, _ in new], [content for _, content in new])
        for each, content in new:
            name = functools.partial(file.name_of, each)
            example = _parsed(content[12:-4], name)
            for feature in self._features.values():
                feature.check(example, name)
            proved[each] = True
        return [content[12:-4] for content in read]


def _parsed(record: bytes, name: Callable[[], str]) -> tf.train.Example:
    try:
        return tf.train.Example.FromString(record)
    except DecodeError as error:
        raise BadExampleError(f"{name()} isn't a `tf.train.Example`; only files of these are read.") from error


@gin.configurable
def tfrecord(files: str, features: Mapping[str, Declared]) -> Source:
    """Reads the declared features of records, from one file, or from all files that match a pattern with `*`."""
    return Records(files, features)
