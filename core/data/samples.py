"""Base of sources whose examples Python reads by number, with declared features."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.declared import Feature, Values
from core.data.image_files import decode_images
from core.data.source import Source, check_feature

Numbers = npt.NDArray[np.int64]

_AT_ONCE = 1024  # examples that `values` holds before they are converted


class Samples(Source):
    """Examples of declared features. A subclass reads the values that a file holds, and names examples in errors."""

    def __init__(self, name: str, features: Mapping[str, Feature], *, size: int, place: str) -> None:
        super().__init__(name, size=size, place=place)
        self._features = dict(features)
        self._gathered(np.zeros([1], np.int64))  # mistakes common to all examples are found before the run starts

    @abc.abstractmethod
    def read(self, stored: str, indices: Numbers) -> Values:
        """Returns the values that are stored under this name in the n examples at `indices`.

        An example that can't be read raises a `BadExampleError`.
        """

    @abc.abstractmethod
    def name_of(self, index: int) -> str:
        """Returns an example's name in errors: "row 3 of FILE"."""

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {name: feature.spec for name, feature in self._features.items()}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [tf.string if x.kind == "image" else x.spec.dtype for x in self._features.values()]
        *columns, names = tf.numpy_function(self._gathered, [indices], [*types, tf.string], stateful=False)
        made = {}
        for (name, feature), column in zip(self._features.items(), columns, strict=True):
            if feature.kind == "image":
                images = tf.ensure_shape(column, [None])
                made[name] = decode_images(images, tf.ensure_shape(names, [None]), feature.shape[0])
            else:
                made[name] = tf.ensure_shape(column, [None, *feature.shape])
        return made

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        """Returns a numeric feature of all examples, [examples, ...]. This reads the feature from all files."""
        check_feature(self, feature)
        asked = self._features[feature]
        if not asked.is_numeric:
            return None
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _AT_ONCE))
        return np.concatenate([self._column(asked, part, self.read(asked.stored, part)) for part in parts])

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        return self._features[feature].value_range

    def _gathered(self, indices: Numbers) -> list[npt.NDArray[Any]]:
        """Returns the features of these examples, and the examples' names if there are images, for their errors."""
        read = {name: self.read(name, indices) for name in dict.fromkeys(x.stored for x in self._features.values())}
        columns = [self._column(feature, indices, read[feature.stored]) for feature in self._features.values()]
        with_images = any(feature.kind == "image" for feature in self._features.values())
        names = [self.name_of(i).encode("utf-8", "surrogateescape") for i in indices.tolist()] if with_images else []
        return [*columns, np.array(names, object)]

    def _column(self, feature: Feature, indices: Numbers, read: Values) -> npt.NDArray[Any]:
        """Returns a feature of these examples, converted and checked. Images stay bytes."""
        return feature.stacked(read, lambda i: self.name_of(int(indices[i])))
