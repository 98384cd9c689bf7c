"""Checks that a step has no side effects, and that a second call gives the same results."""

import collections
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from core.engine.side_effects import draws_of_tensorflow, paths_by_id, python_calls, writes
from core.metrics import State
from core.module import named_variables
from core.task import Batch, Loss, Task
from core.tensorflow_private import is_bookkeeping
from core.testing.perturb import kept
from core.testing.rows import TOLERANCE, apart
from core.testing.traced import Step, steps

Snapshot = dict[str, Any]
MANY = 200  # values of a container that are inspected


def assert_pure(task: Task, batch: Batch, *, seed: int = 0) -> None:
    """Asserts that steps of `task` change no variable or Python object. A second call and a trace must agree."""
    for step in steps(task, batch, seed=seed):
        check_pure(step)


def check_pure(step: Step) -> None:
    """Asserts for one step that it has no side effects, and that a second call gives the same results."""
    for messages in (
        draws_of_tensorflow(step.operations, step.name, has_rng=step.phase is not None),
        writes(step.operations, step.name, paths_by_id(named_variables(step.task))),
        python_calls(step.operations, step.name),
    ):
        assert (message := next(messages, None)) is None, message
    variables = {f"`{path}`": v for path, v in named_variables(step.task).items()}
    known = {id(v) for v in variables.values()}
    variables |= {f"`{v.name}`, which the task doesn't hold": v for v in step.captured if id(v) not in known}
    functions = [step.phase.loss if step.phase else step.task.evaluate]
    with kept(list(variables.values())):
        before, values = snapshot(step.task, functions), {name: v.numpy().copy() for name, v in variables.items()}
        first, second = step.eager(), step.eager()
        after = snapshot(step.task, functions)
        for name, variable in variables.items():
            assert values[name].tobytes() == variable.numpy().tobytes(), (
                f"{step.name} changed the variable {name}: a step function assigns nothing. Return what changes."
            )
    for path in [*before, *(path for path in after if path not in before)]:
        was, now = before.get(path), after.get(path)
        assert was == now, (
            f"two calls of {step.name} changed `{path}` from {was} to {now}. A step function keeps nothing in Python: "
            "traced, that line runs once, while tracing (a list then holds symbolic tensors for ever). Report figures "
            "in `Loss.metrics`, keep state in variables."
        )
    found = _difference(first, second)
    assert not found, (
        f"`{found}` of {step.name} isn't the same in a second call with the same `rng`: draw all randomness from "
        "`rng`, and none from NumPy, Python or the clock."
    )
    difference = apart(step().per_example, first.per_example.numpy())
    assert difference <= TOLERANCE, (
        f"the loss of {step.name} differs by {difference:.2g} between a call and its trace: what it reads from Python "
        "is fixed while tracing, so pass it in the batch or compute it with tensors."
    )


def snapshot(task: Task, functions: list[Callable[..., Any]]) -> Snapshot:
    """Returns `{path: description}` of Python objects: those of `task`, and others that its functions read."""
    found: Snapshot = {}
    seen: set[int] = set()
    _describe(type(task).__name__, task, found, seen)
    for key, value in vars(type(task)).items():
        if isinstance(value, types.FunctionType):
            functions = [*functions, value]
        elif isinstance(value, list | dict | set | collections.deque):
            _describe(f"{type(task).__name__}.{key}", value, found, seen)
    for function in functions:
        plain = getattr(function, "__func__", getattr(function, "func", function))
        code = getattr(plain, "__code__", None)
        for name in code.co_names if code else ():
            value = plain.__globals__.get(name)
            if isinstance(value, list | dict | set | int | float | np.ndarray | collections.deque):
                _describe(name, value, found, seen)
        for name, cell in zip(code.co_freevars, plain.__closure__, strict=True) if code and plain.__closure__ else ():
            _describe(name, cell.cell_contents, found, seen)
    return found


def _describe(path: str, value: Any, found: Snapshot, seen: set[int]) -> None:
    if isinstance(value, bool | int | float | str | bytes | None):
        found[path] = repr(value)
        return
    if id(value) in seen or isinstance(value, tf.Variable | type | types.ModuleType | types.FunctionType):
        return
    seen.add(id(value))
    if tf.is_tensor(value):
        found[path] = f"tensor {id(value)}"
    elif isinstance(value, np.ndarray):
        found[path] = f"an array {hash(value.tobytes()) & 0xFFFF:x}"
    elif isinstance(value, Mapping):
        found[path] = f"{len(value)} values"
        for key in list(value)[:MANY]:
            _describe(f"{path}[{key!r}]", value[key], found, seen)
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        found[path] = f"{len(value)} values"
        for i, item in enumerate(list(value)[:MANY]):
            _describe(f"{path}[{i}]", item, found, seen)
    elif hasattr(value, "__dict__") and not type(value).__module__.startswith(("tensorflow", "numpy")):
        for key, item in list(vars(value).items()):
            if not is_bookkeeping(key):
                _describe(f"{path}.{key}", item, found, seen)


def _difference(one: Loss, other: Loss) -> str | None:
    """Returns the first field of a `Loss` whose bits differ between `one` and `other`, or `None`."""
    for name in ("per_example", "weight", "metrics", "outputs"):
        for x, y in zip(tf.nest.flatten(getattr(one, name)), tf.nest.flatten(getattr(other, name)), strict=True):
            if x is not None and not isinstance(x, State) and x.numpy().tobytes() != y.numpy().tobytes():
                return name
    return None
