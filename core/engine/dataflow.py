"""Finds the batch features and variables on which each output of a traced step function depends."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.graphs import ancestors, captured


class Ancestry(NamedTuple):
    """The batch features and trainable variables on which one output depends."""

    reads: frozenset[str]
    variables: tuple[tf.Variable, ...]  # the trainable ones


def ancestries(
    function: Any, outputs: Mapping[str, tf.Tensor], keys: Iterable[str], variables: Iterable[tf.Variable]
) -> dict[str, Ancestry]:
    """Returns `{output: Ancestry}` of a concrete `function`. `keys` names the features that are its first inputs."""
    features = {tensor.op.name: key for key, tensor in zip(keys, function.inputs, strict=False)}
    inner = captured(function.graph)
    read = {inner[id(x.handle)].op.name: x for x in variables if id(x.handle) in inner}
    found = {}
    for key, tensor in outputs.items():
        names = ancestors([tensor.op])
        found[key] = Ancestry(
            frozenset(feature for name, feature in features.items() if name in names),
            tuple(variable for name, variable in read.items() if name in names),
        )
    return found
