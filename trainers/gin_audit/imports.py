"""Imports the modules that gin files name, and says plainly what went wrong there."""

import importlib
import pkgutil
import re
import sys
import traceback
from pathlib import Path

from core.errors import ConfigurationError, did_you_mean
from trainers.gin_audit.statements import Import

# What may come out of a user's module; anything else keeps its traceback.
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError, MemoryError,
    NameError, OSError, ReferenceError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def plain_message(error: BaseException) -> str:
    """Returns the message without what gin appends to whatever is raised inside a configurable."""
    return re.split(r"\n  (?:In call to configurable '|No values supplied by Gin)", str(error))[0]


def import_module(item: Import) -> None:
    """Imports what a gin file names, so that its configurables are registered."""
    if item.module.startswith("__gin__"):
        raise ConfigurationError(
            f"`{item.statement.format()}` ({item.place}): dynamic registration is not supported; decorate with "
            "`@gin.configurable` and import the module."
        )
    try:
        importlib.import_module(item.module)
    except _FAILURES as error:
        if isinstance(error, ModuleNotFoundError) and f"{item.module}.".startswith(f"{error.name}."):
            raise _no_such_module(item, error) from error
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{error.filename}:{error.lineno}"
        raise ConfigurationError(
            f"`{item.statement.format()}` ({item.place}) failed: {type(error).__name__} at {where}: "
            f"{plain_message(error)}. Mend the module; `python -c 'import {item.module}'` shows the whole traceback."
        ) from error


def _no_such_module(item: Import, error: ModuleNotFoundError) -> ConfigurationError:
    missing = error.name or item.module
    parent, _, last = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", []) if parent else None
    names = {module.name for module in pkgutil.iter_modules(path)}
    close = did_you_mean(last, names).replace("`", f"`{parent}." if parent else "`", 1)
    return ConfigurationError(
        f"`{item.statement.format()}` ({item.place}): there is no module `{missing}`.{close} Modules are looked for in "
        f"the working directory ({Path.cwd()}) and in `PYTHONPATH`: run from the directory that holds it, or "
        "install it (`pip install -e`)."
    )
