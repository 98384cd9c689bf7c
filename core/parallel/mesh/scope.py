"""Makes a task or an optimizer on a mesh, with a layout for each variable.

The layout depends on the variable's path, which is known only after its module is made. So on a mesh, modules are made
twice: first without values, to learn the paths in order of creation.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.shapes_only import asked_for_shapes, made, shapes_only
from core.errors import ConfigurationError, shown
from core.parallel.mesh.strategy import MeshStrategy

T = TypeVar("T")
AxesByPath = Mapping[str, tuple[tf.Variable, tuple[str, ...]]]  # variables with the axes along which they are sharded
AxesIn = Callable[[T], AxesByPath]
Scope = Callable[[], AbstractContextManager[Any]]

_TWICE = (
    "On a mesh all is made twice, first to learn its variables' paths: make variables in a fixed order, which hangs on "
    "no set, counter or file that may change in between."
)


def made_in_layout(make: Callable[[], T], strategy: MeshStrategy, axes_in: AxesIn[T]) -> T:
    """Calls `make()` with variables sharded on the mesh of `strategy`, and returns the result.

    `axes_in(result)` returns `{path: (variable, axes)}`. Variables that it omits are whole on each device.
    """
    result = made(make, _scope(make, strategy, axes_in))
    for path, (variable, axes) in axes_in(result).items():
        if strategy.variable_created_in_scope(variable) and strategy.axes_of(variable) != axes:
            raise ConfigurationError(f"`{type(result).__name__}` made `{path}` where it made another before. {_TWICE}")
    return result


def _scope(make: Callable[[], T], strategy: MeshStrategy, axes_in: AxesIn[T]) -> Scope:
    born: list[tf.Variable] = []

    def note(following: Any, **kwargs: Any) -> tf.Variable:
        born.append(following(**kwargs))
        return born[-1]

    @contextlib.contextmanager
    def noting() -> Iterator[None]:
        born.clear()  # of a failed attempt
        with tf.variable_creator_scope(note):
            yield

    with shapes_only():
        first = made(make, noting)
        known = {id(variable): (path, axes) for path, (variable, axes) in axes_in(first).items()}
    in_order = [
        (variable.shape, *known.get(id(variable), (variable.name, strategy.whole(variable.shape)))) for variable in born
    ]

    def scope() -> AbstractContextManager[Any]:
        rest = iter(in_order)

        def axes_of(shape: Sequence[int]) -> tuple[str, ...]:
            expected, path, axes = next(rest, (None, "", ()))
            if expected != shape:
                before = "no more" if expected is None else f"`{path}` {shown(list(expected))}"
                raise ConfigurationError(
                    f"`{type(first).__name__}` made a variable of shape {shown(list(shape))} where it made {before} "
                    f"before. {_TWICE}"
                )
            return axes

        return strategy.scope(axes_of, empty=asked_for_shapes())

    return scope
