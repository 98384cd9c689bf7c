"""Formats and weight types of `--mode=export`, checked before TensorFlow is imported."""

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from core.errors import ConfigurationError, did_you_mean

FORMATS = ("saved_model", "tflite")
WEIGHTS = ("float32", "bfloat16", "int8")


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
    if "tflite" in names and weights == "bfloat16":
        raise ConfigurationError(
            "`--weights` is bfloat16, which TensorFlow Lite doesn't support: give `--weights=int8` or `float32`, or "
            "`--format=saved_model`."
        )
    if "tflite" in names and importlib.util.find_spec("ai_edge_litert") is None:
        raise ConfigurationError(
            "`--format=tflite` needs the package `ai-edge-litert`, which checks the file: `pip install -e "
            "'.[export]'`, or export with `--format=saved_model`."
        )
    return Asked(tuple(dict.fromkeys(names)), weights)


def check_computed(wanted: Asked, dtype: str) -> None:
    """Raises an error if a format can't hold functions that compute in `dtype`."""
    if "tflite" in wanted.formats and dtype != "float32":
        raise ConfigurationError(
            f"`Trainer.precision` lets served functions compute in {dtype}, which TensorFlow Lite doesn't support: "
            'export with `--format=saved_model`, or with `--gin_param=\'Trainer.precision = {"serve": "float32"}\'`.'
        )
