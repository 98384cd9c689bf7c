"""Where a run computes: strategies built from gin."""

from core.distribution.strategies import one_device

__all__ = ["one_device"]
