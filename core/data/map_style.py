"""Reads map-style datasets, objects of Python that return example `i` for `dataset[i]`.

    >>> import numpy as np
    >>> class Squares:
    ...     def __len__(self):
    ...         return 100
    ...     def __getitem__(self, number):
    ...         return {"x": np.float32(number), "label": number**2 % 7}
    >>> MapStyle(Squares()).spec
    {'x': TensorSpec(shape=(), dtype=tf.float32, name=None), 'label': TensorSpec(shape=(), dtype=tf.int32, name=None)}

Such are Grain's `MapDataset` and data sources, those of `tfds.data_source`, and PyTorch's `Dataset`s. Examples are
converted to the types in which steps compute, as in `ArraySource`.
"""

from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.arrays import as_computed
from core.data.files import BadExampleError
from core.data.source import Source, check_feature
from core.data.stream_features import ID, as_array, fitted, of_example, told, told_of, told_one
from core.errors import ConfigurationError, DataError, shown

_ENDLESS = 1 << 60


@gin.configurable("map_style")
class MapStyle(Source):
    """The examples of an object with `__len__` and `__getitem__`: dictionaries of arrays or numbers.

    A thread of the input pipeline calls the object. An example may depend on its number alone. A feature `id` is left
    out, as in streams.
    """

    def __init__(self, dataset: Any):
        name = type(dataset).__name__
        if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigurationError(
                f"`map_style.dataset` is {shown(dataset)}; give an object whose `dataset[i]` is example i, and which "
                "has a `len`, or `stream` a function that returns an iterator."
            )
        size = len(dataset)
        if size >= _ENDLESS:
            raise ConfigurationError(
                f"`map_style.dataset`, a `{name}`, has {size:,} examples: leave out its `.repeat`, as runs repeat it."
            )
        super().__init__("map_style", size=size, place=f"a `{name}`")
        self._dataset = dataset
        found = of_example(f"The dataset of the source `map_style` ({self.place})", self._example(0))
        self._found = {name: kind for name, kind in found.items() if name != ID}
        self._gathered(np.zeros([1], np.int64))  # an unfit type is found before the run starts

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        specs = {}
        for feature, (shape, dtype) in self._found.items():
            computed = as_computed(self.name, feature, np.zeros([1, *shape], dtype))
            specs[feature] = tf.TensorSpec(shape, computed.dtype)
        return specs

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = self.spec
        columns = tf.numpy_function(self._gathered, [indices], [x.dtype for x in spec.values()], stateful=False)
        columns = [columns] if isinstance(columns, tf.Tensor) else columns  # one column, eagerly
        return {
            name: tf.ensure_shape(column, [None, *x.shape])
            for (name, x), column in zip(spec.items(), columns, strict=True)
        }

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        shape, dtype = self._found[feature]
        return (0.0, 1.0) if dtype == np.uint8 and shape else None

    def _gathered(self, indices: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Returns each feature of these examples, [n, ...]."""
        columns = {name: np.empty([len(indices), *shape], dtype) for name, (shape, dtype) in self._found.items()}
        for place, number in enumerate(indices.tolist()):
            example = self._example(number)
            if not isinstance(example, Mapping) or example.keys() - {ID} != self._found.keys():
                raise self._misfit(number, told_of(example), told(self._found))
            for name, (shape, dtype) in self._found.items():
                value = as_array(example[name])
                kept = None if value is None or value.shape != shape else fitted(value, dtype)
                if kept is None:
                    raise self._misfit(number, told_one(name, value), told({name: (shape, dtype)}))
                columns[name][place] = kept
        try:
            return [as_computed(self.name, name, values) for name, values in columns.items()]
        except DataError as error:
            raise BadExampleError(str(error)) from error

    def _example(self, number: int) -> Any:
        try:
            return self._dataset[number]
        except Exception as error:  # the code of the dataset may raise any
            what = " ".join(str(error).split())
            raise BadExampleError(
                f"example {number} of the source `map_style` ({self.place}) can't be read: {type(error).__name__}: "
                f"{what}. Repair it, or leave it out."
            ) from error

    def _misfit(self, number: int, found: str, first: str) -> BadExampleError:
        return BadExampleError(
            f"example {number} of the source `map_style` ({self.place}) has {found}, but the first one has {first}: "
            "give all examples the same features, shapes and types. What differs in length needs to be padded."
        )
