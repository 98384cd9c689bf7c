"""Prepares a command's process: signals before slow imports, and the imports themselves, which may fail.

This file imports no third-party package by itself, not even absl.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from core.errors import INTERRUPTED, ConfigurationError, PreemptedError
from trainers.process.signals import STOPPING, WISHES

CHECKOUT = Path(__file__).resolve().parents[2]
_API = "tensorflow._api.v2."
# Aliases of TensorFlow's API (versions 1 and 2), and TensorFlow Lite, whose converter imports an installed JAX. They
# are a tenth of what `import tensorflow` executes, and training doesn't need them.
_LATER = (f"{_API}compat.v1", f"{_API}compat.v2", f"{_API}lite")
_KERAS = "keras"


def begin(*packages: str) -> None:
    """Makes signals end the process at once with their exit codes, and reports a missing package in one paragraph."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _leave)
    for number in WISHES:
        signal.signal(number, signal.SIG_IGN)  # nothing to save yet, and the default action kills
    try:
        import_packages("absl.app", "absl.flags", "absl.logging", *packages)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _leave(number: int, _: FrameType | None) -> None:
    """Ends the process at once: raising an exception would be unsafe within an import."""
    os.write(2, f"error: stopped by {signal.Signals(number).name}. Run the same command again.\n".encode())
    os._exit(INTERRUPTED if number == signal.SIGINT else PreemptedError.exit_code)


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
    """Imports third-party modules. Raises a `ConfigurationError` that names a missing or broken package."""
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


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Disables Python's garbage collector during imports, because it would scan all objects repeatedly.

    Then it exempts all objects made so far from later collections.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


@contextlib.contextmanager
def only_what_is_used() -> Iterator[None]:
    """Makes `import tensorflow` skip Keras and defer rarely used modules, which load at first use."""
    stand_ins: dict[str, types.ModuleType] = {name: _Later(name) for name in _LATER if name not in sys.modules}
    if _KERAS not in sys.modules and (keras := importlib.util.find_spec(_KERAS)):
        stand_ins[_KERAS] = types.ModuleType(_KERAS)
        stand_ins[_KERAS].__spec__ = keras  # tells TensorFlow where it is
    sys.modules.update(stand_ins)
    try:
        yield
        if f"{_API}lite" in stand_ins and (tensorflow := sys.modules.get("tensorflow")):
            published = tensorflow.lite
            importlib.import_module("tensorflow.lite")  # a package of that name, which would replace it later
            tensorflow.lite = published  # type: ignore[attr-defined]
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Later(types.ModuleType):
    """Stands in for a module, and imports it at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":  # looked up by the import system
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))
