"""Columns of tables, for all file formats: which are read, with which types, as which features.

A column holds integers, floats or words. A word becomes its index in a given list, so it has the same number in
training and evaluation.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from core.arguments import listed
from core.data.npz_files import Array
from core.errors import ConfigurationError, DataError, did_you_mean, shown

NUMBERS = ("int", "float")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The columns to read from a table, with their types. Errors name the configurable `source`."""

    source: str
    columns: Sequence[str] | None  # None for all
    types: Mapping[str, str | Sequence[str]]
    vectors: Mapping[str, Sequence[str]]
    fill: Mapping[str, float | str]

    def __post_init__(self) -> None:
        for argument in ("types", "vectors", "fill"):
            if not isinstance(getattr(self, argument), Mapping):
                raise ConfigurationError(
                    f"`{self.source}.{argument}` is {shown(getattr(self, argument))}; give a dictionary from names to "
                    "what is meant for each."
                )
        for column, kind in self.types.items():
            if kind not in NUMBERS if isinstance(kind, str) else not isinstance(kind, Collection):
                raise ConfigurationError(
                    f"`{self.source}.types` says {shown(kind)} for `{column}`; give 'int', 'float', or a list of the "
                    "column's words."
                )
            if not isinstance(kind, str) and not all(isinstance(word, str) for word in kind):
                raise ConfigurationError(
                    f"`{self.source}.types` lists {shown(list(kind))} for `{column}`; words are texts: give "
                    f"{shown([str(word) for word in kind])}, or 'int' for numbers."
                )
            if not isinstance(kind, str) and (len(set(kind)) < len(kind) or not kind):
                raise ConfigurationError(
                    f"`{self.source}.types` lists the words {shown(list(kind))} for `{column}`; give each of them once."
                )
        for column, value in self.fill.items():
            words = self.words(column)
            number = isinstance(value, float | int) and math.isfinite(value)
            if words is None and self.types.get(column) == "int" and number and value != int(value):
                raise ConfigurationError(
                    f"`{self.source}.fill` says {shown(value)} for `{column}`, and `{self.source}.types` 'int'; give a "
                    "whole number."
                )
            if value not in words if words else not number:
                raise ConfigurationError(
                    f"`{self.source}.fill` says {shown(value)} for `{column}`; give "
                    + (f"one of its words, {listed(words, most=20)}." if words else "a finite number.")
                )
        if self.columns is not None and not (are_names(self.columns) and (len(self.columns) or self.vectors)):
            raise ConfigurationError(
                f"`{self.source}.columns` is {shown(self.columns)}; give a list of columns: ['width', 'height']."
            )
        for feature, names in self.vectors.items():
            if not are_names(names) or not len(names):
                raise ConfigurationError(
                    f"`{self.source}.vectors` says {shown(names)} for `{feature}`; give a list of columns."
                )

    def words(self, column: str) -> Sequence[str] | None:
        """Returns the list of words of `column`, or `None` for a column of numbers."""
        kind = self.types.get(column)
        return None if kind is None or isinstance(kind, str) else kind

    def among(self, header: Sequence[str], place: str) -> list[str]:
        """Returns the columns to read from a file with this header. Errors call the file `place`."""
        asked = {
            "columns": self.columns or (),
            "types": self.types,
            "vectors": [name for names in self.vectors.values() for name in names],
            "fill": self.fill,
        }
        for argument, names in asked.items():
            for name in names:
                if name not in header:
                    raise DataError(
                        f"`{self.source}.{argument}` names the column `{name}`, which {place} doesn't have; it has "
                        f"{listed(header, most=20)}.{did_you_mean(name, header)}"
                    )
        if self.columns is None:
            return list(header)
        return list(dict.fromkeys([*self.columns, *asked["vectors"]]))

    def features(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Converts columns to features: all columns of a vector become one feature, any other column becomes one."""
        parts = {name for names in self.vectors.values() for name in names}
        alone = {name: values for name, values in columns.items() if name not in parts}
        for feature, names in self.vectors.items():
            if feature in alone:
                raise ConfigurationError(
                    f"`{self.source}.vectors` makes a feature `{feature}`, and there is a column of that name; call "
                    "the feature something else."
                )
            for name in names:
                if columns[name].ndim > 1:
                    raise DataError(
                        f"`{self.source}.vectors` names `{name}`, which is a list in each row already: it is a feature "
                        "by itself, leave it out."
                    )
        return alone | {name: np.stack([columns[x] for x in names], 1) for name, names in self.vectors.items()}


def are_names(value: object) -> bool:
    """Says whether `value` is a list of texts, or another collection of them."""
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(x, str) for x in value)


def check_names(header: Sequence[str], place: str) -> None:
    """Raises a `DataError` that begins with `place` if a column has no name, or if two have the same name."""
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    if twice or "" in header:
        what = f"the name `{twice[0]}` twice" if twice else f"no name for column {header.index('') + 1}"
        raise DataError(f"{place} has {what}; each column needs a unique name.")


def check_same_header(source: str, header: Sequence[str], place: str, first: Sequence[str], first_place: str) -> None:
    """Raises a `DataError` if a file's columns differ from those of the first file."""
    if list(header) == list(first):
        return
    missing, more = ([name for name in one if name not in other] for one, other in ((first, header), (header, first)))
    found = [f"lacks {listed(missing, most=5)}"] * bool(missing) + [f"has {listed(more, most=5)} besides"] * bool(more)
    raise DataError(
        f"`{source}.files` aren't one table: {place} {' and '.join(found) or 'has the same columns in another order'}, "
        f"compared with {first_place}; give files with the same columns."
    )
