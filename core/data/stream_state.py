"""States of a stream's iterator, with which a resumed run continues in place of reading again.

The iterators of Grain have `get_state` and `set_state`. A streamed data set of Hugging Face and a stateful loader of
PyTorch have `state_dict` and `load_state_dict`. A state is kept if it consists of JSON's types, tuples, bytes, and
numbers or arrays of NumPy and PyTorch.
"""

import base64
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
_BYTES, _TUPLE = "base64", "tuple"  # keys of what JSON lacks
_ARRAYS = ("numpy", "torch")  # packages whose arrays are kept


class Mark(NamedTuple):
    """A moment of reading a stream: the examples read before, the epoch, their hash, and the iterator's state."""

    examples: int
    epoch: int
    hash: int
    state: str


def begun(made: Iterable[Any], state: str | None) -> tuple[Iterator[Any], Callable[[], str | None]]:
    """Returns the iterator of `made`, and a function for its present state. With `state`, it continues from there.

    Raises a `LookupError` if `state` is given and the iterator keeps none.
    """
    iterator = iter(made)
    holder = next((x for x in (iterator, made) if keeps_state(x)), None)
    if holder is None:
        if state is not None:
            raise LookupError("its iterator keeps no state now")
        return iterator, lambda: None
    get, set_ = next(names for names in _METHODS if _has(holder, names))
    if state is not None:
        getattr(holder, set_)(_decoded(state))
        iterator = iterator if holder is iterator else iter(made)
    return iterator, lambda: _encoded(getattr(holder, get)())


def keeps_state(made: object) -> bool:
    """Says whether `made` itself has a state, not only the iterators that it returns."""
    return any(_has(made, names) for names in _METHODS)


def _has(holder: object, names: Sequence[str]) -> bool:
    return all(callable(getattr(holder, name, None)) for name in names)


def _encoded(state: Any) -> str | None:
    """Returns a state as JSON, or `None` if it wouldn't be the same when it is read back."""
    try:
        return json.dumps(_plain(state), allow_nan=False)
    except (TypeError, ValueError, RuntimeError):  # PyTorch's, for a tensor with a gradient; a state in itself
        return None


def _plain(value: Any) -> Any:
    """Returns `value` in JSON's types."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {_TUPLE: [*map(_plain, value)]}
    if isinstance(value, list):
        return [*map(_plain, value)]
    if isinstance(value, dict) and all(isinstance(key, str) and key not in (_BYTES, _TUPLE) for key in value):
        return {key: _plain(x) for key, x in value.items()}
    package = type(value).__module__.partition(".")[0]
    if package in _ARRAYS:
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise TypeError(array.dtype)
        shaped = {"dtype": array.dtype.name, "shape": array.shape, "package": package}
        return {**_plain(array.tobytes()), **shaped}
    raise TypeError(type(value))


def _decoded(text: str) -> Any:
    return json.loads(text, object_hook=_restored)


def _restored(found: dict[str, Any]) -> Any:
    """Returns what `_plain` made a dictionary of."""
    if _TUPLE in found:
        return tuple(found[_TUPLE])
    if _BYTES not in found:
        return found
    content = base64.b64decode(found[_BYTES])
    if "package" not in found:
        return content
    array = np.frombuffer(content, found["dtype"]).reshape(found["shape"]).copy()
    package = _ARRAYS[_ARRAYS.index(found["package"])]  # imports no other
    return array if package == "numpy" else importlib.import_module(package).from_dlpack(array)
