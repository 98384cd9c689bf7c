"""Finds the backend of a strategy by its type."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.backend import Backend
from core.distribution.exchange import Exchange

B = TypeVar("B", bound=type[Backend])

_BACKENDS: dict[type, type[Backend]] = {tf.distribute.Strategy: Backend}
_PLANS: dict[type, Callable[[Any], Any]] = {}


def register(strategy: type, *, plan: type | None = None) -> Callable[[B], B]:
    """Registers a class of `Backend` for a type of strategy and its subclasses.

    An experiment with a `plan` makes the strategy from it.
    """

    def registered(backend: B) -> B:
        _BACKENDS[strategy] = backend
        if plan:
            _PLANS[plan] = strategy
        return backend

    return registered


def backend_of(strategy: Any) -> Backend:
    """Returns the backend of a strategy."""
    found = _registered(_BACKENDS, strategy)
    assert found, f"`{type(strategy).__name__}` has no backend: `@register({type(strategy).__name__})` gives it one."
    return found(strategy)


def is_strategy(value: object) -> bool:
    """Says whether a value is a strategy with a backend, or the plan of one."""
    return bool(_registered(_BACKENDS, value) or _registered(_PLANS, value))


def made_strategy(value: Any) -> Any:
    """Returns a strategy: the given one, or the one that a plan makes."""
    make = _registered(_PLANS, value)
    return make(value) if make else value


def exchange_of(strategy: Any, *, reduce_in: tf.DType | None = None) -> Exchange:
    """Returns the exchange of a strategy; with `reduce_in`, it sends float32 gradients in that type."""
    return backend_of(strategy).exchange(reduce_in=reduce_in)


def make_drift_check(strategy: Any, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """Returns a function that raises a `DriftError` naming the variables, and the replicas or devices that differ."""
    return backend_of(strategy).drift_check(variables)


def _registered(table: Mapping[type, Any], value: object) -> Any:
    return next((table[cls] for cls in type(value).__mro__ if cls in table), None)
