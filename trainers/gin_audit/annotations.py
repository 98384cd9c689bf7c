"""Says whether a value of a gin file fits the annotation of its parameter.

Every value fits an annotation that can't be checked: `Any`, a protocol, a type variable, an unresolved name.
`made_by(reference)` returns the type that calling a reference returns.
"""

import collections.abc
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from trainers.gin_audit.statements import Constant, Reference, brief, names_in

MadeBy = Callable[[Reference], Any]
CALLABLE: Any = collections.abc.Callable


def wanted(value: Any, hint: Any, made_by: MadeBy) -> str:
    """Returns "" if `value` fits `hint`, else a text such as "`Task` is wanted: write `@MyTask()`"."""
    if fits(value, hint, made_by):
        return ""
    for name in names_in(value):
        if isinstance(name, Reference):
            other = dataclasses.replace(name, evaluated=not name.evaluated)
            if fits(_replaced(value, name, other), hint, made_by):
                return f"`{hint_text(hint)}` is wanted: write `{other}`" + (
                    "" if other.evaluated else " without parentheses"
                )
    if _parts(hint)[0] is CALLABLE and not isinstance(value, Reference):
        return (
            f"`{hint_text(hint)}` is wanted: give a function, such as `@name`, or `@name()` if calling it returns one"
        )
    choices = [choice for choice in _parts(hint)[1] if isinstance(choice, str)]
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    return f"`{hint_text(hint)}` is wanted" + "".join(f", perhaps {choice!r}" for choice in near)


def received(value: Any, made_by: MadeBy) -> str:
    """Describes `value` and its type: "3 (int)", or "`@adamw()`, which makes `Transform`"."""
    if isinstance(value, Reference):
        made = made_by(value)
        when = "" if value.evaluated else " when called"
        return f"`{value}`" + ("" if made is Any else f", which makes `{hint_text(made)}`{when}")
    if isinstance(value, Constant):
        return f"`{value}`, which is {value.value!r}"
    return brief(value) + ("" if value is None else f" ({type(value).__name__})")


def hint_text(hint: Any) -> str:
    """Formats an annotation without module names."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return re.sub(r"'[^']*'|(?:\w+\.)+(\w+)", lambda m: m[1] or m[0], str(hint))


def fits(value: Any, hint: Any, made_by: Any) -> bool:
    """Returns whether `value` may be bound to a parameter annotated `hint`.

    >>> fits(1, float, made_by=None), fits(True, int, made_by=None), fits([1, 2], tuple[int, ...], made_by=None)
    (True, False, False)
    """
    hint = _unwrapped(hint)
    if _says_nothing(hint):
        return True
    if _is_union(hint):
        return any(fits(value, choice, made_by) for choice in typing.get_args(hint))
    if isinstance(value, Reference):
        return _produces(made_by(value), hint) if value.evaluated else _refers(value, hint, made_by)
    if isinstance(value, Constant):
        value = value.value
    origin, arguments = _parts(hint)
    if origin is None or origin is types.NoneType:
        return value is None
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if isinstance(value, bool):
        return origin in (bool, object)
    if origin in (float, complex) and isinstance(value, int | float):
        return True
    if not isinstance(origin, type):
        return True
    if type(value) is str and origin is not str and issubclass(origin, Iterable):
        return False  # to Python a string is a sequence, but not to authors of gin files
    return _is_instance(value, origin) and _contents_fit(value, origin, arguments, made_by)


def _contents_fit(value: Any, origin: type, arguments: tuple[Any, ...], made_by: MadeBy) -> bool:
    if not arguments or origin is CALLABLE:
        return True
    if isinstance(value, dict):
        keys_fit = all(fits(key, arguments[0], made_by) for key in value)
        return keys_fit and all(fits(item, hint, made_by) for item in value.values() for hint in arguments[1:])
    if origin is tuple and arguments[-1:] != (...,):
        return len(value) == len(arguments) and all(fits(v, h, made_by) for v, h in zip(value, arguments, strict=True))
    if isinstance(value, list | tuple):
        return all(fits(item, arguments[0], made_by) for item in value)
    return True


def _refers(reference: Reference, hint: Any, made_by: MadeBy) -> bool:
    """Returns whether `hint` accepts the function or class of `reference` itself, instead of its return value."""
    origin, arguments = _parts(hint)
    if origin is CALLABLE:
        result = arguments[-1] if arguments else Any
        return result is types.NoneType or result is None or _produces(made_by(reference), result)
    if origin is type:
        return not arguments or _produces(made_by(reference), arguments[0])
    return origin is object or origin is types.FunctionType or not isinstance(origin, type)


def _produces(made: Any, hint: Any) -> bool:
    """Returns whether a function with the annotated return type `made` may return a `hint`. A supertype may."""
    made, hint = _unwrapped(made), _unwrapped(hint)
    if _says_nothing(made) or _says_nothing(hint):
        return True
    if _is_union(made):
        return any(_produces(choice, hint) for choice in typing.get_args(made))
    if _is_union(hint):
        return any(_produces(made, choice) for choice in typing.get_args(hint))
    made = types.NoneType if made is None else typing.get_origin(made) or made
    origin, arguments = _parts(hint)
    if origin is typing.Literal or made is typing.Literal:
        return True
    if not (isinstance(made, type) and isinstance(origin, type)):
        return True
    if origin is CALLABLE and made is not origin:
        result = typing.get_origin(arguments[-1]) or arguments[-1] if arguments else None
        # `Callable[..., Task]` needs a factory: a task isn't one, even if it has a `__call__`.
        if isinstance(result, type) and not _says_nothing(result) and _is_subclass(made, result):
            return False
        return any("__call__" in vars(base) for base in made.__mro__)
    if origin in (float, complex) and made is int:
        return True
    if made is bool:
        return origin in (bool, object)
    if hasattr(made, "_fields") and not hasattr(origin, "_fields"):
        return _is_subclass(origin, made)  # to Python a named tuple is a sequence, here it is one value
    return _is_subclass(made, origin) or _is_subclass(origin, made)


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Splits an annotation: `list[int]` into `list` and `(int,)`."""
    hint = _unwrapped(hint)
    return typing.get_origin(hint) or hint, typing.get_args(hint)


def _unwrapped(hint: Any) -> Any:
    """Returns the type inside `NewType` or `Annotated`."""
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif hasattr(hint, "__metadata__"):
            hint = hint.__origin__
        else:
            return hint


def _says_nothing(hint: Any) -> bool:
    return (
        hint is Any
        or hint is object
        or isinstance(hint, str | typing.TypeVar | typing.ForwardRef)
        or getattr(hint, "_is_protocol", False)
        or getattr(typing.get_origin(hint), "_is_protocol", False)
    )


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _is_instance(value: Any, cls: type) -> bool:
    if typing.is_typeddict(cls):
        return isinstance(value, dict)
    try:
        return isinstance(value, cls)
    except TypeError:  # a class without instance checks
        return True


def _is_subclass(cls: Any, other: Any) -> bool:
    try:
        return issubclass(cls, other)
    except TypeError:
        return True


def _replaced(value: Any, old: Any, new: Any) -> Any:
    """Returns `value` with `old` replaced by `new`."""
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, old, new) for item in value)
    if isinstance(value, dict):
        return {_replaced(k, old, new): _replaced(v, old, new) for k, v in value.items()}
    return new if value == old and type(value) is type(old) else value
