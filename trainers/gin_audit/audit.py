"""The configuration audit: raises an error for mistakes in gin files that gin itself ignores.

    configuration = read(["configs/digits_mlp.gin"], ["Trainer.steps = 10"], [checkout])  # before TensorFlow
    configuration.bind([Experiment, Settings], required=[Experiment, Settings])              # before anything is called
    ...                                                                                    # make everything
    configuration.check_consumed()                                                         # before the first step

`read` finds mistakes in the text. `bind` finds mistakes in names, types and scopes. `check_consumed` finds bindings
without effect.
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
from gin import config as gin_config

from core.errors import ConfigurationError, did_you_mean
from trainers.gin_audit import checks, registry
from trainers.gin_audit.graph import Graph, Node, check_cycles, covers
from trainers.gin_audit.parse import read_all
from trainers.gin_audit.statements import Binding, Import, Macro, Override, Reference, names_in, scoped, settle, text


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The statements of gin files and `--gin_param`s, each with its file and line."""

    bindings: tuple[Binding, ...]
    imports: tuple[Import, ...]
    overrides: tuple[Override, ...]
    _roots: list[str] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def given(self) -> str:
        """Returns all bindings as one gin file. A binding that only overridden values use becomes a comment."""
        lines = [f"{item.statement.format()}  # {_comment(str(item.place))}" for item in self.imports]
        idle = self._idle()
        for b in self.bindings:
            before = "".join(f", {override.before}" for override in self.overrides if override.new is b)
            lines.append(f"{'# ' if b in idle else ''}{b.name} = {text(b.value)}  # {_comment(f'{b.place}{before}')}")
        return "\n".join([*lines, ""])

    def bound(self, name: str) -> Any:
        """Returns the value bound to `name`, with macros resolved, or `None`. Imports nothing."""
        values = {}
        for b in self.bindings:
            if not b.scope:
                values[b.name if b.is_macro else f"{b.selector.rpartition('.')[2]}.{b.parameter}"] = b.value
        found = values.get(name)
        for _ in values:  # a cycle of macros ends here; another check reports it
            found = values.get(found.name) if isinstance(found, Macro) else found
        return found

    def bind(
        self,
        roots: Sequence[Any],
        *,
        required: Sequence[Any] = (),
        scopes: Sequence[str] = (),
        register: Callable[[Sequence[str]], object] = lambda selectors: None,
    ) -> None:
        """Imports the modules in gin files, makes all checks that need no call, and passes the bindings to gin.

        `roots` are the configurables that the command calls. It calls those in `required` without arguments. `scopes`
        are the gin scopes that code opens. `register(selectors)` imports configurables that aren't imported yet.
        """
        for item in self.imports:
            import_module(item)
        register(_selectors(self._everything))
        self._roots[:] = [_selector(root) for root in roots]
        checks.check_names(self.bindings)
        checks.check_placeholders(self.bindings)
        graph = Graph(self.bindings)
        checks.check_types(graph, self.bindings)
        arrivals = graph.reach(self._roots)
        check_cycles(graph, arrivals)
        checks.check_macros_used(self.bindings, self._everything, arrivals)
        checks.check_scopes(self.bindings, self._everything, scopes)
        checks.check_required(graph, arrivals, [_selector(root) for root in required])
        self._tell_gin()

    def check_consumed(self) -> None:
        """Raises an error for a binding that no call has used, or could use in some mode. Call it after set-up."""
        operative, reachable = _operative(), self._reachable(self._everything)
        for binding in self._without_effect(operative, reachable):
            selector = registry.matches(binding.selector)[0]
            called = any(_takes(binding, node) for node in operative)
            raise _no_effect(binding, selector, called, {*operative, *reachable})

    def taken_by_code(self) -> list[str]:
        """Returns the names of bindings that no call has used and no reference reaches. Call it after set-up."""
        return [b.name for b in self._without_effect(_operative(), self._reachable(self._everything))]

    @property
    def preferred(self) -> list[str]:
        """Returns a line for each user configurable that shadows a shipped configurable. Call it after imports."""
        found = {selector: own for selector in _selectors(self.bindings) if (own := registry.preferred(selector))}
        return [f"`{selector}` is `{own}`, not the one that ships" for selector, own in found.items()]

    def _reachable(self, bindings: Sequence[Binding]) -> set[Node]:
        return {arrival.node for arrival in Graph(bindings).reach(self._roots, every_binding=True)}

    def _without_effect(self, operative: Mapping[Node, set[str]], reachable: set[Node]) -> list[Binding]:
        """Returns the bindings that no call in `operative` used and no node in `reachable` could use later."""
        waiting = reachable - set(operative)
        return [
            binding
            for binding in self.bindings
            if not binding.is_macro
            and not any(_takes(binding, node) and binding.parameter in taken for node, taken in operative.items())
            and not any(_takes(binding, node) for node in waiting)
        ]

    def _idle(self) -> list[Binding]:
        """Returns the bindings to which only overridden values refer, or an empty list before `bind`."""
        if not self._roots:
            return []
        idle = self._without_effect(_operative(), self._reachable(self.bindings))
        while True:
            rest = [b for b in self.bindings if b not in idle]
            used = {(name.name, b.name) for b in rest for name in names_in(b.value) if isinstance(name, Macro)}
            unused = [b for b in rest if b.is_macro and not any(name == b.name != by for name, by in used)]
            if not unused:
                return idle
            idle += unused

    @property
    def _everything(self) -> tuple[Binding, ...]:
        """Returns the overridden bindings and the bindings in effect; anything that either uses counts as used."""
        return (*(override.old for override in self.overrides), *self.bindings)

    def _tell_gin(self) -> None:
        gin.clear_config()
        gin_config._IMPORTS.update(item.statement for item in self.imports)
        for binding in self.bindings:
            if binding.is_macro:
                gin.bind_parameter((binding.name, "gin.macro", "value"), _gin_value(binding.value))
            else:
                selector = registry.preferred(binding.selector) or binding.selector
                gin.bind_parameter((binding.scope, selector, binding.parameter), _gin_value(binding.value))


def read(files: Sequence[str], params: Sequence[str], search: Sequence[Path]) -> Configuration:
    """Reads gin `files` and then `params`, which override them; `search` lists more directories with gin files."""
    statements = read_all(files, params, search)
    bindings, overrides = settle(statements.bindings)
    imports = {item.module: item for item in reversed(statements.imports)}
    return Configuration(bindings, tuple(reversed(imports.values())), overrides)


def _selectors(bindings: Sequence[Binding]) -> list[str]:
    """Lists the selectors that are bound or referred to in `bindings`, sorted, such as `["Trainer", "adamw"]`."""
    named = {b.selector for b in bindings if not b.is_macro}
    return sorted(named | {x.selector for b in bindings for x in names_in(b.value) if isinstance(x, Reference)})


def _operative() -> dict[Node, set[str]]:
    """Returns `{node: names of parameters}` for all configurables that were called so far."""
    return {Node(scope, selector): set(p) for (scope, selector), p in gin_config._OPERATIVE_CONFIG.items()}


def _takes(binding: Binding, node: Node) -> bool:
    """Returns whether `binding` applies to calls of `node`."""
    return node.selector == registry.matches(binding.selector)[0] and covers(binding.scope, node.scope)


def _comment(words: str) -> str:
    """Returns `words` for a comment, with unprintable characters escaped, such as a line feed in a folder's name."""
    return words if words.isprintable() else repr(words)[1:-1]


def _no_effect(binding: Binding, selector: str, called: bool, used: set[Node]) -> ConfigurationError:
    name = registry.short(selector)
    if called:
        return ConfigurationError(
            f"{binding} has no effect: `{name}` is called with an explicit `{binding.parameter}`, which overrides the "
            "binding. Remove the line, or the argument in the code."
        )
    elsewhere = sorted({node.scope for node in used if node.selector == selector})
    if elsewhere:
        where = ", ".join(f"scope `{scope}`" if scope else "no scope" for scope in elsewhere)
        return ConfigurationError(
            f"{binding} has no effect: nothing calls `{name}` in scope `{binding.scope}`, only in {where}. Write "
            f"`@{scoped(binding.scope, name)}()` in the right place."
        )
    others = {
        f"{registry.short(node.selector)}.{parameter}"
        for node in used
        if registry.get(node.selector).module != "gin"
        for parameter in registry.signature(node.selector).parameters
    }
    same = sorted(other for other in others if other.endswith(f".{binding.parameter}"))
    near = did_you_mean(f"{name}.{binding.parameter}", same or others) or (
        f" Did you mean `{same[0]}`?" if same else ""
    )
    if not near:
        in_use = sorted(
            {f"`{registry.short(node.selector)}`" for node in used if registry.get(node.selector).module != "gin"}
        )
        near = f" In use are {', '.join(in_use)}."
    return ConfigurationError(
        f"{binding} has no effect: nothing uses `{name}`.{near} Refer to it (`@{name}()`), or remove the line."
    )


def _selector(root: Any) -> str:
    selector = registry.lookup(root)
    assert selector is not None, f"{root!r} isn't a configurable"
    return selector


def _gin_value(value: Any) -> Any:
    """Returns `value` with each `Reference` and `Macro` replaced by gin's own object."""
    if isinstance(value, Reference):
        selector = registry.preferred(value.selector) or value.selector
        return gin_config.ConfigurableReference(scoped(value.scope, selector), value.evaluated)
    if isinstance(value, Macro):
        return gin_config.ParserDelegate().macro(value.name)
    if isinstance(value, list | tuple):
        return type(value)(_gin_value(item) for item in value)
    if isinstance(value, dict):
        return {_gin_value(k): _gin_value(v) for k, v in value.items()}
    return value


def import_module(item: Import) -> None:
    """Imports the module of a gin file's `import` statement; this registers the module's configurables."""
    if item.module.startswith("__gin__"):
        raise ConfigurationError(
            f"`{item.statement.format()}` ({item.place}): dynamic registration is not supported; decorate with "
            "`@gin.configurable` and import the module."
        )
    try:
        importlib.import_module(item.module)
    except ModuleNotFoundError as error:
        if f"{item.module}.".startswith(f"{error.name}."):
            raise _no_such_module(item, error) from error
        raise  # the module exists, but imports a missing one
    except SyntaxError as error:
        place = f" ({error.filename}:{error.lineno})" if error.filename else ""
        raise _unreadable(item, f"{place}: {error.msg}") from error
    except ValueError as error:
        if "null bytes" not in str(error):  # the text in older versions of Python
            raise
        raise _unreadable(item, f": {error}") from error


def _unreadable(item: Import, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"`{item.statement.format()}` ({item.place}): Python can't read that module{why}. Correct the file."
    )


def _no_such_module(item: Import, error: ModuleNotFoundError) -> ConfigurationError:
    missing = error.name or item.module
    parent, _, last = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", []) if parent else None
    names = {module.name for module in pkgutil.iter_modules(path)}
    close = did_you_mean(last, names).replace("`", f"`{parent}." if parent else "`", 1)
    return ConfigurationError(
        f"`{item.statement.format()}` ({item.place}): there is no module `{missing}`.{close} Modules are searched in "
        f"the working directory ({Path.cwd()}) and in `PYTHONPATH`: run from the directory that contains it, or "
        "install it (`pip install -e`)."
    )
