"""What a test file leaves in the memory of its process."""

import ctypes
import gc
import sys

_LIBC = ctypes.CDLL(None)


def release() -> None:
    """Frees the graphs of functions that are no more, and returns what is free to the system.

    TensorFlow registers the gradient of each `tf.custom_gradient` that it traces for ever, and with it the whole graph:
    some 6,000 objects of Python's a training step, through which each collection goes as well.
    """
    if ops := sys.modules.get("tensorflow.python.framework.ops"):  # pytest's own process has none
        registry = ops.gradient_registry._registry
        for name in [name for name in registry if name.startswith("CustomGradient-")]:
            del registry[name]
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
