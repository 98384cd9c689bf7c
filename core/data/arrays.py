"""In-memory sources: NumPy arrays, and `.npz` files of them.

    >>> import numpy as np
    >>> images = np.zeros([10, 28, 28, 1], np.uint8)
    >>> source = ArraySource({"image": images, "label": np.arange(10)}, name="blank")
    >>> source.spec["image"].dtype.name, source.spec["label"].dtype.name, source.extremes("label")
    ('float32', 'int32', (0, 0, 9, 9))

Arrays are converted to the types in which steps compute. A uint8 array of rank two or more has grey or colour levels:
it becomes float32, times `scale`. Other integers become int32, and other floats float32. If bytes aren't levels (text,
for example), convert the array to int32 first.
"""

import functools
import hashlib
from collections.abc import Mapping

import gin
import numpy as np
import tensorflow as tf

from core.arguments import check_finite
from core.data.files import path_of
from core.data.float32 import as_float32
from core.data.npz_files import Array, read_npz
from core.data.source import Kept, Source, check_feature
from core.errors import DataError

_LEVELS = 255.0  # the largest level of grey or colour in images of bytes
SAMPLED = 256  # examples, about, that go into a fingerprint


class ArraySource(Source):
    """A source of arrays, `{feature: [examples, ...]}`. A uint8 array has levels from 0 to `highest_level`."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        *,
        name: str,
        place: str = "memory",
        scale: float = 1.0 / 255.0,
        highest_level: int = 255,
    ) -> None:
        check_finite(scale=scale)
        if not arrays:
            raise DataError(f"The source `{name}` is empty: {place} holds no array; give at least one, by feature.")
        self._arrays = {feature: as_kept(name, feature, np.asarray(values)) for feature, values in arrays.items()}
        lengths = {feature: len(values) for feature, values in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The arrays of the source `{name}` ({place}) differ in length: "
                + ", ".join(f"`{feature}` has {length}" for feature, length in lengths.items())
                + ". Each needs one entry per example."
            )
        super().__init__(name, size=next(iter(lengths.values())), place=place)
        self._scale, self._highest_level = scale, highest_level

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {
            feature: tf.TensorSpec(values.shape[1:], tf.float32 if values.dtype == np.uint8 else values.dtype)
            for feature, values in self._arrays.items()
        }

    def description(self) -> dict[str, str]:
        found = hashlib.sha256()
        for _, values in sorted(self._arrays.items()):
            found.update(np.ascontiguousarray(values[:: max(1, len(values) // SAMPLED)]).tobytes())
        return {**super().description(), "fingerprint": found.hexdigest()[:16]}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._decode(self._gather(indices))

    @property
    def kept(self) -> Kept | None:
        narrow = any(values.dtype == np.uint8 for values in self._arrays.values())
        if not narrow or type(self).gather is not ArraySource.gather:  # a subclass changes the examples
            return None
        spec = {feature: tf.TensorSpec(values.shape[1:], values.dtype) for feature, values in self._arrays.items()}
        return Kept(spec, self._gather, self._decode)

    def values(self, feature: str) -> Array | None:
        check_feature(self, feature)
        return self._arrays[feature]

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        check_feature(self, feature)
        values = self._arrays[feature]
        if values.dtype != np.int32 or values.size == 0:
            return None
        per_example = values.size // len(values)
        low, high = int(values.argmin()), int(values.argmax())
        return int(values.flat[low]), low // per_example, int(values.flat[high]), high // per_example

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        return (0.0, self._highest_level * self._scale) if self._arrays[feature].dtype == np.uint8 else None

    def _gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        return {feature: tf.gather(values, indices) for feature, values in self._tensors.items()}

    def _decode(self, kept: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts uint8 levels to float32 when they are read. In memory they stay uint8, a quarter of the size."""
        return {
            feature: tf.cast(values, tf.float32) * self._scale if values.dtype == tf.uint8 else values
            for feature, values in kept.items()
        }

    @functools.cached_property
    def _tensors(self) -> dict[str, tf.Tensor]:
        """Converts the arrays to tensors once, outside any graph. Pipelines use them without a copy."""
        with tf.init_scope(), tf.device("CPU:0"):
            tensors = {feature: tf.constant(values) for feature, values in self._arrays.items()}
        # From here on the NumPy arrays share the tensors' memory, so that nothing is stored twice.
        self._arrays = {feature: np.asarray(memoryview(tensor)) for feature, tensor in tensors.items()}
        return tensors


@gin.configurable
def npz(path: str, scale: float = 1.0 / 255.0) -> Source:
    """Reads an `.npz` file with one array per feature. Uint8 of rank two or more becomes float32, times `scale`."""
    file = path_of(path, "npz.path")
    return ArraySource(read_npz(file), name="npz", place=str(file), scale=scale)


def as_kept(name: str, feature: str, values: Array) -> Array:
    """Converts `values` to the dtype in which they are stored: uint8 (levels), int32, float32 or bool."""
    if values.ndim == 0:
        raise DataError(
            f"`{feature}` of the source `{name}` is a single number ({values!r}); "
            "give an array with one entry per example."
        )
    if values.dtype == np.bool_ or (values.dtype == np.uint8 and values.ndim > 1):
        return values
    if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
        return as_float32(values, lambda: f"`{feature}` of the source `{name}`")
    if values.dtype.kind not in "iu":
        raise DataError(
            f"`{feature}` of the source `{name}` has dtype {values.dtype}; give integers, floats or bool. "
            "Text needs to become token numbers first, rows of different lengths one padded array."
        )
    bounds = np.iinfo(np.int32)
    if values.dtype.itemsize >= 4 and values.size and not bounds.min <= values.min() <= values.max() <= bounds.max:
        outlier = values.max() if values.max() > bounds.max else values.min()
        raise DataError(
            f"`{feature}` of the source `{name}` holds {outlier}, which doesn't fit into int32, "
            "the integer that steps compute with; renumber it, or give it as floats."
        )
    return values.astype(np.int32, copy=False)


def as_computed(name: str, feature: str, values: Array) -> Array:
    """Converts `values` to the dtype in which steps compute: float32, int32 or bool. Levels become 0 to 1."""
    kept = as_kept(name, feature, values)
    return kept.astype(np.float32) / np.float32(_LEVELS) if kept.dtype == np.uint8 else kept
