"""Where a run computes: strategies built from gin, and the one door between their replicas."""

from core.distribution.exchange import Exchange
from core.distribution.ledger import Collective, Ledger
from core.distribution.strategies import STRATEGIES, mirrored, one_device

__all__ = ["STRATEGIES", "Collective", "Exchange", "Ledger", "mirrored", "one_device"]
