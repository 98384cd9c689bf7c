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
    """Has a class of `Backend` answer for strategies of a type, and for those of its subclasses.

    An experiment that is given a `plan` makes the strategy of it.
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
    """Says whether a value is a strategy that has a backend, or the plan of one."""
    return bool(_registered(_BACKENDS, value) or _registered(_PLANS, value))


def made_strategy(value: Any) -> Any:
    """Returns a strategy: the one that is given, or the one that a plan asks for."""
    make = _registered(_PLANS, value)
    return make(value) if make else value


def exchange_of(strategy: Any, *, reduce_in: tf.DType | None = None) -> Exchange:
    """Returns the exchange of a strategy, which sends float32 gradients as `reduce_in` if that is given."""
    return backend_of(strategy).exchange(reduce_in=reduce_in)


def make_drift_check(strategy: Any, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """Returns a function that raises a `DriftError` naming the variables, and the replicas or devices that differ."""
    return backend_of(strategy).drift_check(variables)


def _registered(table: Mapping[type, Any], value: object) -> Any:
    return next((table[cls] for cls in type(value).__mro__ if cls in table), None)
