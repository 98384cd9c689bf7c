"""What something was measured on, and how busy that was."""

import os
import platform
from importlib.metadata import version
from typing import Any

from core.machine import processor


def machine() -> dict[str, Any]:
    """Returns the machine as it is before it is measured."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_before": load(),
        "highest_load": load(),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
    }


def load() -> float:
    """Returns how many processes wanted to compute, on average over the last minute."""
    return round(os.getloadavg()[0], 1)
