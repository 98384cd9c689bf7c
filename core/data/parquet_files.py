"""Reads Parquet tables, with the package `pyarrow`.

    Experiment.train_source = @parquet()
    parquet.files = 'flowers/*.parquet'
    parquet.types = {'species': ['setosa', 'versicolor', 'virginica']}   # words become 0, 1, 2
    parquet.vectors = {'x': ['width', 'height']}                         # one feature of two values

A column of numbers or booleans becomes a feature, and so does a column of lists with equal lengths. Only the requested
columns are read; they are read whole, when the run starts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from core.arguments import listed
from core.data.arrays import ArraySource
from core.data.files import list_files, open_file
from core.data.npz_files import Array
from core.data.source import Source
from core.data.tables import Wanted, check_names, check_same_header
from core.errors import ConfigurationError, DataError, shown
from core.machine import machine_memory


@gin.configurable
def parquet(
    files: str,
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, str | Sequence[str]] = {},
    vectors: Mapping[str, Sequence[str]] = {},
    fill: Mapping[str, float | str] = {},
) -> Source:
    """Reads the files of one table. Each column becomes a feature.

    With `columns` or `vectors`, only the columns in them are read. `types` maps a column to 'int', 'float' or a list of
    words. `fill` maps a column to the value for missing ones.
    """
    wanted = Wanted("parquet", columns, types, vectors, fill)
    paths = list_files("parquet.files", files)
    arrow = _package()
    parts: dict[str, list[Array]] = {}
    first: tuple[list[str], str] | None = None
    for path in paths:
        try:
            with (
                open_file(path) as content,
                arrow.parquet.ParquetFile(content, page_checksum_verification=True) as file,
            ):
                header, place = file.schema_arrow.names, str(path)
                check_names(header, place)
                first = first or (header, place)
                check_same_header("parquet", header, place, *first)
                names = wanted.among(header, place)
                _check_room(path, file, names)
                table = file.read(columns=names)
        except (OSError, arrow.ArrowException) as error:
            what = " ".join(str(error).split())
            raise DataError(f"{path} can't be read as Parquet: {what}; write or download it again.") from error
        for name in names:
            parts.setdefault(name, []).append(_values(wanted, name, table.column(name), path))
    for name, values in parts.items():
        _check_one_shape(name, values, paths)
    arrays = wanted.features({name: np.concatenate(values) for name, values in parts.items()})
    return ArraySource(arrays, name="parquet", place=listed(map(str, paths), most=3, quote=""))


def _values(wanted: Wanted, name: str, column: Any, path: Path) -> Array:
    """Returns a column as an array of numbers. A word becomes its position in the column's list of words."""
    types = _package().types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        column = _filled(wanted, name, column, path)
    column = column.combine_chunks()
    kind, words = column.type, wanted.words(name)
    if words is not None and (types.is_string(kind) or types.is_large_string(kind)):
        places = _package().compute.index_in(column, _package().array(words, kind))
        if places.null_count:
            row = int(np.argmax(places.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"`{name}` is {shown(column[row].as_py())} in row {row} of {path}, which isn't among its words, "
                f"{listed(words, most=20)}; add it to `parquet.types[{name!r}]`, or write the file anew."
            )
        return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)
    if words is not None:
        raise DataError(
            f"`{name}` is {kind} in {path}, but `parquet.types` lists words for it; leave that out, or write text."
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(name, column, path)
    return _numbers(name, column, path, wanted.types.get(name))


def _lists(name: str, column: Any, path: Path) -> Array:
    """Returns a column of lists as an array [rows, length]."""
    if not len(column):
        return np.zeros([0, 0])
    lengths = _package().compute.list_value_length(column).to_numpy(zero_copy_only=False)
    if np.ptp(lengths):
        row = int(np.argmax(lengths != lengths[0]))
        raise DataError(
            f"`{name}` is a list of {lengths[row]} in row {row} of {path}, but of {lengths[0]} in row 0; give lists of "
            "one length, filled up, with a column that says how long each is."
        )
    inner = column.flatten()
    if inner.null_count:
        place = int(np.argmax(inner.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"`{name}` has no value within the list of row {place // lengths[0]} of {path}; fill it in.")
    return _numbers(name, inner, path, None).reshape(len(column), int(lengths[0]))


def _numbers(name: str, column: Any, path: Path, wanted: str | Sequence[str] | None) -> Array:
    types, kind = _package().types, column.type
    if wanted == "int" and not types.is_integer(kind):
        raise DataError(f"`{name}` is {kind} in {path}, and `parquet.types` says 'int'; correct one of them.")
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        is_text = types.is_string(kind) or types.is_large_string(kind)
        cure = "list its words in `parquet.types`" if is_text else "make numbers of it"
        raise DataError(
            f"`{name}` is {kind} in {path}, which is no number; {cure}, or name in `parquet.columns` those that you "
            "need."
        )
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    return values.astype(np.float64) if wanted == "float" else values


def _filled(wanted: Wanted, name: str, column: Any, path: Path) -> Any:
    value = wanted.fill.get(name)
    if value is None:
        row, more, words = int(np.argmax(column.is_null().to_numpy())), column.null_count - 1, wanted.words(name)
        fill = f"say what stands for it, `parquet.fill = {{{name!r}: {shown(words[0] if words else 0)}}}`, or "
        raise DataError(
            f"`{name}` has no value in row {row} of {path}{f', and in {more:,} more' if more else ''}; "
            f"{'' if _package().types.is_nested(column.type) else fill}leave such rows out."
        )
    try:
        return column.fill_null(_package().scalar(value).cast(column.type))
    except _package().ArrowException as error:
        raise ConfigurationError(
            f"`parquet.fill` says {shown(value)} for `{name}`, which is {column.type} in {path}; give a value of that "
            "kind."
        ) from error


def _check_one_shape(name: str, values: Sequence[Array], paths: Sequence[Path]) -> None:
    """Raises a `DataError` if a column's lists have different lengths in two files."""
    with_rows = [(path, each) for path, each in zip(paths, values, strict=True) if len(each)]
    for path, each in with_rows:
        if each.shape[1:] != with_rows[0][1].shape[1:]:
            raise DataError(
                f"`{name}` has shape {list(each.shape[1:])} in each row of {path}, but "
                f"{list(with_rows[0][1].shape[1:])} in {with_rows[0][0]}; give files of one table."
            )


def _check_room(path: Path, file: Any, names: Sequence[str]) -> None:
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    size = sum(x.total_uncompressed_size for x in columns if x.path_in_schema.split(".")[0] in names)
    if 2 * size > (memory := machine_memory()):
        raise DataError(
            f"The requested columns of {path} take {size:,} bytes and are read whole, but this machine has {memory:,} "
            f"of memory; name fewer in `parquet.columns`, or write the table as TFRecord."
        )


def _package() -> Any:
    """Imports `pyarrow`, which only Parquet tables need."""
    try:
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError(
            f"the package `pyarrow`, which Parquet needs, is missing or broken ({error}): `pip install -e "
            "'.[parquet]'` installs it; `csv` needs nothing."
        ) from error
    return pyarrow
