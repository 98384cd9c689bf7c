"""The training loop and the command line, which train the model that a gin file describes.

>>> from trainers import Experiment, Settings, Trainer, Workdir
>>> Trainer.__module__
'trainers.trainer'
"""

import importlib
from typing import Any

_PUBLIC = {
    "Evaluator": "evaluation.evaluator",
    "Experiment": "experiment",
    "Hook": "hooks",
    "LoadedRun": "python_api.load",
    "Settings": "settings",
    "Trainer": "trainer",
    "Workdir": "workdir",
    "load": "python_api.load",
    "train": "python_api.train",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, so that `--help` needn't wait for TensorFlow."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainers.{_PUBLIC[name]}"), name)
