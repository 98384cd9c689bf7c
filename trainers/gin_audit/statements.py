"""Statements of gin files, each with its file and line.

gin keeps only the last value of each parameter. Here a second value is a duplicate (within one file) or an override (of
an earlier file), and the lines of both values are known.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from core.errors import ConfigurationError

_SHOWN = 300  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Place:
    """The file and line of a statement."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/selector`, a function or class; or `@scope/selector()`, its return value."""

    scope: str
    selector: str
    evaluated: bool

    def __str__(self) -> str:
        return f"@{scoped(self.scope, self.selector)}{'()' if self.evaluated else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name`: the value of a macro or of a constant."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Constant:
    """The value of a `%name` that Python code registered with `gin.constant`."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """`scope/selector.parameter = value`, or a macro's definition `name = value`, without a parameter."""

    scope: str
    selector: str
    parameter: str
    value: Any
    place: Place
    reading: int  # number of the file read: two values within one are duplicates

    @property
    def is_macro(self) -> bool:
        return not self.parameter

    @property
    def name(self) -> str:
        return scoped(self.scope, self.selector) + (f".{self.parameter}" if self.parameter else "")

    def __str__(self) -> str:
        return f"`{self.name} = {brief(self.value)}` ({self.place})"


@dataclasses.dataclass(frozen=True)
class Import:
    """An `import module` statement, with its file and line."""

    module: str
    statement: Any  # gin's record, which its operative text prints
    place: Place


@dataclasses.dataclass(frozen=True)
class Override:
    """A binding `new`, in a later file or `--gin_param`, that replaces the earlier binding `old`."""

    old: Binding
    new: Binding

    def __str__(self) -> str:
        return f"`{self.new.name}` is {brief(self.new.value)} ({self.new.place}), {self.before}"

    @property
    def before(self) -> str:
        """Describes the overridden value: "not 0.1 (FILE:LINE)", or "as it was (FILE:LINE)" if the new one is equal."""
        old = text(self.old.value)
        was = "as it was" if old == text(self.new.value) else f"not {brief(self.old.value)}"
        return f"{was} ({self.old.place})"


def scoped(scope: str, name: str) -> str:
    """Returns `scope/name`, or `name` if `scope` is empty."""
    return f"{scope}/{name}" if scope else name


def text(value: Any) -> str:
    """Formats `value` in gin syntax."""
    if isinstance(value, Reference | Macro):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"  # Python and gin have no literal for infinity
    return repr(value)


def brief(value: Any) -> str:
    """Formats `value` in gin syntax for a message, and shortens it if it is long."""
    whole = text(value)
    return whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]}..."


def names_in(value: Any) -> Iterator[Reference | Macro]:
    """Yields each reference and macro in `value`, at any depth."""
    if isinstance(value, Reference | Macro):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from names_in(key)
            yield from names_in(item)


def is_placeholder(value: Any) -> bool:
    """Returns whether `value` is `%gin.REQUIRED`, which a later file or `--gin_param` must replace."""
    return isinstance(value, Macro) and value.name in ("gin.REQUIRED", "REQUIRED")


def settle(bindings: Iterable[Binding]) -> tuple[tuple[Binding, ...], tuple[Override, ...]]:
    """Returns the final bindings and the overrides. Raises an error for a duplicate within one file."""
    groups: dict[tuple[str, ...], list[Binding]] = {}
    overrides: list[Override] = []
    for new in bindings:
        group = groups.setdefault((new.scope, new.selector.rpartition(".")[2], new.parameter), [])
        for old in [old for old in group if _same_selector(old.selector, new.selector)]:
            if old.reading == new.reading:
                raise ConfigurationError(
                    f"`{new.name}` is bound twice in one file: {brief(old.value)} at {old.place} and "
                    f"{brief(new.value)} at {new.place}. Keep one of the two lines."
                )
            group.remove(old)
            if not is_placeholder(old.value):
                overrides.append(Override(old, new))
        group.append(new)
    kept = [binding for group in groups.values() for binding in group]
    return tuple(sorted(kept, key=lambda binding: binding.reading)), tuple(overrides)


def _same_selector(a: str, b: str) -> bool:
    """Returns whether one selector is the end of the other: `adamw` and `optimizers.adamw` may be the same."""
    return f".{a}".endswith(f".{b}") or f".{b}".endswith(f".{a}")
