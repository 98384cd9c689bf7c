"""`Transform`: an optimizer rule as a pair of pure functions; a `chain` of rules is a `Transform` again.

As in Optax, `init(params) -> state` and `update(gradients, state, params, step=, value=) -> (updates, state)` map
`{path: tensor}`. A transform holds no state, so it may be made anywhere and passed around freely.

Two functions are optional. `fused` does the same as `update`, but in place with TensorFlow's kernels. `shadow` returns
values that evaluation and export read in place of the parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import tensorflow as tf

Tensors = Mapping[str, tf.Tensor]  # by the path of the parameter
State = Mapping[str, Tensors]  # {slot: {path: tensor}}; a slot shared by all parameters has the path ""
Schedule = Callable[[tf.Tensor], tf.Tensor]  # the number of updates applied so far -> a rate
Variables = Mapping[str, tf.Variable]
Slots = Mapping[str, Variables]  # a state, as variables
Rate: TypeAlias = float | tf.Tensor
Rates = Mapping[str, Rate]  # learning rates; that of a group by its pattern in brackets


class UpdateFunction(Protocol):
    """The type of `Transform.update`: maps gradients and state to the update of the parameters and the next state."""

    def __call__(
        self, gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        """Returns `(updates, next state)`; `step` is the number of earlier updates, and `value` is the loss."""


class FusedFunction(Protocol):
    """The type of `Transform.fused`: does the same as `update`, but in place on variables."""

    def __call__(
        self, gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        """Updates `params` and `slots` in place; called within a replica, outside of gradient tapes."""


class RatesFunction(Protocol):
    """The type of `Transform.rates`: returns the learning rates of an update."""

    def __call__(self, before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        """Returns the rates of update `step`: `{"": 0.1}`, or by pattern. `before` are those of earlier transforms.

        `state` is the state after the update. The function may read only its scalars, and no values of `params`.
        """


class Curvature(NamedTuple):
    """How a rule takes estimates of the diagonal of the loss's Hessian, which the engine computes now and then."""

    every: int  # updates from one estimate to the next
    take: Callable[[Tensors, State, tf.Tensor], State]  # (estimate, state, step) -> the state before update `step`
    sampled: bool = False  # whether the estimate is by `Update.sampled_loss`


# By path, for each averaged parameter: the share of the newest batch in its layer's statistics after update `step`.
SharesFunction = Callable[[Mapping[str, Any]], Mapping[str, Callable[[tf.Tensor], float | tf.Tensor]]]


class Transform(NamedTuple):
    """One rule of an optimizer. In checkpoints, names of its state begin with `name`, also in a chain."""

    name: str
    init: Callable[[Tensors], State]
    update: UpdateFunction
    parts: tuple["Transform", ...] = ()  # of a plain chain, so that chains of chains are flat
    fused: FusedFunction | None = None
    shadow: Callable[[State, Tensors, tf.Tensor], Tensors] | None = None  # of the current (state, params, step)
    observe: Callable[[State, Tensors, tf.Tensor], State] | None = None  # of an `observer`
    rates: RatesFunction | None = None
    shares: SharesFunction | None = None  # of a rule with `shadow`
    curvature: Curvature | None = None  # of a rule that reads the loss's curvature; its slot is named `curvature`
    linear: bool = False  # whether halving the gradients halves the update, as halving the learning rate does


def stateless(name: str, rule: Callable[[Tensors, Tensors, tf.Tensor], Tensors]) -> Transform:
    """Makes a transform without state from `rule(gradients, params, step) -> updates`."""

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return rule(gradients, params, step), state

    return Transform(name, lambda params: {}, update)


def stateful(
    name: str,
    init: Callable[[Tensors], State],
    update: Callable[[Tensors, State, Tensors, tf.Tensor], tuple[Tensors, State]],
    fused: Callable[[Tensors, Slots, Variables, tf.Tensor], None] | None = None,
    *,
    linear: bool = False,
    learning_rate: float | Schedule | None = None,
) -> Transform:
    """Makes a transform that ignores the loss, from `update(gradients, state, params, step) -> (updates, state)`.

    A `learning_rate` is logged with the run's metrics.
    """

    def with_value(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return update(gradients, state, params, step)

    def fused_with_value(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        assert fused
        fused(gradients, slots, params, step)

    rates = None if learning_rate is None else rates_of(learning_rate)
    return Transform(name, init, with_value, fused=fused_with_value if fused else None, rates=rates, linear=linear)


def rates_of(learning_rate: float | Schedule) -> RatesFunction:
    """Returns a `rates` function that reports `learning_rate`, or its value at `step` if it is a schedule."""

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        return {"": learning_rate(step) if callable(learning_rate) else learning_rate}

    return rates


def observer(
    name: str,
    init: Callable[[Tensors], State],
    observe: Callable[[State, Tensors, tf.Tensor], State],
    shadow: Callable[[State, Tensors, tf.Tensor], Tensors] | None = None,
    shares: SharesFunction | None = None,
) -> Transform:
    """Makes a transform that only observes: `observe(state, params, step) -> state` sees the updated parameters."""

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return gradients, observe(state, {path: p + gradients[path] for path, p in params.items()}, step)

    return Transform(name, init, update, observe=observe, shadow=shadow, shares=shares, linear=True)


def named(name: str, transform: Transform) -> Transform:
    """Returns `transform` renamed to `name`, under which its state is stored; a chain treats it as one part."""
    return transform._replace(name=name, parts=())
