"""Estimates of the diagonal of a loss's Hessian, by a second gradient: Hutchinson's, and Gauss-Newton-Bartlett."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from core.random import Rng


def random_signs(rng: Rng, variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
    """Returns -1 or 1 for each value of `variables`, the same for all microbatches and replicas of a step."""
    rng = rng.fold("curvature")._replace(dtype=tf.float32)
    return {path: tf.cast(tf.sign(rng.fold(path).normal(tuple(v.shape))), v.dtype) for path, v in variables.items()}


def estimate(
    tape: tf.GradientTape,
    slope: tf.Tensor,
    variables: Mapping[str, tf.Variable],
    signs: Mapping[str, tf.Tensor],
    due: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns u ⊙ ∇⟨∇L, u⟩ by path (Hutchinson's estimate), or zeros if it isn't `due`; `slope` is ⟨∇L, u⟩."""

    def product() -> dict[str, tf.Tensor]:
        found = tape.gradient(slope, dict(variables), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {path: u * tf.convert_to_tensor(found[path]) for path, u in signs.items()}

    return dict(tf.cond(due, product, lambda: {path: tf.zeros_like(u) for path, u in signs.items()}))


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
