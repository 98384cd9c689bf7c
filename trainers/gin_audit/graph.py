"""The graph of configurables that the command's configurables reach, through `@references` and `%macros`.

The graph follows gin's scopes. `@g/adamw()` is called in scope `g`, whatever the outer scope. `@adamw()` inherits the
scope. The value of `%lr` is made in scope `lr`. A binding for scope `s` applies in every scope that begins with `s`.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from core.errors import ConfigurationError
from trainers.gin_audit import registry
from trainers.gin_audit.statements import Binding, Constant, Macro, Reference, names_in, text


@dataclasses.dataclass(frozen=True)
class Node:
    """A configurable's complete selector, and the scope in which it is called."""

    scope: str
    selector: str  # complete


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A reached node, and the reference and binding that lead to it. Calls in code have None for both."""

    node: Node
    reference: Reference | None = None
    binding: Binding | None = None


def covers(scope: str, other: str) -> bool:
    """Returns whether a binding for `scope` applies to a call in the scope `other`."""
    return not scope or f"{other}/".startswith(f"{scope}/")


class Graph:
    """Bindings, grouped by configurable. Unknown names are skipped, because `check_names` reports them."""

    def __init__(self, bindings: Iterable[Binding]):
        self.macros: dict[str, list[Binding]] = defaultdict(list)
        self.bound: dict[str, list[Binding]] = defaultdict(list)  # by complete selector
        for binding in bindings:
            if binding.is_macro:
                self.macros[binding.name].append(binding)
            else:
                for selector in registry.matches(binding.selector):
                    self.bound[selector].append(binding)

    def resolve(self, value: Any, inside: tuple[str, ...] = ()) -> Any:
        """Returns `value` with each `%macro` replaced by its value, and each `%constant` by a `Constant`."""
        if isinstance(value, Macro):
            found = registry.constants(value.name)  # before macros, as in gin
            if found:
                return Constant(found[0], registry.constant(found[0]))
            binding = self.macros[value.name][-1]
            if value.name in inside:
                chain = " -> ".join(f"%{name}" for name in (*inside, value.name))
                raise ConfigurationError(f"{binding}: the macro is defined by itself ({chain}); give it a value.")
            return self.resolve(binding.value, (*inside, value.name))
        if isinstance(value, list | tuple):
            return type(value)(self.resolve(item, inside) for item in value)
        if isinstance(value, dict):
            return {self.resolve(k, inside): self.resolve(v, inside) for k, v in value.items()}
        return value

    def holding(self, node: Node) -> dict[str, Binding]:
        """Returns `{parameter: binding}` for a call of `node`. The binding with the longest scope wins."""
        found = [binding for binding in self.bound.get(node.selector, ()) if covers(binding.scope, node.scope)]
        return {binding.parameter: binding for binding in sorted(found, key=lambda binding: len(binding.scope))}

    def reach(self, roots: Sequence[str], *, every_binding: bool = False) -> list[Arrival]:
        """Returns all nodes that calls of `roots` reach; `every_binding` includes bindings that longer scopes hide."""
        waiting = [Arrival(Node("", root)) for root in roots]
        seen: dict[tuple[Node, bool], Arrival] = {}
        while waiting:
            arrival = waiting.pop()
            evaluated = arrival.reference is not None and arrival.reference.evaluated
            if (arrival.node, evaluated) in seen:
                continue
            seen[arrival.node, evaluated] = arrival
            waiting.extend(self._next(arrival.node, every_binding))
        return list(seen.values())

    def _next(self, node: Node, every_binding: bool) -> Iterator[Arrival]:
        bindings = self.bound.get(node.selector, []) if every_binding else self.holding(node).values()
        for binding in bindings:
            if covers(binding.scope, node.scope):
                for reference, scope in self._references(binding.value, node.scope, ()):
                    for selector in registry.matches(reference.selector):
                        yield Arrival(Node(scope, selector), reference, binding)
                        if scope and not reference.scope and not reference.evaluated:
                            yield Arrival(Node("", selector), reference, binding)  # called outside of the scope
        for parameter in registry.signature(node.selector).parameters.values():
            if (default := registry.lookup(parameter.default)) is not None:
                yield Arrival(Node(node.scope, default))

    def _references(self, value: Any, scope: str, inside: tuple[str, ...]) -> Iterator[tuple[Reference, str]]:
        """Yields each reference in `value`, also through macros, with the scope in which it is called."""
        for name in names_in(value):
            if isinstance(name, Reference):
                yield name, name.scope or scope
            elif name.name not in inside:
                for binding in self.macros.get(name.name, ()):
                    yield from self._references(binding.value, name.name, (*inside, name.name))


def check_cycles(graph: Graph, arrivals: Iterable[Arrival]) -> None:
    """Raises an error for a reference that needs its own result, which would recurse endlessly."""
    done: set[Node] = set()

    def visit(node: Node, path: tuple[Node, ...]) -> None:
        if node in done:
            return
        for arrival in graph._next(node, False):
            if arrival.reference is None or not arrival.reference.evaluated:
                continue
            if arrival.node in (*path, node):
                raise ConfigurationError(
                    f"{arrival.binding}: `{arrival.reference}` needs its own result; refer to something else, or use a "
                    f"scope with separate bindings (`@inner/{text(arrival.reference)[1:]}`)."
                )
            visit(arrival.node, (*path, node))
        done.add(node)

    for arrival in arrivals:
        visit(arrival.node, ())
