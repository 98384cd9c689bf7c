"""Observes the inputs and outputs of modules while a step function calls them."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from core.module import named_modules
from core.optimizers.paths import matching

Heard = Callable[[str, tf.Tensor], None]


@contextlib.contextmanager
def observed_calls(root: tf.Module, paths: Sequence[str], hear: Heard) -> Iterator[None]:
    """In its `with` block, calls of modules of `root` that match `paths` also call `hear(name, input or output)`."""
    modules = named_modules(root)
    chosen = {path: modules[path] for path in matching(paths, modules, argument="paths")}
    classes = {path: type(module) for path, module in chosen.items()}
    for path, module in chosen.items():
        # Python looks `__call__` up in the class, so it must be replaced there, not in the module.
        module.__class__ = _telling(classes[path], path, hear)
    try:
        yield
    finally:
        for path, module in chosen.items():
            module.__class__ = classes[path]


def _telling(cls: type[Any], path: str, hear: Heard) -> type[Any]:
    @functools.wraps(cls.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = cls.__call__(self, *args, **kwargs)
        for which, value in (("given", args[0] if args else None), ("returned", result)):
            if isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank:
                hear(f"{which}/{path}", value)
        return result

    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__})
