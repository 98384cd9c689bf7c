"""The memory of freed tensors is kept for the next step.

A step allocates its tensors anew. Large ones glibc asks the kernel for and gives back at once, so every step waits for
the same pages to be cleared and mapped again: half the time of a small convolutional GAN on CPUs.
"""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # as malloc.h names them


def keep_freed_memory() -> bool:
    """For the rest of the process; returns whether it is so.

    Nothing is done without glibc, or where the environment sets its allocator up (`MALLOC_...`, `GLIBC_TUNABLES`). The
    process stays as large as it once was.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if own or sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, -1))
