"""Declarations of the features of stored examples, and how values are converted and checked.

| declared | in the example | becomes |
| --- | --- | --- |
| `'float'`, `('float', 784)`, `('float', [28, 28])` | so many floats | float32 of that shape |
| `'int'`, `('int', 3)` | so many integers | int32 |
| `('int', 128, 0)`, `('float', 128, 0.0)` | at most so many | padded with the last of these three |
| `('length', 'tokens')` | the list `tokens`, which is padded | int32, its number of values |
| `('levels', [28, 28, 1])` | bytes, one per level | float32 from 0 to 1 |
| `('image', 64)` | a JPEG or PNG file | float32 [64, 64, 3] from 0 to 1 |
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import is_number, is_size, listed
from core.data.files import BadExampleError
from core.data.float32 import as_float32
from core.errors import ConfigurationError, shown

Declared = str | Sequence[Any]
Values = Sequence[Any] | npt.NDArray[Any]  # a feature's values in n examples: a list, or an array [n, ...]

# The kind of values in an example, for each kind of declaration.
_HOLDS = {"float": "float", "int": "int", "levels": "bytes", "image": "bytes"}
_CALLED = {"float": "floats", "int": "integers", "bytes": "bytes", "text": "text", None: "empty"}
_BEYOND = 1 << 31
_LARGEST = np.finfo(np.float32).max


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature as declared in `features` of the configurable `source`. In an example it is called `stored`."""

    source: str
    name: str
    stored: str
    kind: str
    shape: tuple[int, ...]
    fill: float | None
    counts: str | None = None  # the feature whose values it counts

    @classmethod
    def of(cls, source: str, name: str, declared: Declared, stored: str) -> "Feature":
        given: list[Any] = list(declared) if isinstance(declared, list | tuple) else [declared]
        kind, *rest = given if given and isinstance(given[0], str) else [""]
        if kind == "length" and len(rest) == 1 and isinstance(rest[0], str):
            return cls(source, name, stored, kind, (), None, rest[0])
        size = rest[0] if rest else ()
        shape = (size,) if is_size(size) else tuple(size) if isinstance(size, list | tuple) else None
        fill: Any = rest[1] if len(rest) > 1 else None
        wrong = kind not in _HOLDS or shape is None or not all(map(is_size, shape)) or len(rest) > 2
        wrong = wrong or (kind == "levels" and not shape) or (kind == "image" and len(shape or ()) != 1)
        finite = fill is not None and is_number(fill) and math.isfinite(fill)
        whole = finite and fill == int(fill) and -_BEYOND <= fill < _BEYOND
        if fill is not None and not (whole if kind == "int" else finite):
            raise ConfigurationError(
                f"`{source}.features` fills `{name}` with {shown(fill)}; give a number, for 'int' a whole one."
            )
        if wrong or (fill is not None and (kind not in ("float", "int") or len(shape or ()) != 1)):
            raise ConfigurationError(
                f"`{source}.features` says {shown(declared)} for `{name}`; give 'float', 'int', ('float', 784), "
                "('int', 128, 0) to fill short lists with 0, ('length', 'tokens') to count their values, ('levels', "
                "[28, 28, 1]) or ('image', 64)."
            )
        return cls(source, name, stored, kind, tuple(shape or ()), fill)

    @property
    def spec(self) -> tf.TensorSpec:
        shape = (self.shape[0], self.shape[0], 3) if self.kind == "image" else self.shape
        return tf.TensorSpec(shape, tf.int32 if self.kind in ("int", "length") else tf.float32)

    @property
    def is_numeric(self) -> bool:
        return self.kind in ("int", "float", "length")

    @property
    def value_range(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.kind in ("levels", "image") else None

    @property
    def advice(self) -> str:
        return f"Correct `{self.source}.features`, or write the files again."

    def check(self, found: str | None, values: Any, name: Callable[[], str]) -> None:
        """Raises a `BadExampleError` unless an example holds the feature as declared.

        `found` is the kind of `values`: "float", "int", "bytes", "text", None if there are none, or other words.
        """
        held = _HOLDS[self.kind]
        if found != held and not (found is None and self.fill is not None):
            raise BadExampleError(
                f"`{self.stored}` of {name()} is {_CALLED.get(found, found)}, but `{self.source}.features` says "
                f"{self.kind!r}. {self.advice}"
            )
        expected = 1 if held == "bytes" else math.prod(self.shape)
        if len(values) > expected or (len(values) < expected and self.fill is None):
            raise BadExampleError(
                f"`{self.stored}` of {name()} has {len(values):,} values, but `{self.source}.features` says "
                f"{expected:,}. To fill short lists up, give ({self.kind!r}, LENGTH, 0). {self.advice}"
            )
        if self.kind == "levels" and len(values[0]) != math.prod(self.shape):
            raise BadExampleError(
                f"`{self.stored}` of {name()} has {len(values[0]):,} bytes, but `{self.source}.features` says "
                f"{list(self.shape)}, {math.prod(self.shape):,}. {self.advice}"
            )
        if self.kind == "int" and len(values) and not (min(values) >= -_BEYOND and max(values) < _BEYOND):
            raise BadExampleError(
                f"`{self.stored}` of {name()} holds {max(values, key=abs)}, which doesn't fit into int32, the integer "
                "that steps compute with; renumber it."
            )

    def stacked(self, values: Values, name: Callable[[int], str]) -> npt.NDArray[Any]:
        """Converts the feature's values in n examples to an array [n, ...], or to n bytes of images.

        `name(i)` is the name of example i in errors.
        """
        if self.kind == "image":
            return np.array([self.converted(x, functools.partial(name, i)) for i, x in enumerate(values)], object)
        made = np.empty([len(values), *self.shape], self.spec.dtype.as_numpy_dtype)
        at_once = self._at_once(values)
        if at_once is not None:
            made[:] = at_once.reshape(made.shape)
            return made
        for i, value in enumerate(values):
            made[i] = self.converted(value, functools.partial(name, i))
        return made

    def _at_once(self, given: Values) -> npt.NDArray[Any] | None:
        """Converts the numbers of all examples, [n, ...], or returns `None` if one isn't as declared."""
        if self.fill is not None or not len(given) or isinstance(given[0], bytes):
            return None
        try:
            values = np.asarray(given)
        except ValueError:  # of unlike lengths
            return None
        if math.prod(values.shape[1:]) != math.prod(self.shape):
            return None
        if self.kind == "levels" and values.dtype == np.uint8:
            return values / np.float32(255.0)
        if self.kind == "int" and values.dtype.kind in "iub" and np.all((values >= -_BEYOND) & (values < _BEYOND)):
            return values
        if self.kind == "float" and values.dtype.kind in "fiub" and np.all(~(np.abs(values) > _LARGEST)):
            return values
        return None

    def converted(self, value: Any, name: Callable[[], str]) -> Any:
        """Converts the feature's value in one example, of Python or NumPy, and checks it.

        Returns a padded array of the declared shape, the number of values for `length`, or the bytes of an image.
        """
        found, values = _kind_of(value)
        if self.kind == "length":
            return len(values)
        if self.kind == "float" and found in ("int", "float"):
            found, values = "float", as_float32(values, lambda: f"`{self.stored}` of {name()}", BadExampleError)
        if self.kind == "levels" and getattr(value, "dtype", None) == np.uint8:
            found, values = "bytes", [value.tobytes()]
        self.check(found, values, name)
        if self.kind == "image":
            return values[0]
        if self.kind == "levels":
            return (np.frombuffer(values[0], np.uint8) / np.float32(255.0)).reshape(self.shape)
        if self.fill is not None:
            values = np.pad(values, (0, self.shape[0] - len(values)), constant_values=self.fill)
        return np.reshape(values, self.shape)


def features_of(source: str, features: Mapping[str, Declared], stored_as: Mapping[str, str] = {}) -> dict[str, Feature]:
    """Returns the features that the arguments `features` and `stored_as` of the configurable `source` declare."""
    if not isinstance(features, Mapping) or not features:
        raise ConfigurationError(
            f"`{source}.features` is {shown(features)}; declare at least one by its name: {{'label': 'int'}}."
        )
    if not isinstance(stored_as, Mapping) or not all(isinstance(x, str) for x in stored_as.values()):
        raise ConfigurationError(
            f"`{source}.stored_as` is {shown(stored_as)}; map features to their names in the files: {{'image': 'jpg'}}."
        )
    made = {name: Feature.of(source, name, x, stored_as.get(name, name)) for name, x in features.items()}
    for name, feature in made.items():
        if feature.counts is not None and getattr(made.get(feature.counts), "fill", None) is None:
            filled = [name for name, x in made.items() if x.fill is not None]
            raise ConfigurationError(
                f"`{source}.features` says that `{name}` counts the values of `{feature.counts}`; declare that "
                f"as a list that is filled up, ('int', 128, 0). {f'Such are {listed(filled)}.' if filled else ''}"
            )
    for name in stored_as:
        if name not in made or made[name].counts is not None:
            raise ConfigurationError(
                f"`{source}.stored_as` names `{name}`, which isn't a feature that is read from the files; these are: "
                f"{listed(name for name, x in made.items() if x.counts is None)}."
            )
    for feature in made.values():
        twice = [other for other, x in made.items() if x.counts is None and x.stored == feature.stored]
        if len(twice) > 1:
            raise ConfigurationError(
                f"`{source}.features` reads {listed(twice)} from one name of the files, `{feature.stored}`; declare it "
                "once."
            )
    counted = {name: dataclasses.replace(x, stored=made[x.counts].stored) for name, x in made.items() if x.counts}
    return made | counted


def _kind_of(value: Any) -> tuple[str | None, Any]:
    """Returns the kind of a value, and its numbers as a flat array, or its bytes as a list of one."""
    if value is None:
        return None, []
    if isinstance(value, bytes):
        return "bytes", [value]
    try:
        values = np.asarray(value)
    except ValueError:
        return "lists of unlike lengths", []
    if values.size == 0:
        return None, []
    if values.dtype.kind == "O":  # a null, an object of JSON, or an integer beyond 64 bits, maybe in a list
        return f"{shown(value)}{', beyond 64 bits' if isinstance(value, int) else ''}", values.reshape(-1)
    kinds = {"f": "float", "i": "int", "u": "int", "b": "int", "U": "text", "S": "bytes"}
    return kinds.get(values.dtype.kind, f"of type {values.dtype}"), values.reshape(-1)
