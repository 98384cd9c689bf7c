"""A rule of an optimizer is a pair of pure functions, a `Transform`, and so are rules one after the other, a `chain`.

As in Optax, `init(params) -> state` and `update(gradients, state, params, step=, value=) -> (updates, state)` map
`{path: tensor}`. A transform holds nothing, so it may be made anywhere and handed around freely.

Two things may be said of it besides: its `fused` twin writes variables in place with TensorFlow's own kernels, and its
`shadow` is what evaluation and export read in place of the parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import tensorflow as tf

Tensors = Mapping[str, tf.Tensor]  # by the path of the parameter
State = Mapping[str, Tensors]  # {slot: {path: tensor}}; a slot that all parameters share has the one path ""
Schedule = Callable[[tf.Tensor], tf.Tensor]  # the number of updates applied so far -> a rate
Variables = Mapping[str, tf.Variable]
Slots = Mapping[str, Variables]  # a state, as variables
Rate: TypeAlias = float | tf.Tensor
Rates = Mapping[str, Rate]  # learning rates; that of a group by its pattern in brackets


class UpdateFunction(Protocol):
    """The rule: gradients in; what to add to the parameters, and the next state, out."""

    def __call__(
        self, gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        """Computes an update; `step` counts those applied before, `value` is the loss, for rules that look at it."""


class FusedFunction(Protocol):
    """The same numbers as the update's, written where they belong."""

    def __call__(
        self, gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        """Is called where variables may be assigned: in a replica, under no tape."""


class RatesFunction(Protocol):
    """Which learning rates an update had."""

    def __call__(self, before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        """Returns those of update `step` and what comes before this transform in its chain; `state` is that after it.

        Of the state it may read what isn't larger than one number, and of `params` no values.
        """


# For each of the parameters that is averaged, by path: what the newest of its values counts for in update `step`.
SharesFunction = Callable[[Mapping[str, Any]], Mapping[str, Callable[[tf.Tensor], float | tf.Tensor]]]


class Transform(NamedTuple):
    """One rule of an optimizer. Its state is kept under its `name`, whatever it is chained with."""

    name: str
    init: Callable[[Tensors], State]
    update: UpdateFunction
    parts: tuple["Transform", ...] = ()  # of a plain chain, so that chains of chains are flat
    fused: FusedFunction | None = None
    shadow: Callable[[State, Tensors, tf.Tensor], Tensors] | None = None  # (state, params, step) as they are now
    observe: Callable[[State, Tensors, tf.Tensor], State] | None = None  # of an `observer`
    rates: RatesFunction | None = None
    shares: SharesFunction | None = None  # of an average of the weights
    linear: bool = False  # whether half of each gradient makes half of the update, as half the learning rate does


def stateless(name: str, rule: Callable[[Tensors, Tensors, tf.Tensor], Tensors]) -> Transform:
    """Makes a transform without state, of `rule(gradients, params, step) -> updates`."""

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
    """Makes a transform blind to the loss, of `update(gradients, state, params, step) -> (updates, state)`.

    Its `learning_rate` is among the figures of a run.
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
    """Returns the `rates` of a rule that has this one."""

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
    """Makes a transform that only looks: `observe(state, params, step) -> state` sees parameters after the update."""

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return gradients, observe(state, {path: p + gradients[path] for path, p in params.items()}, step)

    return Transform(name, init, update, observe=observe, shadow=shadow, shares=shares, linear=True)


def named(name: str, transform: Transform) -> Transform:
    """Returns `transform` under a name of its own: its state goes by it, and a chain keeps it as one part."""
    return transform._replace(name=name, parts=())
