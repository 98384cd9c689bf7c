"""Moving averages and sums that rules share: initial state, Adam's bias correction and Nesterov's lookahead."""

from collections.abc import Callable

import tensorflow as tf

from core.arguments import check_fraction, check_not_negative
from core.choice import one_of
from core.optimizers.rates import as_dtype, newest_share, times, updates_after, weight_seen
from core.optimizers.transform import Rate, State, Tensors


def zeros(*slots: str) -> Callable[[Tensors], State]:
    """Returns the `init` of a rule whose slots have the parameters' shapes and start at zero."""
    return lambda params: {slot: {path: tf.zeros_like(p) for path, p in params.items()} for slot in slots}


def moved(average: tf.Tensor, value: tf.Tensor, share: Rate) -> tf.Tensor:
    """Returns `(1 - share) * average + share * value`, without rounding `1 - share`, which would lose small shares."""
    return average + share * (value - average)


def averages(old: Tensors, new: Tensors, beta: Rate) -> dict[str, tf.Tensor]:
    """Returns `{path: beta * old[path] + (1 - beta) * new[path]}`."""
    if not isinstance(beta, tf.Tensor) and beta < 0.5:
        return {path: moved(x, old[path], beta) for path, x in new.items()}
    # With 1 - β alone: in float32, 1 - 0.99999 is off by 1e-3 of itself, and would shorten the average by that.
    return {path: moved(old[path], x, as_dtype(1.0 - beta, x)) for path, x in new.items()}


def changes(new: Tensors, old: Tensors, step: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `{path: new[path] - old[path]}`; zeros in the first update, which has no old values."""
    first = tf.equal(step, 0)
    return {path: one_of(first, tf.zeros_like(x), x - old[path]) for path, x in new.items()}


def squares(tensors: Tensors) -> dict[str, tf.Tensor]:
    """Returns `{path: tensor ** 2}`."""
    return {path: tf.square(x) for path, x in tensors.items()}


def adam_moments(state: State, gradients: Tensors, beta_1: float, beta_2: float) -> dict[str, dict[str, tf.Tensor]]:
    """Returns `{"m": ..., "v": ...}`: the new moving averages of gradients and of squared gradients, by path."""
    return {"m": averages(state["m"], gradients, beta_1), "v": averages(state["v"], squares(gradients), beta_2)}


def adam_scalars(
    t: tf.Tensor, beta_1: float, beta_2: float, epsilon: float, factor: Rate | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scalars (α, ε̂) of Adam's direction α m / (√v + ε̂), which include both bias corrections.

    α also includes `factor`. This is the paper's efficient order: scalars are computed once for all tensors.
    """
    correction = tf.sqrt(weight_seen(beta_2, t))
    return times(factor, correction) / weight_seen(beta_1, t), epsilon * correction


def scale_by_adam(
    moments: State, step: tf.Tensor, beta_1: float, beta_2: float, epsilon: float, factor: Rate | None = None
) -> dict[str, tf.Tensor]:
    """Returns `{path: factor * m / (sqrt(v) + epsilon)}`, where m and v are bias-corrected at `step`."""
    alpha, epsilon_hat = adam_scalars(updates_after(step), beta_1, beta_2, epsilon, factor)
    return {
        path: as_dtype(alpha, m) * m / (tf.sqrt(moments["v"][path]) + as_dtype(epsilon_hat, m))
        for path, m in moments["m"].items()
    }


def look_ahead(
    means: Tensors, gradients: Tensors, step: tf.Tensor, beta: Rate, factor: Rate | None = None
) -> dict[str, tf.Tensor]:
    """Returns `factor` times Nadam's weighted sum of `means` and `gradients`, by path, with bias corrections."""
    t = updates_after(step)
    of_mean, of_gradient = times(factor, beta / weight_seen(beta, t + 1.0)), times(factor, newest_share(t, beta))
    return {path: as_dtype(of_mean, g) * means[path] + as_dtype(of_gradient, g) * g for path, g in gradients.items()}


def decaying_sums(
    old: Tensors, new: Tensors, momentum: float, *, nesterov: bool = False
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns `(directions, sums)`, sums = momentum · old + new; with `nesterov`, directions look one step ahead."""
    sums = {path: momentum * old[path] + x for path, x in new.items()}
    return {path: momentum * sums[path] + x for path, x in new.items()} if nesterov else sums, sums


def check_adam(beta_1: float, beta_2: float, epsilon: float) -> None:
    """Raises an error unless β₁ and β₂ are in [0, 1) and `epsilon` isn't negative."""
    check_fraction(beta_1=beta_1, beta_2=beta_2)
    check_not_negative(epsilon=epsilon)
