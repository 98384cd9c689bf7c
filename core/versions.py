"""What a run was made with."""

import importlib.metadata
import platform

_PACKAGES = ("tapeloop", "tensorflow", "gin-config", "numpy")


def versions() -> dict[str, str]:
    """The installed versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
