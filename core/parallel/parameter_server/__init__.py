"""Parameter servers store the variables. Workers take steps on them asynchronously."""

from core.parallel.parameter_server.backend import ServedBackend
from core.parallel.parameter_server.strategy import ServedStrategy, parameter_server

__all__ = ["ServedBackend", "ServedStrategy", "parameter_server"]
