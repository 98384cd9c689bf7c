"""The private parts of TensorFlow that this project uses: each once, with its use and a public replacement, if any.

No other module imports `tensorflow.python`, or reads an attribute of TensorFlow that begins with an underscore
(`tests/test_tensorflow_private.py`). `python -m tools.next_tensorflow` runs the tests with the next TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Counts a mesh's collectives, waits for its devices, and limits how long workers connect. Nothing public does.
from tensorflow.python.eager.context import async_wait as async_wait
from tensorflow.python.eager.context import context as context
from tensorflow.python.eager.context import export_run_metadata as export_run_metadata

# Recomputation is left out where no tape records. Nothing public says so.
from tensorflow.python.eager.record import could_possibly_record as could_possibly_record

# A mesh compares the order of reads and writes with DTensor's. Nothing public lists them.
from tensorflow.python.framework.auto_control_deps_utils import (
    get_read_write_resource_inputs as get_read_write_resource_inputs,
)

# See the origin of each operation. `tf.debugging.enable_check_numerics` uses them, too; nothing public does as much.
from tensorflow.python.framework.op_callbacks import add_op_callback as add_op_callback
from tensorflow.python.framework.op_callbacks import remove_op_callback as remove_op_callback

# `tf.compat.v1.get_default_graph` and `tf.device`. The first imports modules that commands don't need; the second
# refuses a function of operations.
from tensorflow.python.framework.ops import device as device
from tensorflow.python.framework.ops import get_default_graph as get_default_graph
from tensorflow.python.ops import cond_v2, while_v2

# Detects XLA as TensorFlow's own loops do. Nothing public does.
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext as GraphOrParentsInXlaContext

# The dtype and shape of the value behind a handle. Nothing public returns them.
from tensorflow.python.ops.handle_data_util import get_resource_handle_data as get_resource_handle_data

# The class of `tf.Variable(...)`, which no strategy's scope replaces, and one that holds no value yet.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable as ResourceVariable
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable as UninitializedVariable
from tensorflow.python.util import _pywrap_util_port

uses_onednn: Callable[[], bool] = _pywrap_util_port.IsMklEnabled  # whose kernels compute; nothing public says so

# TensorFlow's functions, found by name among the callers of an operation.
GRADIENT_FUNCTION = "_gradient_function"  # calls one operation's gradient: tensorflow/python/eager/backprop.py
IMPERATIVE_GRAD = "imperative_grad"  # a tape's gradients: tensorflow/python/eager/imperative_grad.py
CUSTOM_GRADIENT = "tape_grad_fn"  # a custom gradient in a tape: tensorflow/python/ops/custom_gradient.py
GRADIENTS_HELPER = "_GradientsHelper"  # the gradients of a loop: tensorflow/python/ops/gradients_util.py
CONVERTED_CALL = "converted_call"  # AutoGraph's call, as in `tf.map_fn`: tensorflow/python/autograph/impl/api.py

OUTPUT_SHAPES = "_output_shapes"  # attribute of optimized nodes with their shapes


def flattened(module: tf.Module, wanted: Callable[[Any], bool], *, with_path: bool = False) -> Iterator[Any]:
    """Yields the wanted leaves and modules within `module`. `tf.Module.variables` and `submodules` walk so, too."""
    yield from module._flatten(predicate=wanted, with_path=with_path)


def ignored_attributes(module: tf.Module) -> frozenset[str]:
    """Returns the attributes in which `tf.Module` looks for no variables."""
    found: frozenset[str] = module._TF_MODULE_IGNORED_PROPERTIES
    return found


def is_bookkeeping(name: str) -> bool:
    """Says whether an attribute of a module is TensorFlow's own."""
    return name.startswith(("_self_", "_tf_", "_TF_"))


def function_graph(graph: Any, name: str) -> Any:
    """Returns the traced graph of the function `name`, which `graph` calls; `None` if there is none."""
    return getattr(graph._get_function(name), "graph", None)


def body_of_loop(op: tf.Operation) -> Any:
    """Returns the graph of a `While` operation's body, the same object each time."""
    return while_v2._get_graph(op, "body", "_body_graph")


def condition_of_loop(op: tf.Operation) -> Any:
    """Returns the graph of a `While` operation's condition, the same object each time."""
    return while_v2._get_graph(op, "cond", "_cond_graph")


def branches(op: tf.Operation) -> Sequence[Any]:
    """Returns the graphs of an `If` or `Case` operation's branches, the same objects each time."""
    found: Sequence[Any] = cond_v2.get_func_graphs(op)
    return found


def captures_of_loop(graph: Any) -> list[tuple[tf.Tensor, tf.Tensor]] | None:
    """Returns the `(outer, inner)` captures of a loop's body if `graph` is the gradient of that body, else `None`."""
    return list(graph._forward_graph.captures) if isinstance(graph, while_v2._WhileBodyGradFuncGraph) else None


def is_stateful(op: tf.Operation) -> bool:
    """Says whether TensorFlow counts `op` among the operations with side effects."""
    found: bool = op._is_stateful
    return found


def watched_variables(graph: Any) -> list[tf.Variable]:
    """Returns the variables that a function reads or writes while it is being traced, before `graph.variables`."""
    return list(getattr(graph, "_watched_variables", ()))


def omit_retracing_warning(function: Any) -> None:
    """Turns off the warning about frequent retracing of `function`. Nothing public does so for one function."""
    function._omit_frequent_tracing_warning = True


def next_element(iterator: Any) -> Any:
    """Returns the next element of a data set's iterator, fetched in this thread.

    `next(iterator)` uses another thread, and takes twice as long.
    """
    device = iterator._iterator_resource.device
    if "GPU" in device or "TPU" in device:
        return next(iterator)
    types, shapes = iterator._flat_output_types, iterator._flat_output_shapes
    resource = iterator._iterator_resource
    flat = tf.raw_ops.IteratorGetNextSync(iterator=resource, output_types=types, output_shapes=shapes)
    return tf.nest.pack_sequence_as(iterator.element_spec, flat)


def cross_device_ops(strategy: tf.distribute.Strategy) -> Any:
    """Returns the object with which a mirrored strategy reduces over devices; `None` for others."""
    return getattr(strategy.extended, "_cross_device_ops", None)
