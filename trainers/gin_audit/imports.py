"""Imports the modules in gin files. A missing module is a configuration error; other exceptions aren't changed."""

import importlib
import pkgutil
import re
import sys
from pathlib import Path

from core.errors import ConfigurationError, did_you_mean
from trainers.gin_audit.statements import Import


def plain_message(error: BaseException) -> str:
    """Returns the message of `error` without the text that gin appends to exceptions within a configurable."""
    return re.split(r"\n  (?:In call to configurable '|No values supplied by Gin)", str(error))[0]


def import_module(item: Import) -> None:
    """Imports the module of a gin file's `import` statement; this registers the module's configurables."""
    if item.module.startswith("__gin__"):
        raise ConfigurationError(
            f"`{item.statement.format()}` ({item.place}): dynamic registration is not supported; decorate with "
            "`@gin.configurable` and import the module."
        )
    try:
        importlib.import_module(item.module)
    except ModuleNotFoundError as error:
        if f"{item.module}.".startswith(f"{error.name}."):
            raise _no_such_module(item, error) from error
        raise  # the module exists, but imports a missing one
    except SyntaxError as error:
        place = f" ({error.filename}:{error.lineno})" if error.filename else ""
        raise _unreadable(item, f"{place}: {error.msg}") from error
    except ValueError as error:
        if "null bytes" not in str(error):  # the text in older versions of Python
            raise
        raise _unreadable(item, f": {error}") from error


def _unreadable(item: Import, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"`{item.statement.format()}` ({item.place}): Python can't read that module{why}. Correct the file."
    )


def _no_such_module(item: Import, error: ModuleNotFoundError) -> ConfigurationError:
    missing = error.name or item.module
    parent, _, last = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", []) if parent else None
    names = {module.name for module in pkgutil.iter_modules(path)}
    close = did_you_mean(last, names).replace("`", f"`{parent}." if parent else "`", 1)
    return ConfigurationError(
        f"`{item.statement.format()}` ({item.place}): there is no module `{missing}`.{close} Modules are searched in "
        f"the working directory ({Path.cwd()}) and in `PYTHONPATH`: run from the directory that contains it, or "
        "install it (`pip install -e`)."
    )
