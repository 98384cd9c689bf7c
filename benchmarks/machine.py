"""What something was measured on, and how busy that was."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Returns the machine as it is before it is measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": load(),
        "highest_load": load(),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
    }


def load() -> float:
    """Returns how many processes wanted to compute, on average over the last minute."""
    return round(os.getloadavg()[0], 1)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
