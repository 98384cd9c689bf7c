"""Warnings about random numbers in a traced step function: repeated draws, and unused results of `Rng.fold`."""

import ast
import itertools
import linecache
from collections.abc import Hashable, Iterator
from typing import Any

import tensorflow as tf

from core.graphs import CORE, frames, said
from core.random import Drawn

_MOST = 8  # draws of one `Rng` that are compared: a loop may make thousands


def draws_twice(drawn: Drawn, who: str, tracer: str) -> Iterator[str]:
    """Yields a warning for each group of draws with one seed: their numbers are equal instead of independent.

    `tracer` is the path of the file that calls the step function. Draws in exclusive branches don't count.
    """
    made_of = {id(seed): (parent, _known(data)) for parent, data, seed in drawn.folds}

    def path(seed: tf.Tensor) -> Hashable:
        parent, data = made_of.get(id(seed), (None, id(seed)))
        return data if parent is None else (path(parent), data)

    by_path: dict[Hashable, list[Any]] = {}
    for seed, words in drawn.draws:
        by_path.setdefault(path(seed), []).append(words.op)
    pairs = (pair for ops in by_path.values() for pair in itertools.combinations(ops[:_MOST], 2))
    places = dict.fromkeys(_places(*pair, tracer) for pair in pairs if _both_run(*pair))
    for place in places:
        yield (
            f"{who} draws the same random numbers twice, {place}: they are equal instead of independent. Give each "
            'a separate rng: `rng.fold("one")` and `rng.fold("other")`. If equality is intended, pass '
            "`rng.again()` to the second"
        )


def folds_for_nothing(drawn: Drawn, who: str) -> Iterator[str]:
    """Yields a warning for each source line that calls `Rng.fold` but never uses the returned `Rng`."""
    used = {id(seed) for seed, *_ in (*drawn.draws, *drawn.folds)}
    for _, _, seed in drawn.folds:
        if id(seed) in used or seed.consumers():
            continue
        own = next((frame for frame in frames(seed.op) if not frame.filename.startswith(CORE)), None)
        if own and _is_dropped(own.filename, own.lineno):
            yield (
                f"{who} folds an rng and uses nothing of it, {said(own)}: `fold` changes no rng, it returns another "
                "one. Draw from that, or leave the line out. If it is meant, assign it to `_`"
            )


def _known(data: Any) -> Hashable:
    """Returns a hashable key of a fold's argument: strings and integers by value, other objects by identity."""
    return (type(data), data) if isinstance(data, str | int) else id(data)


def _both_run(one: Any, other: Any) -> bool:
    """Says whether one call can run both operations: their graphs are equal, or one contains the other."""
    return _within(one.graph, other.graph) or _within(other.graph, one.graph)


def _within(graph: Any, outer: Any) -> bool:
    while graph is not None and graph is not outer:
        graph = getattr(graph, "outer_graph", None)
    return graph is outer


def _places(one: Any, other: Any, tracer: str) -> str:
    """Returns the source lines, as text, where the call stacks of two operations diverge."""
    ways = [list(itertools.takewhile(lambda f: f.filename != tracer, frames(op)))[::-1] for op in (one, other)]
    last = None
    for a, b in zip(*ways, strict=False):
        foreign = not a.filename.startswith(CORE) and not b.filename.startswith(CORE)
        if (a.filename, a.lineno) != (b.filename, b.lineno):
            if foreign:
                return f"{said(a)} and {said(b)}"
            break
        last = a if foreign else last
    return said(last) if last else "in a layer or loss of `core`"


def _is_dropped(filename: str, lineno: int) -> bool:
    """Says whether a source line ignores the result of `fold`, or assigns it to a name that is never read."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return False
    around = [node for node in ast.walk(tree) if _holds(node, lineno)]
    within: ast.AST = next((n for n in reversed(around) if isinstance(n, ast.FunctionDef | ast.Lambda)), tree)
    for node in around:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="fold"))):
                return True
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="fold"))):
                loads = (n.id for n in ast.walk(within) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
                return not name.startswith("_") and name not in loads
    return False


def _holds(node: ast.AST, lineno: int) -> bool:
    return isinstance(node, ast.stmt | ast.expr) and node.lineno <= lineno <= (node.end_lineno or node.lineno)
