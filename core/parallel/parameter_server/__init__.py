"""Parameter servers: workers take steps asynchronously, on variables that servers store."""

from core.parallel.parameter_server.backend import ServedBackend
from core.parallel.parameter_server.strategy import ServedStrategy, parameter_server

__all__ = ["ServedBackend", "ServedStrategy", "parameter_server"]
