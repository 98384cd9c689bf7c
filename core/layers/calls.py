"""How containers call their layers: `rng` and `statistics` are passed to layers with such arguments."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Layer = Callable[..., tf.Tensor]  # a module, or a plain function such as `tf.nn.relu`

_PASSED = ("rng", "statistics")


def arguments_of(layer: Layer) -> frozenset[str]:
    """Returns the names among `rng` and `statistics` that `layer` takes, such as `{"rng"}`."""
    if not callable(layer):
        raise TypeError(
            f"`layers` holds {layer!r}, which can't be called; give a layer or a function such as `tf.nn.relu`."
        )
    return frozenset(inspect.signature(layer).parameters).intersection(_PASSED)


def call(layer: Layer, takes: frozenset[str], x: tf.Tensor, **passed: Any) -> tf.Tensor:
    """Returns `layer(x, ...)` with the arguments of `passed` whose names are in `takes`."""
    return layer(x, **{name: value for name, value in passed.items() if name in takes})
