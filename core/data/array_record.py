"""Reads ArrayRecord files of `tf.train.Example`s by number, with the package `array_record`.

    Experiment.train_source = @array_record()
    array_record.files = 'data/train*.array_record'
    array_record.features = {'image': ('image', 64), 'label': 'int'}

`core/data/declared.py` lists the possible declarations. The files have an index of their records, and checksums.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.declared import Declared, features_of
from core.data.files import BadExampleError, list_files, reading
from core.data.records import Records
from core.data.source import Source
from core.errors import ConfigurationError, DataError

_AGAIN = "write or copy it again"


class ArrayRecordFile:
    """An ArrayRecord file, which is open as long as the source exists."""

    def __init__(self, path: Path):
        self.path = path
        with reading(path) as file:  # a better message than the package's
            self._state = os.fstat(file.fileno())
        # Records are drawn from anywhere, so reading ahead would be in vain.
        self._reader = _package().ArrayRecordReader(str(path), "readahead_buffer_size:0")
        if not self._reader.ok():
            raise DataError(f"{path} can't be read as ArrayRecord: {self._reason()}; {_AGAIN}.")
        self._size = int(self._reader.num_records())

    def __len__(self) -> int:
        return self._size

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the records with these numbers. The package verifies their checksums."""
        try:
            state = self.path.stat()
            if (state.st_size, state.st_mtime_ns) != (self._state.st_size, self._state.st_mtime_ns):
                raise BadExampleError(f"{self.path} has changed since the run began; leave it as it is while it runs.")
            return list(self._reader.read(list(numbers))) if len(numbers) else []
        except OSError as error:
            raise BadExampleError(f"{self.path} can't be read: {error.strerror}.") from error
        except RuntimeError as error:
            what = " ".join(str(error).split()).rstrip(".")
            raise BadExampleError(f"{self.path} is damaged: {what}; {_AGAIN}.") from error

    def name_of(self, number: int) -> str:
        return f"record {number} of {self.path}"

    def _reason(self) -> str:
        try:
            self._reader.close()  # which reports why it couldn't be opened
        except RuntimeError as error:
            return " ".join(str(error).split()).rstrip(".")
        return "it isn't a file of that format"


@gin.configurable
def array_record(files: str, features: Mapping[str, Declared], *, stored_as: Mapping[str, str] = {}) -> Source:
    """Reads the declared features of records, from one file, or from all files that match a pattern with `*`.

    `stored_as` maps a feature to its name in the records, if that differs: `{'image': 'image/encoded'}`.
    """
    declared = features_of("array_record", features, stored_as)
    opened = [ArrayRecordFile(path) for path in list_files("array_record.files", files)]
    return Records("array_record", opened, declared)


def _package() -> Any:
    """Imports `array_record`, which only files of that format need."""
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ConfigurationError(
            f"the package `array_record`, which ArrayRecord files need, is missing or broken ({error}): `pip install "
            "-e '.[array_record]'` installs it."
        ) from error
    return array_record_module
