"""Static checks of a configuration, before anything is called: names, macros, scopes, types, required parameters.

Each check raises a `ConfigurationError`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from core.errors import ConfigurationError, did_you_mean
from trainers.gin_audit import registry
from trainers.gin_audit.annotations import hint_text, received, wanted
from trainers.gin_audit.graph import Arrival, Graph, covers
from trainers.gin_audit.statements import Binding, Constant, Macro, Reference, is_placeholder, names_in, scoped


def check_names(bindings: Sequence[Binding]) -> None:
    """Raises an error for an unknown or ambiguous configurable, parameter or macro."""
    macros = {binding.name for binding in bindings if binding.is_macro}
    for binding in bindings:
        if binding.is_macro:
            if hidden := registry.constants(binding.name):
                raise ConfigurationError(
                    f"{binding}: `%{binding.name}` is the constant `{hidden[0]}`; rename the macro."
                )
        else:
            _check_parameter(binding, _the_one(binding.selector, binding))
        for name in names_in(binding.value):
            if isinstance(name, Reference):
                _the_one(name.selector, binding, name)
            else:
                _check_macro(name, binding, macros)


def _the_one(selector: str, binding: Binding, reference: Reference | None = None) -> str:
    """Returns the complete selector for the name `selector`. Raises an error if it is unknown or ambiguous."""
    found = registry.matches(selector)
    named = f"`{reference or selector}`"
    if not found:
        near = registry.near(selector)
        if selector in ("gin.REQUIRED", "REQUIRED"):
            near = " Did you mean `%gin.REQUIRED`?"
        raise ConfigurationError(
            f"{binding}: there is no configurable for {named}.{near} Check its spelling, or `import` the module that "
            "defines it at the top of the gin file."
        )
    if len(found) > 1:
        several = ", ".join(f"`{name}`" for name in found)
        raise ConfigurationError(f"{binding}: {named} may be any of {several}; write one of them.")
    if registry.get(found[0]).is_method and "." not in selector:
        raise ConfigurationError(f"{binding}: {named} is a method; write `{registry.short(found[0])}`.")
    if reference and not reference.scope and found[0] in ("gin.constant", "gin.macro"):
        raise ConfigurationError(f"{binding}: {named} has no value; write `%name`, of a macro or a constant.")
    return found[0]


def _check_parameter(binding: Binding, selector: str) -> None:
    signature, name = registry.signature(selector), registry.short(selector)
    if signature.find(binding.parameter) is None:
        known = ", ".join(f"`{parameter}`" for parameter in signature.parameters) or "none"
        near = did_you_mean(binding.parameter, signature.parameters)
        raise ConfigurationError(
            f"{binding}: `{name}` has no parameter `{binding.parameter}` that gin may bind.{near} It has: {known}."
        )


def _check_macro(macro: Macro, binding: Binding, macros: set[str]) -> None:
    found = registry.constants(macro.name)
    if len(found) > 1:
        several = ", ".join(f"`%{name}`" for name in found)
        raise ConfigurationError(f"{binding}: `{macro}` may be any of {several}; write one of them.")
    if not found and macro.name not in macros:
        near = did_you_mean(macro.name, [*macros, *registry.constant_names()])
        raise ConfigurationError(
            f"{binding}: there is no macro `{macro}`.{near} Define it (`{macro.name} = ...`) or write the value."
        )


def check_placeholders(bindings: Iterable[Binding]) -> None:
    """Raises an error for a `%gin.REQUIRED` that no value has replaced."""
    for binding in bindings:
        if is_placeholder(binding.value):
            raise ConfigurationError(
                f"{binding}: `%gin.REQUIRED` needs a value from a later gin file or `--gin_param`, and none gives it. "
                f"Add `{binding.name} = ...`."
            )
        if any(is_placeholder(name) for name in names_in(binding.value)):
            raise ConfigurationError(
                f"{binding}: `%gin.REQUIRED` replaces a whole value, not a part of one; write the part, or "
                f"`{binding.name} = %gin.REQUIRED`."
            )


def check_macros_used(bindings: Iterable[Binding], everything: Sequence[Binding], arrivals: Iterable[Arrival]) -> None:
    """Raises an error for an unused macro. `everything` also has overridden bindings, whose macros count as used."""
    used = {
        name.name for b in everything for name in names_in(b.value) if isinstance(name, Macro) and name.name != b.name
    }
    for binding in bindings:
        if binding.is_macro and binding.name not in used:
            selectors = dict.fromkeys(arrival.node.selector for arrival in arrivals)
            parameters = [(selector, p) for selector in selectors for p in registry.signature(selector).parameters]
            close = did_you_mean(binding.name, [p for _, p in parameters])
            near = next((f" Did you mean `{registry.short(s)}.{p}`?" for s, p in parameters if f"`{p}`" in close), "")
            raise ConfigurationError(
                f"{binding}: nothing uses the macro `%{binding.name}`.{near} To bind a parameter, write "
                "`configurable.parameter = ...`; otherwise remove the line."
            )


def check_scopes(bindings: Iterable[Binding], everything: Sequence[Binding], scopes: Iterable[str]) -> None:
    """Raises an error for a binding in a scope that no reference or macro opens and that isn't in `scopes`."""
    macros = {binding.name for binding in everything if binding.is_macro}
    named = {n.scope for b in everything for n in names_in(b.value) if isinstance(n, Reference) and n.scope}
    opened = named | macros | set(scopes)
    for binding in bindings:
        if binding.is_macro or any(covers(binding.scope, scope) for scope in opened | {""}):
            continue
        near = did_you_mean(binding.scope, named | set(scopes))
        there = f"the scopes in use are {', '.join(f'`{s}`' for s in sorted(named))}" if named else "no scope is in use"
        raise ConfigurationError(
            f"{binding}: nothing is called in scope `{binding.scope}` ({there}).{near} A reference opens it: "
            f"`@{scoped(binding.scope, binding.selector)}()`."
        )


def check_types(graph: Graph, bindings: Iterable[Binding]) -> None:
    """Raises an error for a value that doesn't fit its parameter's annotation."""
    for binding in bindings:
        value = graph.resolve(binding.value)  # resolves unused macros too, to find cyclic ones
        if binding.is_macro:
            continue
        parameter = registry.signature(registry.matches(binding.selector)[0]).find(binding.parameter)
        assert parameter is not None
        if problem := wanted(value, parameter.hint, makes):
            given = received(value, makes)
            if isinstance(binding.value, Macro) and not isinstance(value, Constant):
                given += f" by the macro at {graph.macros[binding.value.name][-1].place}"
            raise ConfigurationError(f"{binding}: `{binding.parameter}` is given {given}, but {problem}.")


def makes(reference: Reference) -> Any:
    """Returns the annotated return type of the configurable that `reference` names."""
    return registry.signature(registry.matches(reference.selector)[0]).makes


def check_required(graph: Graph, arrivals: Iterable[Arrival], required: Iterable[str]) -> None:
    """Raises an error for a missing required parameter of a configurable that will be called."""
    required = set(required)
    for arrival in arrivals:
        reference, node = arrival.reference, arrival.node
        if reference is None and node.selector not in required:
            continue
        held = graph.holding(node)
        for name, parameter in registry.signature(node.selector).parameters.items():
            # Callers of a factory may pass arguments, but `gin.REQUIRED` says that a gin file must.
            missing = parameter.required or (
                parameter.default is registry.MISSING and reference is not None and reference.evaluated
            )
            if missing and name not in held:
                key = f"{scoped(reference.scope if reference else '', registry.short(node.selector))}.{name}"
                kind = "" if parameter.hint is Any else f" (`{hint_text(parameter.hint)}`)"
                by = f", which {arrival.binding} needs" if arrival.binding else ""
                raise ConfigurationError(f"`{key}`{kind} has no value{by}. Bind it: `{key} = ...`.")
