"""The folder of an export: a file or folder for each format, and `export.json`, which describes them.

The formats are SavedModel, TensorFlow Lite and ONNX.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.lite.python.convert_phase import ConverterError

from core.arguments import listed
from core.checkpoint.versions import versions
from core.data import Source
from core.disk import FULL, disk_full, remove_unfinished_folders, space_for, unfinished
from core.errors import ConfigurationError, NoRoomError
from core.precision import SERVE
from trainers.export.asked import Asked
from trainers.export.compare import check_same, computed_alone, differences, examples_of
from trainers.export.program import Program
from trainers.workdir import json_text

NAMES = {"saved_model": "saved_model", "tflite": "model.tflite", "onnx": "onnx"}  # by format
_OPERATION = re.compile(r"'tf\.(\w+)' op is neither")
THEN = "the same command then exports: nothing was put in place"


def write_export(target: Path, program: Program, source: Source, asked: Asked, origin: Mapping[str, Any]) -> None:
    """Writes all formats to a temporary folder, and renames it to `target` if each format agrees with the task."""
    temporary = unfinished(target)
    remove_unfinished_folders(target.parent, target.name)
    with space_for(target, then=THEN):
        try:
            _make(temporary, target)
            computed = program.precision.of(SERVE).name
            examples = examples_of(program, source, weights=computed if asked.weights == "float32" else asked.weights)
            formats = {}
            for kind in asked.formats:
                path = write(kind, program, temporary, weights=asked.weights)
                made = computed_alone(kind, path, examples.given, scratch := temporary / "compared")
                shutil.rmtree(scratch)
                found = differences(examples.expected, made, program.served)
                check_same(found, program.served, kind=kind, weights=asked.weights, computed=computed)
                compared = {f: {name: x._asdict() for name, x in outputs.items()} for f, outputs in found.items()}
                formats[kind] = {"path": path.name, "bytes": bytes_of(path), "differences": compared}
            content = {
                **origin,
                "weights": asked.weights,
                "functions": described(program),
                "formats": formats,
                "compared": {
                    "source": source.name,
                    "functions": {
                        name: {"examples": min(sum(rows), len(source)), "batches": sorted(set(rows))}
                        for name, rows in examples.rows.items()
                    },
                },
                "versions": versions(),
            }
            (temporary / "export.json").write_text(json_text(content), "utf-8")
            temporary.rename(target)
        except tf.errors.OpError as error:
            raise _full(error, target) or error from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _full(error: tf.errors.OpError, target: Path) -> NoRoomError | None:
    """Returns a `NoRoomError` if `error` says that the disk was full, else None."""
    code = next((code for code in FULL if f"; {os.strerror(code)}" in error.message), 0)
    return disk_full(OSError(code, ""), target, then=THEN)


def _make(temporary: Path, target: Path) -> None:
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise disk_full(error, target, then=THEN) or ConfigurationError(
            f"`{target}` can't be written: {error.strerror}. Give another folder with `--export_dir=DIR`, or change "
            "the permissions of its parents."
        ) from None


def described(program: Program) -> dict[str, Any]:
    """Returns `{function: {"inputs": ..., "outputs": ...}}` with dtypes and shapes, the default function first."""

    def specs(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {"dtype": x.dtype.name, "shape": list(x.shape)} for name, x in tensors.items()}

    return {
        name: {"inputs": specs(program.served[name].inputs), "outputs": specs(function.structured_outputs)}
        for name, function in program.functions.items()
    }


def bytes_of(path: Path) -> int:
    """Returns the size in bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def write(kind: str, program: Program, folder: Path, *, weights: str) -> Path:
    """Writes the functions of `program` in the format `kind`, with weights of type `weights`. Returns the path."""
    path = folder / NAMES[kind]
    if kind == "saved_model":
        write_saved_model(program, path, weights=weights)
    elif kind == "onnx":
        write_onnx(program, path)
    else:
        whole = folder / "to_convert"
        write_saved_model(program, whole, weights="float32")
        path.write_bytes(converted(program, whole, weights=weights))
        shutil.rmtree(whole)
    return path


def write_saved_model(program: Program, path: Path, *, weights: str) -> None:
    """Writes a SavedModel whose signatures are the functions by name. The first one is also the default."""
    module, functions = program.exported(weights)
    default = next(iter(functions.values()))
    tf.saved_model.save(module, str(path), signatures={"serving_default": default, **functions})


def write_onnx(program: Program, path: Path) -> None:
    """Writes a folder with an ONNX file for each function, named after it."""
    try:
        from trainers.export import onnx_files
    except Exception as error:  # versions that don't fit together fail in many ways
        raise ConfigurationError(
            f"`--format=onnx` can't import its packages ({type(error).__name__}: {' '.join(str(error).split())}): "
            "`pip install -e '.[onnx]'` installs versions that fit together, or export with `--format=saved_model`."
        ) from error
    path.mkdir()
    _, functions = program.exported("float32")
    for name, function in functions.items():
        who = f"`{name}`, which `{type(program.task).__name__}` serves,"
        (path / f"{name}.onnx").write_bytes(onnx_files.converted(function, who))


def converted(program: Program, saved_model: Path, *, weights: str) -> bytes:
    """Converts a SavedModel to a TensorFlow Lite file; for int8 weights, the converter quantises them."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=[*program.functions])
    if weights == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        return bytes(converter.convert())
    except ConverterError as error:
        without = list(dict.fromkeys(_OPERATION.findall(f"{error} {error.errors}")))
        task = type(program.task).__name__
        raise ConfigurationError(
            f"`serve` of `{task}` can't be converted to TensorFlow Lite, which has no {listed(without)}: use other "
            "operations there, or export with `--format=saved_model`."
            if without
            else f"`serve` of `{task}` can't be converted to TensorFlow Lite: {str(error).splitlines()[0]} Export it "
            "with `--format=saved_model`."
        ) from error
