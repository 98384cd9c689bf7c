"""How what modules return lies on a mesh: so activations are cut where no variable asks for it.

Norms by the sequence (Korthikanti et al., 2022) are two patterns: what leaves a residual branch is cut along its time,
and with it all that follows, until a norm's output is put together again for the matrices behind it.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import named_modules
from core.parallel.mesh.layouts import WHOLE, Layouts
from core.parallel.mesh.plan import BATCH

Lay = Callable[[tf.Tensor, tuple[str, ...]], tf.Tensor]  # lays a tensor out along these axes


def lay_out_outputs(root: tf.Module, layouts: Layouts, lay: Lay) -> None:
    """Has the modules of `root` whose path a pattern matches return tensors that lie so."""
    for path, module in named_modules(root).items():
        if layouts.pattern_of(path):
            # Python looks `__call__` up in the class: an attribute of the module itself would never be called.
            module.__class__ = _laying(type(module), path, layouts, lay)


def check_outputs(root: tf.Module, layouts: Layouts) -> None:
    """Refuses patterns that match no module of `root`."""
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
        else:  # rows that the mesh's can't share lie whole, as they came in: those of an evaluation's last batch
            axes = tuple(WHOLE if axis == BATCH else axis for axis in axes)
        return lay(y, axes)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return laid(cls.__call__(self, *args, **kwargs))

    return type(cls.__name__, (cls,), {"__call__": call, "__module__": cls.__module__, "__doc__": cls.__doc__})
