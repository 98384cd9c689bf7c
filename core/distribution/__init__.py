"""Where a run computes: strategies built from gin, and the one door between their replicas."""

from core.distribution.agreement import Agreement
from core.distribution.drift import make_drift_check
from core.distribution.exchange import Exchange
from core.distribution.ledger import Collective, Ledger
from core.distribution.local_exchange import LocalExchange
from core.distribution.mesh_plan import MeshPlan, mesh
from core.distribution.mesh_strategy import MeshStrategy
from core.distribution.registry import exchange_of
from core.distribution.served_strategy import ServedStrategy, parameter_server
from core.distribution.strategies import STRATEGIES, mirrored, multi_worker, one_device, tpu

__all__ = [
    "STRATEGIES",
    "Agreement",
    "Collective",
    "Exchange",
    "Ledger",
    "LocalExchange",
    "MeshPlan",
    "MeshStrategy",
    "ServedStrategy",
    "exchange_of",
    "make_drift_check",
    "mesh",
    "mirrored",
    "multi_worker",
    "one_device",
    "parameter_server",
    "tpu",
]
