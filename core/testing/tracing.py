"""Checks that a `tf.function` isn't traced again by later calls.

>>> import tensorflow as tf
>>> double = tf.function(lambda x, times: x * times)
>>> x = tf.constant([1.0, 2.0])
>>> assert_traces_once(double, (x, tf.constant(2.0)), (x, tf.constant(3.0)))
>>> assert_traces_once(double, (x, 2.0), (x, 3.0))
Traceback (most recent call last):
    ...
AssertionError: call 1 of `<lambda>` traced it anew: `times` was 2.0 in call 0 and is 3.0. A Python value is part of the
trace: pass it as a tensor (`tf.constant(...)`), or bind it once, outside the function.
"""

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

TENSOR = (
    "A trace is for one dtype and shape: cast before the call, pad rows and give those that don't count a `weight` of "
    "zero, or declare an `input_signature` with `None` for what varies."
)
PYTHON = (
    "A Python value is part of the trace: pass it as a tensor (`tf.constant(...)`), or bind it once, outside the "
    "function."
)
STRUCTURE = "Structures are part of the trace: give each call the same keys and lengths."


def assert_traces_once(function: Any, *calls: tuple[Any, ...]) -> None:
    """Asserts that `function`, a `tf.function`, is traced only in the first of `calls` (tuples of arguments)."""
    count = getattr(function, "experimental_get_tracing_count", None)
    assert count is not None, (
        f"`function` is {function!r}, which isn't a `tf.function`, and so is never traced: give what "
        "`tf.function(...)` returned."
    )
    assert len(calls) >= 2, f"there is {len(calls)} call; a second trace takes two: give several tuples of arguments."
    for i, arguments in enumerate(calls):
        assert isinstance(arguments, tuple), (
            f"call {i} is {type(arguments).__name__}; give a tuple of all arguments, as in `(x, y)` or `(x,)`."
        )
    name = getattr(function, "__name__", "function")
    function(*calls[0])
    for i, arguments in enumerate(calls[1:], 1):
        before = count()
        function(*arguments)
        assert count() == before, f"call {i} of `{name}` traced it anew: {_change(function, calls[0], arguments, i)}"


def _change(function: Any, first: tuple[Any, ...], then: tuple[Any, ...], i: int) -> str:
    """Returns what differs between the arguments of call 0 and call `i`, and how to avoid another trace."""
    if len(first) != len(then):
        return f"call 0 has {len(first)} arguments and call {i} has {len(then)}. {STRUCTURE}"
    for name, one, other in zip(_names(function, len(first)), first, then, strict=True):
        one_parts, other_parts = _parts(name, one), _parts(name, other)
        if one_parts.keys() != other_parts.keys():
            was, now = (", ".join(f"`{path}`" for path in parts) or "nothing" for parts in (one_parts, other_parts))
            return f"`{name}` was made of {was} in call 0 and is made of {now}. {STRUCTURE}"
        for path, x in one_parts.items():
            y = other_parts[path]
            if not _same(x, y):
                remedy = TENSOR if _is_tensor(x) and _is_tensor(y) else PYTHON
                return f"`{path}` was {_text(x)} in call 0 and is {_text(y)}. {remedy}"
    return (
        "no argument has another dtype, shape or value. Look for what it reads from outside and what changes there: an "
        "object that is made anew for each call, the strategy or the scope that it is called in."
    )


def _names(function: Any, count: int) -> list[str]:
    parameters = list(inspect.signature(function.python_function).parameters.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return [named[i] if i < len(named) else f"{rest}[{i - len(named)}]" for i in range(count)]


def _parts(path: str, value: Any) -> dict[str, Any]:
    """Returns the leaves of a nest, as `{"x['a'][0]": leaf}`."""
    if isinstance(value, dict):
        return {p: x for key in value for p, x in _parts(f"{path}[{key!r}]", value[key]).items()}
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", None)
        steps = [f".{name}" for name in names] if names else [f"[{i}]" for i in range(len(value))]
        return {p: x for step, item in zip(steps, value, strict=True) for p, x in _parts(path + step, item).items()}
    return {path: value}


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, tf.Variable | np.ndarray | np.generic)


def _same(one: Any, other: Any) -> bool:
    if _is_tensor(one) and _is_tensor(other):
        return _text(one) == _text(other)
    return one is other or (type(one) is type(other) and bool(one == other))


def _text(value: Any) -> str:
    if not _is_tensor(value):
        return repr(value)
    dtype = tf.as_dtype(value.dtype).name
    return f"a {'variable' if isinstance(value, tf.Variable) else 'tensor'} of {dtype} {list(value.shape)}"
