"""Name and load of the machine that a measurement ran on."""

import os
import platform
from importlib.metadata import version
from typing import Any

from core.machine import processor


def machine() -> dict[str, Any]:
    """Returns the machine's state; call it before measuring."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_before": load(),
        "highest_load": load(),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
    }


def load() -> float:
    """Returns the average number of runnable processes in the last minute."""
    return round(os.getloadavg()[0], 1)
