"""Lists the collectives of a function on a mesh: their axes, bytes and operations.

DTensor inserts collectives after tracing, where layouts need them. This module reads them from the graphs of the
function's first run, with a private interface of TensorFlow.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.distribution.ledger import Collective
from core.tensorflow_private import OUTPUT_SHAPES, context, export_run_metadata

STEP = "step"  # the phase of all: DTensor's collectives name their operation, but not its phase
_KIND = "Collective"


def collectives_of(first_run: Callable[[], Any], mesh: dtensor.Mesh) -> tuple[Any, list[Collective]]:
    """Calls `first_run`, which compiles a function. Returns its result, and the function's collectives on a device."""
    eager = context()
    eager.enable_graph_collection()
    try:
        result = first_run()
    finally:
        graphs = [found.post_optimization_graph for found in export_run_metadata().function_graphs]
        eager.disable_graph_collection()
    device = tf.DeviceSpec.from_string(mesh.local_devices()[0])
    found = {}
    for nodes in _bodies(graphs):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op.startswith(_KIND) and tf.DeviceSpec.from_string(node.device) == device:
                found[node.name] = _collective(node, by_name, mesh)
    return result, [entry for entry in found.values() if entry.axis]  # others are of a device with itself


def _bodies(graphs: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for graph in graphs:
        yield graph.node
        for function in graph.library.function:
            yield function.node_def


def _collective(node: Any, by_name: Mapping[str, Any], mesh: dtensor.Mesh) -> Collective:
    dtype = tf.dtypes.as_dtype(node.attr["T"].type)
    shapes = node.attr[OUTPUT_SHAPES].list.shape
    size = math.prod(dim.size for dim in shapes[0].dim) * dtype.size if shapes else 0
    return Collective(STEP, _operation(node.name), dtype.name, size, axis=_axis(node, by_name, mesh))


def _operation(name: str) -> str:
    """Returns the operation that the collective `name` serves. If DTensor merged several, it is the first."""
    name = name.removeprefix("tf.StatefulPartitionedCall/").split("/DTensor")[0]
    return re.sub(r"mesh_\d+/|(_\d{6,}_\d+)$", "", name)


def _axis(node: Any, by_name: Mapping[str, Any], mesh: dtensor.Mesh) -> str:
    """Returns the mesh axes over which a collective communicates, such as "batch+model", or "?" if unknown."""
    name = node.input[2]
    while name in by_name and by_name[name].op != "Const":
        name = by_name[name].input[0].split(":")[0] if by_name[name].input else ""
    if name not in by_name:
        return "?"
    keys = tf.make_ndarray(by_name[name].attr["value"].tensor).reshape(-1)
    if keys.size != mesh.size:
        return "?"
    group = np.argwhere((keys == keys[0]).reshape(mesh.shape()))
    return "+".join(name for i, name in enumerate(mesh.dim_names) if len(set(group[:, i])) > 1)
