"""The origin of each traced operation: its module's path, and forward pass, backward pass or update.

A graph doesn't store the origin, so Python's call stack is read while tracing. A backward operation has the module of
its forward operation.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import tensorflow as tf

from core.module import named_modules, original
from core.tensorflow_private import (
    CUSTOM_GRADIENT,
    GRADIENT_FUNCTION,
    GRADIENTS_HELPER,
    IMPERATIVE_GRAD,
    add_op_callback,
    remove_op_callback,
)

FORWARD = "forward"
BACKWARD = "backward"
UPDATE = "update"
_PLACE = "_where_it_was_asked_for"
_TENSORFLOW = str(Path(tf.__file__).parent)
_CORE = Path(__file__).parent.parent
_ENGINE, _OPTIMIZERS = f"{_CORE / 'engine'}/", f"{_CORE / 'optimizers'}/"


class Place(NamedTuple):
    """The origin of an operation: the path of its module, and "forward", "backward" or "update"."""

    module: str  # its path; empty outside all modules
    way: str


@contextlib.contextmanager
def noting_places(task: tf.Module) -> Iterator[None]:
    """Records the origin of each operation traced in its `with` block. Modules are those of `task`."""
    modules = {id(module): path for path, module in named_modules(task).items()}

    def note(_: Any, inputs: Any, attributes: Any, outputs: Any, op_name: str = "", graph: Any = None) -> None:
        if graph is not None and outputs:
            setattr(outputs[0].op, _PLACE, _asked_at(modules))

    add_op_callback(note)
    try:
        yield
    finally:
        remove_op_callback(note)


def place_of(op: tf.Operation) -> Place:
    """Returns the origin of `op` that `noting_places` recorded. Without a record: forward pass, no module."""
    found: Place = getattr(op, _PLACE, Place("", FORWARD))
    return found


def _asked_at(modules: Mapping[int, str]) -> Place:
    module, way = None, FORWARD
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_TENSORFLOW):
            if code.co_name == IMPERATIVE_GRAD:
                way = BACKWARD
            elif module is None and code.co_name in _DIFFERENTIATED:
                forward = _DIFFERENTIATED[code.co_name](frame.f_locals)
                module = None if forward is None else place_of(forward).module
        elif code.co_filename.startswith(_OPTIMIZERS):
            return Place("", UPDATE)
        elif code.co_filename.startswith(_ENGINE):
            break  # frames further out lead to the step function
        else:
            way = FORWARD  # a step function may take gradients itself, as a penalty does
            if module is None and code.co_argcount:
                module = modules.get(id(original(frame.f_locals.get(code.co_varnames[0]))))
        frame = frame.f_back
    return Place(module or "", way)


def _by_tape(gradient: Mapping[str, Any]) -> tf.Operation | None:
    """Returns the forward operation whose gradient a tape computes. `gradient` has TensorFlow's local variables."""
    for x in gradient["outputs"] or ():
        if tf.is_symbolic_tensor(x):
            return x.op
    taken = {i: x.name for i, x in enumerate(gradient["inputs"] or ()) if tf.is_symbolic_tensor(x)}
    for i in taken:
        for op in gradient["inputs"][i].consumers():
            if op.type == gradient["op_name"] and all(op.inputs[j].name == name for j, name in taken.items()):
                return op
    return None


def _of_ones_own(gradient: Mapping[str, Any]) -> tf.Operation | None:
    """Returns a forward operation with a custom gradient. `gradient` has TensorFlow's local variables."""
    return next((x.op for x in tf.nest.flatten(gradient["result"]) if tf.is_symbolic_tensor(x)), None)


_DIFFERENTIATED = {  # TensorFlow's functions that call one operation's gradient, and how to find the operation there
    GRADIENT_FUNCTION: _by_tape,
    CUSTOM_GRADIENT: _of_ones_own,
    GRADIENTS_HELPER: lambda gradient: gradient.get("op"),
}
