"""Writes what a task serves: as a SavedModel, or as a file of TensorFlow Lite."""

import re
import shutil
from pathlib import Path

import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

from core.arguments import listed
from core.errors import ConfigurationError
from trainers.export.program import Program

NAMES = {"saved_model": "saved_model", "tflite": "model.tflite"}  # in the folder of an export, by format
_OPERATION = re.compile(r"'tf\.(\w+)' op is neither")


def write(kind: str, program: Program, folder: Path, *, weights: str) -> Path:
    """Writes the functions of `program`, with weights kept as asked; returns where in `folder`."""
    path = folder / NAMES[kind]
    if kind == "saved_model":
        write_saved_model(program, path, weights=weights)
    else:
        whole = folder / "to_convert"
        write_saved_model(program, whole, weights="float32")
        path.write_bytes(converted(program, whole, weights=weights))
        shutil.rmtree(whole)
    return path


def write_saved_model(program: Program, path: Path, *, weights: str) -> None:
    """Writes a SavedModel whose signatures are the functions by name; the first is the default as well."""
    module, functions = program.exported(weights)
    default = next(iter(functions.values()))
    tf.saved_model.save(module, str(path), signatures={"serving_default": default, **functions})


def converted(program: Program, saved_model: Path, *, weights: str) -> bytes:
    """Returns a SavedModel as TensorFlow Lite has it, which has a way of its own to compute with int8 weights."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=[*program.functions])
    if weights == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        return bytes(converter.convert())
    except ConverterError as error:
        without = list(dict.fromkeys(_OPERATION.findall(f"{error} {error.errors}")))
        task = type(program.task).__name__
        raise ConfigurationError(
            f"`serve` of `{task}` can't become TensorFlow Lite, which has no {listed(without)}: write what computes "
            "with it by other operations, or export with `--format=saved_model`."
            if without
            else f"`serve` of `{task}` can't become TensorFlow Lite: {str(error).splitlines()[0]} Export it with "
            "`--format=saved_model`."
        ) from error
