"""Features, shapes and types of a stream's first example. All other examples must have the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.errors import DataError, shown

Features = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # the shape and the type of each
ID = "id"  # the feature that names an example; steps don't see it


def of_dataset(name: str, dataset: tf.data.Dataset) -> Features:
    """Returns `{feature: (shape, dtype)}` of a dataset's elements. They must be single examples."""
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or not all(isinstance(x, tf.TensorSpec) for x in spec.values()):
        raise DataError(
            f"The stream `{name}` is a dataset of {shown(spec)}; make each example a dictionary of tensors: "
            '`.map(lambda image, label: {"image": image, "label": label})`.'
        )
    unknown = [feature for feature, x in spec.items() if not x.shape.is_fully_defined()]
    if unknown:
        raise DataError(
            f"`{unknown[0]}` of the stream `{name}` has shape {spec[unknown[0]].shape}, which isn't fully known. Leave "
            "out `.batch`, which is the run's to do; or say the shape, with `tf.ensure_shape` in `.map`."
        )
    found = {k: (tuple(x.shape), np.dtype(x.dtype.as_numpy_dtype)) for k, x in spec.items()}
    return _checked(f"The stream `{name}`", found)


def of_example(stream: str, example: Any) -> Features:
    """Returns `{feature: (shape, dtype)}` of an iterator's first example. Errors begin with the text `stream`."""
    if not isinstance(example, Mapping) or not example:
        raise DataError(
            f'{stream} makes {told_of(example)}; make each example a dictionary: `{{"image": image, "label": label}}`.'
        )
    arrays = {name: as_array(value) for name, value in example.items()}
    ragged = [name for name, x in arrays.items() if x is None]
    if ragged:
        raise DataError(
            f"{stream} makes rows of unlike lengths in `{ragged[0]}`; fill them up to one length, with a feature that "
            "says how long each is."
        )
    texts = {name for name, x in arrays.items() if name == ID and x is not None and x.dtype.kind in "US"}
    return _checked(
        stream, {k: (x.shape, np.dtype(object) if k in texts else x.dtype) for k, x in arrays.items() if x is not None}
    )


def _checked(stream: str, found: Features) -> Features:
    """Raises a `DataError` if a feature's name isn't a text, or if an `id` is invalid or the only feature."""
    unnamed = [name for name in found if not isinstance(name, str)]
    if unnamed:
        raise DataError(f"{stream} calls a feature {shown(unnamed[0])}; a name is a text: 'image', say.")
    if found.keys() == {ID}:
        raise DataError(f"{stream} makes only `{ID}`, by which a run knows an example; add what steps read.")
    if ID in found:
        shape, dtype = found[ID]
        if shape or not (dtype.kind in "iu" or dtype.kind == "O"):
            raise DataError(
                f"{stream} has {told({ID: (shape, dtype)})}, by which a run knows an example; give a whole number or "
                "a text, or call the feature something else."
            )
    return found


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Converts a feature of one example to a NumPy array, or returns `None` if its rows differ in length."""
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)  # NumPy would make an object of it
    try:
        return np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)
    except ValueError:
        return None


def fitted(value: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Converts `value` to `dtype`. Returns `None` if `value` is of another kind, or if a value would change."""
    if value.dtype == dtype and dtype.kind != "O":
        return value
    if dtype.kind == "O":
        return value if value.dtype.kind in "US" else None
    if not np.can_cast(value.dtype, dtype, "same_kind"):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        kept = value.astype(dtype)
    same = kept == value if dtype.kind in "iub" else np.isfinite(kept) == np.isfinite(value)
    return kept if np.all(same) else None


def told_of(example: Any) -> str:
    """Describes an example for an error: its features, or its type if it isn't a dictionary."""
    if isinstance(example, Mapping):
        return listed(map(str, example)) if example else "an empty dictionary"
    return f"a {type(example).__name__}"


def told(found: Features) -> str:
    return ", ".join(f"`{name}` {dtype.name} {list(shape)}" for name, (shape, dtype) in found.items())


def told_one(name: str, value: npt.NDArray[Any] | None) -> str:
    """Describes a feature of one example for an error: name, dtype, shape, and the value of a scalar."""
    if value is None:
        return f"rows of unlike lengths in `{name}`"
    found = told({name: (value.shape, value.dtype)})
    return found if value.shape else f"{found}, {shown(value.item())}"
