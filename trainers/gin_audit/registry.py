"""gin's registry: names, signatures and types that the configuration audit checks against."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
from gin import config as gin_config

from core.errors import did_you_mean

MISSING = inspect.Parameter.empty
_UNRESOLVED = (NameError, AttributeError, TypeError, SyntaxError, ValueError, LookupError, ImportError)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter. `hint` is its annotation, or `Any` without an annotation that can be resolved."""

    default: Any
    hint: Any

    @property
    def required(self) -> bool:
        """Returns whether the parameter's default is `gin.REQUIRED`."""
        return self.default is gin.REQUIRED


@dataclasses.dataclass(frozen=True)
class Signature:
    """A configurable's parameters and return type."""

    parameters: Mapping[str, Parameter]
    extra: Parameter | None  # of `**kwargs`
    makes: Any
    denied: Sequence[str] = ()

    def find(self, name: str) -> Parameter | None:
        """Returns the parameter that a binding of `name` sets; `None` if there is no such parameter."""
        return None if name in self.denied else self.parameters.get(name, self.extra)


def configurables() -> dict[str, Any]:
    """Returns {complete selector: configurable} of all registered configurables, except gin's, such as `gin.macro`."""
    return {name: c for name, c in gin_config._REGISTRY.items() if c.module != "gin"}


SHIPPED = ("core", "models", "trainers", "gin")  # a user's configurable takes precedence over these


def matches(selector: str) -> list[str]:
    """Returns the complete selectors that `selector` may mean.

    If exactly one of them is the user's own, returns only that one, without those that ship.
    """
    found = sorted(gin_config._REGISTRY.matching_selectors(selector))
    own = [name for name in found if get(name).module.partition(".")[0] not in SHIPPED]
    return own if len(own) == 1 else found


def preferred(selector: str) -> str | None:
    """Returns the user's configurable if `selector` fits it and a shipped configurable, else `None`."""
    found = matches(selector)
    others = gin_config._REGISTRY.matching_selectors(selector)
    return found[0] if len(found) == 1 < len(others) else None


def get(complete_selector: str) -> Any:
    return gin_config._REGISTRY[complete_selector]


def lookup(function: Any) -> str | None:
    """Returns the complete selector of a function or class, or `None` if it isn't a configurable."""
    try:
        found = gin_config._inverse_lookup(function)
    except TypeError:  # not hashable, so no function or class
        return None
    return found.selector if found else None


def short(complete_selector: str) -> str:
    """Returns `complete_selector` without its module: `Trainer`, or `Class.method`."""
    return ".".join(complete_selector.split(".")[-2 if get(complete_selector).is_method else -1 :])


def constants(name: str) -> list[str]:
    """Returns the complete names of the constants that `%name` may mean."""
    return sorted(gin_config._CONSTANTS.matching_selectors(name))


def constant(complete_name: str) -> Any:
    return gin_config._CONSTANTS[complete_name]


def constant_names() -> set[str]:
    """Returns the names of all constants, complete and without modules."""
    parts = [name.split(".") for name, _ in gin_config._CONSTANTS.items()]
    return {".".join(part[i:]) for part in parts for i in range(len(part))}


def near(selector: str, candidates: Iterable[str] | None = None) -> str:
    """Returns " Did you mean ...?" with the registered name nearest to `selector`, or nothing."""
    names = list(configurables() if candidates is None else candidates)
    return did_you_mean(selector.rpartition(".")[2], {short(name) for name in names}) or did_you_mean(selector, names)


def signature(complete_selector: str) -> Signature:
    """Returns the signature of the configurable's function or constructor, without its decorators."""
    configurable = get(complete_selector)
    target = configurable.wrapped
    function = gin_config._find_class_construction_fn(target) if inspect.isclass(target) else target
    function = inspect.unwrap(function, stop=lambda f: hasattr(f, "__signature__"))  # as `inspect.signature` does
    makes = target if inspect.isclass(target) else Any
    if function is object.__init__:  # its signature claims `**kwargs`, which it doesn't accept
        return Signature({}, None, makes)
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # compiled code
        return Signature({}, Parameter(MISSING, Any), makes)
    hints = _hints(function)
    if inspect.isclass(target) or configurable.is_method:
        parameters = parameters[1:]
    else:
        makes = hints.get("return", Any)
    listed = {
        p.name: _parameter(p, hints)
        for p in parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and _may_bind(configurable, p.name)
    }
    extra = next((Parameter(None, hints.get(p.name, Any)) for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if configurable.allowlist:
        unlisted = {name: extra for name in configurable.allowlist if extra is not None and name not in listed}
        return Signature({**listed, **unlisted}, None, makes)
    return Signature(listed, extra, makes, tuple(configurable.denylist or ()))


def _parameter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
    hint = hints.get(parameter.name, Any)
    if parameter.default is None and hint is not Any and types.NoneType not in typing.get_args(hint):
        hint = typing.Optional[hint]  # noqa: UP045  # `|` doesn't accept a string
    return Parameter(parameter.default, hint)


def _may_bind(configurable: Any, name: str) -> bool:
    if configurable.allowlist:
        return name in configurable.allowlist
    return name not in (configurable.denylist or ())


def _hints(function: Any) -> dict[str, Any]:
    """Resolves annotations one by one: names that exist only for type checkers stay unresolved."""
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(holder, globalns=getattr(function, "__globals__", {}))
        except _UNRESOLVED:
            hints[name] = Any
    return hints
