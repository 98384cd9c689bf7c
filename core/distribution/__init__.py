"""Strategies for gin files, a backend for each kind of strategy, and the exchange of values between replicas."""

import importlib
from typing import Any

from core.distribution.agreement import Agreement
from core.distribution.backend import Backend
from core.distribution.exchange import Exchange
from core.distribution.ledger import Collective, Ledger
from core.distribution.registry import backend_of, exchange_of, is_strategy, made_strategy, make_drift_check, register
from core.distribution.strategies import STRATEGIES, mirrored, multi_worker, one_device, tpu

__all__ = [
    "STRATEGIES",
    "Agreement",
    "Backend",
    "Collective",
    "Exchange",
    "Ledger",
    "backend_of",
    "exchange_of",
    "is_strategy",
    "made_strategy",
    "make_drift_check",
    "mirrored",
    "multi_worker",
    "one_device",
    "register",
    "tpu",
]

# The strategies of `core.parallel`, which is imported on first use, because it depends on the engine.
_PARALLEL = {
    "LocalExchange": "local_steps",
    "MeshPlan": "mesh",
    "MeshStrategy": "mesh",
    "ServedStrategy": "parameter_server",
    "mesh": "mesh",
    "parameter_server": "parameter_server",
}


def __getattr__(name: str) -> Any:
    if name not in _PARALLEL:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(importlib.import_module(f"core.parallel.{_PARALLEL[name]}"), name)
