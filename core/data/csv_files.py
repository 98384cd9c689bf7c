"""Reads tables from text files, whose first line names the columns (CSV, RFC 4180).

    Experiment.train_source = @csv()
    csv.files = 'flowers.csv'
    csv.types = {'species': ['setosa', 'versicolor', 'virginica']}   # words become 0, 1, 2
    csv.vectors = {'x': ['width', 'height']}                         # one feature of two values

Values are separated by commas, semicolons or tabs. A column that `types` doesn't name becomes int32 if all values are
integers, else float32. An error names file and line. Files are read whole, when the run starts.
"""

import codecs
import csv as reader
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import gin
import numpy as np

from core.arguments import listed
from core.data.arrays import ArraySource
from core.data.files import list_files, open_file, reading
from core.data.npz_files import Array
from core.data.source import Source
from core.data.tables import Wanted, check_names, check_same_header
from core.errors import ConfigurationError, DataError, shown
from core.machine import machine_memory

SEPARATORS = (",", ";", "\t")
_AT_ONCE = 1 << 12  # rows held as text at one time
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_LARGEST = float(np.finfo(np.float32).max)
_PACKED = {b"\x1f\x8b": "compressed (GZIP)", b"PK": "a ZIP file, as spreadsheets are"}
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@gin.configurable
def csv(
    files: str,
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, str | Sequence[str]] = {},
    vectors: Mapping[str, Sequence[str]] = {},
    fill: Mapping[str, float | str] = {},
    separator: str = ",",
) -> Source:
    """Reads the files of one table. Each column becomes a feature.

    With `columns` or `vectors`, only the columns in them are read. `types` maps a column to 'int', 'float' or a list of
    words. `fill` maps a column to the value for missing ones.
    """
    if separator not in SEPARATORS:
        raise ConfigurationError(f"`csv.separator` is {shown(separator)}; give ',', ';' or a tab, '\\t'.")
    wanted = Wanted("csv", columns, types, vectors, fill)
    paths = list_files("csv.files", files)
    total, memory = sum(path.stat().st_size for path in paths), machine_memory()
    if 2 * total > memory:
        raise DataError(
            f"`csv.files` names {total:,} bytes of text, which is read whole, and this machine has {memory:,} of "
            "memory; write the table as TFRecord, which is read piece by piece."
        )
    parts: dict[str, list[Array]] = {}
    first: tuple[list[str], str] | None = None
    for path in paths:
        rows = _rows(path, separator)
        header, place = _header(path, rows, separator), f"line 1 of {path}"
        first = first or (header, place)
        check_same_header("csv", header, place, *first)
        read = {name: _Column(wanted, name, header.index(name), path) for name in wanted.among(header, place)}
        for numbers, fields in _pieces(path, rows, len(header)):
            for name, column in read.items():
                parts.setdefault(name, []).append(column.values([row[column.place] for row in fields], numbers))
    if not parts:
        raise DataError(f"The source `csv` is empty: {paths[0]} has a line of names and no row; give a file with rows.")
    arrays = wanted.features({name: np.concatenate(values) for name, values in parts.items()})
    return ArraySource(arrays, name="csv", place=listed(map(str, paths), most=3, quote=""))


def _rows(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields `(line number, fields)` for each row of a file; empty lines are skipped."""
    with reading(path) as file:
        _check_text(path, file.read(2))
        file.seek(0)
        rows = reader.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=separator, strict=True)
        line = 1
        try:
            for fields in rows:
                if fields:
                    yield line, fields
                line = rows.line_num + 1
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
        except reader.Error as error:
            raise DataError(
                f"The row that begins in line {line} of {path} can't be read ({error}): a quote in it isn't closed, or "
                "it is no text of a table; a quote within quotes is written twice."
            ) from error


def _header(path: Path, rows: Iterator[tuple[int, list[str]]], separator: str) -> list[str]:
    _, header = next(rows, (1, []))
    if not header:
        raise DataError(f"{path} is empty; its first line holds the names of its columns.")
    others = [other for other in SEPARATORS if other != separator and other in header[0]]
    if len(header) == 1 and others:
        raise DataError(
            f"Line 1 of {path} is one name, {shown(header[0])}, with {separator!r} between columns: set "
            f"`csv.separator = {others[0]!r}`."
        )
    check_names(header, f"Line 1 of {path}")
    if all(_number(name) is not None for name in header):
        raise DataError(
            f"Line 1 of {path} holds numbers, {listed(header, most=3)}, where the names of the columns belong; put a "
            "line of names above it."
        )
    return header


def _pieces(
    path: Path, rows: Iterator[tuple[int, list[str]]], width: int
) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Yields `(line numbers, rows)` for several thousand rows at a time; each row must have `width` fields."""
    numbers, piece = list[int](), list[list[str]]()
    for line, fields in rows:
        if len(fields) != width:
            raise DataError(
                f"Line {line} of {path} has {len(fields)} values, and its first line {width} names; a value that holds "
                'the separator stands in quotes, "like this".'
            )
        numbers.append(line)
        piece.append(fields)
        if len(piece) == _AT_ONCE:
            yield numbers, piece
            numbers, piece = [], []
    if piece:
        yield numbers, piece


class _Column:
    """Converts one column of a file from text to numbers."""

    def __init__(self, wanted: Wanted, name: str, place: int, path: Path) -> None:
        self.place, self._name, self._path = place, name, path
        self._words, self._kind, self._fill = wanted.words(name), wanted.types.get(name), wanted.fill.get(name)
        self._numbers = None if self._words is None else {word: i for i, word in enumerate(self._words)}

    def values(self, fields: list[str], lines: Sequence[int]) -> Array:
        """Converts `fields`, one per line, to int64 or float64. `lines` has the line numbers for errors."""
        found = self._converted(fields)
        if found is None:  # rare, so fields are examined one by one
            found = self._converted([self._filled(field, line) for field, line in zip(fields, lines, strict=True)])
        if found is None:
            where = next(i for i, field in enumerate(fields) if self._converted([self._filled(field, 0)]) is None)
            raise self._refused(fields, where, lines[where])
        return found

    def _converted(self, fields: list[str]) -> Array | None:
        """Converts `fields` to numbers; returns `None` if one of them is missing or isn't a number."""
        if self._numbers is not None:
            places = [self._numbers.get(field, -1) for field in fields]
            return None if -1 in places else np.array(places, np.int64)
        if "_" in "".join(fields):  # Python reads 1_000 as a number
            return None
        for kind in (int, float):
            if self._kind in (None, kind.__name__):
                try:
                    values = np.array([kind(field) for field in fields])
                except (ValueError, OverflowError):
                    continue
                fits = values.dtype.kind in "if" and (np.abs(values) <= _LARGEST).all()
                return values if fits else None
        return None

    def _filled(self, field: str, line: int) -> str:
        is_missing = field == "" if self._numbers else field.strip().lower() in _MISSING
        if not is_missing or (self._numbers and field in self._numbers):
            return field
        if self._fill is None:
            raise DataError(
                f"`{self._name}` has no value ({shown(field)}) in line {line} of {self._path}; say what stands for it, "
                f"`csv.fill = {{{self._name!r}: {shown(self._words[0] if self._words else 0)}}}`, or leave the row out."
            )
        return str(self._fill)

    def _refused(self, fields: list[str], where: int, line: int) -> DataError:
        field = fields[where]
        here = f"`{self._name}` is {shown(field)} in line {line} of {self._path}"
        if self._words is not None:
            return DataError(
                f"{here}, which isn't among its words, {listed(self._words, most=20)}; add it to "
                f"`csv.types[{self._name!r}]`, or write the file anew."
            )
        if self._kind is not None:
            what = "no whole number" if self._kind == "int" else "no number"
            return DataError(f"{here}, which is {what}, as `csv.types` says that it is; correct one of them.")
        if (number := _number(field)) is not None:
            return DataError(f"{here}, {number:g}, which is beyond what steps compute with; leave the column out.")
        some = sorted({x for x in fields if _number(x) is None})[:20]
        return DataError(
            f"{here}, which is no number (1 or 1.5). List the words of the column, `csv.types = {{{self._name!r}: "
            f"{shown(some)}}}`, or name in `csv.columns` those that you need."
        )


def _number(text: str) -> float | None:
    try:
        return None if "_" in text or math.isnan(float(text)) else float(text)
    except ValueError:
        return None


def _check_text(path: Path, begins: bytes) -> None:
    if begins in _UTF_16:
        raise DataError(f'{path} is UTF-16; save it as UTF-8 (a spreadsheet calls it "CSV UTF-8").')
    if begins in _PACKED:
        raise DataError(f"{path} is {_PACKED[begins]}, and no text; unpack it, or save it as CSV.")


def _not_utf8(path: Path) -> DataError:
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = line[error.start : error.start + 1].hex()
                return DataError(
                    f"Line {number} of {path} isn't UTF-8 (byte {found} at place {error.start + 1}); save the file as "
                    "UTF-8, or turn it into it: `iconv -f latin1 -t utf-8`."
                )
    return DataError(f"{path} isn't UTF-8, or changed while it was read; save it as UTF-8.")
