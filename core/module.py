"""Modules: plain Python objects that own `tf.Variable`s, and the names those variables go by.

A module makes all of its variables in `__init__`, from explicit sizes and an `rng`, and computes in `__call__`:

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

A variable's *path* is how one reaches it from the module (`net/layers/0/w`). Paths name variables everywhere: in
optimizer masks, checkpoints, tables and errors.
"""

import math

import tensorflow as tf


class Module(tf.Module):
    """A `tf.Module` that lists its parameters by path."""

    def parameters(self) -> dict[str, tf.Variable]:
        """Returns the trainable variables by path."""
        return named_variables(self, trainable_only=True)

    def __repr__(self) -> str:
        count = sum(math.prod(v.shape) for v in self.parameters().values())
        return f"{type(self).__name__}({count:,} parameters)"


def named_variables(module: tf.Module, *, trainable_only: bool = False) -> dict[str, tf.Variable]:
    """Returns every variable of `module` (any `tf.Module`) by path, each once, in the same order in every run."""

    def wanted(value: object) -> bool:
        return isinstance(value, tf.Variable) and (value.trainable or not trainable_only)

    found = module._flatten(predicate=wanted, with_path=True)  # tf.Module's own walk, which `variables` uses too
    first: dict[int, tuple[str, tf.Variable]] = {}
    for path, variable in found:  # the walk meets a shared variable (tied weights) wherever it is held
        first.setdefault(id(variable), ("/".join(str(part) for part in path), variable))
    return dict(first.values())
