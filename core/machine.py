"""How much memory there is for this process: the machine's, or what its container leaves it."""

import os
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # of control groups, version 2: a number of bytes, or "max"


def machine_memory() -> int:
    """Returns the bytes of memory that there are for a process."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTAINER.read_text().strip()
    except OSError:  # no container, or one of version 1
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine
