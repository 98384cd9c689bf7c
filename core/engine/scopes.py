"""The scope in which a task or an optimizer is made: a strategy's own, or a mesh's, where each variable has its layout.

A layout goes by the path of a variable, which it has only once the module that holds it is made. So on a mesh all is
made twice: first without values, to learn which path each will have, in the order in which they are made.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.mesh_plan import MeshPlan
from core.distribution.mesh_strategy import MeshStrategy
from core.engine.shapes import asked_for_shapes, made, shapes_only

T = TypeVar("T")
AxesById = Mapping[int, tuple[str, ...]]  # by the id of a variable
Scope = Callable[[], AbstractContextManager[Any]]


def made_on(
    make: Callable[[], T],
    strategy: tf.distribute.Strategy,
    axes_in: Callable[[MeshPlan, T], AxesById],
) -> T:
    """Returns what `make()` makes in the scope of `strategy`.

    On a mesh `axes_in` says of the variables in what was made along which axes they are cut; others lie whole.
    """
    if not isinstance(strategy, MeshStrategy):
        return made(make, strategy.scope)
    return made(make, _mesh_scope(make, strategy, axes_in))


def kept_once(strategy: tf.distribute.Strategy) -> AbstractContextManager[Any]:
    """Returns the scope of variables on which all replicas agree, and that are kept once."""
    if isinstance(strategy, MeshStrategy):
        return strategy.scope()
    return tf.device(strategy.extended.worker_devices[0])


def _mesh_scope(make: Callable[[], T], strategy: MeshStrategy, axes_in: Callable[[MeshPlan, T], AxesById]) -> Scope:
    born: list[tf.Variable] = []

    def note(following: Any, **kwargs: Any) -> tf.Variable:
        born.append(following(**kwargs))
        return born[-1]

    @contextlib.contextmanager
    def noting() -> Iterator[None]:
        born.clear()  # of an attempt that came to nothing
        with tf.variable_creator_scope(note):
            yield

    with shapes_only():
        known = axes_in(strategy.plan, made(make, noting))
    in_order = [(variable.shape, known.get(id(variable), strategy.whole(variable.shape))) for variable in born]

    def scope() -> AbstractContextManager[Any]:
        rest = iter(in_order)

        def axes_of(shape: Sequence[int]) -> tuple[str, ...]:
            expected, axes = next(rest, (None, ()))
            assert expected == shape, f"made a variable of shape {shape} where the first time it was {expected}."
            return axes

        return strategy.scope(axes_of, empty=asked_for_shapes())

    return scope
