"""What makes two runs the same experiment: the operative bindings, their hash, and their difference in words."""

import fnmatch
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
from gin import config as gin_config

from trainers.gin_audit import registry
from trainers.gin_audit.statements import Macro, Reference, scoped, text


def identity(exclude: Sequence[str] = ()) -> dict[str, str]:
    """After set-up: `{scope/selector.parameter: literal}`, all that configurables were called with, defaults included.

    `exclude` holds patterns for the key without its module, such as `Trainer.steps` or `mirrored.*`. Selectors are
    complete, so that neither the order of imports nor what else is imported changes them.
    """
    found = {}
    with gin_config._OPERATIVE_CONFIG_LOCK:
        operative = {key: dict(parameters) for key, parameters in gin_config._OPERATIVE_CONFIG.items()}
    for (scope, selector), parameters in operative.items():
        if registry.get(selector).module == "gin":  # macros appear by their values
            continue
        for parameter, value in parameters.items():
            plain = f"{registry.short(selector)}.{parameter}"
            names = (plain, scoped(scope, plain))
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in exclude):
                found[f"{scoped(scope, selector)}.{parameter}"] = text(_canonical(value))
    return dict(sorted(found.items()))


def config_hash(identity: Mapping[str, str]) -> str:
    """SHA-256 of an identity."""
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Lines `- Trainer.x = 1` and `+ Trainer.x = 2` for what differs; empty if nothing does."""
    keys = sorted({*old, *new})
    names = _readable(keys)
    lines = []
    for key in keys:
        if old.get(key) != new.get(key):
            lines += [f"- {names[key]} = {old[key]}"] if key in old else []
            lines += [f"+ {names[key]} = {new[key]}"] if key in new else []
    return "\n".join(lines)


def operative_text() -> str:
    """A gin file of all that configurables were called with, defaults included."""
    return str(gin.operative_config_str(max_line_length=120)).rstrip("\n") + "\n"


def _readable(keys: Iterable[str]) -> dict[str, str]:
    """Keys without modules, except where that would make two of them look the same."""
    plain = {}
    for key in keys:
        scope, _, name = key.rpartition("/")
        plain[key] = scoped(scope, ".".join(name.split(".")[-2:]))
    count = Counter(plain.values())
    return {key: name if count[name] == 1 else key for key, name in plain.items()}


def _canonical(value: Any) -> Any:
    """`value` of gin's records as a literal: macros by their values, references by complete selectors, no address."""
    if isinstance(value, gin_config.ConfigurableReference):
        wrapped, scope = value.configurable.wrapped, "/".join(value.scopes)
        if wrapped is gin_config.macro:
            return _canonical(gin_config._CONFIG[value.config_key]["value"])
        if wrapped is gin_config._retrieve_constant:
            constant = registry.constant(scope)
            return constant if gin_config._is_literally_representable(constant) else Macro(scope)
        return Reference(scope, value.configurable.selector, value.evaluate)
    if isinstance(value, list | tuple):
        return type(value)(_canonical(item) for item in value)
    if isinstance(value, dict):
        return {_canonical(k): _canonical(v) for k, v in value.items()}
    return value
