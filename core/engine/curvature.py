"""Estimates of the diagonal of a loss's Hessian, by a second gradient: Hutchinson's, and Gauss-Newton-Bartlett."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.random import Rng


def random_signs(rng: Rng, variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
    """Returns -1 or 1 for each value of `variables`, the same for all microbatches and replicas of a step."""
    rng = rng.fold("curvature")._replace(dtype=tf.float32)
    return {path: tf.cast(tf.sign(rng.fold(path).normal(tuple(v.shape))), v.dtype) for path, v in variables.items()}


class Curvature:
    """Estimates the curvature of one microbatch, from a second gradient along the first one that is `recorded`."""

    def __init__(self, variables: Mapping[str, tf.Variable], rng: Rng, due: Callable[[], tf.Tensor]):
        self._variables, self._rng, self._due = dict(variables), rng, due
        self._tape = tf.GradientTape(watch_accessed_variables=False)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Records the computation of the first gradients in its `with` block."""
        with self._tape:
            self._tape.watch([*self._variables.values()])
            yield

    def take(self, gradients: Mapping[str, Any]) -> None:
        """Computes ⟨∇L, u⟩ from the first gradients; call it where they are recorded."""
        self._signs = random_signs(self._rng, self._variables)
        parts = [tf.reduce_sum(tf.convert_to_tensor(gradients[path]) * u) for path, u in self._signs.items()]
        self._slope = tf.add_n(parts)

    def estimate(self) -> dict[str, tf.Tensor]:
        """Returns u ⊙ ∇⟨∇L, u⟩ by path (Hutchinson's estimate), or zeros if it isn't due."""

        def product() -> dict[str, tf.Tensor]:
            zero = tf.UnconnectedGradients.ZERO
            found = self._tape.gradient(self._slope, self._variables, unconnected_gradients=zero)
            return {path: u * tf.convert_to_tensor(found[path]) for path, u in self._signs.items()}

        return dict(tf.cond(self._due(), product, lambda: {path: tf.zeros_like(u) for path, u in self._signs.items()}))


def squared(gradients: Mapping[str, tf.Tensor], examples: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns B ĝ ⊙ ĝ by path, where ĝ is the mean gradient of B losses on labels drawn from the model.

    This is the Gauss-Newton-Bartlett estimate of Liu et al. (2024), algorithm 2.
    """
    return {path: tf.cast(examples, g.dtype) * tf.square(g) for path, g in gradients.items()}


def gradients_if(
    due: tf.Tensor, loss: Callable[[], tf.Tensor], variables: Mapping[str, tf.Variable]
) -> dict[str, tf.Tensor]:
    """Returns the gradients of `loss()` by path, or zeros if they aren't `due`."""

    def gradients() -> dict[str, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*variables.values()])
            value = loss()
        found = tape.gradient(value, dict(variables), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {path: tf.convert_to_tensor(gradient) for path, gradient in found.items()}

    return dict(tf.cond(due, gradients, lambda: {path: tf.zeros(v.shape, v.dtype) for path, v in variables.items()}))
