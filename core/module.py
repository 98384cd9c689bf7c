"""Modules own `tf.Variable`s. Paths name these variables.

A module makes all of its variables in `__init__`, from explicit sizes and an `rng`. It computes in `__call__`:

    >>> import tensorflow as tf
    >>> from core.random import Rng
    >>> class Scale(Module):
    ...     def __init__(self, size, *, rng):
    ...         super().__init__()
    ...         self.w = tf.Variable(1.0 + 0.1 * rng.normal([size]), name="w")
    ...     def __call__(self, x):
    ...         return x * self.w
    >>> list(Scale(3, rng=Rng.from_seed(0)).parameters())
    ['w']

A variable's *path*, such as `net/layers/0/w`, names the attributes from the module to the variable. Optimizer masks,
checkpoints, tables and errors name variables by their paths.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from core.errors import did_you_mean
from core.tensorflow_private import flattened, ignored_attributes

M = TypeVar("M", bound=tf.Module)


class Module(tf.Module):
    """A `tf.Module` that lists its parameters by path."""

    def __init__(self, name: str | None = None):
        own = type(self).__name__
        # A graph's scope can't start with an underscore, so such a class could not be made for its shapes alone.
        super().__init__(name or (own.strip("_") if own.startswith("_") else None))

    def parameters(self) -> dict[str, tf.Variable]:
        """Returns the trainable variables, `{path: variable}`."""
        return named_variables(self, trainable_only=True)

    def __repr__(self) -> str:
        count = sum(math.prod(v.shape) for v in self.parameters().values())
        return f"{type(self).__name__}({count:,} parameters)"


def named_variables(module: tf.Module, *, trainable_only: bool = False) -> dict[str, tf.Variable]:
    """Returns `{path: variable}` of any `tf.Module`. Each variable occurs once. The order is the same in every run."""

    def wanted(value: object) -> bool:
        return isinstance(value, tf.Variable) and (value.trainable or not trainable_only)

    return _first_paths(module, wanted)


def named_modules(module: tf.Module) -> dict[str, tf.Module]:
    """Returns `{path: module}` of the callable modules within `module`, each once, in the same order in every run."""
    return _first_paths(module, lambda x: isinstance(x, tf.Module) and callable(x))


def _first_paths(module: tf.Module, wanted: Callable[[object], bool]) -> dict[str, Any]:
    found = flattened(module, wanted, with_path=True)
    first: dict[int, tuple[str, Any]] = {}
    for path, part in found:  # a shared part (tied weights) appears under each of its paths
        first.setdefault(id(part), ("/".join(map(str, path)), part))
    return dict(first.values())


def with_values(module: M, values: Mapping[str, tf.Tensor]) -> M:
    """Returns a copy of `module` that computes with `values`, `{path: tensor}`, in place of its variables.

    In an inner loop, `values` are the weights after some steps. Gradients flow through `values` to the tensors from
    which they were computed. `module` and its variables stay unchanged.

        >>> net = tf.Module()
        >>> net.w = tf.Variable(2.0)
        >>> with tf.GradientTape() as tape:
        ...     fast = with_values(net, {"w": net.w - 0.1 * net.w})
        ...     y = fast.w * fast.w
        >>> f"{y.numpy():.2f} {tape.gradient(y, net.w).numpy():.2f} {net.w.numpy():.2f}"
        '3.24 3.24 2.00'
    """
    variables = named_variables(module)
    replaced: dict[int, Any] = {}
    for path, value in values.items():
        variable = variables.get(path)
        if variable is None:
            raise ValueError(
                f"`values` names `{path}`, but `{type(module).__name__}` has no such variable."
                f"{did_you_mean(path, variables)} Paths are those of `named_variables(module)`."
            )
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype != variable.dtype or not tensor.shape.is_compatible_with(variable.shape):
            raise ValueError(
                f"the value of `{path}` is {tensor.dtype.name} of shape {tensor.shape}; the variable is "
                f"{variable.dtype.name} of shape {variable.shape}: give a value like it."
            )
        replaced[id(variable)] = tensor
    copy: M = copied(module, replaced)
    return copy


def original(module: Any) -> Any:
    """Returns the module that `with_values` copied to make `module`. A module that isn't a copy is returned itself."""
    kept = getattr(module, "__dict__", {}).get(_ORIGINAL)
    return kept() if kept else module


def is_copy(module: Any) -> bool:
    """Returns whether `module` is a copy by `with_values`."""
    return _ORIGINAL in getattr(module, "__dict__", {})


_ORIGINAL = "_with_values_of"


def copied(part: Any, made: dict[int, Any]) -> Any:
    """Copies the module `part` and its submodules.

    A leaf is a variable or a tensor in an attribute. `made` maps ids of leaves to new values, and ids of modules to
    their copies. Leaves that `made` doesn't contain are shared with the copy.
    """
    if id(part) in made or not isinstance(part, tf.Module):
        return made.get(id(part), part)
    copy = made[id(part)] = object.__new__(type(part))
    attributes = copy.__dict__  # bypasses `tf.Module`'s `__setattr__`, which would track them for checkpoints
    attributes |= vars(part)
    for name, value in vars(part).items():
        if name not in ignored_attributes(part):
            attributes[name] = tf.nest.map_structure(lambda leaf: copied(leaf, made), value)
    attributes[_ORIGINAL] = functools.partial(original, part)  # as a function, so that its variables aren't the copy's
    return copy
