"""Hooks: the base class, its view of a run, and the shipped hooks, called between chunks of steps.

A hook's file is imported when the hook is first named: most runs use few hooks.
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
    """Registers with gin the hooks that these selectors name; all hooks if one selector is unknown.

    An unknown selector is a typo, for which the error suggests the nearest name.
    """
    for selector in selectors:
        if file := FILES.get(selector.rpartition(".")[2]):
            importlib.import_module(f"trainers.hooks.{file}")
    if not all(registry.matches(selector) for selector in selectors if selector not in FILES):
        register()


def __getattr__(name: str) -> Any:
    """Imports a hook at its first use."""
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainers.hooks.{FILES[name]}"), name)
