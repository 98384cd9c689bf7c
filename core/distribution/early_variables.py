"""Finds variables and tensors that modules made at import. They start TensorFlow too early for some strategies."""

import os
import sys
from typing import Any

import tensorflow as tf

_OTHERS = {"tensorflow", "keras", "tf_keras", "tensorboard", "core", "__mp_main__"}


def made_too_early() -> str:
    """Returns a sentence that names a variable or tensor made at import. If none is found, it gives general advice."""
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0]):
        if name.partition(".")[0] in _OTHERS or module is None:
            continue
        for attribute, value in sorted(vars(module).items()):
            if issubclass(type(value), tf.Variable | tf.Tensor):
                return _named(name, module, attribute, value)
    return (
        "make the strategy before anything else touches TensorFlow. In tests: `pytest_plugins = "
        '["core.testing.pytest_plugin"]` in `conftest.py`.'
    )


def _named(name: str, module: Any, attribute: str, value: Any) -> str:
    file = os.path.basename(getattr(module, "__file__", None) or name)
    if issubclass(type(value), tf.Variable):
        kind, instead = (
            "variable",
            "Make it in `__init__` of a module of the task, which the strategy's scope is around",
        )
    else:
        kind, instead = "tensor", "Let it be a number or a NumPy array, or make it in the function that reads it"
    return f"`{attribute}` of `{name}` ({file}) is a {kind}, which was made as that was imported. {instead}."
