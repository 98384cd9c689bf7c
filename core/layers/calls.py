"""How a container calls its layers: it passes `rng` and `statistics` to layers that have such arguments."""

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
    """Calls `layer` with `x`, and with those arguments of `passed` whose names are in `takes`."""
    return layer(x, **{name: value for name, value in passed.items() if name in takes})
