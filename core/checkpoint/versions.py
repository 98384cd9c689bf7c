"""Versions of the software that affects a run's results."""

import importlib.metadata
import platform

from core import __version__

_PACKAGES = ("tensorflow", "gin-config", "numpy")


def versions() -> dict[str, str]:
    """Returns `{"python": "3.12.3", "tapeloop": ..., "tensorflow": ..., ...}`: the software that affects results."""
    found = {"python": platform.python_version(), "tapeloop": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
