"""Frees the memory that tests leave in their process."""

import ctypes
import gc
import os
import sys
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_MUCH = 200 * 2**20  # bytes
_left = 0


def grown() -> bool:
    """Tells whether the process has grown much since the last `release`; always false where the system doesn't say."""
    return _resident() > _left + _MUCH


def _resident() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def release() -> None:
    """Frees the graphs and programs of dead functions, and returns free memory to the system.

    TensorFlow registers the gradient of each traced `tf.custom_gradient` for ever, and with it the whole graph: about
    6,000 Python objects per training step, which each collection visits as well. It also keeps each operation that ran
    eagerly, by shape; JAX keeps each program.
    """
    if ops := sys.modules.get("tensorflow.python.framework.ops"):  # pytest's own process has none
        registry = ops.gradient_registry._registry
        for name in [name for name in registry if name.startswith("CustomGradient-")]:
            del registry[name]
    if (eager := sys.modules.get("tensorflow.python.eager.context")) and (context := eager.context_safe()):
        context.clear_kernel_cache()
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
    global _left
    _left = _resident()
