"""Finds the `Backend` of a strategy by the strategy's type."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.backend import Backend
from core.distribution.exchange import Exchange

B = TypeVar("B", bound=type[Backend])

_BACKENDS: dict[type, type[Backend]] = {tf.distribute.Strategy: Backend}
_PLANS: dict[type, Callable[[Any], Any]] = {}


def register(strategy: type, *, plan: type | None = None) -> Callable[[B], B]:
    """Registers a class of `Backend` for the type `strategy` and its subclasses.

    An experiment may have an object of type `plan` in place of a strategy. `made_strategy` then calls `strategy` with
    this plan to make the strategy.
    """

    def registered(backend: B) -> B:
        _BACKENDS[strategy] = backend
        if plan:
            _PLANS[plan] = strategy
        return backend

    return registered


def backend_of(strategy: Any) -> Backend:
    """Returns the registered `Backend` of a strategy."""
    found = _registered(_BACKENDS, strategy)
    assert found, f"`{type(strategy).__name__}` has no backend: `@register({type(strategy).__name__})` gives it one."
    return found(strategy)


def is_strategy(value: object) -> bool:
    """Says whether `value` is a strategy with a backend, or a plan from which such a strategy is made."""
    return bool(_registered(_BACKENDS, value) or _registered(_PLANS, value))


def made_strategy(value: Any) -> Any:
    """Returns the strategy made from `value` if it is a plan. A strategy is returned unchanged."""
    make = _registered(_PLANS, value)
    return make(value) if make else value


def exchange_of(strategy: Any, *, reduce_in: tf.DType | None = None) -> Exchange:
    """Makes the exchange of a strategy. Version 0.4 removes this name."""
    say = "`exchange_of(strategy)` is `backend_of(strategy).exchange()` now: call that, for 0.4 has no other."
    warnings.warn(say, FutureWarning, stacklevel=2)
    return backend_of(strategy).exchange(reduce_in=reduce_in)


def make_drift_check(strategy: Any, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """Returns a function that raises a `DriftError` if `variables` differ between replicas or devices."""
    return backend_of(strategy).drift_check(variables)


def _registered(table: Mapping[type, Any], value: object) -> Any:
    return next((table[cls] for cls in type(value).__mro__ if cls in table), None)
