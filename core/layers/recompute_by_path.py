"""Gradient checkpointing of modules chosen by path, without wrapping them.

The class of a chosen module becomes a subclass whose calls recompute. So paths, variables, checkpoints and `isinstance`
stay the same. Calls that no tape records, as in an evaluation or an export, are plain calls.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError, did_you_mean, shown
from core.layers.recompute import RECOMPUTES, recomputed_call
from core.module import named_modules, named_variables
from core.tensorflow_private import could_possibly_record, flattened

WHOLE, EVERY_OTHER = "whole", "every_other"
Patterns = Sequence[str] | Mapping[str, str]


def recompute_by_path(root: tf.Module, patterns: Patterns, *, argument: str = "patterns") -> list[str]:
    """Makes the modules of `root` recompute whose path matches a pattern; returns their paths.

    A pattern matches a path or its end, part by part: `blocks/*` matches `net/blocks/0`, but not `net/blocks/0/mlp`. A
    mapping gives each pattern "whole" (all modules that match) or "every_other" (the first, the third, ...).

        >>> from core.layers import Linear, Sequential
        >>> from core.random import Rng
        >>> net = Sequential([Linear(4, 4, rng=Rng.from_seed(i)) for i in range(3)])
        >>> recompute_by_path(net, {"layers/*": "every_other"})
        ['layers/0', 'layers/2']
        >>> list(net.parameters())[:2], type(net.layers[0]).__name__, isinstance(net.layers[0], Linear)
        (['layers/0/b', 'layers/0/w'], 'Linear', True)
    """
    modules, chosen = named_modules(root), dict[str, tf.Module]()
    for pattern, share in _shares(patterns, argument).items():
        hits = [path for path in modules if _matches(path, pattern)]
        if not hits:
            raise ConfigurationError(_without_effect(root, pattern, argument, modules))
        chosen |= {path: modules[path] for path in hits[:: 2 if share == EVERY_OTHER else 1]}
    names = {id(module): path for path, module in chosen.items()}
    for path, module in chosen.items():
        inner = next((names[id(child)] for child in module.submodules if id(child) in names), None)
        if inner is not None:
            raise ConfigurationError(
                f"`{argument}` matches `{path}` and `{inner}` within it, which would be computed three times: name "
                "only one of both."
            )
    for module in chosen.values():
        if not hasattr(type(module), RECOMPUTES):
            # Python looks `__call__` up in the class: an attribute of the module itself would never be called.
            module.__class__ = _recomputing(type(module))  # type: ignore[arg-type]
    return list(chosen)


def _shares(patterns: Patterns, argument: str) -> dict[str, str]:
    """Returns `{pattern: "whole" or "every_other"}`."""
    if isinstance(patterns, str) or not isinstance(patterns, Mapping | Sequence):
        raise ConfigurationError(f"`{argument}` is {shown(patterns)}; give a list of patterns, as ['net/blocks/*'].")
    shares: dict[Any, Any] = dict(patterns) if isinstance(patterns, Mapping) else dict.fromkeys(patterns, WHOLE)
    for pattern, share in shares.items():
        if not isinstance(pattern, str) or not pattern:
            raise ConfigurationError(
                f"`{argument}` has the pattern {shown(pattern)}; a pattern is a text, as 'net/blocks/*'."
            )
        if share not in (WHOLE, EVERY_OTHER):
            raise ConfigurationError(
                f"`{argument}` of {shown(pattern)} is {shown(share)}; give '{WHOLE}' or '{EVERY_OTHER}'."
            )
    return shares


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("/"), pattern.split("/")
    if len(parts) < len(wanted):
        return False
    return all(fnmatchcase(part, want) for part, want in zip(parts[-len(wanted) :], wanted, strict=True))


def _without_effect(root: tf.Module, pattern: str, argument: str, modules: Mapping[str, tf.Module]) -> str:
    others = [
        "/".join(map(str, path)) for path, _ in flattened(root, lambda x: isinstance(x, tf.Module), with_path=True)
    ]
    others += named_variables(root)
    found = next((path for path in others if _matches(path, pattern)), None)
    if found is not None:
        return (
            f"`{argument}` has the pattern {shown(pattern)}, which matches `{found}`: only a module that can be called "
            f"recomputes. Name one of: {', '.join(modules)}."
        )
    return (
        f"`{argument}` has the pattern {shown(pattern)}, which matches no module that can be called."
        f"{did_you_mean(pattern, list(modules))} Correct it, or leave it out; these modules are: {', '.join(modules)}."
    )


@functools.cache
def _recomputing(cls: type[Any]) -> type[Any]:
    """Returns a subclass of `cls` whose calls recompute."""

    @functools.wraps(cls.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or not could_possibly_record():
            return cls.__call__(self, *args, **kwargs)
        return recomputed_call(self, cls.__call__, args, kwargs)

    attributes = {"__call__": call, "__module__": cls.__module__, "__doc__": cls.__doc__, RECOMPUTES: True}
    made: type[Any] = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(attributes))
    return made
