"""Identity of an experiment: a dict of the bindings in effect, its hash, and the difference of two identities as text.

Parameters are identified without modules (`Trainer.steps`, `Class.method.parameter`), so that files may move. If a run
uses two configurables of the same name, both keep their modules. Other imports change nothing.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import gin
from gin import config as gin_config

from trainers.gin_audit import registry
from trainers.gin_audit.statements import Macro, Reference, scoped, text

# Old spellings of values, with the current ones.
SPELT_TODAY = {"Trainer.compile": {"True": "'xla'", "False": "'off'"}}
# A reference within a literal, after its `@`: scopes, selector. The first alternative skips strings.
_REFERENCE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|@(?P<scope>(?:\w+/)*)(?P<selector>[\w.]+)""")


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A parameter of a configurable in one scope, with its value as text; selector and value may contain modules."""

    scope: str
    selector: str
    parameter: str
    value: str

    def matches(self, patterns: Sequence[str]) -> bool:
        """Returns whether a pattern matches `NAME.PARAMETER` or `SCOPE/NAME.PARAMETER`."""
        plain = f"{_own_name(self.selector)}.{self.parameter}"
        return any(fnmatch.fnmatchcase(name, p) for name in (plain, scoped(self.scope, plain)) for p in patterns)

    @functools.cached_property
    def references(self) -> set[tuple[str, str]]:
        """Returns `{(scope, selector), ...}` of the configurables that the value refers to."""
        found = _REFERENCE.finditer(self.value)
        return {(match["scope"].rstrip("/"), match["selector"]) for match in found if match["selector"]}

    def refers_to(self, other: "_Bound", foreign: Set[str] = frozenset()) -> bool:
        """Returns whether the value refers to the configurable of `other`. A reference without a scope may inherit any.

        A scope in `foreign` is inherited only if this parameter has the same scope.
        """
        if (other.scope, other.selector) in self.references:
            return True
        return ("", other.selector) in self.references and (other.scope == self.scope or other.scope not in foreign)


def identity(exclude: Sequence[str] = ()) -> dict[str, str]:
    """Returns `{scope/name.parameter: literal}` of all called configurables, defaults included. Call it after set-up.

    `exclude` holds patterns for the keys, such as `Trainer.steps` or `mirrored.*`. Configurables to which only excluded
    parameters refer are excluded as well.
    """
    with gin_config._OPERATIVE_CONFIG_LOCK:
        operative = {key: dict(parameters) for key, parameters in gin_config._OPERATIVE_CONFIG.items()}
    everything = [
        _Bound(scope, selector, parameter, text(_canonical(value)))
        for (scope, selector), parameters in operative.items()
        if registry.get(selector).module != "gin"  # macros are resolved
        for parameter, value in parameters.items()
    ]
    return spelt_today(_by_own_names(_essential(everything, exclude)))


def read_identity(saved: Mapping[str, str], own: Mapping[str, str], exclude: Sequence[str] = ()) -> dict[str, str]:
    """Converts the identity `saved` in a manifest to this version's form. `own` is this run's identity.

    Old manifests contain complete selectors, and parameters of configurables that only excluded parameters refer to,
    such as hooks. Those are removed, and so are parameters that this run excludes. A parameter that the manifest lacks
    gets this run's value if that is the default.
    """
    everything = [_parsed(key, value) for key, value in saved.items()]
    if _by_own_names(everything) != dict(saved):
        names = {_own_name(_parsed(key, "").selector) for key in own}
        orphans = {
            b.selector
            for b in everything
            if _own_name(b.selector) not in names and not any(other.refers_to(b) for other in everything)
        }
        exclude = [*exclude, *(f"{_own_name(selector)}.*" for selector in orphans)]
    left_out = identity().keys() - own.keys()
    found = spelt_today(_by_own_names(_essential(everything, exclude)))
    found = {key: x for key, x in found.items() if key not in left_out}
    calls = {key.rpartition(".")[0] for key in found}
    come_since = {key: x for key, x in own.items() if key not in found and key.rpartition(".")[0] in calls}
    return dict(sorted({**{key: x for key, x in come_since.items() if _is_default(_parsed(key, x))}, **found}.items()))


def spelt_today(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the identity `found` with old spellings of values replaced by today's spellings."""
    return {key: SPELT_TODAY.get(key.rpartition("/")[2], {}).get(value, value) for key, value in found.items()}


def _is_default(b: _Bound) -> bool:
    """Returns whether `b.value` is the default of the parameter `b.parameter`."""
    known = [registry.signature(complete).find(b.parameter) for complete in registry.matches(b.selector)]
    return any(parameter is not None and text(_canonical(parameter.default)) == b.value for parameter in known)


def config_hash(identity: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Returns the differences of two identities as lines `- Trainer.x = 1` and `+ Trainer.x = 2`; "" if equal."""
    lines = []
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            lines += [f"- {key} = {old[key]}"] if key in old else []
            lines += [f"+ {key} = {new[key]}"] if key in new else []
    return "\n".join(lines)


def operative_text() -> str:
    """Returns the text of a gin file with all arguments of the configurables called so far, defaults included."""
    return str(gin.operative_config_str(max_line_length=120)).rstrip("\n") + "\n"


def _essential(everything: Sequence[_Bound], exclude: Sequence[str]) -> list[_Bound]:
    """Removes parameters that match `exclude`, and configurables to which only such parameters refer."""
    excluded = [b for b in everything if b.matches(exclude)]
    doubtful = _reached(excluded, everything)
    rest = [b for b in everything if b not in excluded]
    certain = [b for b in rest if b not in doubtful]
    foreign = {scope for b in excluded for scope, _ in b.references if scope}
    needed = {*certain, *_reached(certain, rest, foreign)}
    return [b for b in rest if b in needed]


def _reached(start: Iterable[_Bound], everything: Sequence[_Bound], foreign: Set[str] = frozenset()) -> set[_Bound]:
    """Returns the parameters of all configurables that `start` refers to, directly or through others."""
    reached: set[_Bound] = set()
    waiting = list(start)
    while waiting:
        b = waiting.pop()
        new = {other for other in everything if other not in reached and b.refers_to(other, foreign)}
        reached |= new
        waiting.extend(new)
    return reached


def _by_own_names(everything: Sequence[_Bound]) -> dict[str, str]:
    """Returns `{scope/name.parameter: value}` without modules, except where two configurables share a name."""
    selectors = {b.selector for b in everything}
    selectors |= {selector for b in everything for _, selector in b.references}
    sharing: dict[str, set[str]] = defaultdict(set)
    for selector in selectors:
        sharing[_own_name(selector)].add(selector)
    names = {s: name if len(same) == 1 else s for name, same in sharing.items() for s in same}

    def renamed(found: re.Match[str]) -> str:
        return f"@{found['scope']}{names[found['selector']]}" if found["selector"] else found[0]

    keys = {f"{scoped(b.scope, names[b.selector])}.{b.parameter}": _REFERENCE.sub(renamed, b.value) for b in everything}
    return dict(sorted(keys.items()))


def _own_name(selector: str) -> str:
    """Returns `selector` without its module: `Trainer` or `Class.method`, even if the module has moved."""
    parts = selector.split(".")
    known = [selector] if selector in registry.configurables() else registry.matches(".".join(parts[-2:]))
    is_method = len(parts) > 1 and any(registry.get(complete).is_method for complete in known)
    return ".".join(parts[-2 if is_method else -1 :])


def _parsed(key: str, value: str) -> _Bound:
    scope, _, name = key.rpartition("/")
    selector, _, parameter = name.rpartition(".")
    return _Bound(scope, selector, parameter, value)


def _canonical(value: Any) -> Any:
    """Returns a value that gin has recorded, with macros replaced by values and references by complete selectors."""
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
