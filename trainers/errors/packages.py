"""Packages that a command imports: ours, not a namesake's, and all that others have written.

Nothing here imports anything of others, not even absl.
"""

import importlib
import importlib.util
from pathlib import Path

from core.errors import ConfigurationError

CHECKOUT = Path(__file__).resolve().parents[2]


def check_own_packages() -> None:
    """Refuses a `core/` or `models/` in the working directory, which would be imported instead of ours."""
    for name in ("core", "models"):
        found = importlib.util.find_spec(name)
        place = Path(found.origin).resolve().parent if found and found.origin else None
        if place != CHECKOUT / name:
            raise ConfigurationError(
                f"`import {name}` finds `{place or name + '/ in the working directory'}` instead of Tapeloop's own "
                f"`{CHECKOUT / name}`: rename the folder, or run from another directory."
            )


def import_packages(*modules: str) -> None:
    """Imports what others have written; names the package where that fails, instead of a traceback through it."""
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
