"""Gives modules' outputs a layout on a mesh, to shard activations that no variable's layout shards.

Sequence-parallel norms (Korthikanti et al., 2022) need two patterns. One shards the output of a residual branch along
time, and thereby all later activations. The other makes a norm's output whole for the matmuls that follow.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import named_modules
from core.parallel.mesh.layouts import WHOLE, Layouts
from core.parallel.mesh.plan import BATCH

Lay = Callable[[tf.Tensor, tuple[str, ...]], tf.Tensor]  # gives a tensor the layout of these axes


def lay_out_outputs(root: tf.Module, layouts: Layouts, lay: Lay) -> None:
    """Makes each module of `root` whose path matches a pattern return its output in the pattern's layout."""
    for path, module in named_modules(root).items():
        if layouts.pattern_of(path):
            # Python looks `__call__` up in the class: an attribute of the module itself would never be called.
            module.__class__ = _laying(type(module), path, layouts, lay)


def check_outputs(root: tf.Module, layouts: Layouts) -> None:
    """Raises a `ConfigurationError` for a pattern that isn't the first match of any module's path in `root`."""
    layouts.check_used(named_modules(root), "module that can be called")


def _laying(cls: type[Any], path: str, layouts: Layouts, lay: Lay) -> type[Any]:
    def laid(y: Any) -> Any:
        if not isinstance(y, tf.Tensor):
            raise ConfigurationError(
                f"`{layouts.binding}` lays out what `{path}` returns, which is {type(y).__name__} and no tensor: name "
                "modules that return one tensor."
            )
        axes = layouts.of(path, y.shape)
        if y.shape.is_fully_defined() and all(
            n % layouts.sizes[BATCH] == 0 for n, axis in zip(y.shape, axes, strict=True) if axis == BATCH
        ):
            layouts.check_divide({path: y.shape})
        else:  # rows that the mesh can't share evenly stay whole: those of an evaluation's last batch
            axes = tuple(WHOLE if axis == BATCH else axis for axis in axes)
        return lay(y, axes)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return laid(cls.__call__(self, *args, **kwargs))

    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__, "__doc__": cls.__doc__})
