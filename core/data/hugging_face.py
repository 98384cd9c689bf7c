"""Reads data sets that `datasets` by Hugging Face saved to disk, with the package `pyarrow`.

    Experiment.train_source = @hugging_face()
    hugging_face.directory = 'data/flowers'        # `datasets.load_dataset(...).save_to_disk('data/flowers')` made it
    hugging_face.split = 'train'
    hugging_face.features = {'image': ('image', 64), 'label': 'int'}

`core/data/declared.py` lists the possible declarations. A saved data set is a folder of Arrow files, and `state.json`
lists them. The files are mapped into memory, so a data set may be larger than memory, and any row can be read at once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gin
import numpy as np

from core.arguments import listed
from core.data.declared import Declared, Feature, Values, features_of
from core.data.files import path_of, reading
from core.data.samples import Numbers, Samples
from core.data.source import Source, check_feature
from core.errors import ConfigurationError, DataError, did_you_mean, shown

_END = b"\xff\xff\xff\xff\0\0\0\0"  # the last bytes of a complete stream of Arrow
_AGAIN = "save it again with `datasets.Dataset.save_to_disk`, or copy it again"


class ArrowRows(Samples):
    """The rows of a data set's Arrow files."""

    def __init__(self, folder: Path, features: Mapping[str, Feature]) -> None:
        self._parts: list[tuple[Path, Any]] = []  # each file's record batches
        firsts, begins = [0], []  # the first row of each batch, and of its file
        for path in _arrow_files(folder):
            begin = firsts[-1]
            for batch in _batches(path, features):
                self._parts.append((path, batch))
                begins.append(begin)
                firsts.append(firsts[-1] + batch.num_rows)
        self._firsts, self._begins = np.array(firsts), begins
        super().__init__("hugging_face", features, size=firsts[-1], place=str(folder))

    def read(self, stored: str, indices: Numbers) -> Values:
        of = np.searchsorted(self._firsts, indices, side="right") - 1
        order = np.argsort(of, kind="stable")
        found: list[Values] = []
        for part in np.unique(of):
            numbers = indices[order][of[order] == part] - self._firsts[part]
            found.append(_rows(self._parts[part][1].column(stored).take(_package().array(numbers))))
        back = np.argsort(order, kind="stable")
        arrays = [part for part in found if isinstance(part, np.ndarray)]
        if len(arrays) == len(found) and len({array.shape[1:] for array in arrays}) == 1:
            return np.concatenate(arrays)[back]
        values = [value for part in found for value in part]
        return [values[i] for i in back.tolist()]

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        check_feature(self, feature)
        if self._features[feature].kind != "int" or self._features[feature].shape:
            return None
        column = self.values(feature)  # whose pages alone are read
        assert column is not None
        low, high = int(column.argmin()), int(column.argmax())
        return int(column[low]), low, int(column[high]), high

    def name_of(self, index: int) -> str:
        part = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return f"row {index - self._begins[part]} of {self._parts[part][0]}"


@gin.configurable
def hugging_face(
    directory: str, features: Mapping[str, Declared], *, split: str | None = None, stored_as: Mapping[str, str] = {}
) -> Source:
    """Reads the declared features of a saved `datasets.Dataset`, or of a `split` of a `datasets.DatasetDict`.

    `stored_as` maps a feature to its column, if that has another name: `{'image': 'img'}`.
    """
    declared = features_of("hugging_face", features, stored_as)
    folder = path_of(directory, "hugging_face.directory")
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}; give one that `save_to_disk` of `datasets` made.")
    splits = _json(folder / "dataset_dict.json").get("splits") if (folder / "dataset_dict.json").exists() else None
    if splits is None and split is not None:
        raise ConfigurationError(
            f"`hugging_face.split` is {shown(split)}, but {folder} holds one data set without splits; leave it out."
        )
    if splits is not None and split not in splits:
        raise ConfigurationError(
            f"`hugging_face.split` is {shown(split)}; {folder} has {listed(splits)}.{did_you_mean(str(split), splits)}"
        )
    return ArrowRows(folder if split is None else folder / split, declared)


def _arrow_files(folder: Path) -> list[Path]:
    """Returns the files that a saved data set's `state.json` lists."""
    if not (folder / "state.json").exists():
        raise DataError(f"{folder} holds no `state.json`, so it isn't a saved data set: {_AGAIN}.")
    state = _json(folder / "state.json")
    listing = state.get("_data_files")
    listing = listing if isinstance(listing, list) else [None]
    names = [x.get("filename") if isinstance(x, dict) else None for x in listing]  # none of a data set without rows
    if not all(isinstance(name, str) for name in names) or state.get("_indices_data_files"):
        raise DataError(
            f"{folder / 'state.json'} is damaged, or of a version of `datasets` that isn't read: load the data set "
            "with `datasets.load_from_disk`, and save it again."
        )
    return [folder / str(name) for name in names]


def _json(path: Path) -> dict[str, Any]:
    with reading(path, _AGAIN) as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise DataError(f"{path} isn't JSON ({error}): it is damaged; {_AGAIN}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {shown(content)} in place of an object: it is damaged; {_AGAIN}.")
    return content


def _batches(path: Path, features: Mapping[str, Feature]) -> list[Any]:
    """Maps a file into memory, and returns its record batches that have rows."""
    arrow = _package()
    with reading(path, _AGAIN) as file:
        # Arrow takes the end of the file for that of the data, and would leave out the rows that are missing.
        file.seek(-min(len(_END), path.stat().st_size), 2)
        complete = file.read() == _END
    try:
        stream = arrow.ipc.open_stream(arrow.memory_map(str(path)))
        batches = [batch for batch in stream if batch.num_rows]
    except (OSError, arrow.ArrowException) as error:
        what = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"{path} can't be read as a stream of Arrow: {what}; {_AGAIN}.") from error
    if not complete:
        raise DataError(f"{path} is cut off: it doesn't end with the mark of a complete stream of Arrow; {_AGAIN}.")
    names = stream.schema.names
    for feature in features.values():
        if feature.stored not in names:
            raise DataError(
                f"`hugging_face.features` reads the column `{feature.stored}`, which {path} doesn't have; it has "
                f"{listed(names, most=20)}.{did_you_mean(feature.stored, names)}"
            )
    return batches


def _rows(column: Any) -> Values:
    """Returns the values of a column: numbers [n], flat lists [n, length] if they have one length, or Python's values.

    The content of an image file is bytes.
    """
    types = _package().types
    if isinstance(column, _package().ExtensionArray):
        column = column.storage
    if types.is_struct(column.type) and {"bytes", "path"} <= {field.name for field in column.type}:
        column = column.field("bytes")
    inner, sizes = column, [len(column)]
    while not inner.null_count and _is_list(inner.type):
        lengths = _package().compute.list_value_length(inner).unique()
        if len(lengths) != 1:
            return list(column.to_pylist())
        sizes.append(lengths[0].as_py())
        inner = inner.flatten()
    if _is_number(inner):
        return np.asarray(inner.to_numpy(zero_copy_only=False)).reshape(sizes)
    return list(column.to_pylist())


def _is_list(kind: Any) -> bool:
    types = _package().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(column: Any) -> bool:
    types, kind = _package().types, column.type
    return not column.null_count and (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _package() -> Any:
    """Imports `pyarrow`, which only Arrow files need."""
    try:
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError as error:
        raise ConfigurationError(
            f"the package `pyarrow`, which Arrow files need, is missing or broken ({error}): `pip install -e "
            "'.[parquet]'` installs it."
        ) from error
    return pyarrow
