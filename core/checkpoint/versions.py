"""Versions of the software that affects results."""

import importlib.metadata
import platform

from core import __version__

_PACKAGES = ("tensorflow", "gin-config", "numpy")


def versions() -> dict[str, str]:
    """Returns the versions of Python, of Tapeloop, and of the installed packages that affect results."""
    found = {"python": platform.python_version(), "tapeloop": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
