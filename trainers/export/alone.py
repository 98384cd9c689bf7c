"""Computes with an export in a process of its own, which can't import this project; it is run as a file, not imported.

python -I alone.py FORMAT MODEL GIVEN.npz MADE.npz

`GIVEN.npz` holds inputs as `FUNCTION/NUMBER/NAME`; `MADE.npz` gets the outputs under such names.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Call = Callable[..., Mapping[str, Any]]


def saved_model(path: str) -> Callable[[str], Call]:
    """Returns a way to the functions of a SavedModel by name."""
    import tensorflow as tf

    model = tf.saved_model.load(path)

    def named(name: str) -> Call:
        function = model.signatures[name]
        return lambda **given: function(**{key: tf.constant(x) for key, x in given.items()})

    return named


def tflite(path: str) -> Callable[[str], Call]:
    """Returns a way to the functions of a TensorFlow Lite file by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    return lambda name: interpreter.get_signature_runner(name)


def main(kind: str, model: str, given: str, made: str) -> None:
    modules: Any = sys.modules
    modules.update(dict.fromkeys(("core", "models", "trainers")))  # to import one of them is an error from here on
    named = {"saved_model": saved_model, "tflite": tflite}[kind](model)
    calls: dict[str, dict[str, Any]] = {}
    for key, value in np.load(given).items():
        call, _, name = key.rpartition("/")
        calls.setdefault(call, {})[name] = value
    outputs: dict[str, Any] = {}
    for call, inputs in calls.items():
        for name, value in named(call.partition("/")[0])(**inputs).items():
            outputs[f"{call}/{name}"] = np.asarray(value)
    np.savez(made, **outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
