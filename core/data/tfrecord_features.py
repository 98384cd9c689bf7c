"""Declarations of a `tf.train.Example`'s features, and how they are converted and checked.

| declared | in the record | becomes |
| --- | --- | --- |
| `'float'`, `('float', 784)`, `('float', [28, 28])` | so many floats | float32 of that shape |
| `'int'`, `('int', 3)` | so many integers | int32 |
| `('int', 128, 0)`, `('float', 128, 0.0)` | at most so many | padded with the last of these three |
| `('length', 'tokens')` | the list `tokens`, which is padded | int32, its number of values |
| `('levels', [28, 28, 1])` | bytes, one per level | float32 from 0 to 1 |
| `('image', 64)` | a JPEG or PNG file | float32 [64, 64, 3] from 0 to 1 |
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from core.arguments import is_number, is_size, listed
from core.data.files import BadExampleError
from core.data.image_files import decode_images
from core.errors import ConfigurationError, did_you_mean, shown

Declared = str | Sequence[Any]

_LISTS = {"float": "float_list", "int": "int64_list", "levels": "bytes_list", "image": "bytes_list"}
_BEYOND = 1 << 31
_DECLARE = "Correct `tfrecord.features`, or write the files again."


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of `tf.train.Example`s, as declared in `tfrecord.features`."""

    name: str
    kind: str
    shape: tuple[int, ...]
    fill: float | None
    counts: str | None = None  # the feature whose values it counts

    @classmethod
    def of(cls, name: str, declared: Declared) -> "Feature":
        kind, *rest = [declared] if isinstance(declared, str) else list(declared)
        if kind == "length" and len(rest) == 1 and isinstance(rest[0], str):
            return cls(name, kind, (), None, rest[0])
        size = rest[0] if rest else ()
        shape = (size,) if is_size(size) else tuple(size) if isinstance(size, list | tuple) else None
        fill: Any = rest[1] if len(rest) > 1 else None
        wrong = kind not in _LISTS or shape is None or not all(map(is_size, shape)) or len(rest) > 2
        wrong = wrong or (kind == "levels" and not shape) or (kind == "image" and len(shape or ()) != 1)
        finite = fill is not None and is_number(fill) and math.isfinite(fill)
        whole = finite and fill == int(fill) and -_BEYOND <= fill < _BEYOND
        if fill is not None and not (whole if kind == "int" else finite):
            raise ConfigurationError(
                f"`tfrecord.features` fills `{name}` with {shown(fill)}; give a number, for 'int' a whole one."
            )
        if wrong or (fill is not None and (kind not in ("float", "int") or len(shape or ()) != 1)):
            raise ConfigurationError(
                f"`tfrecord.features` says {shown(declared)} for `{name}`; give 'float', 'int', ('float', 784), "
                "('int', 128, 0) to fill short lists with 0, ('length', 'tokens') to count their values, ('levels', "
                "[28, 28, 1]) or ('image', 64)."
            )
        return cls(name, kind, tuple(shape or ()), fill)

    @property
    def spec(self) -> tf.TensorSpec:
        shape = (self.shape[0], self.shape[0], 3) if self.kind == "image" else self.shape
        return tf.TensorSpec(shape, tf.int32 if self.kind in ("int", "length") else tf.float32)

    @property
    def parsing(self) -> Any:
        """Returns the feature's spec for `tf.io.parse_example`."""
        if self.kind in ("levels", "image"):
            return tf.io.FixedLenFeature([], tf.string)
        dtype = tf.int64 if self.kind == "int" else tf.float32
        if self.fill is None:
            return tf.io.FixedLenFeature(self.shape, dtype)
        return tf.io.RaggedFeature(dtype)

    def made(self, parsed: Mapping[str, Any], names: tf.Tensor) -> tf.Tensor:
        """Converts this feature of n parsed records to a tensor [n, ...]; `names` are the records' names in errors."""
        if self.counts is not None:
            return tf.cast(parsed[self.counts].row_lengths(), tf.int32)
        value = parsed[self.name]
        if self.kind == "image":
            return decode_images(value, names, self.shape[0])
        if self.kind == "levels":
            levels = tf.io.decode_raw(value, tf.uint8, fixed_length=math.prod(self.shape))
            return tf.reshape(tf.cast(levels, tf.float32) / 255.0, [-1, *self.shape])
        if self.fill is not None:
            shape = [None, *self.shape]
            value = tf.ensure_shape(value.to_tensor(self.fill, shape=shape), shape)
        return tf.cast(value, self.spec.dtype)

    def check(self, example: Any, name: Callable[[], str]) -> None:
        """Raises a `BadExampleError` if a record lacks the feature as declared. TensorFlow's own error says less."""
        features = example.features.feature
        if self.counts is not None:
            return
        if self.name not in features:
            if self.fill is not None:
                return  # an empty list
            raise BadExampleError(
                f"{name()} has no feature `{self.name}`; it has {listed(sorted(features), most=20) or 'none'}."
                f"{did_you_mean(self.name, features)} {_DECLARE}"
            )
        found = features[self.name].WhichOneof("kind")
        if found != _LISTS[self.kind] and not (found is None and self.fill is not None):
            raise BadExampleError(
                f"`{self.name}` of {name()} is {_told(found)}, but `tfrecord.features` says {self.kind!r}. {_DECLARE}"
            )
        values = getattr(features[self.name], _LISTS[self.kind]).value
        expected = 1 if _LISTS[self.kind] == "bytes_list" else math.prod(self.shape)
        if len(values) > expected or (len(values) < expected and self.fill is None):
            raise BadExampleError(
                f"`{self.name}` of {name()} has {len(values):,} values, but `tfrecord.features` says {expected:,}. "
                f"To fill short lists up, give ({self.kind!r}, LENGTH, 0). {_DECLARE}"
            )
        if self.kind == "levels" and len(values[0]) != math.prod(self.shape):
            raise BadExampleError(
                f"`{self.name}` of {name()} has {len(values[0]):,} bytes, but `tfrecord.features` says "
                f"{list(self.shape)}, {math.prod(self.shape):,}. {_DECLARE}"
            )
        if self.kind == "int" and values and not (min(values) >= -_BEYOND and max(values) < _BEYOND):
            raise BadExampleError(
                f"`{self.name}` of {name()} holds {max(values, key=abs)}, which doesn't fit into int32, the integer "
                "that steps compute with; renumber it."
            )

    def value_of(self, example: Any) -> Any:
        """Returns the feature's numbers in one `tf.train.Example`, in the declared shape."""
        if self.counts is not None:
            of = example.features.feature[self.counts]
            return len(getattr(of, of.WhichOneof("kind") or "int64_list").value)
        values = np.array(getattr(example.features.feature[self.name], _LISTS[self.kind]).value)
        if self.fill is not None:
            values = np.pad(values, (0, self.shape[0] - len(values)), constant_values=self.fill)
        return values.reshape(self.shape)


def _told(kind: str | None) -> str:
    return {"float_list": "floats", "int64_list": "integers", "bytes_list": "bytes"}.get(kind or "", "empty")
