"""What rules with moving averages share: their first state, their averages and their arguments."""

from collections.abc import Callable

import tensorflow as tf

from core.arguments import check_fraction, check_not_negative, check_rate
from core.optimizers.transform import Schedule, State, Tensors


def zeros(*slots: str) -> Callable[[Tensors], State]:
    """Returns the `init` of a rule whose slots have the parameters' shapes and start at zero."""
    return lambda params: {slot: {path: tf.zeros_like(p) for path, p in params.items()} for slot in slots}


def moved(average: tf.Tensor, value: tf.Tensor, share: float | tf.Tensor) -> tf.Tensor:
    """Returns (1 - share) average + share value, without a difference from one, in which small shares would be lost."""
    return average + share * (value - average)


def averages(old: Tensors, new: Tensors, beta: float) -> dict[str, tf.Tensor]:
    """Returns β old + (1 - β) new, by path."""
    if beta < 0.5:
        return {path: moved(x, old[path], beta) for path, x in new.items()}
    # By 1 - β alone: as float32, 0.99999 is off by 1e-3 of what it lacks to one, and forgets so much too fast.
    return {path: moved(old[path], x, 1.0 - beta) for path, x in new.items()}


def squares(tensors: Tensors) -> dict[str, tf.Tensor]:
    """Returns the square of each, by path."""
    return {path: tf.square(x) for path, x in tensors.items()}


def check_adam(learning_rate: float | Schedule, beta_1: float, beta_2: float, epsilon: float) -> None:
    """Checks the arguments that Adam and its relatives have in common."""
    check_rate(learning_rate=learning_rate)
    check_fraction(beta_1=beta_1, beta_2=beta_2)
    check_not_negative(epsilon=epsilon)
