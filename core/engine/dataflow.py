"""Data dependencies of a traced step function's outputs: features of its batch, and variables."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf


class Ancestry(NamedTuple):
    """The inputs that one output is computed from."""

    reads: frozenset[str]
    variables: tuple[tf.Variable, ...]  # the trainable ones


def ancestries(
    function: Any, outputs: Mapping[str, tf.Tensor], keys: Iterable[str], variables: Iterable[tf.Variable]
) -> dict[str, Ancestry]:
    """Returns the dependencies by output of a concrete `function`, whose first inputs are the features `keys`."""
    features = {tensor.op.name: key for key, tensor in zip(keys, function.inputs, strict=False)}
    by_handle = {id(variable.handle): variable for variable in variables}
    read = {inner.op.name: by_handle[id(outer)] for outer, inner in function.graph.captures if id(outer) in by_handle}
    found = {}
    for key, tensor in outputs.items():
        names = ancestors(tensor)
        found[key] = Ancestry(
            frozenset(feature for name, feature in features.items() if name in names),
            tuple(variable for name, variable in read.items() if name in names),
        )
    return found


def ancestors(tensor: tf.Tensor) -> set[str]:
    """Returns the names of all operations that `tensor` depends on."""
    found, waiting = set[str](), [tensor.op]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            waiting += [x.op for x in op.inputs]
    return found
