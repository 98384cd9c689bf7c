"""Where a run computes: strategies built from gin."""

from core.distribution.strategies import STRATEGIES, one_device

__all__ = ["STRATEGIES", "one_device"]
