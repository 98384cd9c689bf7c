"""Computes with an export in a separate process that can't import this project. A script; never imported.

python -I alone.py FORMAT MODEL GIVEN.npz MADE.npz

`GIVEN.npz` holds inputs as `FUNCTION/NUMBER/NAME`. `MADE.npz` gets outputs with such names. bfloat16, which NumPy
lacks, is stored as float32. Exit code 8: the disk is full.
"""

import errno
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Call = Callable[..., Mapping[str, Any]]


def saved_model(path: str) -> Callable[[str], Call]:
    """Loads a SavedModel. Returns `get(name)`, which returns the exported function of that name."""
    import tensorflow as tf

    model = tf.saved_model.load(path)

    def named(name: str) -> Call:
        function = model.signatures[name]
        dtypes = {key: spec.dtype for key, spec in function.structured_input_signature[1].items()}

        def call(**given: Any) -> Mapping[str, Any]:
            made = function(**{key: tf.cast(x, dtypes[key]) for key, x in given.items()})
            return {key: tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x for key, x in made.items()}

        return call

    return named


def tflite(path: str) -> Callable[[str], Call]:
    """Loads a TensorFlow Lite file. Returns `get(name)`, which returns the signature of that name as a function."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    return lambda name: interpreter.get_signature_runner(name)


def onnx(path: str) -> Callable[[str], Call]:
    """Loads a folder of ONNX files. Returns `get(name)`, which returns the function of that name."""
    from onnxruntime import InferenceSession

    def named(name: str) -> Call:
        session = InferenceSession(f"{path}/{name}.onnx", providers=["CPUExecutionProvider"])
        inputs = [x.name for x in session.get_inputs()]
        outputs = [x.name for x in session.get_outputs()]
        names = [x.removesuffix("_out") if x.removesuffix("_out") in inputs else x for x in outputs]
        # An input that the function ignores isn't in the file.
        return lambda **given: dict(zip(names, session.run(outputs, {x: given[x] for x in inputs}), strict=True))

    return named


def main(kind: str, model: str, given: str, made: str) -> None:
    modules: Any = sys.modules
    modules.update(dict.fromkeys(("core", "models", "trainers")))  # makes importing them an error
    named = {"saved_model": saved_model, "tflite": tflite, "onnx": onnx}[kind](model)
    calls: dict[str, dict[str, Any]] = {}
    for key, value in np.load(given, allow_pickle=True).items():  # strings are objects
        call, _, name = key.rpartition("/")
        calls.setdefault(call, {})[name] = value
    outputs: dict[str, Any] = {}
    for call, inputs in calls.items():
        for name, value in named(call.partition("/")[0])(**inputs).items():
            outputs[f"{call}/{name}"] = np.asarray(value)
    np.savez(made, **outputs)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        sys.exit(8)
