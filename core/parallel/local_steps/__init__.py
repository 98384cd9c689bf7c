"""Local steps: each replica trains alone for a round of steps, then the replicas synchronize."""

from core.parallel.local_steps.backend import LocalSteps
from core.parallel.local_steps.exchange import LocalExchange

__all__ = ["LocalExchange", "LocalSteps"]
