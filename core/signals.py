"""Delays signals while foreign code replaces their handlers."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_back(number: int) -> Iterator[None]:
    """Delays a signal, and then passes it to its earlier handler.

    The kernel delivers a signal to any thread that doesn't block it; threads started in here block it for good.
    """
    handler = signal.getsignal(number)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
