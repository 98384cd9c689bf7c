"""How a command imports TensorFlow: most of its way to the first step are imports.

It stands before all others, and so imports none of them.
"""

import contextlib
import gc
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

_API = "tensorflow._api.v2."
# What TensorFlow publishes once more (as that of version 1, of version 2) and TensorFlow Lite, whose converter imports
# an installed JAX: a tenth of all that `import tensorflow` executes, and nothing that a step is made of.
_LATER = (f"{_API}compat.v1", f"{_API}compat.v2", f"{_API}lite")
_KERAS = "keras"


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Imports without Python's garbage collector, which would go through all that is there again and again.

    What was made by then stays for as long as the process does, and later collections leave it out.
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
    """Lets `import tensorflow` leave out Keras, and put off what few read; who asks for it later gets it."""
    stand_ins: dict[str, types.ModuleType] = {name: _Later(name) for name in _LATER if name not in sys.modules}
    if _KERAS not in sys.modules and (keras := importlib.util.find_spec(_KERAS)):
        stand_ins[_KERAS] = types.ModuleType(_KERAS)
        stand_ins[_KERAS].__spec__ = keras  # which says where TensorFlow will find it
    sys.modules.update(stand_ins)
    try:
        yield
        if f"{_API}lite" in stand_ins and (tensorflow := sys.modules.get("tensorflow")):
            published = tensorflow.lite
            importlib.import_module("tensorflow.lite")  # a folder of that name, which would take its place later
            tensorflow.lite = published  # type: ignore[attr-defined]
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Later(types.ModuleType):
    """Stands for a module that is imported when somebody reads something of it."""

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":  # the import system's own questions
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))
