"""Reads shards of WebDataset, which are tar files, by number.

    Experiment.train_source = @webdataset()
    webdataset.files = 'data/train-*.tar'
    webdataset.features = {'image': ('image', 64), 'label': 'int'}
    webdataset.stored_as = {'image': 'jpg', 'label': 'cls'}    # extensions of the members; or 'json/label'

`core/data/declared.py` lists the possible declarations. The first run scans the files, and stores where their members
are (`core/data/tar_index.py`). Then any sample can be read at once. So training shuffles all samples, not only those in
a buffer, and resumes without reading earlier ones.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from core.arguments import listed
from core.data.declared import Declared, Feature, Values, features_of
from core.data.files import BadExampleError, list_files
from core.data.npz_files import array_of
from core.data.samples import Numbers, Samples
from core.data.source import Source
from core.data.tar_index import TarFile
from core.errors import DataError, did_you_mean

_TEXTS = ("txt", "text", "cls", "cls2", "class", "count", "id", "index", "inx")


class TarSamples(Samples):
    """The samples of one or more tar files."""

    def __init__(self, files: Sequence[TarFile], features: Mapping[str, Feature]) -> None:
        self._files = list(files)
        self._firsts = np.cumsum([0, *map(len, self._files)])
        for file in self._files:
            for feature in features.values():
                _check_members(file, feature)
        place = listed([str(file.path) for file in files], most=3, quote="")
        super().__init__("webdataset", features, size=int(self._firsts[-1]), place=place)

    def read(self, stored: str, indices: Numbers) -> Values:
        extension = _extension(stored)
        values: list[Any] = [None] * len(indices)
        of = np.searchsorted(self._firsts, indices, side="right") - 1
        for number in np.unique(of).tolist():
            places, file = np.flatnonzero(of == number).tolist(), self._files[number]
            numbers = (indices[places] - self._firsts[number]).tolist()
            for place, each, content in zip(places, numbers, file.read(extension, numbers), strict=True):
                values[place] = _decoded(stored, content, functools.partial(file.name_of, each))
        return values

    def name_of(self, index: int) -> str:
        number = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return self._files[number].name_of(index - int(self._firsts[number]))


@gin.configurable
def webdataset(files: str, features: Mapping[str, Declared], *, stored_as: Mapping[str, str] = {}) -> Source:
    """Reads the declared features of samples, from one tar file, or from all that match a pattern with `*`.

    `stored_as` maps a feature to the extension of its member, or to a value in a JSON member: `'json/age'`.
    """
    declared = features_of("webdataset", features, stored_as)
    return TarSamples([TarFile(Path(path)) for path in list_files("webdataset.files", files)], declared)


def _extension(stored: str) -> str:
    return stored.partition("/")[0].lower()


def _check_members(file: TarFile, feature: Feature) -> None:
    """Raises a `DataError` if a sample lacks the member that holds the feature."""
    extension = _extension(feature.stored)
    known = extension in file.extensions
    lacking = file.places[:, file.extensions.index(extension), 0] < 0 if known else np.ones(len(file), np.bool_)
    if lacking.any():
        number = int(np.argmax(lacking))
        found = file.extensions_of(number)
        raise DataError(
            f"{file.name_of(number)} has no member `.{extension}`, which `{feature.name}` reads; it has "
            f"{listed(found, most=20)}.{did_you_mean(extension, found)} Correct `webdataset.stored_as`, or write the "
            "files again."
        )


def _decoded(stored: str, content: bytes, name: Callable[[], str]) -> Any:
    """Decodes a member by its extension: text, a number, JSON or an array of NumPy. Others stay bytes."""
    extension, *keys = stored.split("/")
    kind = extension.lower().rpartition(".")[2]
    try:
        if kind == "npy":
            return array_of(content)
        value = json.loads(content) if kind in ("json", "jsn") else content
        text = content.decode() if kind in _TEXTS else ""
    except ValueError as error:
        raise BadExampleError(f"`.{extension}` of {name()} can't be decoded: {error}; write it again.") from error
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            found = f"it has {listed(value, most=20)}" if isinstance(value, dict) else "it isn't a JSON object"
            raise BadExampleError(f"`{stored}` names `{key}`, which {name()} doesn't have: {found}.")
        value = value[key]
    if kind not in _TEXTS:
        return value
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
