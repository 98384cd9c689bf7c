"""Checks that `core` and `models` come from this checkout, and that third-party packages can be imported.

This file imports no third-party package by itself, not even absl.
"""

import importlib
import importlib.util
from pathlib import Path

from core.errors import ConfigurationError

CHECKOUT = Path(__file__).resolve().parents[2]


def check_own_packages() -> None:
    """Raises a `ConfigurationError` if `core/` or `models/` in the working directory hides Tapeloop's package."""
    for name in ("core", "models"):
        found = importlib.util.find_spec(name)
        place = Path(found.origin).resolve().parent if found and found.origin else None
        if place != CHECKOUT / name:
            raise ConfigurationError(
                f"`import {name}` finds `{place or name + '/ in the working directory'}` instead of Tapeloop's own "
                f"`{CHECKOUT / name}`: rename the folder, or run from another directory."
            )


def import_packages(*modules: str) -> None:
    """Imports third-party modules; raises a `ConfigurationError` that names a missing or broken package."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            package = module.partition(".")[0]
            package = {"absl": "absl-py", "gin": "gin-config"}.get(package, package)
            why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            raise ConfigurationError(
                f"the package `{package}` is missing or broken ({' '.join(why.split())}): `pip install -e "
                f"{CHECKOUT}` installs all that Tapeloop needs, and `python -c 'import {module}'` shows what is wrong."
            ) from error
