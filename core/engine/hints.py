"""Warnings about probable mistakes in a step function, found in its trace without extra computation."""

import collections
import random
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import tensorflow as tf

from core.graphs import ancestors, bodies, is_own, line, maker, sigmoid_logits
from core.random import Drawn
from core.tensorflow_private import is_bookkeeping

_CROSS_ENTROPIES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "LogSoftmax")
_DETOURS = (tf.float16, tf.float64)  # bfloat16 needs no loss scaling, and is rarely an accident
_OF_A_CLASS = (int, float, list, dict, set, collections.deque)  # types that a method may change
_MANY = 200  # values of a container that are inspected


def squashed_twice(operations: list[Any], who: str) -> Iterator[str]:
    """Yields a warning for each cross-entropy whose logits are already the output of a softmax or sigmoid."""
    told = set[str]()
    for op in operations:
        logits = op.inputs[0] if op.type in _CROSS_ENTROPIES else sigmoid_logits(op)
        before = None if logits is None else maker(logits)
        if before is not None and before.type in ("Softmax", "Sigmoid") and before.name not in told:
            told.add(before.name)
            yield (
                f"{who} passes probabilities to a loss that takes logits: they come from "
                f"`tf.nn.{before.type.lower()}` {line(before)}. Pass its input instead"
            )


def detours(operations: list[Any], loss: tf.Tensor, meant: Set[tf.DType], who: str) -> Iterator[str]:
    """Yields a warning if user code computes the `loss` in float16 or float64. Dtypes in `meant` are allowed."""
    needed = ancestors([loss.op])
    hanging, told = set[str](), set[tf.DType]()
    for op in operations:
        if op.type == "Placeholder" or any(x.op.name in hanging for x in op.inputs):
            hanging.add(op.name)
        if op.name not in needed or op.name not in hanging:
            continue
        for made in (op, *bodies(op)):
            dtypes = {x.dtype for x in made.outputs if x.dtype in _DETOURS}.difference(meant, told)
            if dtypes and made.inputs and is_own(made):
                told |= dtypes
                yield (
                    f"{who} computes its loss in {min(x.name for x in dtypes)} {line(made)}, though the batch is "
                    "float32: a cast or a NumPy array brought it in. Cast it back to float32, unless it is meant"
                )


def fixed_draws(drawn: Drawn, given: tf.Tensor, who: str, *, is_step: bool = True) -> Iterator[str]:
    """Yields a warning for each draw that doesn't depend on `given`, the seed of the function's `rng`."""
    parents = {id(seed): parent for parent, _, seed in drawn.folds}

    def first(seed: tf.Tensor) -> int:
        while (parent := parents.get(id(seed))) is not None:
            seed = parent
        return id(seed)

    meant, each = {id(given), *map(id, drawn.again)}, "step" if is_step else "call"
    places = (line(words.op) for seed, words in drawn.draws if first(seed) not in meant)
    for place in dict.fromkeys(places):
        yield (
            f"{who} draws the same random numbers in each {each}, {place}: they don't come from the `rng` that it is "
            "called with. Draw from that. If it is meant, draw them once, in `__init__`"
        )


class Python:
    """A record of Python state before tracing: attributes of the function's `owner`, and of random generators."""

    def __init__(self, owner: object | None):
        self._owner = owner
        self._before, self._draws = self._held(), _generators()

    def changed(self, who: str, *, is_step: bool = True) -> Iterator[str]:
        """Yields a warning for each state that tracing has changed. Calls of the traced function won't change it."""
        each = "step" if is_step else "call"
        report = "Report figures in `Loss.metrics`, keep state in variables" if is_step else "Return it"
        count = "Use `rng.step` to count, and keep state in variables" if is_step else "Compute it from the arguments"
        draw = "Draw from its `rng`" if is_step else "Draw from an `Rng`"
        for path, value in self._held().items():
            before = self._before.get(path)
            if isinstance(value, str) and before != value:
                yield (
                    f"{who} keeps a tensor in `{path}`: it is one of the trace, without a value, and the same for "
                    f"all {each}s. {report}"
                )
            elif before is not None and type(before) is type(value) and before != value:
                yield (
                    f"{who} changes `{path}` from {before} to {value}: Python runs once, while the {each} is traced, "
                    f"not in each {each}. {count}"
                )
        for name, (was, now) in {n: (self._draws[n], x) for n, x in _generators().items()}.items():
            if was != now:
                yield (
                    f"{who} draws from {name}: once, while the {each} is traced, so each {each} has the same numbers. "
                    f"{draw}"
                )

    def _held(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._owner is not None:
            _describe(type(self._owner).__name__, self._owner, found, set())
        return found


def owner(function: Callable[..., Any]) -> object | None:
    """Returns the object that a bound method belongs to; None for other functions."""
    return getattr(getattr(function, "func", function), "__self__", None)


def _describe(path: str, value: Any, found: dict[str, Any], seen: set[int]) -> None:
    """Adds numbers and names of symbolic tensors in `value` to `found`, for example `{"Task.count": 3}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = value
        return
    if id(value) in seen or isinstance(value, tf.Variable | type):
        return
    seen.add(id(value))
    if tf.is_tensor(value):
        if not hasattr(value, "numpy"):
            found[path] = f"{value.name} {id(value.graph)}"
    elif isinstance(value, Mapping):
        for key in list(value)[:_MANY]:
            _describe(f"{path}[{key!r}]", value[key], found, seen)
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        for i, item in enumerate(list(value)[:_MANY]):
            _describe(f"{path}[{i}]", item, found, seen)
    elif isinstance(value, tf.Module):
        shared = {key: x for key, x in vars(type(value)).items() if isinstance(x, _OF_A_CLASS)}
        for key, item in {**shared, **vars(value)}.items():
            if not is_bookkeeping(key):
                _describe(f"{path}.{key}", item, found, seen)


def _generators() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return {
        "NumPy's generator": (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]),
        "Python's `random`": random.getstate(),
    }
