"""Operation trace: records eager operations to find the origin of a non-finite value.

A record of an operation has the operations that made its inputs, and the lines of code that called the operation. It
has no tensors, so memory is freed as usual.
"""

import contextlib
import dataclasses
import sys
import sysconfig
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core.module import original
from core.tensorflow_private import (
    CONVERTED_CALL,
    GRADIENT_FUNCTION,
    IMPERATIVE_GRAD,
    add_op_callback,
    remove_op_callback,
)

_TENSORFLOW = str(Path(tf.__file__).parent)
_HOME = Path(__file__).parents[3]
_ENGINE = tuple(f"{_HOME / room}/" for room in ("core/engine", "trainers"))
_PASSED = (f"{_HOME / 'core/distribution'}/", sysconfig.get_path("stdlib"), "<")
_GENERATED = "__autograph_generated_file"  # begins the names of AutoGraph's files, which go with the process
OWN = "a custom function"
_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparse")


class Line(NamedTuple):
    """A line of code that called an operation."""

    file: str
    number: int
    function: str


@dataclasses.dataclass(eq=False)
class Operation:
    """One operation that ran."""

    number: int
    kind: str
    lines: Sequence[Line]  # innermost first, without TensorFlow's and the engine's
    module: str  # path of the calling module; empty if none
    parents: Sequence["Operation"]  # the operations that made its inputs
    inputs: Sequence[int]  # their ids
    variables: Sequence[str]  # paths of the variables it reads or writes
    gradient_of: "Operation | None" = None
    is_gradient: str = ""  # the kind of its forward operation, if it computes a gradient
    bad: bool = False
    took: Sequence[str] = ()  # if it is bad: descriptions of its inputs
    made: Sequence[str] = ()  # and its outputs
    length: int = 0  # length of its output's first axis,
    places: Sequence[int] = ()  # and where along it the bad values are

    @property
    def name(self) -> str:
        """Returns the operation's kind, such as `Log`; for a gradient, also the forward operation's kind."""
        kind = "a function that TensorFlow traces" if self.kind.startswith("__") else self.kind
        return f"{kind}, in the gradient of {self.is_gradient}" if self.is_gradient else kind


class Trail:
    """Records the operations that run in the `with` block of `following()`."""

    def __init__(self, variables: Mapping[str, tf.Variable], modules: Mapping[str, tf.Module]):
        self._variables = {id(v.handle): (path, v) for path, v in variables.items()}
        self._modules = {id(module): path for path, module in modules.items()}
        self._made: dict[int, tuple[Any, Operation]] = {}  # by the tensor's id, while it exists
        self._by_kind = defaultdict[str, list[Operation]](list)
        self._places: dict[int | None, str] = {}  # variables by the memory address of their values
        self._count = 0
        self.written: dict[str, Operation] = {}  # {variable: operation that wrote a non-finite value}

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Records each operation in its `with` block, where `tf.function`s run eagerly."""
        self._note_places(dict(self._variables.values()))
        add_op_callback(self._see)
        try:
            with functions_run_eagerly():
                yield
        finally:
            remove_op_callback(self._see)

    def origin(self, tensors: Iterable[Any]) -> Operation | None:
        """Returns the first operation with finite inputs and a non-finite output among the ancestors of `tensors`."""
        return first_bad(made for x in tensors if (made := self.maker(x)) is not None and made.bad)

    def maker(self, tensor: Any) -> Operation | None:
        """Returns the recorded operation that made `tensor`; `None` if there is none."""
        reference, operation = self._made.get(id(tensor), (None, None))
        return operation if reference is not None and reference() is tensor else None

    def _see(
        self, kind: str, inputs: Sequence[Any], _: Any, outputs: Sequence[Any], op_name: str = "", graph: Any = None
    ) -> None:
        if graph is not None:  # tracing computes no values
            return
        lines, module, gradient = self._asked()
        parents = [made for x in inputs if (made := self.maker(x)) is not None]
        known = dict(self._variables[id(x)] for x in inputs if id(x) in self._variables)
        read = [path for x in inputs if self.maker(x) is None and (path := self._places.get(_place(x))) is not None]
        self._count += 1
        made = Operation(self._count, _text(kind), lines, module, parents, [id(x) for x in inputs], [*known, *read])
        if gradient is not None:
            self._place_gradient(made, gradient)
        writes = made.kind.startswith(_WRITES)
        results = [variable.read_value() for variable in known.values()] if writes else outputs
        if not all(map(is_finite, results)):
            made.bad = True
            made.took = [described(x) for x in inputs if id(x) not in self._variables]
            made.made = [described(x) for x in results]
            made.length, made.places = _bad_places(results)
            for path, x in zip(known if writes else (), results, strict=False):
                if not is_finite(x):
                    self.written.setdefault(path, made)
        if writes:
            self._note_places(known)
        self._by_kind[made.kind].append(made)
        for x in outputs:
            self._made[id(x)] = (weakref.ref(x), made)

    def _asked(self) -> tuple[list[Line], str, Mapping[str, Any] | None]:
        """Returns the current operation's callers (lines of code), innermost module, and gradient's arguments."""
        lines, converted, module, gradient = list[Line](), 0, "", None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(_TENSORFLOW):
                if gradient is None and code.co_name in (GRADIENT_FUNCTION, IMPERATIVE_GRAD):
                    gradient = frame.f_locals if code.co_name == GRADIENT_FUNCTION else {"op_name": OWN}
                if code.co_name == CONVERTED_CALL and (made := frame.f_locals.get("converted_f")) is not None:
                    lines[converted:] = _as_written(lines[converted:], made.ag_source_map)
                    converted = len(lines)
            elif code.co_filename.startswith(_ENGINE):
                break  # outer frames call the step function
            elif not code.co_filename.startswith(_PASSED):
                line = Line(code.co_filename, frame.f_lineno, code.co_name)
                if not lines or lines[-1][:2] != line[:2]:  # a nested function on the same line adds nothing
                    lines.append(line)
                if not module and code.co_argcount:
                    caller = original(frame.f_locals.get(code.co_varnames[0]))  # of a copy in an inner loop
                    module = self._modules.get(id(caller), "")
            frame = frame.f_back
        return lines, module, gradient

    def _note_places(self, variables: Mapping[str, tf.Variable]) -> None:
        """Records the memory address of each variable's value, because TensorFlow reports no reads of variables."""
        self._places = {place: path for place, path in self._places.items() if path not in variables}
        self._places |= {_place(v.read_value()): path for path, v in variables.items()}
        self._places.pop(None, None)

    def _place_gradient(self, made: Operation, gradient: Mapping[str, Any]) -> None:
        """Sets the forward operation of the gradient `made`, and its module: the forward pass's, or its inputs'."""
        made.is_gradient, made.gradient_of = gradient["op_name"], self._forward(gradient)
        near = [made.gradient_of] if made.gradient_of else made.parents
        made.module = made.module or next((each.module for each in near if each.module), "")

    def _forward(self, gradient: Mapping[str, Any]) -> Operation | None:
        """Returns the forward operation of a gradient, found by the operation's outputs or else by its inputs."""
        for x in gradient.get("outputs") or ():
            if (made := self.maker(x)) is not None:
                return made
        known = {i: id(x) for i, x in enumerate(gradient.get("inputs") or ()) if x is not None}
        for made in reversed(self._by_kind[gradient["op_name"]]):
            if known and all(i < len(made.inputs) and made.inputs[i] == each for i, each in known.items()):
                return made
        return None


@contextlib.contextmanager
def functions_run_eagerly() -> Iterator[None]:
    """Makes `tf.function`s run eagerly in its `with` block."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _as_written(lines: Iterable[Line], origins: Mapping[Any, Any]) -> list[Line]:
    """Replaces lines of code that AutoGraph generated by the original source lines. Keeps other lines."""
    places = {tuple(made): origin for made, origin in origins.items()}
    found = [(line, places.get(line[:2])) for line in lines]
    kept = [Line(o.loc.filename, o.loc.lineno, o.function_name or line.function) if o else line for line, o in found]
    return [line for line in kept if not Path(line.file).name.startswith(_GENERATED)]


def first_bad(operations: Iterable[Operation]) -> Operation | None:
    """Returns the earliest bad operation among `operations` and their ancestors; `None` if there are none."""
    rest = list(operations)
    seen = set(rest)
    while rest:
        bad = {parent for parent in rest.pop().parents if parent.bad} - seen
        seen |= bad
        rest.extend(bad)
    return min(seen, key=lambda each: each.number, default=None)


def variables_before(operation: Operation) -> list[str]:
    """Returns the paths of variables that `operation` or its ancestors use, the nearest first."""
    found, level, seen = dict[str, None](), [operation], {operation}
    while level:
        found |= {path: None for each in level for path in each.variables}
        level = [parent for parent in dict.fromkeys(p for each in level for p in each.parents) if parent not in seen]
        seen.update(level)
    return list(found)


def is_finite(x: Any) -> bool:
    """Returns whether all values of `x` are finite; True for integers, booleans and strings."""
    return not (x.dtype.is_floating or x.dtype.is_complex) or bool(np.isfinite(x.numpy()).all())


def _place(x: Any) -> int | None:
    """Returns the memory address of a tensor's values; `None` if NumPy can't share them."""
    if not x.dtype.is_floating or x.dtype == tf.bfloat16:
        return None
    return int(np.asarray(memoryview(x)).ctypes.data)


def _text(kind: str | bytes) -> str:
    return kind.decode() if isinstance(kind, bytes) else kind


def _bad_places(results: Sequence[Any]) -> tuple[int, list[int]]:
    x = next(x for x in results if not is_finite(x)).numpy()
    if not x.ndim:
        return 0, []
    return len(x), np.flatnonzero(~np.isfinite(x.reshape([len(x), -1])).all(axis=1)).tolist()


def described(x: Any) -> str:
    """Returns dtype, shape and a summary of the values of a tensor."""
    name = f"{x.dtype.name}{x.shape.as_list()}"
    if not (x.dtype.is_floating or x.dtype.is_integer) or not x.shape.num_elements():
        return name
    values = x.numpy().astype(np.float64)
    finite = values[np.isfinite(values)]
    kinds = {"nan": np.isnan(values), "inf": np.isposinf(values), "-inf": np.isneginf(values)}
    counts = [f"{word} in {int(where.sum()):,}" for word, where in kinds.items() if where.any()]
    if finite.size:
        low, high = finite.min(), finite.max()
        counts.append(f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}")
    return f"{name}: {', '.join(counts)}"
