"""The machine's processor, and the cores and memory that this process may use."""

import os
import platform
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # of control groups, version 2: a number of bytes, or "max"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Returns the bytes of memory that this process may use: the machine's, or a container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTAINER.read_text().strip()
    except OSError:  # no container, or one of version 1
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine
