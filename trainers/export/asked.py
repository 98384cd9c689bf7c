"""Formats and weight types of `--mode=export`, checked before TensorFlow is imported."""

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from core.errors import ConfigurationError, did_you_mean

FORMATS = {"saved_model": "SavedModel", "tflite": "TensorFlow Lite", "onnx": "ONNX"}
WEIGHTS = ("float32", "bfloat16", "int8")
NARROW = {"saved_model": ("bfloat16", "int8"), "tflite": ("int8",), "onnx": ()}  # the other types of weights, by format
# Of packages that not everybody needs: the extra, and its packages by the name of their module.
EXTRAS = {
    "tflite": ("export", {"ai_edge_litert": "ai-edge-litert"}),
    "onnx": ("onnx", {"tf2onnx": "tf2onnx", "onnx": "onnx", "onnxruntime": "onnxruntime"}),
}


class Asked(NamedTuple):
    """The formats to export, and the type of their weights."""

    formats: Sequence[str]
    weights: str


def asked(formats: str, weights: str) -> Asked:
    """Parses the values of `--format` and `--weights`. Raises an error if they are unknown or can't be combined."""
    names = [name.strip() for name in formats.split(",")]
    for flag, found, known in (("format", names, FORMATS), ("weights", [weights], WEIGHTS)):
        for name in found:
            if name not in known:
                raise ConfigurationError(
                    f"`--{flag}` has {name!r}; use {' or '.join(known)}"
                    f"{', or several with commas' if flag == 'format' else ''}.{did_you_mean(name, known)}"
                )
    for name in names:
        if weights not in ("float32", *NARROW[name]):
            others = " or ".join(f"`--weights={x}`" for x in (*NARROW[name], "float32"))
            raise ConfigurationError(
                f"`--weights` is {weights}, which Tapeloop doesn't write for {FORMATS[name]}: give {others}, or "
                "`--format=saved_model`."
            )
        extra, modules = EXTRAS.get(name, ("", {}))
        missing = [package for module, package in modules.items() if importlib.util.find_spec(module) is None]
        if missing:
            raise ConfigurationError(
                f"`--format={name}` needs the package `{missing[0]}`, which isn't installed: `pip install -e "
                f"'.[{extra}]'`, or export with `--format=saved_model`."
            )
    return Asked(tuple(dict.fromkeys(names)), weights)


def check_computed(wanted: Asked, dtype: str) -> None:
    """Raises an error if a format can't hold functions that compute in `dtype`."""
    for name in wanted.formats:
        if name != "saved_model" and dtype != "float32":
            raise ConfigurationError(
                f"`Trainer.precision` lets served functions compute in {dtype}, which Tapeloop doesn't write for "
                f"{FORMATS[name]}: export with `--format=saved_model`, or with `--gin_param='Trainer.precision = "
                '{"serve": "float32"}\'`.'
            )
