"""Hooks, which are called between chunks of steps: the base class, `Run` (a hook's view of the run), shipped hooks.

The file of a hook is imported when the hook is first used, because most runs use few hooks.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from trainers.gin_audit import registry
from trainers.hooks.base import Hook, Run

FILES = {
    "Activations": "activations",
    "DigitQuality": "digits",
    "EarlyStopping": "early_stopping",
    "Histograms": "histograms",
    "Judge": "samples",
    "LinearProbe": "probe",
    "NoiseScale": "noise_scale",
    "Norms": "norms",
    "Quality": "samples",
    "Reconstructions": "reconstructions",
    "SampleGrid": "samples",
    "Texts": "texts",
    "Translations": "translations",
    "digit_quality": "digits",
    "kept_digits": "digits",
}

__all__ = [*FILES, "Hook", "Run"]


def register(selectors: Sequence[str] = tuple(FILES)) -> None:
    """Imports the hooks named in `selectors`, so that gin knows them; all hooks if a selector is unknown.

    An unknown selector is a typo, and the later error suggests the nearest of all names.
    """
    for selector in selectors:
        if file := FILES.get(selector.rpartition(".")[2]):
            importlib.import_module(f"trainers.hooks.{file}")
    if not all(registry.matches(selector) for selector in selectors if selector not in FILES):
        register()


def __getattr__(name: str) -> Any:
    """Imports the hook's file when `trainers.hooks.NAME` is first used."""
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainers.hooks.{FILES[name]}"), name)
