"""From a gin file to a trained model: the step, the loop around it, and the command line.

>>> from trainers import Experiment, Trainer, accumulate_gradients
>>> accumulate_gradients.__module__
'trainers.step'
"""

import importlib
from typing import Any

_PUBLIC = {
    "Evaluator": "evaluator",
    "Experiment": "experiment",
    "Hook": "hooks",
    "TrainStep": "step",
    "Trainer": "trainer",
    "Workdir": "workdir",
    "accumulate_gradients": "step",
    "make_chunk": "chunk",
    "reduce_over_replicas": "step",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for: `--help` must not wait for TensorFlow."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainers.{_PUBLIC[name]}"), name)
