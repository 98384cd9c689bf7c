"""ONNX: a file for each served function, converted by tf2onnx. Imported only for `--format=onnx`.

The names of a file's tensors are unique, so an output with an input's name gets `_out` added.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from tf2onnx import optimizer, tf_loader
from tf2onnx.handler import tf_op
from tf2onnx.tfonnx import process_tf_graph

from core.arguments import listed
from core.errors import ConfigurationError

OPSET = 18  # the newest that tf2onnx writes
MOST_BYTES = (1 << 31) - 1  # of a file, which is one protocol buffer
JAX = "XlaCallModule"  # a function of JAX, on which tf2onnx stops with an error of its own
# A runtime has the others, too; and `remove_back_to_back` of tf2onnx 1.17 joins two reshapes although the second copies
# an axis of the first one's result, so that a transformer fails.
SIMPLIFICATIONS = {
    "optimize_transpose": optimizer.TransposeOptimizer,
    "fold_constants": optimizer.ConstFoldOptimizer,
    "merge_duplication": optimizer.MergeDuplicatedNodesOptimizer,
    "remove_identity": optimizer.IdentityOptimizer,
}


def _rule(
    graph: Any, node: Any, *, operation: str, attributes: dict[str, int], then: str, number: float, **_: Any
) -> None:
    """Replaces `node` with `then(number, operation(x))`."""
    (shape,), (dtype,) = node.output_shapes, node.output_dtypes
    constant = np.asarray(number, onnx.helper.tensor_dtype_to_np_dtype(dtype))
    graph.remove_node(node.name)
    inner = graph.make_node(operation, [node.input[0]], attributes, shapes=[shape], dtypes=[dtype])
    inputs = [graph.make_const(f"{node.name}/number", constant).output[0], inner.output[0]]
    graph.make_node(then, inputs, outputs=node.output, shapes=[shape], dtypes=[dtype])


# Operations of pooling layers and of GELU, for which tf2onnx has no rule.
tf_op("L2Loss").register_compat_handler(
    partial(_rule, operation="ReduceSumSquare", attributes={"keepdims": 0}, then="Mul", number=0.5), 1
)
tf_op("Erfc").register_compat_handler(partial(_rule, operation="Erf", attributes={}, then="Sub", number=1.0), 1)


def converted(function: Any, who: str) -> bytes:
    """Converts a concrete function over dicts of tensors, with its variables' values. Errors begin with `who`."""
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # it logs each problem; the error below names all
    names = _names(function)
    count = len(function.inputs) - len(function.captured_inputs)
    inputs, outputs = [x.name for x in function.inputs[:count]], [x.name for x in function.outputs]
    size = sum(v.dtype.size * v.shape.num_elements() for v in function.graph.variables)
    if size > MOST_BYTES:
        raise ConfigurationError(
            f"{who} has {size:,} bytes of weights, and an ONNX file holds at most {MOST_BYTES:,}: export it with "
            "`--format=saved_model`."
        )
    try:
        frozen = tf_loader.from_function(function, inputs, outputs)
        _check_known(who, {node.op for node in frozen.node} & {JAX})
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(frozen, name="")
            made = process_tf_graph(
                graph, opset=OPSET, input_names=inputs, output_names=outputs, tensors_to_rename=names
            )
            model = optimizer.optimize_graph(made, optimizers=SIMPLIFICATIONS).make_model("Tapeloop")
    except ConfigurationError:
        raise
    except Exception as error:  # whatever its rules raise
        raise ConfigurationError(
            f"{who} can't be converted to ONNX ({type(error).__name__}: {' '.join(str(error).split())[:200]}): use "
            "other operations there, or export with `--format=saved_model`."
        ) from error
    _check_known(who, set(_unknown(model.graph)))
    return bytes(model.SerializeToString())


def _check_known(who: str, unknown: set[str]) -> None:
    if unknown:
        raise ConfigurationError(
            f"{who} can't be converted to ONNX, which has no {listed(sorted(unknown))}: use other operations there, or "
            "export with `--format=saved_model`."
        )


def _names(function: Any) -> dict[str, str]:
    """Returns ONNX's name of each input and output, by TensorFlow's."""
    count = len(function.inputs) - len(function.captured_inputs)
    inputs = {x.name: x.op.name for x in function.inputs[:count]}  # the placeholders have the arguments' names
    outputs = zip(function.outputs, sorted(function.structured_outputs), strict=True)  # flattened by name
    return {**inputs, **{x.name: name + "_out" * (name in inputs.values()) for x, name in outputs}}


def _unknown(graph: onnx.GraphProto) -> Iterator[str]:
    """Yields operations that ONNX doesn't have: tf2onnx leaves those in place that it can't convert."""
    for node in graph.node:
        if not onnx.defs.has(node.op_type, node.domain):
            yield node.op_type
        for attribute in node.attribute:
            yield from _unknown(attribute.g)
