"""Local steps: replicas train independently within a round, and synchronize at its end."""

from core.parallel.local_steps.backend import LocalSteps
from core.parallel.local_steps.exchange import LocalExchange

__all__ = ["LocalExchange", "LocalSteps"]
