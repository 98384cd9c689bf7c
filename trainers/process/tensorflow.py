"""Imports TensorFlow for a command, and redirects the stderr of TensorFlow's C++ code to a file."""

import contextlib
import faulthandler
import gc
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from absl import logging

from core.errors import TapeloopError
from trainers.errors.exit_report import exit_code_of
from trainers.process.standard_streams import lasting_stream

_API = "tensorflow._api.v2."
# Aliases of TensorFlow's API (versions 1 and 2), and TensorFlow Lite, whose converter imports an installed JAX. They
# are a tenth of what `import tensorflow` executes, and training doesn't need them.
_LATER = (f"{_API}compat.v1", f"{_API}compat.v2", f"{_API}lite")
_KERAS = "keras"


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


@contextlib.contextmanager
def native_stderr_in(workdir: Path | None, *, ends_process: bool = False) -> Iterator[None]:
    """Redirects stderr of TensorFlow's C++ code to a file in the workdir; `sys.stderr` isn't redirected.

    No environment variable silences TensorFlow's start-up lines, and level 3 would hide real errors too. If the block
    raises an error and `ends_process` is set, the redirection stays, because prefetch threads may still print errors.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    path = workdir.absolute() / log_name() if workdir else Path(os.devnull)
    if workdir:
        from trainers.workdir import Workdir

        Workdir(workdir).create()
    logging.debug("TensorFlow's own messages go to `%s`", path)
    sys.stderr.flush()
    original = os.dup(2)
    with open(path, "ab") as sink:
        os.dup2(sink.fileno(), 2)
    spare = os.dup(original)
    visible = lasting_stream(spare, like=sys.stderr)
    python_stderr, sys.stderr = sys.stderr, visible
    faulthandler.enable(visible)  # a crash in C++ prints Python's stack visibly
    failed = False
    try:
        yield
    except BaseException as error:
        failed = True
        plain = isinstance(error, ValueError | TypeError | OSError) or exit_code_of(error) != TapeloopError.exit_code
        if workdir and not plain:
            _show_tail(path, visible)
        raise
    finally:
        if not (failed and ends_process):
            faulthandler.disable()
            sys.stderr = python_stderr
            os.dup2(original, 2)
            os.close(original)
            visible.close()
            os.close(spare)


def move_native_stderr(workdir: Path) -> None:
    """Redirects C++'s stderr to a file in a workdir that another process has made; without a workdir, does nothing."""
    with contextlib.suppress(OSError), open(workdir / log_name(), "ab") as sink:
        os.dup2(sink.fileno(), 2)


def log_name() -> str:
    """Returns the log file's name: workers share a workdir, but not a log."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG", ""))
        task = config["task"]
        if "ps" in config["cluster"] and task["type"] != "chief":
            return f"native_stderr_{'ps' if task['type'] == 'ps' else 'worker'}_{int(task['index'])}.log"
        index = str(0 if task["type"] == "chief" else int(task["index"]) + ("chief" in config["cluster"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        rank = os.environ.get("SLURM_PROCID", "0")
        index = "0" if rank == "0" else f"rank_{rank}"  # the worker's index isn't known yet
    return "native_stderr.log" if index == "0" else f"native_stderr_{index}.log"


def _show_tail(path: Path, stream: TextIO, lines: int = 20) -> None:
    tail = path.read_text("utf-8", errors="replace").splitlines()[-lines:]
    if tail:
        print(f"--- the last of `{path}` (TensorFlow's own messages)", *tail, "---", sep="\n", file=stream)
